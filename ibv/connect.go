package ibv

import (
	"cmp"
	"fmt"
	"syscall"
	"time"
)

// ConnectParams are the attributes of a connection that the endpoints do not say.
// Connect fills in defaults that suit a switched network; a function passed to it
// changes what it wants.
//
// On rdma_rxe of Linux 6.1 the time spent waiting for a peer's receives counts as time
// without an acknowledgement: a peer that posts none for RetryCount times Timeout ends
// the connection as if it were gone. Give Timeout the longest pause of the peer there.
type ConnectParams struct {
	PathMTU         MTU           // the smaller of what the two sides take
	Timeout         time.Duration // until a packet is sent again; 67 ms. RC
	RetryCount      uint8         // 6: to rdma_rxe 7 is for ever. RC
	RNRRetry        uint8         // RNRRetryInfinite: wait for the peer's receives; see below. RC
	MinRNRTimer     time.Duration // that a peer waits for receives of this side; 640 µs. RC
	MaxRdAtomic     uint8         // RDMA reads and atomics in flight, at most the peer's MaxDestRdAtomic; 1. RC
	MaxDestRdAtomic uint8         // and from the peer; what the device can take. RC
	SL              uint8
	TrafficClass    uint8  // DSCP in the upper six bits, ECN in the lower two
	FlowLabel       uint32 // on RoCE v2 it varies the UDP source port
	HopLimit        uint8  // 64; see GRH
}

// Init moves an RC or UC queue pair from RESET to INIT on the port of the GID that
// suits the request best, and returns the endpoint to send to the peer: with a random
// PSN and the port's LID and active MTU. Access says what the peer may do with memory
// regions that allow it too; zero for messages only. Receives can be posted from now
// on: do it before Connect, so that nothing the peer sends finds none.
//
// It stands for one ibv_modify_qp, with partition key index 0.
func (qp *QP) Init(req GIDRequest, access AccessFlags) (LocalEndpoint, error) {
	if err := qp.mayConnect(); err != nil {
		return LocalEndpoint{}, err
	}
	choice, err := qp.pd.ctx.ChooseGID(req)
	if err != nil {
		return LocalEndpoint{}, err
	}
	gid := choice.Entry
	port, err := qp.pd.ctx.QueryPort(gid.Port)
	if err != nil {
		return LocalEndpoint{}, err
	}
	switch {
	case port.State != PortActive:
		return LocalEndpoint{}, &OpError{Op: "ibv_modify_qp", Object: qp.String(), Err: syscall.ENETDOWN,
			Reason: fmt.Sprintf("port %d is %v, not %v: bring its link or network device up", gid.Port, port.State, PortActive)}
	case gid.Index > 255:
		return LocalEndpoint{}, &OpError{Op: "ibv_modify_qp", Object: qp.String(), Err: syscall.EINVAL,
			Reason: fmt.Sprintf("GID index %d does not fit an address vector, which has 8 bits for it", gid.Index)}
	}
	if err := qp.Modify(QPAttr{
		State: QPStateInit, Port: gid.Port, Access: access,
	}, AttrState|AttrPKeyIndex|AttrPort|AttrAccess); err != nil {
		return LocalEndpoint{}, err
	}
	return LocalEndpoint{
		Endpoint: Endpoint{QPN: qp.s.num, PSN: RandomPSN(), GID: gid.GID, LID: port.LID, MTU: port.ActiveMTU},
		Choice:   choice,
	}, nil
}

