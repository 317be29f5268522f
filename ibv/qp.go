package ibv

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"weak"

	"github.com/goverbs/goverbs/internal/core"
	"github.com/goverbs/goverbs/internal/cverbs"
	"github.com/goverbs/goverbs/internal/inflight"
	"github.com/goverbs/goverbs/internal/life"
)

// CompletionQueue is what a queue pair reports to: a *cq.CQ, or what embeds one.
type CompletionQueue interface {
	// Core returns the inner state, for this module's own use.
	Core() *core.CQ
}

// QPQueues are the queues that a queue pair shares with others of the same device: its
// completion queues, which may be the same, and its shared receive queue, if it has one
// instead of its own.
type QPQueues struct {
	Send, Recv CompletionQueue
	SRQ        *SRQ
}

// QP is a queue pair. Its methods may be called from several goroutines; posts to
// one of its queues take their turns, and posts to the other go on beside them.
//
// Implements: ibv_qp
type QP struct {
	pd *PD
	s  *qpState
}

type qpState struct {
	life.Node
	handle    weak.Pointer[QP]
	h         cverbs.QP
	addr      uintptr
	pd        *core.PD
	typ       QPType
	num       uint32
	name      string // as String, for errors of the data path
	cap       QPCap
	signalAll bool
	sendFlags SendFlags  // that a work request may have
	plain     [16]uint64 // see setPlain
	sendCQ    *core.CQ
	recvCQ    *core.CQ
	srq       *srqState // or nil
	queue     *inflight.Queue
	sq        workQueue[cverbs.SendWR]
	rq        workQueue[cverbs.RecvWR]
	hasBound  atomic.Bool // windows, or invalidated them, ever
	binds     []*binding  // of type 2, of the batch that is being posted; under the post lock
	lastAH    uintptr     // of a UD queue's youngest send; under the post lock
	groups    memberships

	modify      sync.Mutex    // one Modify or Drain at a time; see unlockModify
	mustErr     atomic.Bool   // whoever has modify moves the QP to ERR before giving it up
	lastReached atomic.Bool   // the device has raised LAST_WQE_REACHED
	dead        error         // of the device, or nil; under the post locks
	port        uint8         // of datagrams; under the context's Ports
	state       atomic.Int32  // as this program last set it; to RESET under both post locks
	maxRdAtomic uint8         // as this program last set it; under the post lock
	mtu         atomic.Uint32 // of the port's datagrams, in bytes; 0 where it is not known
}

// CreateQP makes a queue pair in state RESET. What the provider granted is in Cap,
// often more than was asked for; asking for more than the device has is an error that
// names its limit.
//
// A completion queue that would overflow with as many work requests as were asked for is
// reported to the logger; one that was made strict has it refused, if it could with as many
// as were granted. Each send and receive counts, also unsignaled ones, and all receives of a
// shared receive queue.
//
// Implements: ibv_create_qp
func (pd *PD) CreateQP(init QPInitAttr, queues QPQueues) (*QP, error) {
	defer runtime.KeepAlive(queues) // and the handles in it
	q, err := pd.newQP(init, queues)
	if err != nil {
		return nil, err
	}
	overflows, err := q.join(init.Cap)
	if err == nil {
		if err = q.makeQueues(); err != nil {
			q.leave()
		}
	}
	if err != nil {
		_ = cverbs.DestroyQP(q.h) // the first error is the one to tell
		q.Discard()
		return nil, &OpError{Op: "ibv_create_qp", Object: q.pd.String(), Err: err}
	}
	qp := &QP{pd: pd, s: q}
	q.handle = weak.Make(qp)
	q.pd.Ctx.Put(q.addr, q)
	q.Reap(q.mayReap)
	q.BeforeCloseAll(q.endBinds)
	q.Ready(fmt.Sprintf("%#x of %s", q.num, pd.s.Ctx.Name))
	q.name = q.String()
	life.Guard(qp, &q.Node)
	for c, how := range overflows {
		life.Logger().Warn("completion queue can overflow", "object", c.String(), "reason", how, "with", q.name)
	}
	return qp, nil
}

