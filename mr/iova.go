package mr

import (
	"fmt"
	"math"
	"os"
	"runtime"
	"syscall"

	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/core"
)

// RegisterIOVA registers a whole buffer as Register does, but work requests and peers
// name its bytes by addresses from iova on, whatever the memory's own address is. 0
// makes an address the offset in the region. Region's SGE follows.
//
// A Buffer begins at a page, so iova must be a whole number of pages.
//
// Implements: ibv_reg_mr_iova
func RegisterIOVA(pd *ibv.PD, buf *Buffer, iova uint64, access ibv.AccessFlags) (*Region, error) {
	const op = "ibv_reg_mr_iova"
	defer runtime.KeepAlive(buf)
	if buf == nil || buf.s == nil {
		return nil, regError(op, pd, syscall.EINVAL, noBuffer)
	}
	return register(op, pd, &regionState{mem: buf.s.bytes(), buf: buf.s, MR: core.MR{Access: uint32(access), Addr: iova}, fixed: true})
}

// IOVA returns the address by which work requests and peers name the first byte: where
// the memory is in this process, unless the region was registered with another.
func (r *Region) IOVA() uint64 { return r.s.Addr }

// setAddr makes addr, where the memory is, the region's address, unless its access
// flags say that addresses count from zero. Some kernels take that flag and count from
// addr all the same, so zero is then asked for like any other address.
func (s *regionState) setAddr(addr uint64) {
	s.Addr, s.fixed = addr, false
	if s.access()&ibv.AccessZeroBased != 0 {
		s.Addr, s.fixed = 0, true
	}
}

// checkIOVA says what is wrong with the address of memory that is at addr. Devices
// translate whole pages.
func (s *regionState) checkIOVA(addr uint64) string {
	page := uint64(os.Getpagesize())
	switch {
	case s.access()&ibv.AccessZeroBased != 0 && s.Addr != 0:
		return fmt.Sprintf("ZeroBased means addresses from 0 on, not from %#x", s.Addr)
	case s.Len > 0 && s.Addr > math.MaxUint64-uint64(s.Len-1):
		return fmt.Sprintf("%d bytes from IOVA %#x on pass the end of the address space", s.Len, s.Addr)
	case s.Addr%page != addr%page:
		return fmt.Sprintf("IOVA %#x is %d bytes into a page of %d and the memory %d: both must be the same", s.Addr, s.Addr%page, page, addr%page)
	}
	return ""
}

const odpSupport = 1 << 0 // IBV_ODP_SUPPORT

// checkAccess refuses access flags that contradict themselves, or that the device says
// that it does not have.
func checkAccess(access ibv.AccessFlags, ctx *core.Context) *ibv.OpError {
	if err := access.Check(); err != nil {
		return &ibv.OpError{Err: syscall.EINVAL, Reason: err.Error()}
	}
	if access&ibv.AccessOnDemand != 0 && ctx.Attr.ODPGeneralCaps&odpSupport == 0 {
		return &ibv.OpError{Err: syscall.EOPNOTSUPP, Reason: "OnDemand: the device has no on-demand paging (its ODPGeneralCaps are 0)"}
	}
	return nil
}

// mustHold panics if the n bytes from off are not inside the region.
func (s *regionState) mustHold(off, n int) {
	if off < 0 || n < 0 || off > s.Len || n > s.Len-off {
		panic(fmt.Sprintf("mr: an SGE of %d bytes from %d on is outside a region of %d", n, off, s.Len))
	}
}
