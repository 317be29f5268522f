//go:build rdma

package ibv_test

import (
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/rdmatest"
)

const (
	initMask = ibv.AttrState | ibv.AttrPKeyIndex | ibv.AttrPort | ibv.AttrAccess
	rtrMask  = ibv.AttrState | ibv.AttrAV | ibv.AttrPathMTU | ibv.AttrDestQPN | ibv.AttrRQPSN | ibv.AttrMaxDestRdAtomic | ibv.AttrMinRNRTimer
	rtsMask  = ibv.AttrState | ibv.AttrSQPSN | ibv.AttrTimeout | ibv.AttrRetryCount | ibv.AttrRNRRetry | ibv.AttrMaxRdAtomic
)

// toINIT, toRTR and toRTS are the attributes of a QP that talks to itself.
func toINIT(gid ibv.GIDEntry) ibv.QPAttr {
	return ibv.QPAttr{State: ibv.QPStateInit, Port: gid.Port, Access: ibv.AccessRemoteRead | ibv.AccessRemoteWrite}
}

func toRTR(gid ibv.GIDEntry, qp *ibv.QP) ibv.QPAttr {
	return ibv.QPAttr{
		State: ibv.QPStateRTR, PathMTU: ibv.MTU512, DestQPN: qp.Num(), RQPSN: 0xabcdef, MaxDestRdAtomic: 2,
		MinRNRTimer: 320 * time.Microsecond,
		AH: ibv.AHAttr{IsGlobal: true, Port: gid.Port, SL: 3, GRH: ibv.GRH{
			DGID: gid.GID, SGIDIndex: uint8(gid.Index), HopLimit: 7, TrafficClass: 0x68, FlowLabel: 0x12345}},
	}
}

func toRTS() ibv.QPAttr {
	return ibv.QPAttr{State: ibv.QPStateRTS, SQPSN: 0xabcdef, Timeout: 134 * time.Millisecond, RetryCount: 5, RNRRetry: 6, MaxRdAtomic: 1}
}

func newQP(t *testing.T) (*ibv.QP, ibv.GIDEntry) {
	t.Helper()
	ctx := rdmatest.Open(t)
	gid, err := ctx.ChooseGID(ibv.GIDRequest{Local: rdmatest.Addr(t)})
	require.NoError(t, err)
	return rdmatest.NewSide(t, rdmatest.PD(t, ctx), rdmatest.DefaultInit()).QP, gid.Entry
}

func requireState(t *testing.T, qp *ibv.QP, want ibv.QPState) {
	t.Helper()
	got, err := qp.State()
	require.NoError(t, err)
	require.Equal(t, want, got)
}

// waitDrained waits until the send queue of a QP in SQD is empty: until then only ERR
// and RESET are open to it.
func waitDrained(t *testing.T, qp *ibv.QP) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; {
		attr, err := qp.Query(ibv.AttrState)
		require.NoError(t, err)
		if !attr.SQDraining {
			return
		}
		require.True(t, time.Now().Before(deadline), "still draining")
	}
}

func TestEveryTransition(t *testing.T) {
	qp, gid := newQP(t)
	step := func(attr ibv.QPAttr, mask ibv.QPAttrMask) {
		t.Helper()
		require.NoError(t, qp.Modify(attr, mask))
		if mask&ibv.AttrState != 0 {
			requireState(t, qp, attr.State)
		}
	}
	for range 2 { // the second round from RESET must be as the first
		requireState(t, qp, ibv.QPStateReset)
		step(toINIT(gid), initMask)
		step(ibv.QPAttr{State: ibv.QPStateInit, Access: ibv.AccessRemoteRead}, ibv.AttrState|ibv.AttrAccess)
		step(toRTR(gid, qp), rtrMask)
		step(toRTS(), rtsMask)
		step(ibv.QPAttr{MinRNRTimer: 10 * time.Millisecond}, ibv.AttrMinRNRTimer) // RTS to RTS
		step(ibv.QPAttr{State: ibv.QPStateSQD}, ibv.AttrState)
		waitDrained(t, qp)
		step(ibv.QPAttr{Timeout: ibv.Infinite, RetryCount: 1}, ibv.AttrTimeout|ibv.AttrRetryCount) // SQD to SQD
		step(ibv.QPAttr{State: ibv.QPStateRTS}, ibv.AttrState)
		step(ibv.QPAttr{State: ibv.QPStateErr}, ibv.AttrState)
		step(ibv.QPAttr{State: ibv.QPStateErr}, ibv.AttrState)
		step(ibv.QPAttr{State: ibv.QPStateReset}, ibv.AttrState)
	}
}

func TestEveryAttributeArrives(t *testing.T) {
	qp, gid := newQP(t)
	require.NoError(t, qp.Modify(toINIT(gid), initMask))
	rtr := toRTR(gid, qp)
	require.NoError(t, qp.Modify(rtr, rtrMask))
	rts := toRTS()
	require.NoError(t, qp.Modify(rts, rtsMask))
	got, err := qp.Query(initMask | rtrMask | rtsMask)
	require.NoError(t, err)
	assert.Equal(t, ibv.QPStateRTS, got.State)
	assert.Equal(t, gid.Port, got.Port)
	assert.Equal(t, ibv.AccessRemoteRead|ibv.AccessRemoteWrite, got.Access&^ibv.AccessLocalWrite)
	assert.Equal(t, rtr.PathMTU, got.PathMTU)
	assert.Equal(t, rtr.DestQPN, got.DestQPN)
	assert.Equal(t, rtr.RQPSN, got.RQPSN)
	assert.Equal(t, rtr.MaxDestRdAtomic, got.MaxDestRdAtomic)
	assert.Equal(t, rtr.MinRNRTimer, got.MinRNRTimer)
	assert.Equal(t, rtr.AH.GRH.DGID, got.AH.GRH.DGID)
	assert.NotZero(t, got.AH.GRH.HopLimit) // Linux puts the route's own there
	assert.Equal(t, rtr.AH.GRH.TrafficClass, got.AH.GRH.TrafficClass)
	assert.Equal(t, rtr.AH.GRH.SGIDIndex, got.AH.GRH.SGIDIndex)
	assert.Equal(t, rts.SQPSN, got.SQPSN)
	assert.Equal(t, rts.RetryCount, got.RetryCount)
	assert.Equal(t, rts.RNRRetry, got.RNRRetry)
	assert.Equal(t, rts.MaxRdAtomic, got.MaxRdAtomic)
	assert.GreaterOrEqual(t, got.Timeout, rts.Timeout, "rounded up")
	assert.Less(t, got.Timeout, 2*rts.Timeout)
}

