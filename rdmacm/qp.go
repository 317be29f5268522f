package rdmacm

import (
	"cmp"
	"errors"
	"fmt"
	"runtime"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/ccm"
)

// ownQP is the queue pair that CreateQP made.
type ownQP struct {
	*ibv.QP
	shared      bool          // its receives are a shared queue's
	minRNRTimer time.Duration // as ConnParam has it
}

// CreateQP makes the id's queue pair, with ibv.PD.CreateQP, and takes it to INIT, where
// receives can be posted: do it before Connect or Accept, so that nothing the peer sends
// finds none. A UD queue pair goes to RTS at once. From then on the library moves it as the
// connection goes. The id must be bound to a device, and the PD be one of it, whoever opened
// that: [ID.Context] is one that there is in any case. The completion queues and the shared
// receive queue may be those of other ids too.
//
// The queue pair allows the peer what the connection manager does, RDMA writes, and reads and
// atomics as far as ResponderResources go; what it can reach memory regions say.
//
// The id owns the queue pair: closing the id closes it. It may be closed before.
//
// It stands for rdma_create_qp, which leaves its errors and what the queue pair is doing in
// the dark.
//
// Implements: rdma_create_qp
func (id *ID) CreateQP(pd *ibv.PD, init ibv.QPInitAttr, queues ibv.QPQueues) (*ibv.QP, error) {
	var own *ownQP
	err := id.callBound("rdma_create_qp", func(h ccm.ID) error {
		if err := id.mayHaveQP(pd, init.Type); err != nil {
			return err
		}
		qp, err := pd.CreateQP(init, queues)
		if err != nil {
			return err
		}
		own = &ownQP{QP: qp, shared: queues.SRQ != nil}
		err = qp.Node().Attach(&id.s.Node)
		if err == nil {
			err = own.begin(h)
		}
		if err != nil {
			_ = qp.Close() // the first error is the one to tell
			return err
		}
		id.qp.Store(own)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return own.QP, nil
}

func (id *ID) mayHaveQP(pd *ibv.PD, typ ibv.QPType) error {
	want := ibv.QPTypeRC
	if id.s.ps.datagrams() {
		want = ibv.QPTypeUD
	}
	device := id.Device()
	switch {
	case pd == nil:
		return invalid("no PD is given: make one of ID.Context")
	case pd.Context().Name() != device:
		return invalid("%v belongs to another device than the id, which is bound to %s", pd.Core(), device)
	case typ != want:
		return invalid("a QP of type %v: of port space %v ids have %v", typ, id.s.ps, want)
	case id.QP() != nil:
		return invalid("the id has %v already", id.QP())
	}
	return nil
}

// QP returns the queue pair that CreateQP made, or nil.
func (id *ID) QP() *ibv.QP {
	if own := id.qp.Load(); own != nil {
		return own.QP
	}
	return nil
}

// InitQPAttr returns what a queue pair needs for the transition to that state, for
// ibv.QP.Modify. It is for queue pairs that the program makes itself: take it to INIT when
// the id is bound to a device; through INIT once more, RTR and RTS before Accept, or after
// CONNECT_RESPONSE; and to ERR around Disconnect. ConnParam.QPNum has its number.
//
// What the kernel does not know yet it cannot say: before Accept MaxDestRdAtomic and
// MaxRdAtomic are what the peer has asked for, not what ConnParam then grants.
//
// Implements: rdma_init_qp_attr
func (id *ID) InitQPAttr(state ibv.QPState) (ibv.QPAttr, ibv.QPAttrMask, error) {
	var attr ibv.QPAttr
	var mask ibv.QPAttrMask
	err := id.callBound("rdma_init_qp_attr", func(h ccm.ID) (err error) {
		attr, mask, err = initQPAttr(h, state)
		return err
	})
	return attr, mask, err
}

// knownAttrs leaves out bits that some kernels set for their own use.
const knownAttrs = 1<<21 - 1

func initQPAttr(h ccm.ID, state ibv.QPState) (ibv.QPAttr, ibv.QPAttrMask, error) {
	c, mask, err := ccm.InitQPAttr(h, int32(state))
	if err != nil {
		if errors.Is(err, syscall.EINVAL) {
			err = &ibv.OpError{Err: err, Reason: fmt.Sprintf("for the state %v: the connection has not got so far", state)}
		}
		return ibv.QPAttr{}, 0, err
	}
	return ibv.DecodeQPAttr(&c), ibv.QPAttrMask(mask & knownAttrs), nil
}

// follow takes the queue pair to the state, with the connection's attributes.
func (q *ownQP) follow(h ccm.ID, state ibv.QPState, change func(*ibv.QPAttr)) error {
	attr, mask, err := initQPAttr(h, state)
	if err != nil {
		return err
	}
	if change != nil {
		change(&attr)
	}
	return q.Modify(attr, mask)
}

// begin takes a new queue pair as far as it gets without a peer.
func (q *ownQP) begin(h ccm.ID) error {
	err := q.follow(h, ibv.QPStateInit, nil)
	if err != nil || q.Type() != ibv.QPTypeUD {
		return err
	}
	if err := q.Modify(ibv.QPAttr{State: ibv.QPStateRTR}, ibv.AttrState); err != nil {
		return err
	}
	return q.Modify(ibv.QPAttr{State: ibv.QPStateRTS}, ibv.AttrState|ibv.AttrSQPSN)
}

// toRTS connects the queue pair with the peer. granted is what this side's answer will say,
// or nil where it has been said.
func (q *ownQP) toRTS(h ccm.ID, granted *ConnParam) error {
	err := q.follow(h, ibv.QPStateInit, nil) // the peer's rights, which were not known before
	if err == nil {
		err = q.follow(h, ibv.QPStateRTR, func(a *ibv.QPAttr) {
			a.MinRNRTimer = cmp.Or(q.minRNRTimer, 640*time.Microsecond)
			if granted != nil {
				a.MaxDestRdAtomic = granted.ResponderResources
			}
		})
	}
	if err == nil {
		err = q.follow(h, ibv.QPStateRTS, func(a *ibv.QPAttr) {
			if granted != nil {
				a.MaxRdAtomic = granted.InitiatorDepth
			}
		})
	}
	return err
}

// end has the queue pair do nothing more: what is posted is flushed. On iWARP what was sent
// is sent first.
func (q *ownQP) end() error {
	state := ibv.QPStateErr
	if q.PD().Core().Ctx.IWARP {
		state = ibv.QPStateSQD
	}
	err := q.Modify(ibv.QPAttr{State: state}, ibv.AttrState)
	if errors.Is(err, ibv.ErrClosed) {
		return nil
	}
	return err
}

// handle does what an event asks of the library.
func (id *ID) handle(e *Event, cookie uintptr) {
	defer runtime.KeepAlive(id)
	own := id.qp.Load()
	switch e.Type {
	case EventMulticastJoin, EventMulticastError:
		id.joinedGroup(e, cookie)
	case EventConnectResponse:
		if own != nil {
			id.establish(e, own)
		}
	case EventRejected, EventUnreachable, EventConnectError:
		if own != nil {
			_ = own.end() // its receives have their completions
		}
	}
}

// establish ends the connecting, so that the program finds ESTABLISHED, or why not.
func (id *ID) establish(e *Event, own *ownQP) {
	err := id.call("rdma_establish", func(h ccm.ID) error {
		if err := own.toRTS(h, nil); err != nil {
			return err
		}
		return ccm.Establish(h)
	})
	if err == nil {
		e.Type = EventEstablished
		return
	}
	_ = own.end()
	e.Type, e.Status, e.cause = EventConnectError, -int(syscall.EPROTO), err
	if errno := syscall.Errno(0); errors.As(err, &errno) {
		e.Status = -int(errno)
	}
}
