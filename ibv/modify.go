package ibv

import (
	"errors"
	"fmt"
	"runtime"
	"syscall"

	"github.com/goverbs/goverbs/internal/core"
	"github.com/goverbs/goverbs/internal/cverbs"
)

// Modify changes the attributes that mask names, and with AttrState the state. An
// attribute that is missing for the transition, or that does not go with it, is
// named in the error, and the device is not asked.
//
// To RESET it discards all work requests of the QP without completions, and with
// them the completions that are queued; their memory is free to use when Modify
// has returned. Posts are refused meanwhile. Of a shared receive queue it may take
// receives with it, as Close does. If binds or invalidations of memory windows may be in
// flight, it goes by way of ERR, and waits up to a second for these to end first.
//
// A QP whose completion queue has failed goes to RESET or ERR only.
//
// Implements: ibv_modify_qp
func (qp *QP) Modify(attr QPAttr, mask QPAttrMask) error {
	defer runtime.KeepAlive(qp)
	q := qp.s
	fail := func(err error, reason string) error {
		return &OpError{Op: "ibv_modify_qp", Object: q.String(), Err: err, Reason: reason}
	}
	if err := q.Use(); err != nil {
		return fail(err, "")
	}
	defer q.Done()
	q.modify.Lock()
	defer q.unlockModify()

	if err := q.checkAttr(&attr, mask); err != nil {
		return fail(syscall.EINVAL, err.Error())
	}
	to, err := q.target(&attr, mask)
	if err != nil {
		return fail(syscall.EINVAL, err.Error())
	}
	if mask&AttrState != 0 && to != QPStateReset && to != QPStateErr {
		if err := q.failure(); err != nil {
			return fail(err, "")
		}
	}
	reset := mask&AttrState != 0 && to == QPStateReset
	allow := func() {}
	if reset {
		allow = q.setRefuses(errResetting)
		if q.hasBound.Load() {
			_ = harvest(q.sendCQ) // what a bind or an invalidation has done only its completion tells
			if q.flushSends() {
				allow = func() { q.setRefuses(errEnded) }
			}
		}
	}
	from := QPState(q.state.Load())
	if reset {
		q.setState(to) // no post may slip between the discarding and the release
		if q.srq != nil {
			_ = harvest(q.recvCQ) // as destroy does
		}
	}
	unexplain := func() {}
	if mask&AttrState != 0 && to == QPStateErr {
		unexplain = q.queue.Explain()
	}
	c := attr.encode()
	if err := cverbs.ModifyQP(q.h, &c, uint32(mask)); err != nil {
		unexplain()
		q.setState(from)
		allow()
		return fail(err, q.whyNotModified(&attr, mask, err))
	}
	if reset {
		if q.srq != nil {
			q.pd.Ctx.NoteEvents() // or one from before would be taken for one of the next drain
			q.lastReached.Store(false)
		}
		unlock := core.LockCQs(q.sendCQ, q.recvCQ)
		q.queue.Reset()
		q.dropQueued()
		unlock()
		q.spread()
		q.setRefuses(nil) // of a Drain
	}
	q.remember(&attr, mask)
	if mask&AttrState != 0 {
		q.setState(to)
	}
	return nil
}

// remember keeps what posts are checked against.
func (q *qpState) remember(attr *QPAttr, mask QPAttrMask) {
	if mask&AttrMaxRdAtomic != 0 {
		q.sq.mu.Lock()
		q.maxRdAtomic = attr.MaxRdAtomic
		q.setPlain()
		q.sq.mu.Unlock()
	}
	if mask&AttrPort != 0 && q.typ == QPTypeUD {
		q.pd.Ctx.Ports.Lock() // so that PortActive comes before the query, or after it
		defer q.pd.Ctx.Ports.Unlock()
		var mtu MTU
		if port, err := cverbs.QueryPort(q.pd.Ctx.H, attr.Port); err == nil {
			mtu = MTU(port.ActiveMTU)
		}
		q.port = attr.Port
		q.mtu.Store(uint32(mtu.Bytes()))
	}
}

// target returns the state that the QP will be in, if its type knows the way there
// with these attributes. The state that the library remembers may be stale: the
// device moves a QP to ERR or SQE by itself. So before refusing, it asks.
func (q *qpState) target(attr *QPAttr, mask QPAttrMask) (QPState, error) {
	check := func(from QPState) (QPState, error) {
		to := from
		if mask&AttrState != 0 {
			to = attr.State
		}
		if q.pd.Ctx.IWARP {
			return to, nil // its connections are made by the connection manager, with rules of its own
		}
		return to, checkTransition(q.typ, from, to, mask)
	}
	if mask&AttrCurState != 0 {
		return check(attr.CurState)
	}
	to, err := check(QPState(cverbs.CachedState(q.h)))
	if err != nil {
		if now, qErr := cverbs.QueryQP(q.h, uint32(AttrState)); qErr == nil {
			return check(QPState(now.State))
		}
	}
	return to, err
}

