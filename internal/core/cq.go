package core

import (
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/internal/cverbs"
	"github.com/goverbs/goverbs/internal/fdwait"
	"github.com/goverbs/goverbs/internal/inflight"
	"github.com/goverbs/goverbs/internal/life"
)

// CQ is a completion queue. Mu is the CQ lock: it covers polling and whatever else
// releases slots of the work queues that report to the CQ.
type CQ struct {
	life.Node
	H       cverbs.CQ
	Addr    uintptr
	Ctx     *Context
	Channel *Channel      // or nil
	Handle  func() any    // the *cq.CQ, or nil if it was dropped
	Spin    time.Duration // how long a wait polls before it arms
	Hold    time.Duration // how long it holds its thread then
	WithInv uint32        // bits of wc_flags

	// Armed is how the device was asked to tell of a completion since it last did: while
	// it is not NotArmed the device will, or has and the event waits to be taken.
	Armed   atomic.Int32
	Taken   atomic.Uint64 // events, ever
	unacked uint32        // events taken; used while none is being taken

	Mu      sync.Mutex
	Closed  bool
	Entries int   // granted
	Failed  error // why the queue is of no use, or nil; see SetFailed
	spread  bool  // waiters and queue pairs know of it
	Strict  bool  // refuses queue pairs with which it could overflow
	qps     map[QP]load
	own     int           // the sum of their own work requests
	shared  map[*Size]int // the sizes of their shared receive queues, and how many use each
	Scratch *cverbs.Scratch[cverbs.WC]
	Settler inflight.Settler
	// Spill are completions that were taken from the device and not yet by the
	// program, oldest first.
	Spill  []Completion
	purged int // how many were left of them when Purge last looked

	reported bool // that it failed, to listeners; of the reader of events
}

// errCQ is the failure of a completion queue.
var errCQ = &failure{
	text:    "the completion queue failed, for example by an overrun: completions are lost; close its QPs and then it",
	matches: []error{syscall.EIO},
}

// SetFailed notes that a poll found the queue failed. The caller holds Mu, and calls
// Spread when it has given it up.
func (q *CQ) SetFailed() {
	if q.Failed == nil {
		q.Failed = errCQ
	}
}

// Failure returns Failed.
func (q *CQ) Failure() error {
	q.Mu.Lock()
	defer q.Mu.Unlock()
	return q.Failed
}

// Fail has polls fail with err once they have found the queue empty, and moves the queue
// pairs to ERR. A failure of the device comes before one of the queue.
func (q *CQ) Fail(err error) {
	q.Mu.Lock()
	if q.Failed == nil || errors.Is(err, ErrDeviceFatal) {
		q.Failed = err
	}
	q.Mu.Unlock()
	q.Spread()
}

// Spread has those know of a failure who must, once. The caller does not hold Mu.
func (q *CQ) Spread() {
	q.Mu.Lock()
	if q.Failed == nil || q.spread {
		q.Mu.Unlock()
		return
	}
	q.spread = true
	qps := slices.Collect(maps.Keys(q.qps))
	q.Mu.Unlock()
	if q.Channel != nil {
		// For one who waits for it, who wakes the others, or for a GetEvent, now or later.
		q.Channel.Events.Add(fdwait.Event[*CQ, struct{}]{Key: q})
	}
	for _, p := range qps {
		p.MoveToErr()
	}
}

// PollBatch is how many completions one call into C takes.
const PollBatch = 32

// Completion is a completion and what is known of its work request.
type Completion struct {
	WC        cverbs.WC // its WRID is the token
	WRID      uint64    // the caller's own
	Kind      inflight.Kind
	Explained bool // as inflight.Table.Explained
}

const statusSuccess, statusFlushed = 0, 5 // ibv_wc_status

// Settle releases what a completion of the device covers, and describes it. It
// reports false if the completion is to be dropped. The caller holds Mu, and flushes
// Settler before it gives it up.
func (q *CQ) Settle(wc *cverbs.WC, to *Completion) bool {
	to.WC, to.Explained = *wc, true
	success := wc.Status == statusSuccess
	if !success {
		to.Explained = inflight.Queues.Explained(wc.WRID, wc.Status == statusFlushed)
	}
	user, kind, outcome := q.Settler.Complete(wc.WRID, success)
	to.WRID, to.Kind = user, kind
	return outcome != inflight.Late
}

// Harvest moves the completions that the device has to Spill, but for those that drop takes, as it
// has to take late ones. The caller holds Mu.
func (q *CQ) Harvest(drop func(c *Completion, late bool) bool) {
	defer q.Settler.Flush()
	for {
		got := cverbs.PollCQ(q.Addr, q.Scratch, PollBatch)
		for i := range q.Scratch.Items[:min(max(got, 0), PollBatch)] {
			var c Completion
			if late := !q.Settle(&q.Scratch.Items[i], &c); !drop(&c, late) {
				q.Spill = append(q.Spill, c)
			}
		}
		if got < 0 {
			q.SetFailed()
		}
		if got < PollBatch {
			return
		}
	}
}

// Purge takes from Spill what drop takes, as Harvest does. Unless it must be now it waits until
// Spill has grown: so it costs little, however many queue pairs go. The caller holds Mu.
func (q *CQ) Purge(now bool, drop func(c *Completion, late bool) bool) {
	if !now && len(q.Spill) <= 2*q.purged+PollBatch {
		return
	}
	q.Spill = slices.DeleteFunc(q.Spill, func(c Completion) bool {
		return drop(&c, inflight.Queues.Dead(c.WC.WRID))
	})
	if q.purged = len(q.Spill); q.purged == 0 {
		q.Spill = nil
	}
}

// LockCQs locks one or two completion queues, always in the same order, and
// returns what unlocks them.
func LockCQs(a, b *CQ) (unlock func()) {
	if a == b {
		a.Mu.Lock()
		return a.Mu.Unlock
	}
	if a.Before(&b.Node) {
		a.Mu.Lock()
		b.Mu.Lock()
	} else {
		b.Mu.Lock()
		a.Mu.Lock()
	}
	return func() { a.Mu.Unlock(); b.Mu.Unlock() }
}
