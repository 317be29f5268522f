package ibv

import (
	"fmt"
	"syscall"

	"github.com/goverbs/goverbs/internal/inflight"
)

// errFull is what post returns for a queue without room; orFailed makes a *PostError of
// it.
var errFull = &OpError{Kind: ErrQueueFull, Err: syscall.ENOMEM}

// errNoRoom are the errnos by which a device says that its queue is full. Some do so a
// moment after a completion that makes room, as rdma_rxe of Linux 6.12.
var errNoRoom = map[syscall.Errno]*OpError{
	syscall.ENOMEM: noRoom(syscall.ENOMEM),
	syscall.ENOSPC: noRoom(syscall.ENOSPC),
	syscall.EAGAIN: noRoom(syscall.EAGAIN),
}

func noRoom(errno syscall.Errno) *OpError {
	return &OpError{Kind: ErrQueueFull, Err: errno, Reason: "the device has no room for it"}
}

// fullErrors are the errors of a queue that has no room at present, by how many work
// requests were accepted before. A program may run into them all the time, so that each
// is made once. The post lock covers them.
type fullErrors struct{ ring, device [batch]*PostError }

// orFailed is postFailed, but for what fullErrors are for.
func (f *fullErrors) orFailed(op, object string, s slots, accepted, index int, err error) (int, error) {
	cause, _ := err.(*OpError) //nolint:errorlint // it is one of ours or it is not
	known := &f.device
	switch {
	case cause == errFull:
		ring, isRing := s.(*inflight.Ring)
		if !isRing || !willEmpty(ring) {
			return postFailed(op, object, accepted, index, full(s))
		}
		known = &f.ring
	case cause == nil || cause.Kind != ErrQueueFull: //nolint:errorlint // as above
		return postFailed(op, object, accepted, index, err)
	}
	var e *PostError
	at := &e
	if accepted < batch {
		at = &known[accepted]
	}
	if *at == nil || (*at).Index != index || (*at).Err != cause.Err { //nolint:errorlint // as above
		if cause == errFull {
			err = full(s)
		}
		*at = newPostError(op, object, accepted, index, err)
	}
	return accepted, *at
}

// willEmpty reports whether a poll makes room in a full ring, or has just made it. The
// order counts: what is full after no signaled work request was found has been so then.
func willEmpty(ring *inflight.Ring) bool {
	return ring.Signaled() || ring.InFlight() < ring.Depth()
}

// full says why there is no room.
func full(s slots) error {
	ring, isRing := s.(*inflight.Ring)
	if isRing && ring.Depth() == 0 {
		return refuse(syscall.EINVAL, "the QP was made without this queue")
	}
	reason := fmt.Sprintf("%d receives are posted, as many as can be tracked", inflight.MaxDepth)
	switch {
	case !isRing:
	case willEmpty(ring):
		reason = fmt.Sprintf("all %d places are taken; poll the completion queue and post again", ring.Depth())
	default:
		reason = fmt.Sprintf("all %d places are taken by unsignaled work requests, so that no completion will free them; "+
			"signal at least one in %d, and take this QP to ERR or RESET", ring.Depth(), ring.Depth())
	}
	return &OpError{Kind: ErrQueueFull, Err: syscall.ENOMEM, Reason: reason}
}
