package ibv

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"syscall"

	"github.com/goverbs/goverbs/internal/cverbs"
)

// workQueue is the posting side of a send queue, a receive queue or a shared one.
type workQueue[T cverbs.SendWR | cverbs.RecvWR] struct {
	mu      sync.Mutex // the post lock: what follows, and the posting side of the slots
	refuses error      // why nothing may be posted, or nil
	scratch *cverbs.Scratch[T]
	full    fullErrors
}

// batch is how many work requests go to the device in one call: enough to make the
// call's own cost small beside theirs.
const batch = 32

// PostSend gives work requests to the send queue, in order. Accepted means that
// the device has them, not that they are done: that is what their completions say.
//
// With an error, a *PostError, the first accepted of them are with the device all
// the same, and the rest is not. A full queue is ErrQueueFull: poll, and post the
// rest again. Refused before the device sees them are, among others, more SGEs or
// inline bytes than were granted, operations that the QP's type does not have, regions
// of another PD, closed ones and ones without the right that is needed, SGEs that
// together exceed the remote range, and any send before the QP is in RTS. In ERR work
// requests are accepted, and come back flushed.
//
// The slice and its SGEs are the caller's again when PostSend returns; the memory
// that the SGEs name is not, until the completion. PostSend allocates nothing, but
// when it fails otherwise than by a queue that had room for less than 32 of them.
//
// Implements: ibv_post_send
func (qp *QP) PostSend(wrs []SendWR) (accepted int, err error) {
	q := qp.s
	q.sq.mu.Lock()
	defer q.sq.mu.Unlock()
	accepted, err = q.postSend(wrs)
	runtime.KeepAlive(qp)
	runtime.KeepAlive(wrs) // and the handles in it, until they are counted as used
	return accepted, err
}

func (q *qpState) postSend(wrs []SendWR) (accepted int, err error) {
	if err := q.maySend("a send"); err != nil {
		return postFailed("ibv_post_send", q.name, 0, 0, err)
	}
	accepted, bad, err := post(&q.queue.Send, len(wrs),
		func(from, room int) (n int, err error) { return q.fillSends(wrs[from:], room) },
		func(n int) (took, bad int, errno syscall.Errno) {
			bad, errno = cverbs.PostSend(q.addr, q.sq.scratch, n)
			q.bindsPosted()
			if took = n; errno != 0 && !mayBeQueued(bad, errno) {
				took = max(bad, 0)
			}
			if q.typ == QPTypeUD && took > 0 {
				q.lastAH = q.sq.scratch.Items[took-1].AH()
			}
			return took, bad, errno
		},
		func(took int) {
			q.sendCQ.Mu.Lock()
			defer q.sendCQ.Mu.Unlock()
			q.queue.Send.Refused(took)
		})
	if len(q.binds) > 0 { // that did not come to the device
		q.bindsPosted()
	}
	if err != nil {
		return q.sq.full.orFailed("ibv_post_send", q.name, &q.queue.Send, accepted, bad, err)
	}
	return accepted, nil
}

// mayBeQueued reports whether sends may be with the device though it failed: some providers
// queue them and then fail without naming one. To own too much is safe, to own too little
// is not. Only the dummy that stands for a missing operation is sure to queue nothing.
func mayBeQueued(bad int, errno syscall.Errno) bool {
	return bad == cverbs.None && errno != syscall.EOPNOTSUPP
}