// Connect moves an RC or UC queue pair from INIT to RTS: it can send when Connect
// returns, and receive. What reaches a peer that is still in INIT is lost: RC sends
// it again for a while (RetryCount times Timeout), UC does not.
//
// It stands for two calls of ibv_modify_qp. If it fails, start again from RESET.
func (qp *QP) Connect(local LocalEndpoint, remote Endpoint, change ...func(*ConnectParams)) error {
	q := qp.s
	if err := qp.mayConnect(); err != nil {
		return err
	}
	p := ConnectParams{
		PathMTU:         min(local.MTU, remote.MTU),
		Timeout:         67 * time.Millisecond,
		RetryCount:      6,
		RNRRetry:        RNRRetryInfinite,
		MinRNRTimer:     640 * time.Microsecond,
		MaxRdAtomic:     1,
		MaxDestRdAtomic: uint8(min(q.pd.Ctx.Attr.MaxQPRdAtom, 255)),
		HopLimit:        64,
	}
	if remote.MTU == 0 {
		p.PathMTU = local.MTU
	}
	for _, f := range change {
		f(&p)
	}
	rtr := QPAttr{
		State:   QPStateRTR,
		PathMTU: p.PathMTU,
		DestQPN: remote.QPN,
		RQPSN:   remote.PSN,
		AH: AHAttr{
			DLID:     remote.LID,
			SL:       p.SL,
			Port:     local.Choice.Entry.Port,
			IsGlobal: needsGRH(local, remote),
			GRH: GRH{
				DGID:         remote.GID,
				SGIDIndex:    uint8(local.Choice.Entry.Index),
				FlowLabel:    p.FlowLabel,
				HopLimit:     p.HopLimit,
				TrafficClass: p.TrafficClass,
			},
		},
		MaxDestRdAtomic: p.MaxDestRdAtomic,
		MinRNRTimer:     p.MinRNRTimer,
	}
	rts := QPAttr{
		State:       QPStateRTS,
		SQPSN:       local.PSN,
		Timeout:     p.Timeout,
		RetryCount:  p.RetryCount,
		RNRRetry:    p.RNRRetry,
		MaxRdAtomic: p.MaxRdAtomic,
	}
	rtrMask, rtsMask := q.required(QPStateInit, QPStateRTR), q.required(QPStateRTR, QPStateRTS)
	// What is wrong with the second step is told before the first is made.
	err := cmp.Or(q.checkAttr(&rtr, rtrMask), q.checkAttr(&rts, rtsMask))
	if err == nil && local.MTU != 0 && p.PathMTU > local.MTU {
		err = fmt.Errorf("PathMTU %v is more than the port's active MTU %v", p.PathMTU, local.MTU)
	}
	if err != nil {
		return &OpError{Op: "ibv_modify_qp", Object: qp.String(), Err: syscall.EINVAL, Reason: err.Error()}
	}
	if err := qp.Modify(rtr, rtrMask); err != nil {
		return err
	}
	return qp.Modify(rts, rtsMask)
}

// mayConnect refuses queue pairs that are not connected in this way.
func (qp *QP) mayConnect() error {
	reason := ""
	switch {
	case qp.s.pd.Ctx.IWARP:
		reason = "queue pairs of an iWARP device are connected by the connection manager"
	case qp.s.typ != QPTypeRC && qp.s.typ != QPTypeUC:
		reason = fmt.Sprintf("a QP of type %v has no connection: set it up with Modify", qp.s.typ)
	default:
		return nil
	}
	return &OpError{Op: "ibv_modify_qp", Object: qp.String(), Err: syscall.EINVAL, Reason: reason}
}

// needsGRH tells whether packets to the peer need a global routing header: on RoCE
// always, whatever LID its port claims, and on InfiniBand across subnets.
func needsGRH(local LocalEndpoint, remote Endpoint) bool {
	switch {
	case local.Choice.Entry.Type != GIDTypeIB:
		return true
	case remote.GID.IsZero():
		return false
	}
	return remote.LID == 0 || [8]byte(local.GID[:8]) != [8]byte(remote.GID[:8])
}

// required returns what a transition of this type of QP must have.
func (q *qpState) required(from, to QPState) QPAttrMask {
	rule, _ := ruleFor(q.typ, from, to)
	return AttrState | rule.required
}
