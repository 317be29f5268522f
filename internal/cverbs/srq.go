//go:build cgo && linux && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package cverbs

// #include "shims.h"
import "C"

import "unsafe"

// CreateSRQ stands for ibv_create_srq. It returns what was granted.
func CreateSRQ(pd PD, ask SRQAttr) (srq SRQ, granted SRQAttr, err error) {
	init := C.struct_ibv_srq_init_attr{attr: srqToC(&ask)}
	p, err := C.ibv_create_srq(pd.p, &init)
	if p == nil {
		return SRQ{}, SRQAttr{}, failed(err)
	}
	return SRQ{p}, srqFromC(&init.attr), nil
}

// ModifySRQ stands for ibv_modify_srq.
func ModifySRQ(srq SRQ, a SRQAttr, mask uint32) error {
	c := srqToC(&a)
	return errnoOf(C.gv_modify_srq(srq.p, &c, C.int(mask)))
}

// QuerySRQ stands for ibv_query_srq.
func QuerySRQ(srq SRQ) (SRQAttr, error) {
	var c C.struct_ibv_srq_attr
	if err := errnoOf(C.gv_query_srq(srq.p, &c)); err != nil {
		return SRQAttr{}, err
	}
	return srqFromC(&c), nil
}

// DestroySRQ stands for ibv_destroy_srq.
func DestroySRQ(srq SRQ) error { return errnoOf(C.gv_destroy_srq(srq.p)) }

// SRQHandle returns the kernel's number of a shared receive queue in its context.
func SRQHandle(srq SRQ) uint32 { return uint32(srq.p.handle) }

// SRQAddr returns the address that PostSRQRecv takes.
func SRQAddr(srq SRQ) uintptr { return uintptr(unsafe.Pointer(srq.p)) }

func srqToC(a *SRQAttr) C.struct_ibv_srq_attr {
	return C.struct_ibv_srq_attr{
		max_wr:    C.uint32_t(a.MaxWR),
		max_sge:   C.uint32_t(a.MaxSGE),
		srq_limit: C.uint32_t(a.Limit),
	}
}

func srqFromC(c *C.struct_ibv_srq_attr) SRQAttr {
	return SRQAttr{MaxWR: uint32(c.max_wr), MaxSGE: uint32(c.max_sge), Limit: uint32(c.srq_limit)}
}
