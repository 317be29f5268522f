package ibv

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/goverbs/goverbs/internal/core"
	"github.com/goverbs/goverbs/internal/cverbs"
	"github.com/goverbs/goverbs/internal/inflight"
	"github.com/goverbs/goverbs/internal/life"
)

// CompletionQueue is what a queue pair reports to: a *cq.CQ, and nothing else.
type CompletionQueue interface {
	// Core returns the inner state, for this module's own use.
	Core() *core.CQ
}

// QPQueues are the completion queues of a queue pair. They may be the same, and
// other queue pairs of the same device may share them.
type QPQueues struct {
	Send, Recv CompletionQueue
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
	h         cverbs.QP
	addr      uintptr
	pd        *core.PD
	typ       QPType
	num       uint32
	name      string // as String, for errors of the data path
	cap       QPCap
	signalAll bool
	sendCQ    *core.CQ
	recvCQ    *core.CQ
	queue     *inflight.Queue
	sq        workQueue[cverbs.SendWR]
	rq        workQueue[cverbs.RecvWR]

	modify sync.Mutex   // one Modify at a time
	state  atomic.Int32 // as this program last set it; to RESET under both post locks
}

// workQueue is the posting side of the send or the receive queue.
type workQueue[T cverbs.SendWR | cverbs.RecvWR] struct {
	mu      sync.Mutex // the post lock: scratch, and the head of the ring
	closed  bool
	scratch *cverbs.Scratch[T]
}

// batch is how many work requests go to the device in one call: enough to make the
// call's own cost small beside theirs.
const batch = 32

// CreateQP makes a queue pair in state RESET. What the provider granted is in Cap,
// often more than was asked for; asking for more than the device has is an error that
// names its limit.
//
// Implements: ibv_create_qp
func (pd *PD) CreateQP(init QPInitAttr, queues QPQueues) (*QP, error) {
	q, err := pd.newQP(init, queues)
	if err != nil {
		return nil, err
	}
	if err := q.makeQueues(); err != nil {
		_ = cverbs.DestroyQP(q.h) // the first error is the one to tell
		q.Discard()
		return nil, &OpError{Op: "ibv_create_qp", Object: q.pd.String(), Err: err}
	}
	q.Ready(fmt.Sprintf("%#x of %s", q.num, pd.s.Ctx.Name))
	q.name = q.String()
	return &QP{pd: pd, s: q}, nil
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
	if reason := overLimit(init.Cap, &pd.s.Ctx.Attr); reason != "" {
		return fail(syscall.EINVAL, reason)
	}
	q := &qpState{pd: pd.s, typ: init.Type, signalAll: init.SignalAll, sendCQ: send, recvCQ: recv}
	if err := q.Init("QP", q.destroy, &pd.s.Node, &send.Node, &recv.Node); err != nil {
		return fail(err, "")
	}
	h, granted, err := cverbs.CreateQP(pd.s.H, send.H, recv.H, cverbs.SRQ{}, int32(init.Type), init.SignalAll, cverbs.QPCap(init.Cap))
	if err != nil {
		reason := q.whyRefused(init, err) // while the PD and the CQs cannot be closed
		q.Discard()
		return fail(err, reason)
	}
	// Some providers grant more than the device says it has.
	granted.MaxSendWR = min(granted.MaxSendWR, inflight.MaxDepth)
	granted.MaxRecvWR = min(granted.MaxRecvWR, inflight.MaxDepth)
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
		h, _, err := cverbs.CreateQP(q.pd.H, q.sendCQ.H, q.recvCQ.H, cverbs.SRQ{}, int32(init.Type), init.SignalAll, c)
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

// PD returns the protection domain that the queue pair belongs to.
func (qp *QP) PD() *PD { return qp.pd }

// String names the queue pair and its device.
func (qp *QP) String() string { return qp.s.name }

// Close destroys the queue pair. Work requests that are still with the device are
// discarded and make no completions; completions that are queued already are not
// reported any more. Their memory is free to use once Close has returned. Calls in
// progress end first, and later posts fail with ErrClosed. Closing again returns
// nil.
//
// Implements: ibv_destroy_qp
func (qp *QP) Close() error {
	return closeError("ibv_destroy_qp", qp.String(), qp.s.Close())
}

func (q *qpState) destroy() error {
	q.setClosed(true)
	if err := q.pd.Ctx.Gone(cverbs.DestroyQP(q.h)); err != nil {
		q.setClosed(false)
		return err
	}
	unlock := core.LockCQs(q.sendCQ, q.recvCQ)
	inflight.Queues.Retire(q.queue)
	unlock()
	q.sq.scratch.Free()
	q.rq.scratch.Free()
	return nil
}

func (q *qpState) lockPosts() (unlock func()) {
	q.sq.mu.Lock()
	q.rq.mu.Lock()
	return func() { q.rq.mu.Unlock(); q.sq.mu.Unlock() }
}

func (q *qpState) setClosed(closed bool) {
	defer q.lockPosts()()
	q.sq.closed, q.rq.closed = closed, closed
}
