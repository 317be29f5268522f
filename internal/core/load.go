package core

import (
	"fmt"
	"sync/atomic"
)

// load is what a queue pair adds to what its completion queue must hold.
type load struct {
	own    int            // its own work requests that complete there
	shared *atomic.Uint32 // or how many its shared receive queue takes
}

// AddQP notes a queue pair of whose own work requests up to wrs complete on the queue, and
// the receives of a shared receive queue, unless nil, as many as its size is at the time.
// The caller holds Mu.
func (q *CQ) AddQP(p QP, wrs int, shared *atomic.Uint32) {
	if q.qps == nil {
		q.qps, q.shared = map[QP]load{}, map[*atomic.Uint32]int{}
	}
	l := q.qps[p] // which has its sends here too
	l.own += wrs
	q.own += wrs
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
// nothing if it cannot. All work requests count: unsignaled ones too complete if they are
// flushed. The caller holds Mu.
func (q *CQ) Overflows(entries int) string {
	need := q.own
	for size := range q.shared {
		need += int(size.Load())
	}
	if need <= entries {
		return ""
	}
	return fmt.Sprintf("it holds %d completions, and %d work requests can complete there, unsignaled ones too when they are flushed: give it %d entries",
		entries, need, need)
}
