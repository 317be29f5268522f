package ibv

import (
	"context"
	"fmt"
	"runtime"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/internal/core"
	"github.com/goverbs/goverbs/internal/cverbs"
	"github.com/goverbs/goverbs/internal/fdwait"
	"github.com/goverbs/goverbs/internal/inflight"
)

var errDrained = &OpError{Kind: ErrClosed, Err: syscall.EINVAL,
	Reason: "the QP was drained: take it to RESET to use it again"}

// Drain ends the use of the queue pair without losing a completion: it refuses new
// posts, takes the QP to ERR, and waits until all work requests have completed, most of
// them flushed. Their completions are kept for Poll, and so are those of other queue
// pairs that it met. Afterwards the QP can be closed, or taken to RESET and used again.
// In RESET there is nothing to drain, and Drain changes nothing.
//
// Where ctx ends first Drain returns an error that matches its cause, and after a timeout
// os.ErrDeadlineExceeded too, and that says how much is left: completions that an overrun
// has lost never come, and Close or RESET gives their memory back.
//
// The receives of a shared receive queue are not the QP's own. Drain waits for those
// that the QP had begun to fill as far as the device tells about them, by the event
// LAST_WQE_REACHED. A device that does not raise it (rdma_rxe of Linux 6.1) has Drain
// wait until ctx ends. Close is sure on every device: it reports none of them later.
func (qp *QP) Drain(ctx context.Context) error {
	defer runtime.KeepAlive(qp)
	q, done := qp.s, ctx.Done()
	fail := func(err error, reason string) error {
		return &OpError{Op: "draining", Object: q.name, Err: err, Reason: reason}
	}
	if err := q.Use(); err != nil {
		return fail(err, "")
	}
	defer q.Done()
	q.modify.Lock()
	defer q.unlockModify()

	if QPState(q.state.Load()) == QPStateReset {
		return nil // there is nothing, and no way from there to ERR
	}
	allow := q.setRefuses(errDrained)
	if err := q.toErr(); err != nil {
		allow()
		return fail(err, "")
	}
	began := time.Now()
	for pause := 20 * time.Microsecond; ; pause = min(2*pause, time.Millisecond) {
		q.mark(began)
		lastReached := q.srq == nil || q.lastReached.Load()
		for _, c := range q.cqs() {
			if err := harvest(c); err != nil {
				return fail(err, "")
			}
		}
		sends, recvs := q.queue.Send.InFlight(), q.queue.Recv.InFlight()
		switch {
		case sends == 0 && recvs == 0 && lastReached:
			return nil
		case q.Closing():
			return fail(ErrClosed, "closed while draining")
		}
		select {
		case <-done:
			return fail(fdwait.Cause(ctx), leftOver(sends, recvs))
		case <-time.After(pause):
		}
	}
}

// toErr takes the queue pair to ERR. The caller holds q.modify.
func (q *qpState) toErr() error {
	unexplain := q.queue.Explain()
	// Also from ERR: on rdma_rxe a receive that was posted in ERR is flushed by the next
	// move to it only.
	err := q.enterErr()
	if err != nil {
		unexplain()
	}
	return err
}

// enterErr is toErr for a reason of its own, which does not explain the flushes.
func (q *qpState) enterErr() error {
	err := cverbs.ModifyQP(q.h, &cverbs.QPAttr{State: int32(QPStateErr)}, uint32(AttrState))
	if err == nil {
		q.setState(QPStateErr)
	}
	return err
}

var errEnded = &OpError{Kind: ErrClosed, Err: syscall.EINVAL,
	Reason: "Close, CloseAll or RESET has ended its sends, and has not come to its own end: take the QP to RESET to use it again"}

// errResetting is of posts beside a move to RESET, which may fail and leave the queue pair as it was.
var errResetting = &OpError{Err: syscall.EINVAL, Reason: "the QP is being taken to RESET"}

// patienceAtEnd is how long CloseAll, Close and RESET wait for the binds of a queue pair to end.
// Flushing takes a device much less.
const patienceAtEnd = time.Second

