package ibv

import (
	"syscall"

	"github.com/goverbs/goverbs/internal/cverbs"
	"github.com/goverbs/goverbs/internal/inflight"
)

// WithoutRuns has PostSend build each work request by itself, until the state changes.
func WithoutRuns(qp *QP) {
	qp.s.sq.mu.Lock()
	defer qp.s.sq.mu.Unlock()
	qp.s.plain = [16]uint64{}
}

// interrupted does something between the building of a batch and its Commit.
type interrupted struct {
	*inflight.Ring
	then func()
}

func (i interrupted) Commit() int {
	i.then()
	return i.Ring.Commit()
}

// PostSendAround is PostSend with something that happens when the work requests are built
// and not yet counted, which otherwise is a matter of luck. The device must take all.
func PostSendAround(qp *QP, wrs []SendWR, then func()) (accepted int, err error) {
	q := qp.s
	q.sq.mu.Lock()
	defer q.sq.mu.Unlock()
	accepted, _, err = post(interrupted{&q.queue.Send, then}, len(wrs),
		func(from, room int) (int, error) { return q.fillSends(wrs[from:], room) },
		func(n int) (took, bad int, errno syscall.Errno) {
			bad, errno = cverbs.PostSend(q.addr, q.sq.scratch, n)
			q.bindsPosted()
			return n, bad, errno
		},
		nil)
	q.bindsPosted()
	return accepted, err
}
