package mr

import (
	"errors"
	"fmt"
	"runtime"
	"syscall"

	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/core"
	"github.com/goverbs/goverbs/internal/cverbs"
	"github.com/goverbs/goverbs/internal/inflight"
)

//go:generate go run golang.org/x/tools/cmd/stringer@v0.52.0 -type=ReregCode,Registration -linecomment -output=rereg_string.go

// ReregMask names the fields of a [ReregAttr] that Rereg changes.
//
// Implements: ibv_rereg_mr_flags
type ReregMask uint32

// The fields.
const (
	ReregTranslation ReregMask = 1 << 0 // ReregAttr.Buffer
	ReregPD          ReregMask = 1 << 1
	ReregAccess      ReregMask = 1 << 2
)

// ReregAttr is what a region can become. A [ReregMask] beside it says which fields count.
type ReregAttr struct {
	Buffer *Buffer
	PD     *ibv.PD // of the same device
	Access ibv.AccessFlags
}

// ReregCode is the result of ibv_rereg_mr, which is no errno.
//
// Implements: ibv_rereg_mr_err_code
type ReregCode int32

// The codes.
const (
	ReregErrInput           ReregCode = -1 // input
	ReregErrDontForkNew     ReregCode = -2 // don't fork on the new memory
	ReregErrDoForkOld       ReregCode = -3 // do fork on the old memory
	ReregErrCmd             ReregCode = -4 // command
	ReregErrCmdAndDoForkNew ReregCode = -5 // command, and do fork on the new memory
)

// Registration says what a region is after Rereg.
type Registration uint8

// The registrations.
const (
	RegistrationOld  Registration = iota + 1 // as it was
	RegistrationNew                          // as was asked for
	RegistrationNone                         // unusable
)

// ReregError is the error of Rereg. Errors.Is finds the errno and the sentinel.
type ReregError struct {
	ibv.OpError
	Code ReregCode // C's result, 0 where C was not called
	// Holds is what the region is now. With RegistrationNone nothing may use it any more,
	// and all that is left is to close it.
	Holds Registration
}

// Unwrap returns the OpError.
func (e *ReregError) Unwrap() error { return &e.OpError }

// Rereg changes what the region is: its memory, its protection domain, its access flags,
// or several of these. Its keys may change: give the new ones to whoever has the old.
// Nothing may use the region meanwhile: no work request, no peer, and no other method.
//
// New memory is a whole Buffer, and IOVA becomes its address. A Buffer that the region
// had may be closed afterwards; memory of AllocRegion or RegisterSlice stays the
// region's until its Close.
//
// An error is a *ReregError, whose Holds says which registration the region has. By C's
// result code that is:
//
//	none                     the old one, if there is one: refused before the call
//	ReregErrInput            the old one
//	ReregErrDontForkNew      the old one
//	ReregErrDoForkOld        the new one; but a forked child still goes without the old memory
//	ReregErrCmd              none; with ErrNotSupported, where nothing was tried, the old one
//	ReregErrCmdAndDoForkNew  none, as for ReregErrCmd
//
// Where no registration holds, old and new Buffer and PD stay in use until Close.
//
// Implements: ibv_rereg_mr
func (r *Region) Rereg(attr ReregAttr, mask ReregMask) error {
	defer runtime.KeepAlive(r)
	defer runtime.KeepAlive(attr) // and the handles in it, until the region holds them
	s := r.s
	fail := func(err error, reason string) error {
		holds := RegistrationOld
		if s.spoiled {
			holds = RegistrationNone
		}
		return &ReregError{Holds: holds, OpError: ibv.OpError{Op: opRereg, Object: s.String(), Err: err, Reason: reason}}
	}
	if err := s.Use(); err != nil {
		return fail(err, "")
	}
	defer s.Done()
	if err := s.checkRereg(&attr, mask); err != nil {
		return fail(err.Err, err.Reason)
	}
	next := s.changed(&attr, mask)
	if err := s.hold(next); err != nil {
		return fail(err, "")
	}
	var pd cverbs.PD
	var addr uintptr
	var length int
	var access ibv.AccessFlags
	if mask&ReregTranslation != 0 {
		addr, length = addrOf(next.mem), len(next.mem)
		next.addr = uint64(addr)
	}
	if mask&ReregPD != 0 {
		pd = next.pd.H
	}
	if mask&ReregAccess != 0 {
		access = next.access
	}
	// A post must find the one or the other, and the device finish with the old.
	if n := s.Shut(); n > 0 {
		s.release(next)
		return fail(&inflight.BusyError{InFlight: n}, "")
	}
	if err := s.Busy(); err != nil { // a bound memory window
		s.Reopen()
		s.release(next)
		return fail(err, "")
	}
	defer func() {
		if !s.spoiled { // else nothing may use it any more
			s.Reopen()
		}
	}()
	code, err := cverbs.ReregMR(s.H, uint32(mask), pd, addr, length, uint32(access))
	return s.settle(next, ReregCode(code), err)
}