func TestWrongAttributesAreNamed(t *testing.T) {
	qp, gid := newQP(t)
	refused := func(attr ibv.QPAttr, mask ibv.QPAttrMask, words ...string) {
		t.Helper()
		before, err := qp.State()
		require.NoError(t, err)
		err = qp.Modify(attr, mask)
		require.ErrorIs(t, err, syscall.EINVAL)
		for _, w := range words {
			assert.ErrorContains(t, err, w)
		}
		requireState(t, qp, before)
	}
	refused(toINIT(gid), initMask&^ibv.AttrPort, "Port", "RESET", "INIT")
	refused(toINIT(gid), initMask|ibv.AttrTimeout, "Timeout")
	refused(toRTS(), rtsMask, "RESET", "RTS")
	require.NoError(t, qp.Modify(toINIT(gid), initMask))
	refused(toRTR(gid, qp), rtrMask&^(ibv.AttrAV|ibv.AttrRQPSN), "AV", "RQPSN")
	refused(toRTR(gid, qp), rtrMask|ibv.AttrQKey, "QKey")
	tooLong := toRTR(gid, qp)
	tooLong.MinRNRTimer = time.Second
	refused(tooLong, rtrMask, "MinRNRTimer", "655")
	many := toRTR(gid, qp)
	many.MaxDestRdAtomic = 255
	refused(many, rtrMask, "MaxDestRdAtomic 255", "max_qp_rd_atom")
	elsewhere := toRTR(gid, qp)
	elsewhere.AH.Port = 9
	refused(elsewhere, rtrMask, "AH.Port 9", "number of ports 1")
	zero := toRTR(gid, qp)
	zero.MinRNRTimer = 0
	refused(zero, rtrMask, "MinRNRTimer")
}

func TestWrongPathIsExplained(t *testing.T) {
	qp, gid := newQP(t)
	require.NoError(t, qp.Modify(toINIT(gid), initMask))
	attr := toRTR(gid, qp)
	attr.AH.GRH.SGIDIndex = 200
	err := qp.Modify(attr, rtrMask)
	require.Error(t, err)
	assert.ErrorContains(t, err, "GID index 200")
	assert.ErrorContains(t, err, "ibv_modify_qp on QP")
}

// After an error that the device found, the state that was set last is stale.
func TestModifyAfterTheDeviceMovedToERR(t *testing.T) {
	p := rdmatest.NewPair(t, rdmatest.DefaultInit())
	failSend(t, p)
	for range 2 { // the first time the state that is remembered is RTS
		err := p.A.QP.Modify(ibv.QPAttr{State: ibv.QPStateSQD}, ibv.AttrState)
		require.ErrorIs(t, err, syscall.EINVAL)
		assert.ErrorContains(t, err, "ERR", "the error tells the state that the device has")
	}
	requireState(t, p.A.QP, ibv.QPStateErr)

	// Recovery: by RESET back to RTS, and data flows again.
	for _, s := range []*rdmatest.Side{&p.A, &p.B} {
		require.NoError(t, s.QP.Modify(ibv.QPAttr{State: ibv.QPStateReset}, ibv.AttrState))
	}
	p.Connect(t)
	exchangeOne(t, p)
}

// What is wrong with a later step is told before the first is made.
func TestConnectRefusesBeforeItMoves(t *testing.T) {
	ctx := rdmatest.Open(t)
	qp := rdmatest.NewSide(t, rdmatest.PD(t, ctx), rdmatest.DefaultInit()).QP
	_, err := qp.Init(ibv.GIDRequest{Local: rdmatest.Addr(t)}, ibv.AccessOnDemand)
	assert.ErrorContains(t, err, "OnDemand is not for a QP")
	_, err = qp.Init(ibv.GIDRequest{Port: 9}, 0)
	assert.ErrorContains(t, err, "there is no port 9")
	local, err := qp.Init(ibv.GIDRequest{Local: rdmatest.Addr(t)}, 0)
	require.NoError(t, err)
	for want, change := range map[string]func(*ibv.ConnectParams){
		"max_qp_init_rd_atom": func(p *ibv.ConnectParams) { p.MaxRdAtomic = 255 },
		"RetryCount":          func(p *ibv.ConnectParams) { p.RetryCount = 8 },
		"Timeout":             func(p *ibv.ConnectParams) { p.Timeout = 0 },
		"active MTU":          func(p *ibv.ConnectParams) { p.PathMTU = ibv.MTU4096 },
		"SL":                  func(p *ibv.ConnectParams) { p.SL = 16 },
	} {
		err := qp.Connect(local, local.Endpoint, change)
		require.ErrorIs(t, err, syscall.EINVAL, want)
		assert.ErrorContains(t, err, want)
		requireState(t, qp, ibv.QPStateInit)
	}
	require.NoError(t, qp.Connect(local, local.Endpoint))
}