func (pd *PD) newQP(init QPInitAttr, queues QPQueues) (*qpState, error) {
	fail := func(err error, reason string) (*qpState, error) {
		return nil, &OpError{Op: "ibv_create_qp", Object: pd.s.String(), Err: err, Reason: reason}
	}
	if err := init.Check(); err != nil {
		return fail(syscall.EINVAL, err.Error())
	}
	switch init.Type {
	case QPTypeRC, QPTypeUC, QPTypeUD:
	default:
		return fail(syscall.EOPNOTSUPP, fmt.Sprintf("QPs of type %v are not bound here: use RC, UC or UD", init.Type))
	}
	send, recv := coreCQ(queues.Send), coreCQ(queues.Recv)
	if send == nil || recv == nil {
		return fail(syscall.EINVAL, "QPQueues.Send and QPQueues.Recv must both be a *cq.CQ; they may be the same")
	}
	if send.Ctx != pd.s.Ctx || recv.Ctx != pd.s.Ctx {
		return fail(syscall.EINVAL, fmt.Sprintf("%s, %s and %s belong to different devices, or to devices opened twice", &pd.s.Node, &send.Node, &recv.Node))
	}
	parents := []*life.Node{&pd.s.Node, &send.Node, &recv.Node}
	q := &qpState{pd: pd.s, typ: init.Type, signalAll: init.SignalAll, sendCQ: send, recvCQ: recv}
	q.sendFlags = knownSendFlags
	if init.Type != QPTypeRC {
		q.sendFlags &^= SendFence
	}
	q.setPlain()
	if queues.SRQ != nil && queues.SRQ.s == nil {
		return fail(syscall.EINVAL, "QPQueues.SRQ is a zero SRQ: make it with PD.CreateSRQ")
	}
	if queues.SRQ != nil {
		q.srq = queues.SRQ.s
		parents = append(parents, &q.srq.Node)
		switch {
		case q.srq.pd.Ctx != pd.s.Ctx:
			return fail(syscall.EINVAL, fmt.Sprintf("%s belongs to another device, or to one opened twice", q.srq.name))
		case init.Cap.MaxRecvWR != 0:
			return fail(syscall.EINVAL, fmt.Sprintf("Cap.MaxRecvWR is %d, but with QPQueues.SRQ the QP has no receive queue of its own: leave it 0", init.Cap.MaxRecvWR))
		}
	}
	if reason := overLimit(init.Cap, &pd.s.Ctx.Attr); reason != "" {
		return fail(syscall.EINVAL, reason)
	}
	if err := q.failure(); err != nil {
		return fail(err, "")
	}
	if err := q.Init("QP", q.destroy, parents...); err != nil {
		return fail(err, "")
	}
	if q.srq != nil {
		pd.s.Ctx.SharedQPs.Lock() // see destroy
	}
	h, granted, err := cverbs.CreateQP(pd.s.H, send.H, recv.H, q.srqHandle(), int32(init.Type), init.SignalAll, cverbs.QPCap(init.Cap))
	if q.srq != nil {
		pd.s.Ctx.SharedQPs.Unlock()
	}
	if err != nil {
		reason := q.whyRefused(init, err) // while the PD and the CQs cannot be closed
		q.Discard()
		return fail(err, reason)
	}
	// Some providers grant more than the device says it has.
	granted.MaxSendWR = min(granted.MaxSendWR, inflight.MaxDepth)
	granted.MaxRecvWR = min(granted.MaxRecvWR, inflight.MaxDepth)
	if q.srq != nil {
		granted.MaxRecvWR, granted.MaxRecvSGE = 0, 0 // what some providers leave here is of no use
	}
	q.h, q.addr, q.num, q.cap = h, cverbs.QPAddr(h), cverbs.QPNum(h), QPCap(granted)
	return q, nil
}

func (q *qpState) makeQueues() (err error) {
	c := q.cap
	if q.sq.scratch, err = cverbs.NewScratch[cverbs.SendWR](batch, int(max(c.MaxSendSGE, 1)), int(c.MaxInlineData)); err != nil {
		return err
	}
	if q.rq.scratch, err = cverbs.NewScratch[cverbs.RecvWR](batch, int(max(c.MaxRecvSGE, 1)), 0); err != nil {
		q.sq.scratch.Free()
		return err
	}
	if q.queue, err = inflight.Queues.New(int(c.MaxSendWR), int(c.MaxRecvWR)); err != nil {
		q.sq.scratch.Free()
		q.rq.scratch.Free()
	}
	return err
}

func (q *qpState) srqHandle() cverbs.SRQ {
	if q.srq == nil {
		return cverbs.SRQ{}
	}
	return q.srq.h
}

func coreCQ(c CompletionQueue) *core.CQ {
	if c == nil {
		return nil
	}
	return c.Core()
}

// overLimit says which capacity is beyond what the device says of itself.
func overLimit(c QPCap, d *cverbs.DeviceAttr) string {
	for _, l := range []struct {
		field, limit string
		ask          uint32
		most         int32
	}{
		{"MaxSendWR", "max_qp_wr", c.MaxSendWR, d.MaxQPWR},
		{"MaxRecvWR", "max_qp_wr", c.MaxRecvWR, d.MaxQPWR},
		{"MaxSendSGE", "max_sge", c.MaxSendSGE, d.MaxSGE},
		{"MaxRecvSGE", "max_sge", c.MaxRecvSGE, d.MaxSGE},
	} {
		if int64(l.ask) > int64(l.most) {
			return fmt.Sprintf("Cap.%s %d is above the device's %s %d", l.field, l.ask, l.limit, l.most)
		}
	}
	return ""
}

