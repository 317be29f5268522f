//go:build cgo && linux && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package cverbs

// #include "shims.h"
import "C"

// CreateCompChannel stands for ibv_create_comp_channel. fd is its descriptor.
func CreateCompChannel(c Context) (ch CompChannel, fd int, err error) {
	p, err := C.gv_create_comp_channel(c.p)
	if p == nil {
		return CompChannel{}, -1, failed(err)
	}
	return CompChannel{p}, int(p.fd), nil
}

// DestroyCompChannel stands for ibv_destroy_comp_channel.
func DestroyCompChannel(ch CompChannel) error { return errnoOf(C.gv_destroy_comp_channel(ch.p)) }

// GetCQEvent stands for ibv_get_cq_event, on a channel whose descriptor does not block:
// without an event it fails with EAGAIN. It returns what CQAddr does.
func GetCQEvent(ch CompChannel) (cq uintptr, err error) {
	var addr C.uintptr_t
	if err := errnoOf(C.gv_get_cq_event(ch.p, &addr)); err != nil {
		return 0, err
	}
	return uintptr(addr), nil
}

// AckCQEvents stands for ibv_ack_cq_events.
func AckCQEvents(cq CQ, n uint32) { C.ibv_ack_cq_events(cq.p, C.uint(n)) }

// ReqNotifyCQ stands for ibv_req_notify_cq.
func ReqNotifyCQ(cq CQ, solicitedOnly bool) error {
	only := C.int(0)
	if solicitedOnly {
		only = 1
	}
	return errnoOf(C.gv_req_notify_cq(cq.p, only))
}

// ResizeCQ stands for ibv_resize_cq. It returns how many entries were granted.
func ResizeCQ(cq CQ, entries int) (granted int, err error) {
	err = errnoOf(C.gv_resize_cq(cq.p, C.int(entries)))
	return int(cq.p.cqe), err
}

// ModerateCQ stands for ibv_modify_cq with IBV_CQ_ATTR_MODERATE; the period is in
// microseconds.
func ModerateCQ(cq CQ, count, period uint16) error {
	return errnoOf(C.gv_moderate_cq(cq.p, C.uint16_t(count), C.uint16_t(period)))
}
