package mr

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/core"
	"github.com/goverbs/goverbs/internal/cverbs"
	"github.com/goverbs/goverbs/internal/life"
)

// Region is registered memory: a memory region. Its methods, but for Rereg, may be
// called from several goroutines; its bytes follow the rules of the package.
//
// Implements: ibv_mr
type Region struct {
	s   *regionState
	ref core.MRRef // what SGEs hold
}

// regionState adds to what work requests need of a region what this package does.
type regionState struct {
	core.MR
	buf   *bufferState   // that mem is, or nil
	mem   []byte         // nil for a dma-buf
	fixed bool           // Addr was chosen when registering, it is not where mem was
	pages []byte         // allocated for the region alone, and freed with it
	pin   runtime.Pinner // for memory that a Go slice owns

	closed  atomic.Bool // deregistered
	seen    atomic.Bool // Bytes was called
	reaping atomic.Bool // the collector, not the program, ends the region
	spoiled bool        // a failed Rereg left no registration that holds
}

func withAccess(access ibv.AccessFlags) core.MR { return core.MR{Access: uint32(access)} }

func (s *regionState) access() ibv.AccessFlags { return ibv.AccessFlags(s.Access) }

// Register registers a whole buffer with a protection domain. The buffer stays the
// caller's to close, after the region.
//
// It refuses remote write or atomic rights without local write. Memory that exceeds
// what the process may lock is an error that matches ibv.ErrMemlock and says the
// limit.
//
// Implements: ibv_reg_mr
func Register(pd *ibv.PD, buf *Buffer, access ibv.AccessFlags) (*Region, error) {
	defer runtime.KeepAlive(buf)
	if buf == nil || buf.s == nil {
		return nil, regError(opReg, pd, syscall.EINVAL, noBuffer)
	}
	return register(opReg, pd, &regionState{mem: buf.s.bytes(), buf: buf.s, MR: withAccess(access)})
}

// AllocRegion allocates a buffer of size bytes and registers it. Closing the region
// frees the buffer too.
func AllocRegion(pd *ibv.PD, size int, access ibv.AccessFlags) (*Region, error) {
	pages, err := alloc(size, os.Getpagesize(), 0)
	if err != nil {
		return nil, err
	}
	region, err := register(opReg, pd, &regionState{mem: pages[:size:size], pages: pages, MR: withAccess(access)})
	if err != nil {
		return nil, errors.Join(err, unmapMemory(pages))
	}
	return region, nil
}

// RegisterSlice registers memory of the Go heap, which it pins until the region is
// closed. It is a sharp tool: the collector cannot move or free the memory
// meanwhile, the pages at both ends are shared with other Go data, which the device
// cannot reach but locks all the same, and a slice that grows by append leaves the
// registered memory behind. Prefer AllocRegion.
//
// Implements: ibv_reg_mr
func RegisterSlice(pd *ibv.PD, b []byte, access ibv.AccessFlags) (*Region, error) {
	if len(b) == 0 {
		return nil, regError(opReg, pd, syscall.EINVAL, "no memory: the slice is empty")
	}
	s := &regionState{mem: b[:len(b):len(b)], MR: withAccess(access)}
	s.pin.Pin(unsafe.SliceData(b))
	region, err := register(opReg, pd, s)
	if err != nil {
		s.pin.Unpin()
	}
	return region, err
}

func register(op string, pd *ibv.PD, s *regionState) (*Region, error) {
	addr := addrOf(s.mem)
	s.Len = len(s.mem)
	if !s.fixed {
		s.setAddr(uint64(addr))
	}
	c, err := s.begin(op, pd)
	if err != nil {
		return nil, err
	}
	if reason := s.checkIOVA(uint64(addr)); reason != "" {
		s.abandon()
		return nil, regError(op, pd, syscall.EINVAL, reason)
	}
	var h cverbs.MR
	if s.fixed {
		h, err = cverbs.RegMRIOVA(c.H, addr, s.Len, s.Addr, s.Access)
	} else {
		h, err = cverbs.RegMR(c.H, addr, s.Len, s.Access)
	}
	if err != nil {
		s.abandon()
		return nil, refused(op, pd, s, err)
	}
	return s.finish(h), nil
}

func addrOf(mem []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(mem))) }

// begin enters the region into the graph, before it is registered.
func (s *regionState) begin(op string, pd *ibv.PD) (*core.PD, error) {
	c := pd.Core()
	if c == nil {
		return nil, regError(op, pd, syscall.EINVAL, "no protection domain: the PD is nil")
	}
	if err := checkAccess(s.access(), c.Ctx); err != nil {
		return nil, regError(op, pd, err.Err, err.Reason)
	}
	parents := []*life.Node{&c.Node}
	if s.buf != nil {
		parents = append(parents, &s.buf.Node)
	}
	if err := s.Init("MR", s.destroy, parents...); err != nil {
		return nil, regError(op, pd, err, "")
	}
	if err := s.Enter(); err != nil {
		s.Discard()
		return nil, regError(op, pd, err, "")
	}
	s.PD = c
	return c, nil
}

// abandon undoes begin.
func (s *regionState) abandon() {
	s.Leave()
	s.Discard()
}

