//go:build cgo && linux && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package fakedev

// #include "yardstick.h"
import "C"

import (
	"fmt"
	"syscall"
	"unsafe"
)

// BareCall is a call into C that does nothing, with arguments like those of a post:
// the least that any verb can cost.
func BareCall(a, b uintptr, c uint32) uint64 {
	return uint64(C.fd_bare(C.uintptr_t(a), C.uintptr_t(b), C.uint32_t(c)))
}

// Yardstick is a queue pair of a Null device for code that benchmarks compare with.
type Yardstick struct{ qp *C.struct_ibv_qp }

// Yardstick returns the queue pair with number qpn.
func (d *Device) Yardstick(qpn uint32) Yardstick {
	qp := C.fd_yard_qp(d.c, C.uint32_t(qpn))
	if qp == nil {
		d.t.Fatalf("%s: there is no QP %#x", d.name, qpn)
	}
	return Yardstick{qp}
}

// Loop is the loop in C: it posts total signaled sends in batches of n, with k SGEs
// each, and polls their completions. total is a multiple of n.
func (y Yardstick) Loop(total, n, k int, addr uint64, lkey uint32) error {
	if rc := C.fd_loop(y.qp, C.uint64_t(total), C.uint32_t(n), C.uint32_t(k), C.uint64_t(addr), C.uint32_t(lkey)); rc != 0 {
		return syscall.Errno(rc)
	}
	return nil
}

// The structs of the plain binding.
type (
	// PlainWR is its work request.
	PlainWR struct {
		WRID   uint64
		Opcode uint32
		Flags  uint32
		SGEs   []PlainSGE
	}
	// PlainSGE is its SGE.
	PlainSGE struct {
		Addr   uint64
		Length uint32
		LKey   uint32
	}
	// PlainWC is its completion.
	PlainWC struct {
		WRID   uint64
		Status int
		Opcode int
		Length uint32
		QPNum  uint32
	}
)

// PlainPost is how bindings are written that think of nothing: one call a work request,
// each converted to C's struct on the way.
func (y Yardstick) PlainPost(wr PlainWR) error {
	sges := (*[1 << 10]C.struct_ibv_sge)(C.calloc(C.size_t(len(wr.SGEs)), C.sizeof_struct_ibv_sge))
	defer C.free(unsafe.Pointer(sges))
	for i, s := range wr.SGEs {
		sges[i].addr = C.uint64_t(s.Addr)
		sges[i].length = C.uint32_t(s.Length)
		sges[i].lkey = C.uint32_t(s.LKey)
	}
	c := C.struct_ibv_send_wr{
		wr_id:      C.uint64_t(wr.WRID),
		sg_list:    &sges[0],
		num_sge:    C.int(len(wr.SGEs)),
		opcode:     wr.Opcode,
		send_flags: C.uint(wr.Flags),
	}
	var bad *C.struct_ibv_send_wr
	if rc := C.ibv_post_send(y.qp, &c, &bad); rc != 0 {
		return fmt.Errorf("ibv_post_send: %w", syscall.Errno(rc))
	}
	return nil
}

// PlainPoll is the same for completions.
func (y Yardstick) PlainPoll(most int) ([]PlainWC, error) {
	wcs := make([]C.struct_ibv_wc, most)
	n := C.ibv_poll_cq(y.qp.send_cq, C.int(most), &wcs[0])
	if n < 0 {
		return nil, fmt.Errorf("ibv_poll_cq: %d", n)
	}
	out := make([]PlainWC, n)
	for i := range out {
		out[i] = PlainWC{
			WRID:   uint64(wcs[i].wr_id),
			Status: int(wcs[i].status),
			Opcode: int(wcs[i].opcode),
			Length: uint32(wcs[i].byte_len),
			QPNum:  uint32(wcs[i].qp_num),
		}
	}
	return out, nil
}
