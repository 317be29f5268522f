package ibv

import (
	"errors"
	"fmt"
	"slices"
	"syscall"

	"github.com/goverbs/goverbs/internal/cverbs"
	"github.com/goverbs/goverbs/internal/inflight"
)

// PostSend gives work requests to the send queue, in order. Accepted means that
// the device has them, not that they are done: that is what their completions say.
//
// With an error, a *PostError, the first accepted of them are with the device all
// the same, and the rest is not. A full queue is ErrQueueFull: poll, and post the
// rest again. Refused before the device sees them are more SGEs or inline bytes
// than were granted, an unknown opcode or flag, and any send before the QP is in
// RTS. In ERR work requests are accepted, and come back flushed.
//
// The slice and its SGEs are the caller's again when PostSend returns; the memory
// that the SGEs name is not, until the completion.
//
// Implements: ibv_post_send
func (qp *QP) PostSend(wrs []SendWR) (accepted int, err error) {
	q := qp.s
	q.sq.mu.Lock()
	defer q.sq.mu.Unlock()
	if err := q.mayPost(q.sq.closed, "a send", QPStateReset, QPStateInit, QPStateRTR); err != nil {
		return q.postFailed("ibv_post_send", 0, 0, err)
	}
	return q.post("ibv_post_send", &q.queue.Send, len(wrs),
		func(i, slot int, pos uint32) error { return q.fillSend(&wrs[i], slot, pos) },
		func(n int) (took, bad int, errno syscall.Errno) {
			bad, errno = cverbs.PostSend(q.addr, q.sq.scratch, n)
			if bad != cverbs.None || errno == syscall.EOPNOTSUPP {
				return max(bad, 0), bad, errno
			}
			// Some providers queue sends and then fail without naming one: to own
			// too much is safe, to own too little is not. Only the dummy that stands
			// for a missing operation is sure to queue nothing.
			return n, bad, errno
		})
}

// PostRecv gives work requests to the receive queue, in order: each takes one
// message. Post them before the peer can send. Errors are those of PostSend; it is
// refused in RESET.
//
// Implements: ibv_post_recv
func (qp *QP) PostRecv(wrs []RecvWR) (accepted int, err error) {
	q := qp.s
	q.rq.mu.Lock()
	defer q.rq.mu.Unlock()
	if err := q.mayPost(q.rq.closed, "a receive", QPStateReset); err != nil {
		return q.postFailed("ibv_post_recv", 0, 0, err)
	}
	return q.post("ibv_post_recv", &q.queue.Recv, len(wrs),
		func(i, slot int, pos uint32) error { return q.fillRecv(&wrs[i], slot, pos) },
		func(n int) (took, bad int, errno syscall.Errno) {
			bad, errno = cverbs.PostRecv(q.addr, q.rq.scratch, n)
			return max(bad, 0), bad, errno // receives of which none is named were not queued
		})
}

// post runs total work requests through scratch in batches. The caller holds the
// post lock. fill writes work request i to a slot of scratch and to its position
// in the ring; call posts the first n of scratch and says, with an errno, how many
// the device took and which one it named.
func (q *qpState) post(op string, ring *inflight.Ring, total int,
	fill func(i, slot int, pos uint32) error,
	call func(n int) (took, bad int, errno syscall.Errno),
) (accepted int, err error) {
	for accepted < total && err == nil {
		head := ring.Head()
		free, signaled := ring.Room()
		if free == 0 {
			err = full(ring, signaled)
		}
		n, most := 0, min(total-accepted, batch, free)
		for n < most && err == nil {
			if err = fill(accepted+n, n, head+uint32(n)); err == nil {
				n++
			}
		}
		if n == 0 {
			continue
		}
		// The poller must know the slots before the device can complete them.
		ring.Publish(head + uint32(n))
		if took, bad, errno := call(n); errno != 0 {
			ring.Publish(head + uint32(took))
			index := bad
			if bad != cverbs.None {
				index += accepted
			}
			return q.postFailed(op, accepted+took, index, q.refusal(errno))
		}
		accepted += n
	}
	if err != nil {
		return q.postFailed(op, accepted, accepted, err)
	}
	return accepted, nil
}