// PostRecv gives work requests to the receive queue, in order: each takes one
// message. Post them before the peer can send. Errors are those of PostSend; it is
// refused in RESET. A queue pair with a shared receive queue has none of its own.
//
// Implements: ibv_post_recv
func (qp *QP) PostRecv(wrs []RecvWR) (accepted int, err error) {
	defer runtime.KeepAlive(qp)
	defer runtime.KeepAlive(wrs) // and the handles in it, until they are counted as used
	q := qp.s
	q.rq.mu.Lock()
	defer q.rq.mu.Unlock()
	err = q.mayPost(q.rq.refuses, "a receive", QPStateReset)
	if err == nil && q.srq != nil {
		err = refuse(syscall.EINVAL, "the QP takes its receives from %s: post them there", q.srq.name)
	}
	if err != nil {
		return postFailed("ibv_post_recv", q.name, 0, 0, err)
	}
	f := recvFiller{&q.queue.Recv.Slots, q.rq.scratch, q.pd, "MaxRecvSGE", q.cap.MaxRecvSGE, 0}
	if q.typ == QPTypeUD {
		f.least = cverbs.GRHSize
	}
	accepted, bad, err := post(&q.queue.Recv, len(wrs),
		func(from, room int) (n int, err error) { return f.fill(wrs[from:], room) },
		func(n int) (took, bad int, errno syscall.Errno) {
			return recvsTaken(cverbs.PostRecv(q.addr, q.rq.scratch, n))
		},
		func(took int) {
			q.recvCQ.Mu.Lock()
			defer q.recvCQ.Mu.Unlock()
			q.queue.Recv.Refused(took)
		})
	if err != nil {
		return q.rq.full.orFailed("ibv_post_recv", q.name, &q.queue.Recv, accepted, bad, err)
	}
	return accepted, nil
}

// recvsTaken says how many receives a device took that named bad: where it failed and
// named none it queued none.
func recvsTaken(bad int, errno syscall.Errno) (took, named int, err syscall.Errno) {
	return max(bad, 0), bad, errno
}

// slots is what inflight's ring and pool have in common here.
type slots interface {
	Begin(want int) (room int)
	Commit() int
}

// post runs total work requests through scratch in batches. The caller holds the
// post lock. fill writes those from one on to scratch and to slots, at most room of them,
// and stops at one that it refuses; call posts the first n of scratch and says, with an
// errno, how many the device took and which one it named; refused gives back the slots of
// those that it did not take. bad is the index of the work request that failed, or
// cverbs.None.
func post(s slots, total int,
	fill func(from, room int) (n int, err error),
	call func(n int) (took, bad int, errno syscall.Errno),
	refused func(took int),
) (accepted, bad int, err error) {
	for accepted < total && err == nil {
		room := s.Begin(min(total-accepted, batch))
		if room == 0 {
			return accepted, accepted, errFull
		}
		var n int
		n, err = fill(accepted, room)
		if n == 0 {
			break
		}
		// The poller must know the slots before the device can complete them.
		if kept := s.Commit(); kept < n {
			n, err = kept, errRegionClosed
		}
		if n == 0 {
			break
		}
		took, bad, errno := call(n)
		if errno != 0 {
			refused(took)
			if bad != cverbs.None {
				bad += accepted
			}
			return accepted + took, bad, refusal(errno)
		}
		accepted += n
	}
	return accepted, accepted, err
}

// mayPost refuses the states in which providers drop a work request silently, or
// queue it and say that they did not.
func (q *qpState) mayPost(refuses error, what string, states ...QPState) error {
	if refuses != nil {
		return refuses
	}
	if state := QPState(q.state.Load()); slices.Contains(states, state) {
		return refuse(syscall.EINVAL, "%s cannot be posted in state %v", what, state)
	}
	return nil
}

// maySend is mayPost for the send queue.
func (q *qpState) maySend(what string) error {
	if q.sq.refuses == nil && QPState(q.state.Load()) == QPStateRTS {
		return nil
	}
	return q.mayPost(q.sq.refuses, what, QPStateReset, QPStateInit, QPStateRTR)
}

// refusal gives the reason of an errno of the device. What else the same errno
// could mean was checked before the call.
func refusal(err error) error {
	errno, _ := err.(syscall.Errno) //nolint:errorlint // package cverbs returns it bare
	if e := errNoRoom[errno]; e != nil {
		return e
	}
	return err
}

var errRegionClosed = &OpError{Kind: ErrClosed, Err: syscall.EINVAL,
	Reason: "the memory region, address handle or window that it uses was closed, or is being closed"}

func refuse(errno syscall.Errno, format string, args ...any) error {
	return &OpError{Err: errno, Reason: fmt.Sprintf(format, args...)}
}

func postFailed(op, object string, accepted, index int, err error) (int, error) {
	return accepted, newPostError(op, object, accepted, index, err)
}

func newPostError(op, object string, accepted, index int, err error) *PostError {
	e := &PostError{Accepted: accepted, Index: index, OpError: OpError{Err: err}}
	if op := (*OpError)(nil); errors.As(err, &op) {
		e.OpError = *op
	}
	e.Op, e.Object = op, object
	return e
}
