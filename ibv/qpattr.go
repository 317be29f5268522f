package ibv

import (
	"errors"
	"fmt"
	"time"
)

// RNRRetryInfinite, as [QPAttr.RNRRetry], retries for ever while the receiver
// has no receive posted.
const RNRRetryInfinite = 7

const (
	maxUint24    = 1<<24 - 1 // PSNs and QP numbers
	maxFlowLabel = 1<<20 - 1
	maxSL        = 15
	maxRetry     = 7 // RetryCount and RNRRetry have three bits
)

// GRH is the global routing header of an address vector: on RoCE it becomes
// the IP header.
//
// Implements: ibv_global_route
type GRH struct {
	DGID         GID    // the peer's GID
	FlowLabel    uint32 // 20 bits; see FlowLabelToUDPSport
	SGIDIndex    uint8  // index of the own GID in the port's table
	HopLimit     uint8  // on RoCE v2 Linux takes the route's instead
	TrafficClass uint8  // DSCP in the upper six bits, ECN in the lower two
}

// FlowLabelToUDPSport returns the UDP source port of RoCE v2 packets with that flow
// label, of which it takes 20 bits: one from 0xC000 on, for switches to spread flows by.
// It is for a label that is not zero; with zero the device chooses a port by itself.
//
// Implements: ibv_flow_label_to_udp_sport
func FlowLabelToUDPSport(flowLabel uint32) uint16 {
	const low, least = 1<<14 - 1, 0xC000
	return uint16(flowLabel&low^flowLabel&maxFlowLabel>>14) | least
}

// AHAttr is an address vector: the way to a peer.
//
// Implements: ibv_ah_attr
type AHAttr struct {
	GRH         GRH    // used if IsGlobal
	DLID        uint16 // the peer's LID, on InfiniBand
	SL          uint8  // service level, 0 to 15
	SrcPathBits uint8
	StaticRate  uint8 // encoded as C's enum ibv_rate, 0 for the full rate
	IsGlobal    bool  // send a GRH: required on RoCE
	Port        uint8 // own port, from 1
}

// QPCap is the capacity of a queue pair: when creating, what is asked for;
// afterwards what the provider granted, which may be more.
//
// Implements: ibv_qp_cap
type QPCap struct {
	MaxSendWR     uint32 // outstanding work requests in the send queue
	MaxRecvWR     uint32 // and in the receive queue; 0 with a shared one
	MaxSendSGE    uint32 // scatter/gather elements of a send
	MaxRecvSGE    uint32
	MaxInlineData uint32 // bytes
}

// String describes the capacity in words.
func (c QPCap) String() string {
	return fmt.Sprintf("send queue of %d WRs with %d SGEs, receive queue of %d WRs with %d SGEs, %d bytes inline",
		c.MaxSendWR, c.MaxSendSGE, c.MaxRecvWR, c.MaxRecvSGE, c.MaxInlineData)
}

// QPInitAttr says what kind of queue pair to create. It is a plain value: the
// completion queues and the shared receive queue are arguments of their own.
//
// Implements: ibv_qp_init_attr
type QPInitAttr struct {
	Type QPType
	Cap  QPCap
	// SignalAll gives every send a completion (C's sq_sig_all). Without it only
	// the sends that ask for one have it, and those that failed.
	SignalAll bool
}

// Check refuses a Type that is not one of the constants. Whether the type is bound,
// and whether the device has it and the capacity, shows only when the queue pair is
// created.
func (a QPInitAttr) Check() error {
	switch a.Type {
	case QPTypeRC, QPTypeUC, QPTypeUD, QPTypeRawPacket, QPTypeXRCSend, QPTypeXRCRecv, QPTypeDriver:
		return nil
	case 0:
		return errors.New("QPInitAttr.Type is not set: use QPTypeRC, QPTypeUC or QPTypeUD")
	}
	return fmt.Errorf("QPInitAttr.Type: %v does not exist", a.Type)
}

// String describes the queue pair in words.
func (a QPInitAttr) String() string {
	signal := ""
	if a.SignalAll {
		signal = ", every send signaled"
	}
	return fmt.Sprintf("%v QP: %v%s", a.Type, a.Cap, signal)
}

// QPAttr holds the attributes of a queue pair. A [QPAttrMask] beside it says
// which fields count; the others are ignored. Times are rounded up to the next
// that the hardware can express, so a query may return a longer one.
//
// Implements: ibv_qp_attr
type QPAttr struct {
	State           QPState // AttrState: the state to go to
	CurState        QPState // AttrCurState: the state to assume the QP is in
	PathMTU         MTU     // RC and UC; both sides use the same
	PathMigState    MigState
	QKey            uint32      // UD; receives take only packets with this key
	RQPSN           uint32      // first packet number received, 24 bits: the peer's SQPSN
	SQPSN           uint32      // first packet number sent, 24 bits
	DestQPN         uint32      // the peer's QP number, 24 bits
	Access          AccessFlags // what the peer may do: RemoteRead, RemoteWrite, RemoteAtomic
	Cap             QPCap
	AH              AHAttr // AttrAV: the path to the peer
	AltAH           AHAttr // AttrAltPath, as the other Alt fields
	PKeyIndex       uint16
	AltPKeyIndex    uint16
	SQDrainedNotify bool  // on the way to SQD: raise an event when drained (C's en_sqd_async_notify)
	SQDraining      bool  // set by queries only: sends are still being drained
	MaxRdAtomic     uint8 // RDMA reads and atomics outstanding as initiator
	MaxDestRdAtomic uint8 // and as responder
	// MinRNRTimer is how long a peer waits before it sends again to a receive
	// queue that was empty: 10 µs to 655.36 ms.
	MinRNRTimer time.Duration
	// Timeout is how long an acknowledgement may take before packets are sent
	// again: 8.192 µs to 8796 s, or Infinite.
	Timeout    time.Duration
	AltTimeout time.Duration
	Port       uint8 // from 1
	AltPort    uint8
	RetryCount uint8  // 0 to 7: attempts after a lost or late acknowledgement; to rdma_rxe 7 is for ever
	RNRRetry   uint8  // 0 to 6 attempts at an empty receive queue, or RNRRetryInfinite
	RateLimit  uint32 // kbit/s, 0 for none
}

