//go:build cgo && linux && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package cverbs

// #include "shims.h"
import "C"

// AsyncFD returns the descriptor that is readable when there is an asynchronous event.
func AsyncFD(c Context) int { return int(c.p.async_fd) }

// TakeAsyncEvent stands for ibv_get_async_event and ibv_ack_async_event, on a context
// whose descriptor does not block: without an event it fails with EAGAIN.
func TakeAsyncEvent(c Context) (AsyncEvent, error) {
	var typ, port C.int
	var element C.uintptr_t
	if err := errnoOf(C.gv_take_async_event(c.p, &typ, &element, &port)); err != nil {
		return AsyncEvent{}, err
	}
	return AsyncEvent{Type: int32(typ), Port: int32(port), Element: uintptr(element)}, nil
}
