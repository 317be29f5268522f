package core

import (
	"fmt"
	"sync/atomic"
)

// Size is how many work requests a queue holds. Providers often grant more than was asked
// for; a program that has done its sums has done them with what it asked for.
type Size struct{ Asked, Granted atomic.Uint32 }

// of returns the size that counts for a completion queue.
func (s *Size) of(q *CQ) int {
	if q.Strict {
		return int(s.Granted.Load())
	}
	return int(s.Asked.Load())
}

// load is what a queue pair adds to what its completion queue must hold.
type load struct {
	own    int   // its own work requests that complete there
	shared *Size // or those of its shared receive queue
}

// AddQP notes a queue pair of whose own work requests as many as own complete on the queue,
// and all receives of a shared receive queue; either may be nil. The caller holds Mu.
func (q *CQ) AddQP(p QP, own, shared *Size) {
	if q.qps == nil {
		q.qps, q.shared = map[QP]load{}, map[*Size]int{}
	}
	l := q.qps[p] // which has its sends here too
	if own != nil {
		l.own += own.of(q)
		q.own += own.of(q)
	}
	if shared != nil {
		l.shared = shared
		q.shared[shared]++
	}
	q.qps[p] = l
}

// RemoveQP undoes AddQP. The caller holds Mu.
func (q *CQ) RemoveQP(p QP) {
	l := q.qps[p]
	q.own -= l.own
	if q.shared[l.shared]--; q.shared[l.shared] <= 0 {
		delete(q.shared, l.shared)
	}
	delete(q.qps, p)
}

// Overflows says in words how the queue would overflow if it had that many entries, or
// nothing: where it is strict if it could, else if it would with what was asked for. All
// work requests count: unsignaled ones too complete if they are flushed. The caller holds
// Mu.
func (q *CQ) Overflows(entries int) string {
	need := q.own
	for size := range q.shared {
		need += size.of(q)
	}
	if need <= entries {
		return ""
	}
	return fmt.Sprintf("it holds %d completions, and %d work requests can complete there, unsignaled ones too when they are flushed: give it %d entries",
		entries, need, need)
}