// check refuses values that the fields named by mask cannot have, and says the
// first. It knows nothing of the device nor of the QP's type and state.
func (a *QPAttr) check(mask QPAttrMask) error {
	var first error
	in := func(attr QPAttrMask, err error) {
		if first == nil && mask&attr != 0 {
			first = err
		}
	}
	in(AttrState, checkState("State", a.State))
	in(AttrCurState, checkState("CurState", a.CurState))
	in(AttrAccess, checkQPAccess(a.Access))
	in(AttrPathMTU, checkMTU(a.PathMTU))
	in(AttrPathMigState, checkMax("PathMigState", uint32(a.PathMigState), uint32(MigArmed)))
	in(AttrRQPSN, checkMax("RQPSN", a.RQPSN, maxUint24))
	in(AttrSQPSN, checkMax("SQPSN", a.SQPSN, maxUint24))
	in(AttrDestQPN, checkDestQPN(a.DestQPN))
	in(AttrAV, a.AH.check("AH"))
	in(AttrMinRNRTimer, checkTime("MinRNRTimer", a.MinRNRTimer, encodeRNRTimer))
	in(AttrPort, checkPort("Port", a.Port))
	in(AttrTimeout, checkTime("Timeout", a.Timeout, encodeAckTimeout))
	in(AttrRetryCount, checkMax("RetryCount", uint32(a.RetryCount), maxRetry))
	in(AttrRNRRetry, checkMax("RNRRetry", uint32(a.RNRRetry), maxRetry))
	in(AttrAltPath, a.AltAH.check("AltAH"))
	in(AttrAltPath, checkPort("AltPort", a.AltPort))
	in(AttrAltPath, checkTime("AltTimeout", a.AltTimeout, encodeAckTimeout))
	return first
}

func (ah *AHAttr) check(field string) error {
	switch {
	case ah.IsGlobal && ah.GRH.DGID.IsZero():
		return fmt.Errorf("%s.GRH.DGID is not set: with IsGlobal it is the peer's GID", field)
	case !ah.IsGlobal && ah.DLID == 0:
		return fmt.Errorf("%s names no peer: set IsGlobal and GRH.DGID (RoCE), or DLID (InfiniBand)", field)
	}
	var first error
	for _, err := range []error{
		checkMax(field+".GRH.FlowLabel", ah.GRH.FlowLabel, maxFlowLabel),
		checkMax(field+".SL", uint32(ah.SL), maxSL),
		checkPort(field+".Port", ah.Port),
	} {
		if first == nil {
			first = err
		}
	}
	return first
}

func checkMax(field string, value, limit uint32) error {
	if value > limit {
		return fmt.Errorf("%s is %#x, above its largest value %#x", field, value, limit)
	}
	return nil
}

func checkState(field string, s QPState) error {
	if s < QPStateReset || s > QPStateErr {
		return fmt.Errorf("%s: %v is not a state that a QP can be in", field, s)
	}
	return nil
}

// checkQPAccess refuses what only a memory region can have. The remote rights of a QP
// stand alone: they need no local write.
func checkQPAccess(f AccessFlags) error {
	const known = AccessLocalWrite | AccessRemoteWrite | AccessRemoteRead | AccessRemoteAtomic |
		AccessMWBind | AccessFlushGlobal | AccessFlushPersistent
	if other := f &^ known; other != 0 {
		return fmt.Errorf("QPAttr.Access: %v is not for a QP: use RemoteRead, RemoteWrite and RemoteAtomic", other)
	}
	return nil
}

func checkMTU(m MTU) error {
	if !m.valid() {
		return fmt.Errorf("PathMTU: %v is not a path MTU, use MTU256 to MTU4096", m)
	}
	return nil
}

func checkDestQPN(qpn uint32) error {
	if qpn == 0 {
		return errors.New("DestQPN is not set: it is the peer's QP number")
	}
	return checkMax("DestQPN", qpn, maxUint24)
}

func checkPort(field string, port uint8) error {
	if port == 0 {
		return fmt.Errorf("%s is not set: ports count from 1", field)
	}
	return nil
}

func checkTime(field string, d time.Duration, encode func(time.Duration) (uint8, error)) error {
	if _, err := encode(d); err != nil {
		return fmt.Errorf("%s: %w", field, err)
	}
	return nil
}