// finish takes over what was registered.
func (s *regionState) finish(h cverbs.MR) *Region {
	s.H = h
	s.LKey, s.RKey = cverbs.Keys(h)
	s.Local = uint64(addrOf(s.mem))
	s.Reap(s.mayReap)
	s.Ready(s.label())
	r := &Region{s: s, ref: core.MRRef{MR: &s.MR}}
	life.Guard(r, &s.Node)
	return r
}

func (s *regionState) label() string { return fmt.Sprintf("lkey %#x of %s", s.LKey, s.PD.Ctx.Name) }

// What memlock answers where there is no limit.
const unlimited = "unlimited"

const (
	opReg    = "ibv_reg_mr"
	noBuffer = "no memory: the Buffer is nil"
)

func regError(op string, pd *ibv.PD, err error, reason string) *ibv.OpError {
	e := &ibv.OpError{Op: op, Err: err, Reason: reason}
	if c := pd.Core(); c != nil {
		e.Object = c.String()
	}
	return e
}

// refused explains an errno of the registration: ENOMEM nearly always is the limit
// of locked memory, which no message of the kernel says.
func refused(op string, pd *ibv.PD, s *regionState, err error) error {
	e := regError(op, pd, err, "")
	size := s.Len
	switch {
	case uint64(size) > pd.Core().Ctx.Attr.MaxMRSize:
		e.Reason = fmt.Sprintf("%d bytes are more than the device's max_mr_size %d", size, pd.Core().Ctx.Attr.MaxMRSize)
	case errors.Is(err, syscall.ENOMEM) && memlock() == unlimited:
		e.Reason = fmt.Sprintf("the system or the device has no room left to register %d bytes", size)
	case errors.Is(err, syscall.ENOMEM), errors.Is(err, syscall.EPERM):
		e.Kind = ibv.ErrMemlock
		e.Reason = fmt.Sprintf("cannot lock %d bytes of memory; the limit of this process is %s (ulimit -l); raise it "+
			"(LimitMEMLOCK= in systemd, --ulimit memlock=-1 for a container, /etc/security/limits.conf) or give it CAP_IPC_LOCK", size, memlock())
	case errors.Is(err, syscall.EFAULT):
		e.Reason = fmt.Sprintf("the memory is not mapped with the rights that %v needs", s.access())
	case errors.Is(err, syscall.EINVAL), errors.Is(err, syscall.EOPNOTSUPP):
		e.Reason = fmt.Sprintf("the device refuses the access flags %v", s.access())
		if s.access()&ibv.AccessZeroBased != 0 {
			e.Reason += "; RegisterIOVA at 0 does the same without ZeroBased"
		}
	}
	return e
}

// Bytes returns the registered memory. The slice, and every slice made from it, must
// not be used after the memory is freed: by the region's Close for AllocRegion.
//
// It returns nil after Close, and for a dma-buf, whose memory this process cannot see.
func (r *Region) Bytes() []byte {
	if r.s.closed.Load() {
		return nil
	}
	r.s.seen.Store(true)
	if r.s.buf != nil {
		r.s.buf.seen.Store(true)
	}
	return r.s.mem
}

// Len returns the length in bytes.
func (r *Region) Len() int { return r.s.Len }

// LKey returns the key that SGEs of this process use.
func (r *Region) LKey() uint32 { return r.s.LKey }

// RKey returns the key that a peer uses, if Access has remote rights.
func (r *Region) RKey() uint32 { return r.s.RKey }

// Access returns the rights that the region was registered with.
func (r *Region) Access() ibv.AccessFlags { return r.s.access() }

// String names the region and its device.
func (r *Region) String() string { return r.s.String() }

const maxSGE = 1<<32 - 1

// SGE returns the piece of the region from off, n bytes long, for a work request. It
// panics if the piece is not inside the region, as slicing does. After Close, which may come
// from another goroutine, it is the post that refuses it, with ibv.ErrClosed. An SGE has at
// most 4 GiB - 1.
func (r *Region) SGE(off, n int) ibv.SGE {
	r.s.mustHold(off, n)
	if uint64(n) > maxSGE {
		panic(fmt.Sprintf("mr: an SGE of %d bytes is longer than %d", n, uint64(maxSGE)))
	}
	return ibv.NewSGE(&r.ref, r.s.Addr+uint64(off), uint32(n))
}

// Remote returns what a peer needs to reach the region, as far as its access flags and
// those of the queue pair allow. Slice gives a part of it.
func (r *Region) Remote() ibv.RemoteRange {
	return ibv.RemoteRange{Addr: r.s.Addr, Length: uint64(r.s.Len), RKey: r.s.RKey}
}

// MWBind says that a memory window is to be n bytes of the region from off, for a peer
// that may do what access says. It panics if they are not inside the region, as SGE does.
// The region needs AccessMWBind, and AccessLocalWrite for remote write and atomics.
func (r *Region) MWBind(mw *ibv.MW, off, n int, access ibv.AccessFlags) ibv.MWBind {
	r.s.mustHold(off, n)
	return ibv.NewMWBind(mw, &r.ref, r.s.Addr+uint64(off), uint64(n), access)
}

// InFlight returns how many work requests that use the region are posted and have not
// completed. What peers do with it is not known here.
func (r *Region) InFlight() int { return r.s.InFlight() }
