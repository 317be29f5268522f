package ibv

import (
	"errors"
	"runtime"
	"sync"
	"syscall"
	"weak"

	"github.com/goverbs/goverbs/internal/core"
	"github.com/goverbs/goverbs/internal/cverbs"
	"github.com/goverbs/goverbs/internal/inflight"
	"github.com/goverbs/goverbs/internal/life"
)

// SRQ is a shared receive queue: receives that whichever of its queue pairs gets a
// message takes. Its methods may be called from several goroutines; posts take their
// turns.
//
// Implements: ibv_srq
type SRQ struct {
	pd *PD
	s  *srqState
}

type srqState struct {
	life.Node
	handle weak.Pointer[SRQ]
	h      cverbs.SRQ
	addr   uintptr
	pd     *core.PD
	name   string // as String, for errors of the data path
	queue  *inflight.Queue
	rq     workQueue[cverbs.RecvWR]
	dead   error // of the device, or nil; under the post lock

	modify  sync.Mutex
	granted SRQInitAttr // under modify
	size    core.Size   // for completion queues
}

// CreateSRQ makes a shared receive queue. What the provider granted is in Cap, often
// more than was asked for.
//
// Implements: ibv_create_srq
func (pd *PD) CreateSRQ(init SRQInitAttr) (*SRQ, error) {
	fail := func(err error, reason string) (*SRQ, error) {
		return nil, &OpError{Op: "ibv_create_srq", Object: pd.s.String(), Err: err, Reason: reason}
	}
	if err := init.Check(); err != nil {
		return fail(syscall.EINVAL, err.Error())
	}
	if err := init.checkDevice(&pd.s.Ctx.Attr); err != nil {
		return fail(syscall.EINVAL, err.Error())
	}
	q := &srqState{pd: pd.s}
	if err := q.Init("SRQ", q.destroy, &pd.s.Node); err != nil {
		return fail(err, "")
	}
	if err := q.make(init); err != nil {
		q.Discard()
		return fail(err, "")
	}
	srq := &SRQ{pd: pd, s: q}
	q.handle = weak.Make(srq)
	pd.s.Ctx.Put(q.addr, q)
	q.Ready(core.Label(cverbs.SRQHandle(q.h), pd.s.Ctx))
	q.name = q.String()
	life.Guard(srq, &q.Node)
	return srq, nil
}

func (q *srqState) make(init SRQInitAttr) error {
	h, granted, err := cverbs.CreateSRQ(q.pd.H, cverbs.SRQAttr{MaxWR: init.MaxWR, MaxSGE: init.MaxSGE})
	if err != nil {
		return err
	}
	q.h, q.addr = h, cverbs.SRQAddr(h)
	q.granted = SRQInitAttr{MaxWR: granted.MaxWR, MaxSGE: granted.MaxSGE}
	q.size.Asked.Store(init.MaxWR)
	q.size.Granted.Store(granted.MaxWR)
	if q.rq.scratch, err = cverbs.NewScratch[cverbs.RecvWR](batch, int(max(granted.MaxSGE, 1)), 0); err == nil {
		if q.queue, err = inflight.Queues.New(0, 0); err == nil {
			return nil
		}
		q.rq.scratch.Free()
	}
	_ = cverbs.DestroySRQ(h) // the first error is the one to tell
	return err
}

// Cap returns what the provider granted.
func (srq *SRQ) Cap() SRQInitAttr {
	srq.s.modify.Lock()
	defer srq.s.modify.Unlock()
	return srq.s.granted
}

// PD returns the protection domain that the shared receive queue belongs to.
func (srq *SRQ) PD() *PD { return srq.pd }

// InFlight returns how many receives are posted and not yet completed. A receive that a
// queue pair took for a message which then was aborted may never complete: it counts,
// and its memory stays in use, until the shared receive queue is closed.
func (srq *SRQ) InFlight() int { return srq.s.queue.Shared.InFlight() }

// String names the shared receive queue and its device.
func (srq *SRQ) String() string { return srq.s.name }

