//go:build cgo && linux && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package cverbs

// #include "shims.h"
import "C"

import "unsafe"

// AllocMW stands for ibv_alloc_mw of a window of type 1 or 2.
func AllocMW(pd PD, typ int32) (mw MW, rkey uint32, err error) {
	p, err := C.gv_alloc_mw(pd.p, C.int(typ))
	if p == nil {
		return MW{}, 0, failed(err)
	}
	return MW{p}, uint32(p.rkey), nil
}

// DeallocMW stands for ibv_dealloc_mw.
func DeallocMW(mw MW) error { return errnoOf(C.gv_dealloc_mw(mw.p)) }

// SetMWRKey sets mw->rkey, by which some providers name the window to the device that is
// to bind it. Who binds one of type 2 must set it, and who learns that a bind failed.
func SetMWRKey(mw MW, rkey uint32) { mw.p.rkey = C.uint32_t(rkey) }

// MWAddr returns the address that SetBind takes.
func MWAddr(mw MW) uintptr { return uintptr(unsafe.Pointer(mw.p)) }

// BindMW stands for ibv_bind_mw, which posts the bind of a window of type 1 to the send
// queue, and sets its rkey to the next. No length unbinds it, but some providers crash
// without a region.
func BindMW(qp QP, mw MW, wrID uint64, flags uint32, mr MR, addr, length uint64, access uint32) error {
	return errnoOf(C.gv_bind_mw(qp.p, mw.p, C.uint64_t(wrID), C.uint(flags),
		mr.p, C.uint64_t(addr), C.uint64_t(length), C.uint(access)))
}
