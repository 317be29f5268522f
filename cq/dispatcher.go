package cq

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"

	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/fdwait"
)

// FirstOpID is the first wr_id that a Dispatcher gives to operations. Below it are those
// that the program may use itself on the same completion queue.
const FirstOpID = 1 << 63

// Dispatcher hands each completion of a completion queue to the operation that it is of.
// Many goroutines start operations and wait for them, each with its own context, while one
// runs the dispatcher and nobody else polls the completion queue:
//
//	op, err := d.Start(func(id uint64) error {
//		_, err := qp.PostSend([]ibv.SendWR{ibv.Send(id, ibv.SendSignaled, sge)})
//		return err
//	})
//	if err != nil {
//		return err // nothing was posted
//	}
//	defer op.AfterDone(func() { pool.Put(buf) })
//	wc, err := op.Wait(ctx)
//
// Its methods may be called from several goroutines.
type Dispatcher struct {
	q     *CQ
	other func(*WC)
	run   sync.Mutex // held by Run

	mu   sync.Mutex
	next uint64
	ops  map[uint64]*Op // in flight
	lost error          // why none of them will complete, or nil
}

// Op is a work request whose completion a Dispatcher hands over. Its methods may be
// called from several goroutines.
type Op struct {
	d    *Dispatcher
	told chan struct{} // closed when wc or lost holds

	// Under the dispatcher's lock; the first two do not change once told is closed.
	wc   WC
	lost error
	done bool // the device has nothing of it any more
	then []func()
}

// NewDispatcher returns a dispatcher for a completion queue that was created with a
// Channel. Completions of other work requests than its operations', receives as a
// rule, it gives to other, in Run's goroutine: the WC is valid during the call. other
// may be nil if there are none. Neither it nor a function of AfterDone may panic: Run would
// lose the completions that it has taken with that one.
func NewDispatcher(q *CQ, other func(*WC)) *Dispatcher {
	return &Dispatcher{q: q, other: other, next: FirstOpID, ops: map[uint64]*Op{}}
}

// Run takes completions off the queue and hands them out until ctx ends, whose cause it
// returns, or until the completion queue fails or is closed. Run may be called again after
// its ctx has ended: operations stay in flight meanwhile. One Run at a time.
//
// When the completion queue fails no completion comes any more: the operations in flight
// fail with that error. Their memory is still the device's, until the queue pairs and the
// completion queue are closed and Run is called once more. When it is closed they fail with
// ibv.ErrClosed, and nothing is the device's.
func (d *Dispatcher) Run(ctx context.Context) error {
	if !d.run.TryLock() {
		return &ibv.OpError{Op: "ibv_poll_cq", Object: d.q.String(), Err: syscall.EALREADY, Reason: "the dispatcher is running already"}
	}
	defer d.run.Unlock()
	var wcs [64]WC
	for {
		n, err := d.q.Wait(ctx, wcs[:])
		for i := range wcs[:n] {
			d.dispatch(&wcs[i])
		}
		switch {
		case err == nil:
			if err := ctx.Err(); err != nil {
				return fdwait.Cause(ctx) // also where there is always something to poll
			}
		case errors.Is(err, ibv.ErrClosed) && d.q.closed(): // and it is not ctx's cause
			d.fail(err, true)
			return err
		case ctx.Err() != nil && !errors.Is(err, d.q.s.Failure()):
			return err
		default:
			d.fail(err, false)
			return err
		}
	}
}

func (d *Dispatcher) dispatch(wc *WC) {
	d.mu.Lock()
	op := d.ops[wc.WRID]
	if op == nil || wc.Foreign() {
		d.mu.Unlock()
		if d.other != nil {
			d.other(wc)
		}
		return
	}
	delete(d.ops, wc.WRID)
	then := op.end(*wc, nil, true)
	d.mu.Unlock()
	for _, f := range then {
		f()
	}
}

// fail ends the operations in flight, of which gone says that the device has none.
func (d *Dispatcher) fail(err error, gone bool) {
	var then []func()
	d.mu.Lock()
	d.lost = err
	for _, op := range d.ops {
		then = append(then, op.end(WC{}, err, gone)...)
	}
	if gone {
		clear(d.ops)
	}
	d.mu.Unlock()
	for _, f := range then {
		f()
	}
}

// end tells what became of op and returns what is to be called. The caller holds the
// dispatcher's lock.
func (op *Op) end(wc WC, lost error, done bool) (then []func()) {
	select {
	case <-op.told:
	default:
		op.wc, op.lost = wc, lost
		close(op.told)
	}
	if op.done = done; done {
		then, op.then = op.then, nil
	}
	return then
}

// Start begins an operation: post must post one signaled work request with the wr_id that
// it is given, or return an error. Start returns post's error, and then nothing was posted.
// But where that is an *ibv.PostError which says that the device has the work request all
// the same, the operation has begun: its Wait returns that error, and its memory is the
// device's until AfterDone. Start fails too when the completion queue is closed or has
// failed, without calling post.
func (d *Dispatcher) Start(post func(wrID uint64) error) (*Op, error) {
	op := &Op{d: d, told: make(chan struct{})}
	d.mu.Lock()
	if err := d.lost; err != nil {
		d.mu.Unlock()
		return nil, fmt.Errorf("starting an operation: %w", err)
	}
	id := d.next
	d.next++
	d.ops[id] = op // before the post, for it may complete at once
	d.mu.Unlock()
	if err := post(id); err != nil && !d.keeps(id, err) {
		return nil, err
	}
	return op, nil
}

// keeps ends the operation whose post has failed with err, and reports whether the device
// may have it.
func (d *Dispatcher) keeps(id uint64, err error) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	var refused *ibv.PostError
	if !errors.As(err, &refused) || refused.Accepted == 0 {
		delete(d.ops, id)
		return false
	}
	if op := d.ops[id]; op != nil { // else it has completed
		op.end(WC{}, err, false)
	}
	return true
}

// Wait waits for the completion of op. Its error is the completion's Err where there is
// one. If ctx ends first Wait fails with its cause, which after a deadline matches
// os.ErrDeadlineExceeded: then op is still in flight, and the device may still write its
// memory. Wait may be called again.
func (op *Op) Wait(ctx context.Context) (WC, error) {
	select {
	case <-op.told:
		return op.result()
	default:
	}
	select {
	case <-op.told:
		return op.result()
	case <-ctx.Done():
		return WC{}, fdwait.Cause(ctx)
	}
}

func (op *Op) result() (WC, error) {
	if op.lost != nil {
		return WC{}, op.lost
	}
	return op.wc, op.wc.Err()
}

// AfterDone has f called once the device has nothing of op any more: at once if that is
// so, or when its completion is taken, in Run's goroutine. That is the time to use op's
// memory again, also after a Wait that ended before. Close and RESET of a queue pair discard
// completions, so that its operations stay in flight here until the completion queue is closed:
// let ibv.QP.Drain end them before.
func (op *Op) AfterDone(f func()) {
	op.d.mu.Lock()
	done := op.done
	if !done {
		op.then = append(op.then, f)
	}
	op.d.mu.Unlock()
	if done {
		f()
	}
}

// InFlight returns how many operations the device has not completed.
func (d *Dispatcher) InFlight() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.ops)
}