// PostRecv gives receives to the shared queue: each takes one message of any of its
// queue pairs. Errors are those of QP.PostRecv. The provider alone knows when the queue
// is full, which is ErrQueueFull.
//
// Implements: ibv_post_srq_recv
func (srq *SRQ) PostRecv(wrs []RecvWR) (accepted int, err error) {
	defer runtime.KeepAlive(srq)
	defer runtime.KeepAlive(wrs) // and the handles in it, until they are counted as used
	const op = "ibv_post_srq_recv"
	q := srq.s
	q.rq.mu.Lock()
	defer q.rq.mu.Unlock()
	if q.rq.refuses != nil {
		return postFailed(op, q.name, 0, 0, q.rq.refuses)
	}
	pool := &q.queue.Shared
	f := recvFiller{&pool.Slots, q.rq.scratch, q.pd, "MaxSGE", uint32(q.rq.scratch.MaxSGE()), 0}
	accepted, bad, err := post(pool, len(wrs),
		func(from, room int) (n int, err error) { return f.fill(wrs[from:], room) },
		func(n int) (took, bad int, errno syscall.Errno) {
			return recvsTaken(cverbs.PostSRQRecv(q.addr, q.rq.scratch, n))
		},
		pool.Refused)
	if err != nil {
		return q.rq.full.orFailed(op, q.name, pool, accepted, bad, err)
	}
	return accepted, nil
}

// Modify changes the attributes that mask names: SRQMaxWR resizes the queue, on devices
// that can (whether the completion queues hold as many is not looked at again), and SRQLimit arms the event EventSRQLimitReached, which the device raises once
// when fewer receives than that are left.
//
// Implements: ibv_modify_srq
func (srq *SRQ) Modify(attr SRQAttr, mask SRQAttrMask) error {
	defer runtime.KeepAlive(srq)
	q := srq.s
	fail := func(err error, reason string) error {
		return &OpError{Op: "ibv_modify_srq", Object: q.name, Err: err, Reason: reason}
	}
	if err := q.Use(); err != nil {
		return fail(err, "")
	}
	defer q.Done()
	q.modify.Lock()
	defer q.modify.Unlock()
	if err := attr.check(mask, q.granted.MaxWR); err != nil {
		return fail(syscall.EINVAL, err.Error())
	}
	switch err := attr.checkDevice(mask, &q.pd.Ctx.Attr); {
	case errors.Is(err, errNoSRQResize):
		return fail(syscall.EOPNOTSUPP, err.Error())
	case err != nil:
		return fail(syscall.EINVAL, err.Error())
	}
	if err := cverbs.ModifySRQ(q.h, cverbs.SRQAttr(attr), uint32(mask)); err != nil {
		return fail(err, "")
	}
	if now, err := cverbs.QuerySRQ(q.h); err == nil {
		q.granted.MaxWR = now.MaxWR
		if mask&SRQMaxWR != 0 {
			q.size.Asked.Store(attr.MaxWR)
		}
		q.size.Granted.Store(now.MaxWR)
	}
	return nil
}

// Query returns the attributes as the device has them now.
//
// Implements: ibv_query_srq
func (srq *SRQ) Query() (SRQAttr, error) {
	defer runtime.KeepAlive(srq)
	q := srq.s
	err := q.Use()
	var c cverbs.SRQAttr
	if err == nil {
		defer q.Done()
		c, err = cverbs.QuerySRQ(q.h)
	}
	if err != nil {
		return SRQAttr{}, &OpError{Op: "ibv_query_srq", Object: q.name, Err: err}
	}
	return SRQAttr(c), nil
}

// Close destroys the shared receive queue, and with it the receives that are posted:
// their memory is free to use once Close has returned. While a queue pair uses it it
// changes nothing and returns an error that matches ErrBusy and names them. Closing
// again returns nil.
//
// Implements: ibv_destroy_srq
func (srq *SRQ) Close() error {
	defer runtime.KeepAlive(srq)
	return closeError("ibv_destroy_srq", srq.s.name, srq.s.Close())
}

func (q *srqState) destroy() error {
	q.setRefuses(ErrClosed)
	if err := q.pd.Ctx.Destroy(q.addr, q, func() error { return cverbs.DestroySRQ(q.h) }); err != nil {
		q.setRefuses(nil)
		return err
	}
	inflight.Queues.Retire(q.queue)
	q.rq.scratch.Free()
	return nil
}

func (q *srqState) setRefuses(err error) {
	q.rq.mu.Lock()
	defer q.rq.mu.Unlock()
	q.rq.refuses = why(err, q.dead)
}

// Fail has the queue's use fail: the device has failed.
func (q *srqState) Fail(err error) {
	q.rq.mu.Lock()
	defer q.rq.mu.Unlock()
	q.dead = err
	q.rq.refuses = why(q.rq.refuses, err)
}
