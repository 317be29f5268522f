//go:build cgo && linux && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package cverbs

// #cgo LDFLAGS: -libverbs
// #include "shims.h"
import "C"

import (
	"errors"
	"syscall"
)

// Context is struct ibv_context *. The zero value of a handle is no object.
type Context struct{ p *C.struct_ibv_context }

// PD is struct ibv_pd *.
type PD struct{ p *C.struct_ibv_pd }

// MR is struct ibv_mr *.
type MR struct{ p *C.struct_ibv_mr }

// CQ is struct ibv_cq *.
type CQ struct{ p *C.struct_ibv_cq }

// CompChannel is struct ibv_comp_channel *.
type CompChannel struct{ p *C.struct_ibv_comp_channel }

// QP is struct ibv_qp *.
type QP struct{ p *C.struct_ibv_qp }

// SRQ is struct ibv_srq *.
type SRQ struct{ p *C.struct_ibv_srq }

// AH is struct ibv_ah *.
type AH struct{ p *C.struct_ibv_ah }

// MW is struct ibv_mw *.
type MW struct{ p *C.struct_ibv_mw }

func errnoOf(rc C.int) error {
	if rc == 0 {
		return nil
	}
	return syscall.Errno(rc)
}

// failed returns the errno of a call that returned NULL. Some providers leave none.
func failed(err error) error {
	if errno := syscall.Errno(0); errors.As(err, &errno) && errno != 0 {
		return errno
	}
	return syscall.EPROTO
}
