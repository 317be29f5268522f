package cq

import (
	"fmt"
	"runtime"
	"syscall"
	"time"
	"weak"

	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/core"
	"github.com/goverbs/goverbs/internal/cverbs"
	"github.com/goverbs/goverbs/internal/inflight"
	"github.com/goverbs/goverbs/internal/life"
)

// InitAttr says what kind of completion queue to create.
type InitAttr struct {
	// Entries is how many completions it must hold: as many as can be in flight on
	// all work queues that report to it, for an overrun loses completions.
	Entries int
	// CompVector is the completion vector, from 0 to the device's NumCompVectors-1.
	CompVector int
	// Channel is where the completion queue tells of completions, so that they can be
	// waited for; nil is for one that is only polled.
	Channel *Channel
	// Strict has ibv's CreateQP refuse a queue pair with whose work requests, as many as were
	// granted, more could complete than fit. Otherwise it reports to ibv's logger if those
	// that were asked for are too many. A shared receive queue counts with what it holds: a
	// device may take more of a program that refills it before it polls.
	Strict bool
	// Spin is how long Wait polls before it has the device tell of the next completion
	// and sleeps: 0 sleeps at once. It spends a processor for a lower latency.
	Spin time.Duration
	// Hold is for how long, whole milliseconds up to MaxHold, Wait then sleeps in the
	// kernel, which holds its thread, before it leaves the thread to other goroutines: 0 leaves it
	// at once. An event within that time wakes the thread that waits for it and no other, and takes
	// some ten thousand instructions less; a later one takes some more, since the runtime's poller
	// watches for the channel's events only while no wait holds its thread. It is for a goroutine
	// that posts what it waits for: those that are made ready just before have to wait for another
	// thread. With GOMAXPROCS at 1 they wait until the runtime's monitor gives them one, and
	// nothing is saved where posts last over 20 us, as with a software device. A context that ends,
	// and a Close, end such a sleep when it is over. Of the waits on a channel at most one sleeps
	// so, and where the context of another ends it may be told of its event only then.
	Hold time.Duration
}

// MaxHold is the most that InitAttr.Hold may be: a Close may have to wait for so long.
const MaxHold = 10 * time.Millisecond

// CQ is a completion queue. Its methods may be called from several goroutines; polls
// take their turns.
//
// Implements: ibv_cq
type CQ struct{ s *core.CQ }

// Create makes a completion queue on a device.
//
// Implements: ibv_create_cq
func Create(ctx *ibv.Context, init InitAttr) (*CQ, error) {
	const op = "ibv_create_cq"
	c := ctx.Core()
	if c == nil {
		return nil, &ibv.OpError{Op: op, Err: syscall.EINVAL, Reason: "no device: the Context is nil"}
	}
	defer runtime.KeepAlive(ctx)
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
	case init.Spin < 0:
		return refuse("Spin is %v: give how long to poll, or 0", init.Spin)
	case init.Hold < 0 || init.Hold > MaxHold || init.Hold%time.Millisecond != 0:
		return refuse("Hold is %v: give how long to hold a thread, 0 to %v in whole milliseconds", init.Hold, MaxHold)
	case init.Channel != nil && init.Channel.s == nil:
		return refuse("Channel is a zero Channel: make it with NewChannel")
	case init.Channel != nil && init.Channel.s.Ctx != c:
		return refuse("%v belongs to another device, or to one opened twice", init.Channel)
	}
	q := &core.CQ{Ctx: c, Spin: init.Spin, Hold: init.Hold, Strict: init.Strict, WithInv: withInv(c), Settler: inflight.Queues.Settler()}
	parents := []*life.Node{&c.Node}
	if init.Channel != nil {
		q.Channel = init.Channel.s
		parents = append(parents, &q.Channel.Node)
	}
	if err := q.Init("CQ", func() error { return destroy(q) }, parents...); err != nil {
		return nil, &ibv.OpError{Op: op, Object: c.Name, Err: err}
	}
	if err := makeCQ(q, init); err != nil {
		q.Discard()
		return nil, &ibv.OpError{Op: op, Object: c.Name, Err: err}
	}
	handle := &CQ{q}
	dropped := weak.Make(handle)
	q.Handle = func() any {
		if handle := dropped.Value(); handle != nil {
			return handle
		}
		return nil
	}
	c.Put(q.Addr, q)
	q.Ready(core.Label(cverbs.CQHandle(q.H), c))
	life.Guard(handle, &q.Node)
	return handle, nil
}

