//go:build cgo && linux && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package cverbs

// #include "shims.h"
import "C"

import (
	"syscall"
	"unsafe"
)

// PostSend stands for ibv_post_send of the first n WRs of s. With an error, bad is
// the index of the WR that was refused, or None.
func PostSend(qp uintptr, s *Scratch[SendWR], n int) (bad int, err syscall.Errno) {
	return unpack(uint64(C.gv_post_send(C.uintptr_t(qp), C.uintptr_t(s.chain(n)), C.uint32_t(n))))
}

// PostRecv stands for ibv_post_recv, as PostSend does for ibv_post_send.
func PostRecv(qp uintptr, s *Scratch[RecvWR], n int) (bad int, err syscall.Errno) {
	return unpack(uint64(C.gv_post_recv(C.uintptr_t(qp), C.uintptr_t(s.chain(n)), C.uint32_t(n))))
}

// PostSRQRecv stands for ibv_post_srq_recv, as PostSend does for ibv_post_send.
func PostSRQRecv(srq uintptr, s *Scratch[RecvWR], n int) (bad int, err syscall.Errno) {
	return unpack(uint64(C.gv_post_srq_recv(C.uintptr_t(srq), C.uintptr_t(s.chain(n)), C.uint32_t(n))))
}

func unpack(v uint64) (int, syscall.Errno) {
	if index := uint32(v); index != C.GV_NONE {
		return int(index), syscall.Errno(v >> 32)
	}
	return None, syscall.Errno(v >> 32)
}

// PollCQ stands for ibv_poll_cq of up to n completions into s. A negative result
// is an error that has no cause.
func PollCQ(cq uintptr, s *Scratch[WC], n int) int {
	return int(C.gv_poll_cq(C.uintptr_t(cq), C.uintptr_t(s.addr()), C.int(n)))
}

func calloc(size uintptr) unsafe.Pointer { return C.calloc(1, C.size_t(size)) }

func free(p unsafe.Pointer) { C.free(p) }
