//go:build cgo && linux && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package cverbs

// #include "shims.h"
import "C"

import (
	"syscall"
	"unsafe"
)

// AllocPD stands for ibv_alloc_pd.
func AllocPD(c Context) (PD, error) {
	p, err := C.ibv_alloc_pd(c.p)
	if p == nil {
		return PD{}, failed(err)
	}
	return PD{p}, nil
}

// DeallocPD stands for ibv_dealloc_pd.
func DeallocPD(pd PD) error { return errnoOf(C.gv_dealloc_pd(pd.p)) }

// RegMR stands for ibv_reg_mr. The memory at addr must neither move nor be freed
// before DeregMR. It comes as an integer because cgo would check all of the object
// around it for pointers, which the device does not follow.
func RegMR(pd PD, addr uintptr, length int, access uint32) (MR, error) {
	p, err := C.gv_reg_mr(pd.p, C.uintptr_t(addr), C.size_t(length), C.uint(access))
	if p == nil {
		return MR{}, failed(err)
	}
	return MR{p}, nil
}

// RegMRIOVA stands for ibv_reg_mr_iova: as RegMR, but work requests and peers name the
// memory by addresses from iova on.
func RegMRIOVA(pd PD, addr uintptr, length int, iova uint64, access uint32) (MR, error) {
	p, err := C.gv_reg_mr_iova(pd.p, C.uintptr_t(addr), C.size_t(length), C.uint64_t(iova), C.uint(access))
	if p == nil {
		return MR{}, failed(err)
	}
	return MR{p}, nil
}

// RegDMABufMR stands for ibv_reg_dmabuf_mr.
func RegDMABufMR(pd PD, fd int, offset, length, iova uint64, access uint32) (MR, error) {
	p, err := C.ibv_reg_dmabuf_mr(pd.p, C.uint64_t(offset), C.size_t(length), C.uint64_t(iova), C.int(fd), C.int(access))
	if p == nil {
		return MR{}, failed(err)
	}
	return MR{p}, nil
}

// ReregMR stands for ibv_rereg_mr. With an error, code is one of C's enum
// ibv_rereg_mr_err_code and the error the errno that was left, EPROTO for none. The keys
// may have changed.
func ReregMR(mr MR, flags uint32, pd PD, addr uintptr, length int, access uint32) (code int32, err error) {
	var left C.int
	rc := C.gv_rereg_mr(mr.p, C.int(flags), pd.p, C.uintptr_t(addr), C.size_t(length), C.uint(access), &left)
	switch {
	case rc == 0:
		return 0, nil
	case left == 0:
		return int32(rc), syscall.EPROTO
	}
	return int32(rc), syscall.Errno(left)
}

// MRAddr returns the address that SetBind takes.
func MRAddr(mr MR) uintptr { return uintptr(unsafe.Pointer(mr.p)) }

// Keys returns the lkey and the rkey of a memory region.
func Keys(mr MR) (lkey, rkey uint32) { return uint32(mr.p.lkey), uint32(mr.p.rkey) }

// DeregMR stands for ibv_dereg_mr.
func DeregMR(mr MR) error { return errnoOf(C.gv_dereg_mr(mr.p)) }

// CreateCQ stands for ibv_create_cq; ch is zero for no completion channel. It returns
// how many entries were granted.
func CreateCQ(c Context, entries int, ch CompChannel, vector int) (cq CQ, granted int, err error) {
	p, err := C.ibv_create_cq(c.p, C.int(entries), nil, ch.p, C.int(vector))
	if p == nil {
		return CQ{}, 0, failed(err)
	}
	return CQ{p}, int(p.cqe), nil
}

// DestroyCQ stands for ibv_destroy_cq.
func DestroyCQ(cq CQ) error { return errnoOf(C.gv_destroy_cq(cq.p)) }

// PDHandle returns the kernel's number of a protection domain in its context.
func PDHandle(pd PD) uint32 { return uint32(pd.p.handle) }

// CQHandle returns the kernel's number of a completion queue in its context.
func CQHandle(cq CQ) uint32 { return uint32(cq.p.handle) }