// checkAttr refuses values that no QP, or none of this device, can have.
func (q *qpState) checkAttr(attr *QPAttr, mask QPAttrMask) error {
	if err := attr.check(mask); err != nil {
		return err
	}
	return attr.checkDevice(mask, &q.pd.Ctx.Attr)
}

// checkDevice refuses what the device says that it does not have.
func (a *QPAttr) checkDevice(mask QPAttrMask, d *cverbs.DeviceAttr) error {
	for _, c := range []struct {
		attr  QPAttrMask
		field string
		value uint8
		name  string
		limit int64
	}{
		{AttrPort, "Port", a.Port, "number of ports", int64(d.PhysPortCnt)},
		{AttrAV, "AH.Port", a.AH.Port, "number of ports", int64(d.PhysPortCnt)},
		{AttrAltPath, "AltPort", a.AltPort, "number of ports", int64(d.PhysPortCnt)},
		{AttrMaxRdAtomic, "MaxRdAtomic", a.MaxRdAtomic, "max_qp_init_rd_atom", int64(d.MaxQPInitRdAtom)},
		{AttrMaxDestRdAtomic, "MaxDestRdAtomic", a.MaxDestRdAtomic, "max_qp_rd_atom", int64(d.MaxQPRdAtom)},
	} {
		if mask&c.attr != 0 && int64(c.value) > c.limit {
			return fmt.Errorf("%s %d is above the device's %s %d", c.field, c.value, c.name, c.limit)
		}
	}
	return nil
}

func (q *qpState) setState(s QPState) {
	defer q.lockPosts()()
	q.state.Store(int32(s))
}

// whyNotModified adds what is known of the state or the path that the device refused:
// its own errno says little.
func (q *qpState) whyNotModified(attr *QPAttr, mask QPAttrMask, err error) string {
	before := QPState(q.state.Load())
	if now, qErr := cverbs.QueryQP(q.h, uint32(AttrState)); qErr == nil {
		switch state := QPState(now.State); {
		case now.SQDraining:
			return "the send queue is still draining: query until SQDraining is false, or wait for the event"
		case state != before:
			return fmt.Sprintf("the device moved the QP from %v to %v by itself, as after a failed work request; take it to RESET and connect it again", before, state)
		}
	}
	if mask&AttrAV == 0 {
		return ""
	}
	return (&Context{q.pd.Ctx}).pathReason(&attr.AH, err)
}

// pathReason names both ends of a path that the device refused.
func (c *Context) pathReason(ah *AHAttr, err error) string {
	own := fmt.Sprintf("own GID index %d, which port %d does not have", ah.GRH.SGIDIndex, ah.Port)
	entries, tableErr := c.GIDTable()
	if tableErr != nil {
		return ""
	}
	for _, e := range entries {
		if e.Index == uint32(ah.GRH.SGIDIndex) && e.Port == ah.Port {
			own = "own " + e.label()
		}
	}
	hint := "if that is the cause: both must be of the same type, and the peer's address reachable from the own one"
	if errors.Is(err, syscall.ETIMEDOUT) || errors.Is(err, syscall.EHOSTUNREACH) || errors.Is(err, syscall.ENETUNREACH) {
		hint = "the peer's address could not be resolved from there: choose a GID whose address has a route to it"
	}
	return fmt.Sprintf("the path from %s to peer GID %v; %s", own, ah.GRH.DGID, hint)
}

// Query returns the attributes that mask names, and those that the provider gives
// besides, as the device has them now.
//
// Implements: ibv_query_qp
func (qp *QP) Query(mask QPAttrMask) (QPAttr, error) {
	defer runtime.KeepAlive(qp)
	q := qp.s
	err := q.Use()
	var c cverbs.QPAttr
	if err == nil {
		defer q.Done()
		c, err = cverbs.QueryQP(q.h, uint32(mask))
	}
	if err != nil {
		return QPAttr{}, &OpError{Op: "ibv_query_qp", Object: q.String(), Err: err}
	}
	return DecodeQPAttr(&c), nil
}