// whyRefused finds the limit that the device does not tell: how much inline data
// it takes differs by QP type and the number of SGEs. Trying is the only way, and
// the error is worth a few calls.
func (q *qpState) whyRefused(init QPInitAttr, err error) string {
	if errors.Is(err, syscall.EOPNOTSUPP) {
		return fmt.Sprintf("the device has no QPs of type %v", init.Type)
	}
	works := func(inline uint32) bool {
		c := cverbs.QPCap(init.Cap)
		c.MaxInlineData = inline
		h, _, err := cverbs.CreateQP(q.pd.H, q.sendCQ.H, q.recvCQ.H, q.srqHandle(), int32(init.Type), init.SignalAll, c)
		if err == nil {
			_ = cverbs.DestroyQP(h)
		}
		return err == nil
	}
	ask := init.Cap.MaxInlineData
	if ask == 0 || !works(0) {
		return "the provider refused " + init.String()
	}
	good, bad := uint32(0), ask
	for bad-good > 1 {
		if mid := good + (bad-good)/2; works(mid) {
			good = mid
		} else {
			bad = mid
		}
	}
	return fmt.Sprintf("Cap.MaxInlineData %d is above the %d that the device takes for this type and number of SGEs", ask, good)
}

// Num returns the QP number, which is unique on the device while the QP exists.
func (qp *QP) Num() uint32 { return qp.s.num }

// Type returns the transport type.
func (qp *QP) Type() QPType { return qp.s.typ }

// Cap returns what the provider granted.
func (qp *QP) Cap() QPCap { return qp.s.cap }

// InFlight returns how many work requests of the queue pair are posted and have not
// completed: an unsignaled send counts until a later one of its queue has completed.
// Those of a shared receive queue are not the queue pair's.
func (qp *QP) InFlight() (sends, receives int) {
	return qp.s.queue.Send.InFlight(), qp.s.queue.Recv.InFlight()
}

// PD returns the protection domain that the queue pair belongs to.
func (qp *QP) PD() *PD { return qp.pd }

// Core returns the inner state, for the other packages of this module.
func (qp *QP) Core() core.QP { return qp.s }

// String names the queue pair and its device.
func (qp *QP) String() string { return qp.s.name }

// Close destroys the queue pair. Work requests that are still with the device are
// discarded and make no completions; completions that are queued already are not
// reported any more. Their memory is free to use once Close has returned. Calls in
// progress end first, a Drain at once, and later posts fail with ErrClosed. Closing
// again returns nil.
//
// A bound memory window of type 2 belongs to the queue pair: while there is one, Close
// changes nothing and returns an error that matches ErrBusy and names it. If binds of either
// type may be in flight it takes the queue pair to ERR and waits up to a second for these to end
// first; should it be busy then, it can be closed again, or taken to RESET, before which posts
// may be refused.
//
// Of a shared receive queue it may take receives with it: those that it had begun to
// fill. They never complete, and stay in use until the shared receive queue is closed.
//
// Implements: ibv_destroy_qp
func (qp *QP) Close() error {
	defer runtime.KeepAlive(qp)
	return closeError("ibv_destroy_qp", qp.String(), qp.s.Close())
}

func (q *qpState) destroy() error {
	undo := q.setRefuses(ErrClosed)
	if q.hasBound.Load() {
		_ = harvest(q.sendCQ)
		// Some devices wait for ever for a window that is bound to the QP, also by a bind whose
		// completion nobody has polled, or that is about to come.
		err := q.Busy()
		if err == nil {
			if q.flushSends() {
				undo = func() { q.setRefuses(errEnded) }
			}
			err = q.Busy()
		}
		if err != nil {
			undo()
			return err
		}
	}
	if q.srq != nil {
		// So that the device lets go of the shared queue's receives in good order.
		_ = q.enterErr()
		q.pd.Ctx.SharedQPs.Lock()
		defer q.pd.Ctx.SharedQPs.Unlock()
		// Some providers remove the QP's completions with it, and so the last that is heard of
		// the shared queue's receives.
		_ = harvest(q.recvCQ)
	}
	q.detachAll()
	if err := q.pd.Ctx.Destroy(q.addr, q, func() error { return cverbs.DestroyQP(q.h) }); err != nil {
		undo()
		return err
	}
	unlock := core.LockCQs(q.sendCQ, q.recvCQ)
	inflight.Queues.Retire(q.queue)
	q.dropQueued()
	q.forget()
	unlock()
	q.spread()
	q.sq.scratch.Free()
	q.rq.scratch.Free()
	return nil
}

