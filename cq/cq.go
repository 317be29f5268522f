package cq

import (
	"fmt"
	"syscall"

	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/core"
	"github.com/goverbs/goverbs/internal/cverbs"
	"github.com/goverbs/goverbs/internal/inflight"
)

// InitAttr says what kind of completion queue to create.
type InitAttr struct {
	// Entries is how many completions it must hold: as many as can be in flight on
	// all work queues that report to it, for an overrun loses completions.
	Entries int
	// CompVector is the completion vector, from 0 to the device's NumCompVectors-1.
	CompVector int
}

// CQ is a completion queue. Its methods may be called from several goroutines; polls
// take their turns.
//
// Implements: ibv_cq
type CQ struct {
	s       *core.CQ
	addr    uintptr
	granted int
	scratch *cverbs.Scratch[cverbs.WC] // under s.Mu
}

// batch is how many completions one call into C takes.
const batch = 32

// Create makes a completion queue on a device.
//
// Implements: ibv_create_cq
func Create(ctx *ibv.Context, init InitAttr) (*CQ, error) {
	const op = "ibv_create_cq"
	c := ctx.Core()
	if c == nil {
		return nil, &ibv.OpError{Op: op, Err: syscall.EINVAL, Reason: "no device: the Context is nil"}
	}
	refuse := func(format string, args ...any) (*CQ, error) {
		return nil, &ibv.OpError{Op: op, Object: c.Name, Err: syscall.EINVAL, Reason: fmt.Sprintf(format, args...)}
	}
	switch {
	case init.Entries < 1:
		return refuse("Entries is %d: a CQ holds at least one completion", init.Entries)
	case init.Entries > int(c.Attr.MaxCQE):
		return refuse("Entries %d is above the device's max_cqe %d", init.Entries, c.Attr.MaxCQE)
	case init.CompVector < 0 || init.CompVector >= max(int(c.Attr.NumCompVectors), 1):
		return refuse("CompVector %d: the device has vectors 0 to %d", init.CompVector, c.Attr.NumCompVectors-1)
	}
	s := &core.CQ{Ctx: c}
	q := &CQ{s: s}
	if err := s.Init("CQ", q.destroy, &c.Node); err != nil {
		return nil, &ibv.OpError{Op: op, Object: c.Name, Err: err}
	}
	if err := q.make(init); err != nil {
		s.Discard()
		return nil, &ibv.OpError{Op: op, Object: c.Name, Err: err}
	}
	s.Ready(core.Label(cverbs.CQHandle(s.H), c))
	return q, nil
}

func (q *CQ) make(init InitAttr) (err error) {
	if q.scratch, err = cverbs.NewScratch[cverbs.WC](batch, 0, 0); err != nil {
		return err
	}
	if q.s.H, q.granted, err = cverbs.CreateCQ(q.s.Ctx.H, init.Entries, init.CompVector); err != nil {
		q.scratch.Free()
		return err
	}
	q.addr = cverbs.CQAddr(q.s.H)
	return nil
}

// Core returns the inner state, for the other packages of this module.
func (q *CQ) Core() *core.CQ {
	if q == nil {
		return nil
	}
	return q.s
}

// Entries returns how many completions the provider granted, at least what was
// asked for.
func (q *CQ) Entries() int { return q.granted }

// String names the completion queue and its device.
func (q *CQ) String() string { return q.s.String() }

// Poll takes completions off the queue into wcs and returns how many: fewer than
// len(wcs), also none, means that the queue was found empty. It does not wait. A
// completion may report a failure: look at each one's Err.
//
// A completion gives back the memory of its work request, and on a send queue that
// of all earlier ones of the same queue. An error means that the completion queue
// itself is unusable, most often by an overrun: close its queue pairs and then it.
// The completions returned with it hold. Not every device tells of an overrun here:
// rdma_rxe drops the completions that do not fit, and a poll finds an empty queue.
//
// Poll allocates nothing.
//
// Implements: ibv_poll_cq
func (q *CQ) Poll(wcs []WC) (n int, err error) {
	q.s.Mu.Lock()
	defer q.s.Mu.Unlock()
	if q.s.Closed {
		return 0, &ibv.OpError{Op: "ibv_poll_cq", Object: q.String(), Err: ibv.ErrClosed}
	}
	for n < len(wcs) {
		want := min(len(wcs)-n, batch)
		got := cverbs.PollCQ(q.addr, q.scratch, want)
		if got < 0 {
			return n, &ibv.OpError{Op: "ibv_poll_cq", Object: q.String(), Err: syscall.EIO,
				Reason: "the completion queue failed, for example by an overrun; close its QPs and then it"}
		}
		for i := range q.scratch.Items[:min(got, want)] {
			c := &q.scratch.Items[i]
			user, kind, outcome := inflight.Queues.Complete(c.WRID)
			if outcome == inflight.Late {
				continue // of a queue pair that is closed or was reset
			}
			wcs[n].set(c, user, kind)
			n++
		}
		if got < want {
			break
		}
	}
	return n, nil
}

// Close destroys the completion queue. While a queue pair that reports to it is open
// it changes nothing and returns an error that matches ibv.ErrBusy and names them.
// Polls in progress end first; later ones fail with ibv.ErrClosed. Closing again
// returns nil.
//
// Implements: ibv_destroy_cq
func (q *CQ) Close() error {
	if err := q.s.Close(); err != nil {
		return &ibv.OpError{Op: "ibv_destroy_cq", Object: q.String(), Err: err}
	}
	return nil
}

func (q *CQ) destroy() error {
	q.setClosed(true)
	if err := q.s.Ctx.Gone(cverbs.DestroyCQ(q.s.H)); err != nil {
		q.setClosed(false)
		return err
	}
	q.scratch.Free()
	return nil
}

func (q *CQ) setClosed(closed bool) {
	q.s.Mu.Lock()
	defer q.s.Mu.Unlock()
	q.s.Closed = closed
}
