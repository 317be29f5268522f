package ibv

import (
	"runtime"

	"github.com/goverbs/goverbs/internal/cverbs"
)

// AttachMcast has a UD queue pair receive what is sent to a multicast group. lid is the
// group's on InfiniBand, and 0 on RoCE. The network must send the group's packets here,
// which rdmacm's ID.JoinMulticast sees to; it attaches the id's queue pair too.
//
// Implements: ibv_attach_mcast
func (qp *QP) AttachMcast(group GID, lid uint16) error {
	return qp.mcast("ibv_attach_mcast", cverbs.AttachMcast, group, lid)
}

// DetachMcast undoes AttachMcast. It comes before Close, which fails with EBUSY as long as
// the queue pair is attached.
//
// Implements: ibv_detach_mcast
func (qp *QP) DetachMcast(group GID, lid uint16) error {
	return qp.mcast("ibv_detach_mcast", cverbs.DetachMcast, group, lid)
}

func (qp *QP) mcast(op string, call func(cverbs.QP, [16]byte, uint16) error, group GID, lid uint16) error {
	defer runtime.KeepAlive(qp)
	err := qp.s.Use()
	if err == nil {
		defer qp.s.Done()
		err = call(qp.s.h, group, lid)
	}
	if err != nil {
		return &OpError{Op: op, Object: qp.String() + " for group " + group.String(), Err: err}
	}
	return nil
}