// join has the completion queues count with the work requests of the queue pair, and says
// which of them could overflow by now, and how. A strict one refuses.
func (q *qpState) join(asked QPCap) (overflows map[*core.CQ]string, err error) {
	defer core.LockCQs(q.sendCQ, q.recvCQ)()
	q.sendCQ.AddQP(q, asked.MaxSendWR, q.cap.MaxSendWR)
	if q.srq == nil {
		q.recvCQ.AddQP(q, asked.MaxRecvWR, q.cap.MaxRecvWR)
	} else {
		q.recvCQ.AddSharedQP(q, &q.srq.size)
	}
	overflows = map[*core.CQ]string{}
	for _, c := range q.cqs() {
		how := c.Overflows(c.Entries)
		switch {
		case how == "":
		case c.Strict:
			q.forget()
			return nil, &OpError{Err: syscall.EINVAL, Reason: fmt.Sprintf("%v is strict: %s", &c.Node, how)}
		default:
			overflows[c] = how
		}
	}
	return overflows, nil
}

// leave undoes join.
func (q *qpState) leave() {
	defer core.LockCQs(q.sendCQ, q.recvCQ)()
	q.forget()
}

// forget is leave under the locks of the completion queues.
func (q *qpState) forget() {
	for _, c := range q.cqs() {
		c.RemoveQP(q)
	}
}

// mayReap says whether a queue pair whose handle was dropped can be destroyed. As long as
// the program can poll, its completions come; and what it has sent is sent in any case.
func (q *qpState) mayReap() life.Verdict {
	if q.sendCQ.Dropped() {
		q.sendCQ.Mu.Lock()
		gather(q.sendCQ, func(*core.Completion) bool { return true }) // nobody will ask for them
		q.sendCQ.Mu.Unlock()
	}
	if q.failure() != nil {
		return life.Verdict{} // its completions may never come
	}
	sends, recvs := q.queue.Send.InFlight(), q.queue.Recv.InFlight()
	if sends > 0 || recvs > 0 && !q.recvCQ.Dropped() {
		return life.Verdict{When: life.Later, Reason: fmt.Sprintf("%d sends and %d receives are in flight", sends, recvs)}
	}
	for _, c := range q.cqs() { // of which others may have taken its completions from the device
		if !c.Dropped() && q.hasUnread(c) {
			return life.Verdict{When: life.Later, Reason: "its completions have not been polled"}
		}
	}
	return life.Verdict{}
}

// hasUnread reports whether completions of this QP are in the spill, for a poll to return.
func (q *qpState) hasUnread(at *core.CQ) bool {
	at.Mu.Lock()
	defer at.Mu.Unlock()
	return slices.ContainsFunc(at.Spill, func(c core.Completion) bool {
		return inflight.Queues.Owns(q.queue, c.WC.WRID) || q.tookShared(&c)
	})
}

// dropQueued takes from the completion queues what the device has completed for this QP: nobody is
// told, and it would have the place of what is posted next, here or on a new QP. The tokens
// of a shared queue's receives say nothing of the QP, whose number another may have next. The
// caller holds the locks of the completion queues and has the QP's slots released, the device
// completes nothing more, and Spread must follow.
func (q *qpState) dropQueued() {
	for _, at := range q.cqs() {
		at.Purge(q.srq != nil || q.hasBound.Load(), noting(at, q.tookShared))
		gather(at, q.tookShared)
	}
}

// tookShared reports whether a completion is of a receive that this QP took from the shared queue.
func (q *qpState) tookShared(c *core.Completion) bool {
	return q.srq != nil && c.Kind == inflight.Shared && c.WC.QPNum == q.num
}

// spread has those know who must, if a completion queue has failed.
func (q *qpState) spread() {
	for _, c := range q.cqs() {
		c.Spread()
	}
}

func (q *qpState) lockPosts() (unlock func()) {
	q.sq.mu.Lock()
	q.rq.mu.Lock()
	return func() { q.rq.mu.Unlock(); q.sq.mu.Unlock() }
}

// setRefuses has later posts fail with err, or not, and returns what undoes it.
func (q *qpState) setRefuses(err error) (undo func()) {
	defer q.lockPosts()()
	was := q.sq.refuses
	q.refuse(err)
	return func() { q.setRefuses(was) }
}

// refuse is setRefuses under the post locks.
func (q *qpState) refuse(err error) {
	err = why(err, q.dead)
	q.sq.refuses, q.rq.refuses = err, err
}