func (q *qpState) fillSend(wr *SendWR, slot int, pos uint32) error {
	if wr.Opcode != OpSend {
		return refuse(syscall.EINVAL, "SendWR.Opcode %d is not an operation of this version: use OpSend", wr.Opcode)
	}
	if q.typ == QPTypeUD {
		return refuse(syscall.EOPNOTSUPP, "a send on a UD QP needs an address handle, which this version does not bind yet")
	}
	flags := wr.Flags
	if unknown := flags &^ (SendFence | SendSignaled | SendSolicited | SendInline); unknown != 0 {
		return refuse(syscall.EINVAL, "SendWR.Flags has unknown bits %#x", uint32(unknown))
	}
	if flags&SendFence != 0 && q.typ != QPTypeRC {
		return refuse(syscall.EINVAL, "SendFence goes with RC only, this QP is %v", q.typ)
	}
	n := len(wr.SGEs)
	if wr.Inline != nil {
		if n > 0 {
			return refuse(syscall.EINVAL, "SendWR has both SGEs and Inline: use one")
		}
		if err := q.checkInline(uint64(len(wr.Inline))); err != nil {
			return err
		}
		flags |= SendInline
		if len(wr.Inline) > 0 {
			data := q.sq.scratch.Inline(slot)
			copy(data, wr.Inline)
			q.sq.scratch.SGEs(slot)[0] = cverbs.SGE{Addr: uint64(cverbs.Addr(&data[0])), Length: uint32(len(wr.Inline))}
			n = 1
		}
	} else if err := q.fillSGEs(q.sq.scratch.SGEs(slot), wr.SGEs, "MaxSendSGE", q.cap.MaxSendSGE); err != nil {
		return err
	} else if flags&SendInline != 0 {
		length := uint64(0)
		for i := range wr.SGEs {
			length += uint64(wr.SGEs[i].Length)
		}
		if err := q.checkInline(length); err != nil {
			return err
		}
	}
	// The whole work request, unions included: some providers refuse stale fields.
	q.sq.scratch.Items[slot] = cverbs.SendWR{
		WRHead: q.sq.scratch.Head(slot, uint64(q.queue.Token(inflight.Send, pos))),
		NumSGE: int32(n),
		Opcode: uint32(wr.Opcode) - 1,
		Flags:  uint32(flags),
	}
	q.queue.Send.Set(pos, wr.WRID, q.signalAll || flags&SendSignaled != 0)
	return nil
}

func (q *qpState) fillRecv(wr *RecvWR, slot int, pos uint32) error {
	if err := q.fillSGEs(q.rq.scratch.SGEs(slot), wr.SGEs, "MaxRecvSGE", q.cap.MaxRecvSGE); err != nil {
		return err
	}
	q.rq.scratch.Items[slot] = cverbs.RecvWR{
		WRHead: q.rq.scratch.Head(slot, uint64(q.queue.Token(inflight.Recv, pos))),
		NumSGE: int32(len(wr.SGEs)),
	}
	q.queue.Recv.Set(pos, wr.WRID, true)
	return nil
}

func (q *qpState) fillSGEs(to []cverbs.SGE, sges []SGE, name string, most uint32) error {
	if len(sges) > int(most) {
		return refuse(syscall.EINVAL, "%d SGEs are more than the %s %d that was granted", len(sges), name, most)
	}
	for i := range sges {
		to[i] = cverbs.SGE(sges[i])
	}
	return nil
}

func (q *qpState) checkInline(length uint64) error {
	if length > uint64(q.cap.MaxInlineData) {
		return refuse(syscall.EINVAL, "%d bytes inline are more than the MaxInlineData %d that was granted", length, q.cap.MaxInlineData)
	}
	return nil
}

// mayPost refuses the states in which providers drop a work request silently, or
// queue it and say that they did not.
func (q *qpState) mayPost(closed bool, what string, refused ...QPState) error {
	if closed {
		return ErrClosed
	}
	if state := QPState(q.state.Load()); slices.Contains(refused, state) {
		return refuse(syscall.EINVAL, "%s cannot be posted in state %v", what, state)
	}
	return nil
}

// refusal gives the reason of an errno of the device. What else the same errno
// could mean was checked before the call.
func (q *qpState) refusal(errno syscall.Errno) error {
	switch errno {
	case syscall.ENOMEM, syscall.ENOSPC, syscall.EAGAIN:
		return &OpError{Kind: ErrQueueFull, Err: errno, Reason: "the device has no room for it"}
	}
	return errno
}

func full(ring *inflight.Ring, signaled bool) error {
	if ring.Depth() == 0 {
		return refuse(syscall.EINVAL, "the QP was made without this queue")
	}
	reason := fmt.Sprintf("all %d places are taken; poll the completion queue and post again", ring.Depth())
	if !signaled {
		reason = fmt.Sprintf("all %d places are taken by unsignaled work requests, so that no completion will free them; "+
			"signal at least one in %d, and take this QP to ERR or RESET", ring.Depth(), ring.Depth())
	}
	return &OpError{Kind: ErrQueueFull, Err: syscall.ENOMEM, Reason: reason}
}

func refuse(errno syscall.Errno, format string, args ...any) error {
	return &OpError{Err: errno, Reason: fmt.Sprintf(format, args...)}
}

func (q *qpState) postFailed(op string, accepted, index int, err error) (int, error) {
	e := &PostError{Accepted: accepted, Index: index, OpError: OpError{Err: err}}
	if op := (*OpError)(nil); errors.As(err, &op) {
		e.OpError = *op
	}
	e.Op, e.Object = op, q.name
	return accepted, e
}
