package core

import (
	"fmt"
	"sync/atomic"
)

// Size is how many receives a shared receive queue holds, which may change.
type Size struct{ Asked, Granted atomic.Uint32 }

// load is what a queue pair adds to what its completion queue must hold.
type load struct {
	own    int   // its own work requests that complete there
	shared *Size // or those of its shared receive queue
}

// counts returns which size of a work queue counts. Providers often grant more than was
// asked for; a program that has done its sums has done them with what it asked for.
func (q *CQ) counts(asked, granted uint32) int {
	if q.Strict {
		return int(granted)
	}
	return int(asked)
}

// AddQP notes a queue pair that has a work queue of that size, whose work requests complete
// on the queue. The caller holds Mu.
func (q *CQ) AddQP(p QP, asked, granted uint32) {
	q.add(p, q.counts(asked, granted), nil)
}

// AddSharedQP notes a queue pair whose receives are those of a shared receive queue. The
// caller holds Mu.
func (q *CQ) AddSharedQP(p QP, shared *Size) { q.add(p, 0, shared) }

func (q *CQ) add(p QP, own int, shared *Size) {
	if q.qps == nil {
		q.qps, q.shared = map[QP]load{}, map[*Size]int{}
	}
	l := q.qps[p] // which has its sends here too
	l.own += own
	q.own += own
	if shared != nil {
		l.shared = shared
		q.shared[shared]++
	}
	q.qps[p] = l
}

// RemoveQP undoes what has noted the queue pair. The caller holds Mu.
func (q *CQ) RemoveQP(p QP) {
	l := q.qps[p]
	q.own -= l.own
	if l.shared != nil {
		if q.shared[l.shared]--; q.shared[l.shared] == 0 {
			delete(q.shared, l.shared)
		}
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
		need += q.counts(size.Asked.Load(), size.Granted.Load())
	}
	if need <= entries {
		return ""
	}
	return fmt.Sprintf("it holds %d completions, and %d work requests can complete there, unsignaled ones too when they are flushed: give it %d entries",
		entries, need, need)
}
