package cverbs

import (
	"syscall"
	"unsafe"
)

// Scratch is C memory for one batch of T: the work requests of a post, each with
// room for its SGEs and inline data, or the completions of a poll. Whoever holds
// the lock of the queue that it belongs to may write it.
type Scratch[T SendWR | RecvWR | WC] struct {
	Items []T

	mem     unsafe.Pointer
	sges    []SGE
	inline  []byte
	nSGE    int
	nInline int
}

// NewScratch allocates zeroed scratch for batches of n, with up to sges SGEs and
// inline bytes for each. Each of the three arrays begins at a cache line.
func NewScratch[T SendWR | RecvWR | WC](n, sges, inline int) (*Scratch[T], error) {
	const line = 64
	up := func(size uintptr) uintptr { return (size + line - 1) &^ (line - 1) }
	var item T
	items := up(uintptr(n) * unsafe.Sizeof(item))
	lists := up(uintptr(n*sges) * unsafe.Sizeof(SGE{}))
	mem := calloc(line + items + lists + up(uintptr(n*inline)))
	if mem == nil {
		return nil, syscall.ENOMEM
	}
	first := unsafe.Add(mem, -uintptr(mem)&(line-1))
	return &Scratch[T]{
		Items:   unsafe.Slice((*T)(first), n),
		mem:     mem,
		sges:    unsafe.Slice((*SGE)(unsafe.Add(first, items)), n*sges),
		inline:  unsafe.Slice((*byte)(unsafe.Add(first, items+lists)), n*inline),
		nSGE:    sges,
		nInline: inline,
	}, nil
}

// SGEs returns the SGE array of item i.
func (s *Scratch[T]) SGEs(i int) []SGE { return s.sges[i*s.nSGE : (i+1)*s.nSGE] }

// Inline returns the inline buffer of item i.
func (s *Scratch[T]) Inline(i int) []byte { return s.inline[i*s.nInline : (i+1)*s.nInline] }

// Head returns the head of work request i: linked to the next one and to its own
// SGE array.
func (s *Scratch[T]) Head(i int, wrID uint64) WRHead {
	h := WRHead{WRID: wrID}
	if i+1 < len(s.Items) {
		h.Next = Addr(&s.Items[i+1])
	}
	if s.nSGE > 0 {
		h.SGList = Addr(&s.sges[i*s.nSGE])
	}
	return h
}

// Free gives the memory back.
func (s *Scratch[T]) Free() { free(s.mem) }

// chain ends the chain after n work requests and returns where it begins.
func (s *Scratch[T]) chain(n int) uintptr {
	(*WRHead)(unsafe.Pointer(&s.Items[n-1])).Next = 0
	return s.addr()
}

func (s *Scratch[T]) addr() uintptr { return Addr(unsafe.SliceData(s.Items)) }

// Addr returns the address of C memory, to stand in a field that C reads.
func Addr[T any](p *T) uintptr { return uintptr(unsafe.Pointer(p)) }
