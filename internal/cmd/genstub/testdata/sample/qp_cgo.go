//go:build cgo && linux && (amd64 || arm64)

package sample

/*
#include <stdlib.h>
struct sample_qp { int num; };
*/
import "C"

import (
	"syscall"
	"time"
	sys "unsafe"
)

// QP is a handle.
type QP struct{ p *C.struct_sample_qp }

// Scratch has a field of an unexported type and one per C pointer.
type Scratch struct {
	Depth      int
	ring       ring
	head, tail *C.struct_sample_qp
}

type ring struct{ entries []entry }

type entry struct {
	length uint32
	next   *entry
}

type unused struct{ num C.int }

// MaxDepth needs no C.
const (
	MaxDepth = 1 << 20
	minDepth = 1
)

// Calls is a variable without a value from C.
var Calls map[string]time.Duration

func CreateQP(flags Flags, depth, inline int) (QP, syscall.Errno, error) {
	if depth < minDepth {
		return QP{}, syscall.EINVAL, nil
	}
	return QP{(*C.struct_sample_qp)(C.calloc(1, C.sizeof_struct_sample_qp))}, 0, nil
}

func DestroyQP(qp QP) error {
	C.free(sys.Pointer(qp.p))
	return nil
}

func Post(qp QP, wrs ...uint64) (accepted, errno int) { return len(wrs), int(used().num) }

func Log(string) {}

// Num is a method with a value receiver.
func (q QP) Num() uint32 { return uint32(q.p.num) }

// Reset is a method with a pointer receiver.
func (s *Scratch) Reset() error {
	*s = Scratch{}
	return nil
}

func (s *Scratch) grow(n int) { s.ring.entries = make([]entry, n) }

func used() unused { return unused{} }

func describe(n int) string { return string(rune('a' + n)) }
