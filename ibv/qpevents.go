package ibv

import "errors"

// What a device and a completion queue tell a queue pair: see core.QP.

// Fail has posts fail with err; all else is the graph's to refuse. An invalidation in
// flight would keep its window, and the window the QP, for ever: so both come apart.
func (q *qpState) Fail(err error) {
	q.endBindings()
	defer q.lockPosts()()
	q.dead = err
	q.refuse(q.sq.refuses)
}

// why returns the reason to tell for refusing a post: that the device is dead comes
// before all but the close of the queue.
func why(refuses, dead error) error {
	if dead == nil || errors.Is(refuses, ErrClosed) && !errors.Is(refuses, errDrained) && !errors.Is(refuses, errEnded) {
		return refuses
	}
	return dead
}

// failure returns why a completion queue of the QP is of no use, or nil. It is that of the
// device if that has failed.
func (q *qpState) failure() error {
	for _, c := range q.cqs() {
		if err := c.Failure(); err != nil {
			return err
		}
	}
	return nil
}

func (q *qpState) MoveToErr() {
	if q.Use() != nil {
		return // it is being closed, or the device has failed
	}
	defer q.Done()
	q.mustErr.Store(true)
	q.moveIfMust()
}

// unlockModify gives up modify, and first does what MoveToErr has asked for meanwhile.
func (q *qpState) unlockModify() {
	q.modify.Unlock()
	q.moveIfMust()
}

// moveIfMust leaves the work to whoever has modify: that may be a Drain, which waits for
// the very goroutine that calls MoveToErr.
func (q *qpState) moveIfMust() {
	for q.mustErr.Load() && q.modify.TryLock() {
		if q.mustErr.Swap(false) && QPState(q.state.Load()) != QPStateReset { // where there is nothing to end
			_ = q.enterErr() // where it fails, the device is gone or has moved it
		}
		q.modify.Unlock()
	}
}

func (q *qpState) LastWQEReached() { q.lastReached.Store(true) }

func (q *qpState) PortActive(port uint8, mtu int32) {
	if q.typ == QPTypeUD && q.port == port {
		q.mtu.Store(uint32(MTU(mtu).Bytes()))
	}
}