func makeCQ(q *core.CQ, init InitAttr) (err error) {
	if q.Scratch, err = cverbs.NewScratch[cverbs.WC](core.PollBatch, 0, 0); err != nil {
		return err
	}
	var channel cverbs.CompChannel
	if q.Channel != nil {
		channel = q.Channel.H
	}
	if q.H, q.Entries, err = cverbs.CreateCQ(q.Ctx.H, init.Entries, channel, init.CompVector); err != nil {
		q.Scratch.Free()
		return err
	}
	q.Addr = cverbs.CQAddr(q.H)
	if q.Channel != nil {
		q.Channel.Adopt(q)
	}
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
func (q *CQ) Entries() int {
	q.s.Mu.Lock()
	defer q.s.Mu.Unlock()
	return q.s.Entries
}

// String names the completion queue and its device.
func (q *CQ) String() string { return q.s.String() }

// Poll takes completions off the queue into wcs and returns how many: fewer than
// len(wcs), also none, means that the queue was found empty. It does not wait. A
// completion may report a failure: look at each one's Err.
//
// A completion gives back the memory of its work request, and on a send queue that
// of all earlier ones of the same queue. An error means that the completion queue
// itself is unusable, and stays so: it failed, most often by an overrun, and the error
// matches syscall.EIO; or the device did, which is ibv.ErrDeviceFatal. The queue pairs that
// report to it are moved to ERR: close them and then it. The completions returned with the
// error hold, and come first. A device may tell of an overrun by an event only, as rdma_rxe
// does: polls in the moment before find an empty queue.
//
// Poll allocates nothing. A goroutine that does nothing but poll and post should call
// runtime.Gosched every few milliseconds: after ten the runtime's monitor would interrupt it,
// and then disturb it every 20 us for some time.
//
// Implements: ibv_poll_cq
func (q *CQ) Poll(wcs []WC) (n int, err error) {
	s := q.s
	s.Mu.Lock()
	switch {
	case s.Closed:
		err = &ibv.OpError{Op: "ibv_poll_cq", Object: s.String(), Err: ibv.ErrClosed}
	case len(s.Spill) == 0:
		n, err = poll(s, wcs)
	default:
		if n = takeSpill(s, wcs); n < len(wcs) {
			var more int
			more, err = poll(s, wcs[n:])
			n += more
		}
	}
	s.Mu.Unlock()
	if err != nil {
		s.Spread()
	}
	runtime.KeepAlive(q)
	return n, err
}

// poll takes completions from the device. The caller holds the CQ lock.
func poll(s *core.CQ, wcs []WC) (n int, err error) {
	for n < len(wcs) {
		want := min(len(wcs)-n, core.PollBatch)
		got := cverbs.PollCQ(s.Addr, s.Scratch, want)
		if got > 0 {
			n += takeAll(s, s.Scratch.Items[:min(got, want)], wcs[n:])
		}
		if got < want {
			if got < 0 {
				s.SetFailed()
			}
			if s.Failed != nil {
				err = &ibv.OpError{Op: "ibv_poll_cq", Object: s.String(), Err: s.Failed}
			}
			break
		}
	}
	return n, err
}

// takeAll takes completions of the device and returns how many are to be told.
func takeAll(q *core.CQ, items []cverbs.WC, wcs []WC) (n int) {
	for len(items) > 0 {
		row := q.Settler.Begin(items[0].WRID)
		to, k := wcs[n:][:len(items)], 0
		for ; k < len(items); k++ {
			c := &items[k]
			if c.Status != uint32(StatusSuccess) || c.Flags&q.WithInv != 0 {
				break
			}
			user, ok := row.Take(k, c.WRID)
			if !ok {
				break
			}
			to[k].succeeded(c, user, row.Kind())
		}
		q.Settler.End(k)
		items, n = items[k:], n+k
		if len(items) > 0 {
			if wcs[n].take(q, &items[0]) {
				n++
			}
			items = items[1:]
		}
	}
	q.Settler.Flush()
	return n
}

// takeSpill takes completions that were polled while a queue pair was drained.
func takeSpill(s *core.CQ, wcs []WC) (n int) {
	took := 0
	for ; n < len(wcs) && took < len(s.Spill); took++ {
		c := &s.Spill[took]
		if inflight.Queues.Dead(c.WC.WRID) { // closed or reset since
			ibv.NoteInvalidation(s, &c.WC)
			continue
		}
		wcs[n].set(s, c)
		n++
	}
	if s.Spill = s.Spill[took:]; len(s.Spill) == 0 {
		s.Spill = nil
	}
	return n
}

// Close destroys the completion queue. While a queue pair that reports to it is open
// it changes nothing and returns an error that matches ibv.ErrBusy and names them.
// Polls in progress end first; later ones fail with ibv.ErrClosed. Closing again
// returns nil.
//
// Implements: ibv_destroy_cq
func (q *CQ) Close() error {
	defer runtime.KeepAlive(q)
	if err := q.s.Close(); err != nil {
		return &ibv.OpError{Op: "ibv_destroy_cq", Object: q.String(), Err: err}
	}
	return nil
}

func destroy(q *core.CQ) error {
	setClosed(q, true)
	if err := q.Destroy(); err != nil {
		setClosed(q, false)
		return err
	}
	q.Scratch.Free()
	return nil
}

func (q *CQ) closed() bool {
	q.s.Mu.Lock()
	defer q.s.Mu.Unlock()
	return q.s.Closed
}

func setClosed(q *core.CQ, closed bool) {
	q.Mu.Lock()
	defer q.Mu.Unlock()
	q.Closed = closed
}
