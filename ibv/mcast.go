package ibv

import (
	"fmt"
	"runtime"
	"sync"
	"syscall"

	"github.com/goverbs/goverbs/internal/cverbs"
)

// membership is a multicast group that a queue pair is attached to.
type membership struct {
	gid GID
	lid uint16
}

// memberships are all of a queue pair.
type memberships struct {
	mu  sync.Mutex
	set map[membership]struct{}
}

// AttachMcast has a UD queue pair receive what is sent to a multicast group. lid is the
// group's on InfiniBand, and 0 on RoCE. The network must send the group's packets here,
// which rdmacm's ID.JoinMulticast sees to; it attaches the id's queue pair too.
//
// Implements: ibv_attach_mcast
func (qp *QP) AttachMcast(group GID, lid uint16) error {
	return qp.mcast("ibv_attach_mcast", group, func(q *qpState) error {
		err := cverbs.AttachMcast(q.h, group, lid)
		if err == nil {
			if q.groups.set == nil {
				q.groups.set = map[membership]struct{}{}
			}
			q.groups.set[membership{group, lid}] = struct{}{}
		}
		return err
	})
}

// DetachMcast undoes AttachMcast. Closing the queue pair does too.
//
// Implements: ibv_detach_mcast
func (qp *QP) DetachMcast(group GID, lid uint16) error {
	return qp.mcast("ibv_detach_mcast", group, func(q *qpState) error {
		err := cverbs.DetachMcast(q.h, group, lid)
		if err == nil {
			delete(q.groups.set, membership{group, lid})
		}
		return err
	})
}

func (qp *QP) mcast(op string, group GID, call func(*qpState) error) error {
	defer runtime.KeepAlive(qp)
	q := qp.s
	if q.typ != QPTypeUD {
		return &OpError{Op: op, Object: q.name, Err: syscall.EINVAL, Reason: fmt.Sprintf("multicast is for UD, and this is a QP of type %v", q.typ)}
	}
	err := q.Use()
	if err == nil {
		defer q.Done()
		q.groups.mu.Lock()
		defer q.groups.mu.Unlock()
		err = call(q)
	}
	if err != nil {
		return &OpError{Op: op, Object: q.name + " for group " + group.String(), Err: err}
	}
	return nil
}

// detachAll is for destroy: a queue pair that is attached is not destroyed.
func (q *qpState) detachAll() {
	for m := range q.groups.set {
		_ = cverbs.DetachMcast(q.h, m.gid, m.lid) // the destroy call fails with it
	}
	q.groups.set = nil
}