// endBinds has the queue pair post no more and, if it has bound windows, waits for its
// sends to end. A window that is bound to the queue pair must be closed before it, but
// cannot be as long as binds and invalidations of it are in flight.
func (q *qpState) endBinds() {
	q.modify.Lock() // which a Drain gives up
	defer q.unlockModify()
	q.setRefuses(errEnded)
	if q.hasBound.Load() {
		q.flushSends()
	}
}

// patienceWhenFull is how long a device has to flush a send of a full queue.
const patienceWhenFull = 5 * time.Millisecond

// flushSends takes the queue pair to ERR, if it has sends in flight, and waits for them to end.
// The caller has posts refused, and holds q.modify or is the last to use the queue pair. It
// reports whether a marker is with the device still, behind which nothing may be posted.
func (q *qpState) flushSends() (marked bool) {
	if q.queue.Send.InFlight() == 0 || q.toErr() != nil {
		return false
	}
	began := time.Now()
	for q.queue.Send.InFlight() > 0 && time.Since(began) < patienceAtEnd {
		q.mark(began)
		if harvest(q.sendCQ) != nil {
			break
		}
		time.Sleep(20 * time.Microsecond)
	}
	return q.queue.Send.Marked()
}

// mark has the device tell when it is done with unsignaled sends that nothing signaled
// follows: they may have succeeded long ago. The queue pair is in ERR, so that it goes nowhere.
//
// The completion queue may have no room for one more than the queue holds. So what is flushed
// comes first: in a full queue since the device began with that, unless nothing does.
func (q *qpState) mark(began time.Time) {
	q.sq.mu.Lock()
	defer q.sq.mu.Unlock()
	q.sendCQ.Mu.Lock() // so that the last send stays in flight, and its address handle in use
	defer q.sendCQ.Mu.Unlock()
	ring := &q.queue.Send
	if !ring.NeedsMarker() {
		return
	}
	gather(q.sendCQ, none)
	if !ring.NeedsMarker() || ring.InFlight() == ring.Depth() && time.Since(began) < patienceWhenFull {
		return
	}
	ring.Mark(func(wrID inflight.Token) bool {
		wr := &q.sq.scratch.Items[0]
		wr.WRID, wr.NumSGE, wr.Opcode, wr.Flags, wr.Imm = uint64(wrID), 0, uint32(OpSend)-1, uint32(SendSignaled), 0
		if wr.ClearUnions(); q.typ == QPTypeUD {
			wr.SetUD(q.lastAH, 0, 0) // which the send in flight before it keeps open
		}
		bad, errno := cverbs.PostSend(q.addr, q.sq.scratch, 1)
		return errno == 0 || mayBeQueued(bad, errno) // else there is no room yet
	})
}

func leftOver(sends, recvs int) string {
	if sends == 0 && recvs == 0 {
		return "its own work requests have completed, but the device has not said that it is done with those of the shared receive queue"
	}
	return fmt.Sprintf("%d sends and %d receives have not completed", sends, recvs)
}

// cqs returns the completion queues that the QP reports to.
func (q *qpState) cqs() []*core.CQ {
	if q.sendCQ == q.recvCQ {
		return []*core.CQ{q.sendCQ}
	}
	return []*core.CQ{q.sendCQ, q.recvCQ}
}

// gather moves to the completion queue's spill what the device has for it, but for what is to be
// dropped. The caller holds its lock.
func gather(q *core.CQ, drop func(*core.Completion) bool) { q.Harvest(noting(q, drop)) }

func none(*core.Completion) bool { return false }

// noting is drop, and notes what a dropped or late completion tells of windows.
func noting(q *core.CQ, drop func(*core.Completion) bool) func(c *core.Completion, late bool) bool {
	return func(c *core.Completion, late bool) bool {
		if late || drop(c) {
			NoteInvalidation(q, &c.WC)
			return true
		}
		return false
	}
}

// harvest returns why the completion queue is of no use, or nil.
func harvest(c *core.CQ) error {
	c.Mu.Lock()
	gather(c, none)
	err := c.Failed
	c.Mu.Unlock()
	if err == nil {
		return nil
	}
	c.Spread()
	return fmt.Errorf("%v: %w", &c.Node, err)
}
