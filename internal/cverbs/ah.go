//go:build cgo && linux && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package cverbs

// #include "shims.h"
import "C"

import "unsafe"

// CreateAH stands for ibv_create_ah.
func CreateAH(pd PD, a AHAttr) (AH, error) {
	c := ahToC(&a)
	p, err := C.ibv_create_ah(pd.p, &c)
	if p == nil {
		return AH{}, failed(err)
	}
	return AH{p}, nil
}

// DestroyAH stands for ibv_destroy_ah.
func DestroyAH(ah AH) error { return errnoOf(C.gv_destroy_ah(ah.p)) }

// AHAddr returns the address that SetUD takes.
func AHAddr(ah AH) uintptr { return uintptr(unsafe.Pointer(ah.p)) }

// InitAHFromWC stands for ibv_init_ah_from_wc: the way back to the sender of the
// datagram that completed with wc. The GRH is not read where wc says that there is none.
func InitAHFromWC(c Context, port uint8, wc WC, grh [GRHSize]byte) (AHAttr, error) {
	var a C.struct_ibv_ah_attr
	err := errnoOf(C.gv_init_ah_from_wc(c.p, C.uint8_t(port), unsafe.Pointer(&wc), unsafe.Pointer(&grh), &a))
	if err != nil {
		return AHAttr{}, err
	}
	return ahFromC(&a), nil
}
