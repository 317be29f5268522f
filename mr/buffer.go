package mr

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"syscall"

	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/life"
)

// Buffer is memory outside the Go heap, page-aligned and a whole number of pages,
// so that no other data shares its pages. Its bytes are zero at first.
type Buffer struct{ s *bufferState }

type bufferState struct {
	life.Node
	mem    []byte // whole pages
	len    int
	closed atomic.Bool
	seen   atomic.Bool // Bytes was called
}

// Alloc allocates a buffer of at least one byte. It is not limited by memlock until
// it is registered.
func Alloc(size int) (*Buffer, error) { return newBuffer(size, os.Getpagesize(), 0) }

// AllocHuge allocates a buffer of huge pages of the system's default size, which
// saves the device translations. It fails with ENOMEM where too few are reserved:
// see /proc/sys/vm/nr_hugepages.
func AllocHuge(size int) (*Buffer, error) {
	page, err := hugePageSize()
	if err != nil {
		return nil, &ibv.OpError{Op: "mmap", Err: err, Reason: "this system has no huge pages"}
	}
	return newBuffer(size, page, mapHugeTLB)
}

func newBuffer(size, page, flags int) (*Buffer, error) {
	mem, err := alloc(size, page, flags)
	if err != nil {
		return nil, err
	}
	s := &bufferState{mem: mem, len: size}
	if err := s.Init("buffer", s.destroy); err != nil {
		return nil, errors.Join(err, unmapMemory(mem))
	}
	s.Reap(s.mayReap)
	s.Ready(fmt.Sprintf("of %d bytes at %p", size, mem))
	b := &Buffer{s}
	life.Guard(b, &s.Node)
	return b, nil
}

// alloc maps whole pages for size bytes.
func alloc(size, page, flags int) ([]byte, error) {
	fail := func(err error, reason string) ([]byte, error) {
		return nil, &ibv.OpError{Op: "mmap", Err: err, Reason: reason}
	}
	if size < 1 {
		return fail(syscall.EINVAL, fmt.Sprintf("a buffer of %d bytes: at least 1", size))
	}
	whole := (size + page - 1) &^ (page - 1)
	if whole < size {
		return fail(syscall.ENOMEM, fmt.Sprintf("a buffer of %d bytes is larger than the address space", size))
	}
	mem, err := mapMemory(whole, flags)
	if err != nil {
		reason := fmt.Sprintf("no memory for a buffer of %d bytes", size)
		if flags != 0 {
			reason += fmt.Sprintf(" in huge pages of %d: reserve them with sysctl vm.nr_hugepages", page)
		}
		return fail(err, reason)
	}
	return mem, nil
}

// Bytes returns the buffer's memory. The slice, and every slice made from it, must
// not be used after Close: its memory is gone then, and so is the program that touches
// it. After Close Bytes returns nil.
func (b *Buffer) Bytes() []byte {
	if b.s.closed.Load() {
		return nil
	}
	b.s.seen.Store(true)
	return b.s.bytes()
}

func (s *bufferState) bytes() []byte { return s.mem[:s.len:s.len] }

func (s *bufferState) mayReap() life.Verdict {
	if s.seen.Load() {
		return life.Verdict{When: life.Never, Reason: "a slice of its bytes may still be in use"}
	}
	return life.Verdict{}
}

func (s *bufferState) destroy() error {
	err := unmapMemory(s.mem)
	s.closed.Store(err == nil)
	return err
}

// Close gives the memory back. While a Region is registered on it it changes nothing
// and returns an error that matches ibv.ErrBusy and names the Region. Closing again
// returns nil.
func (b *Buffer) Close() error {
	defer runtime.KeepAlive(b)
	if err := b.s.Close(); err != nil {
		return &ibv.OpError{Op: "munmap", Object: b.s.String(), Err: err}
	}
	return nil
}