// State asks the device for the state. The device moves a QP to ERR or SQE by
// itself when a work request fails.
func (qp *QP) State() (QPState, error) {
	attr, err := qp.Query(AttrState)
	return attr.State, err
}

// encode turns the attributes into C's form. They passed check: a timer that does
// not count has no code, and zero stands in.
func (a *QPAttr) encode() cverbs.QPAttr {
	rnr, _ := encodeRNRTimer(a.MinRNRTimer)
	timeout, _ := encodeAckTimeout(a.Timeout)
	altTimeout, _ := encodeAckTimeout(a.AltTimeout)
	return cverbs.QPAttr{
		State:           int32(a.State),
		CurState:        int32(a.CurState),
		PathMTU:         int32(a.PathMTU),
		PathMigState:    int32(a.PathMigState),
		QKey:            a.QKey,
		RQPSN:           a.RQPSN,
		SQPSN:           a.SQPSN,
		DestQPN:         a.DestQPN,
		Access:          uint32(a.Access),
		Cap:             cverbs.QPCap(a.Cap),
		AH:              a.AH.encode(),
		AltAH:           a.AltAH.encode(),
		PKeyIndex:       a.PKeyIndex,
		AltPKeyIndex:    a.AltPKeyIndex,
		SQDrainedNotify: a.SQDrainedNotify,
		SQDraining:      a.SQDraining,
		MaxRdAtomic:     a.MaxRdAtomic,
		MaxDestRdAtomic: a.MaxDestRdAtomic,
		MinRNRTimer:     rnr,
		Port:            a.Port,
		AltPort:         a.AltPort,
		Timeout:         timeout,
		AltTimeout:      altTimeout,
		RetryCount:      a.RetryCount,
		RNRRetry:        a.RNRRetry,
		RateLimit:       a.RateLimit,
	}
}

// DecodeQPAttr turns C's form of the attributes into this package's, for the other packages
// of this module.
func DecodeQPAttr(c *cverbs.QPAttr) QPAttr {
	return QPAttr{
		State:           QPState(c.State),
		CurState:        QPState(c.CurState),
		PathMTU:         MTU(c.PathMTU),
		PathMigState:    MigState(c.PathMigState),
		QKey:            c.QKey,
		RQPSN:           c.RQPSN,
		SQPSN:           c.SQPSN,
		DestQPN:         c.DestQPN,
		Access:          AccessFlags(c.Access),
		Cap:             QPCap(c.Cap),
		AH:              DecodeAHAttr(&c.AH),
		AltAH:           DecodeAHAttr(&c.AltAH),
		PKeyIndex:       c.PKeyIndex,
		AltPKeyIndex:    c.AltPKeyIndex,
		SQDrainedNotify: c.SQDrainedNotify,
		SQDraining:      c.SQDraining,
		MaxRdAtomic:     c.MaxRdAtomic,
		MaxDestRdAtomic: c.MaxDestRdAtomic,
		MinRNRTimer:     decodeRNRTimer(c.MinRNRTimer),
		Port:            c.Port,
		AltPort:         c.AltPort,
		Timeout:         decodeAckTimeout(c.Timeout),
		AltTimeout:      decodeAckTimeout(c.AltTimeout),
		RetryCount:      c.RetryCount,
		RNRRetry:        c.RNRRetry,
		RateLimit:       c.RateLimit,
	}
}

func (a *AHAttr) encode() cverbs.AHAttr {
	return cverbs.AHAttr{
		DGID:         a.GRH.DGID,
		FlowLabel:    a.GRH.FlowLabel,
		SGIDIndex:    a.GRH.SGIDIndex,
		HopLimit:     a.GRH.HopLimit,
		TrafficClass: a.GRH.TrafficClass,
		DLID:         a.DLID,
		SL:           a.SL,
		SrcPathBits:  a.SrcPathBits,
		StaticRate:   a.StaticRate,
		IsGlobal:     a.IsGlobal,
		Port:         a.Port,
	}
}

// DecodeAHAttr is DecodeQPAttr for an address vector.
func DecodeAHAttr(c *cverbs.AHAttr) AHAttr {
	return AHAttr{
		GRH: GRH{
			DGID:         c.DGID,
			FlowLabel:    c.FlowLabel,
			SGIDIndex:    c.SGIDIndex,
			HopLimit:     c.HopLimit,
			TrafficClass: c.TrafficClass,
		},
		DLID:        c.DLID,
		SL:          c.SL,
		SrcPathBits: c.SrcPathBits,
		StaticRate:  c.StaticRate,
		IsGlobal:    c.IsGlobal,
		Port:        c.Port,
	}
}