const opRereg = "ibv_rereg_mr"

// holding is what a rereg can change.
type holding struct {
	pd     *core.PD
	buf    *bufferState
	mem    []byte
	addr   uint64
	access ibv.AccessFlags
}

func (s *regionState) holding() holding { return holding{s.PD, s.buf, s.mem, s.Addr, s.access()} }

// changed returns what the region is to be, but for the address of new memory.
func (s *regionState) changed(attr *ReregAttr, mask ReregMask) holding {
	h := s.holding()
	if mask&ReregTranslation != 0 {
		h.buf, h.mem = attr.Buffer.s, attr.Buffer.s.bytes()
	}
	if mask&ReregPD != 0 {
		h.pd = attr.PD.Core()
	}
	if mask&ReregAccess != 0 {
		h.access = attr.Access
	}
	return h
}

func (s *regionState) checkRereg(attr *ReregAttr, mask ReregMask) *ibv.OpError {
	refuse := func(format string, args ...any) *ibv.OpError {
		return &ibv.OpError{Err: syscall.EINVAL, Reason: fmt.Sprintf(format, args...)}
	}
	access := s.access()
	if mask&ReregAccess != 0 {
		access = attr.Access
		if err := checkAccess(access, s.PD.Ctx); err != nil {
			return err
		}
	}
	switch {
	case s.spoiled:
		return refuse("an earlier Rereg left no registration that holds: close the region")
	case s.mem == nil:
		return refuse("a region of a dma-buf cannot be changed")
	case mask == 0 || mask&^(ReregTranslation|ReregPD|ReregAccess) != 0:
		return refuse("ReregMask %#x: use ReregTranslation, ReregPD and ReregAccess", uint32(mask))
	case mask&ReregTranslation != 0 && (attr.Buffer == nil || attr.Buffer.s == nil):
		return refuse(noBuffer)
	case mask&ReregPD != 0 && attr.PD.Core() == nil:
		return refuse("no protection domain: the PD is nil")
	case mask&ReregPD != 0 && attr.PD.Core().Ctx != s.PD.Ctx:
		return refuse("%s belongs to another device, or to the device opened again", attr.PD.Core())
	case (access^s.access())&ibv.AccessZeroBased != 0:
		return refuse("ZeroBased cannot be changed: register the memory anew")
	case mask&ReregTranslation != 0 && access&ibv.AccessZeroBased != 0:
		return refuse("new memory is named by its own addresses, which ZeroBased contradicts: register it anew")
	}
	return nil
}

// hold keeps what h has from being closed, until release. What the region has already
// counts twice meanwhile.
func (s *regionState) hold(h holding) error {
	if err := s.Attach(&h.pd.Node); err != nil {
		return err
	}
	if h.buf == nil {
		return nil
	}
	if err := s.Attach(&h.buf.Node); err != nil {
		s.Detach(&h.pd.Node)
		return err
	}
	return nil
}

func (s *regionState) release(h holding) {
	s.Detach(&h.pd.Node)
	if h.buf != nil {
		s.Detach(&h.buf.Node)
	}
}

// settle makes of the region what the result says that it is now.
func (s *regionState) settle(next holding, code ReregCode, err error) error {
	name, old, holds := s.String(), s.holding(), RegistrationNew
	if err != nil {
		holds = code.holds(err)
	}
	switch holds {
	case RegistrationOld:
		s.release(next)
	case RegistrationNew:
		s.release(old)
		s.PD, s.buf, s.mem, s.Addr, s.Access = next.pd, next.buf, next.mem, next.addr, uint32(next.access)
		s.Len, s.Local = len(s.mem), uint64(addrOf(s.mem))
		s.LKey, s.RKey = cverbs.Keys(s.H)
		s.Rename(s.label())
	case RegistrationNone:
		s.spoiled = true
	}
	if err == nil {
		return nil
	}
	return &ReregError{Code: code, Holds: holds, OpError: ibv.OpError{Op: opRereg, Object: name, Err: err, Reason: code.reason(holds, err)}}
}

// holds returns what the region is after a rereg that ended so.
func (c ReregCode) holds(err error) Registration {
	switch {
	case c == ReregErrInput || c == ReregErrDontForkNew:
		return RegistrationOld
	case c == ReregErrDoForkOld:
		return RegistrationNew
	case errors.Is(err, syscall.EOPNOTSUPP):
		return RegistrationOld // the command does not exist, or not for these fields
	}
	return RegistrationNone
}

func (c ReregCode) reason(holds Registration, err error) string {
	what := fmt.Sprintf("failed at: %v; ", c)
	if errors.Is(err, syscall.EOPNOTSUPP) {
		what = "the device, or its provider, cannot do it: register the memory anew instead; "
	}
	switch holds {
	case RegistrationOld:
		return what + "the region is as it was"
	case RegistrationNew:
		return what + "the region is as was asked for"
	}
	return what + "the region must not be used any more: close it"
}
