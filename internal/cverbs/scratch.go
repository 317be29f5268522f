package cverbs

import (
	"slices"
	"syscall"
	"unsafe"
)

// Scratch is C memory for one batch of T: the work requests of a post, each linked to
// the next and to its own array of SGEs, with room for inline data; or the completions
// of a poll. Whoever holds the lock of the queue that it belongs to may write it.
type Scratch[T SendWR | RecvWR | WC] struct {
	Items []T

	mem     unsafe.Pointer
	sges    [][]SGE // of each item
	inline  []byte
	nInline int
	last    int // where the chain was ended, or -1
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
	s := &Scratch[T]{
		Items:   unsafe.Slice((*T)(first), n),
		mem:     mem,
		inline:  unsafe.Slice((*byte)(unsafe.Add(first, items+lists)), n*inline),
		nInline: inline,
		last:    -1,
	}
	if sges > 0 {
		s.sges = slices.Collect(slices.Chunk(unsafe.Slice((*SGE)(unsafe.Add(first, items)), n*sges), sges))
		for i := range n {
			s.head(i).SGList = Addr(&s.sges[i][0])
			s.link(i)
		}
	}
	return s, nil
}

// head returns the WRHead of a work request, which is its first member.
func (s *Scratch[T]) head(i int) *WRHead { return (*WRHead)(unsafe.Pointer(&s.Items[i])) }

func (s *Scratch[T]) link(i int) {
	if i+1 < len(s.Items) {
		s.head(i).Next = Addr(&s.Items[i+1])
	}
}

// MaxSGE returns for how many SGEs each item has room.
func (s *Scratch[T]) MaxSGE() int { return len(s.sges[0]) }

// SGEs returns the SGE array of item i.
func (s *Scratch[T]) SGEs(i int) []SGE { return s.sges[i] }

// Inline returns the inline buffer of item i.
func (s *Scratch[T]) Inline(i int) []byte { return s.inline[i*s.nInline : (i+1)*s.nInline] }

// Free gives the memory back.
func (s *Scratch[T]) Free() { free(s.mem) }

// chain ends the chain after n work requests and returns where it begins.
func (s *Scratch[T]) chain(n int) uintptr {
	if s.last != n-1 {
		if s.last >= 0 {
			s.link(s.last)
		}
		s.last = n - 1
		s.head(s.last).Next = 0
	}
	return s.addr()
}

func (s *Scratch[T]) addr() uintptr { return Addr(unsafe.SliceData(s.Items)) }

// Addr returns the address of C memory, to stand in a field that C reads.
func Addr[T any](p *T) uintptr { return uintptr(unsafe.Pointer(p)) }
