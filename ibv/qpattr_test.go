package ibv

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const attrsAll = AttrRateLimit | AttrDestQPN<<1 - 1

// goodAttr has a valid value in every field.
func goodAttr(t testing.TB) QPAttr {
	ah := AHAttr{GRH: GRH{DGID: mustGID(t, "::ffff:10.0.0.2"), FlowLabel: maxFlowLabel}, SL: 15, IsGlobal: true, Port: 1}
	return QPAttr{
		State: QPStateErr, CurState: QPStateRTS, PathMTU: MTU4096, PathMigState: MigArmed, QKey: math.MaxUint32,
		RQPSN: maxUint24, SQPSN: maxUint24, DestQPN: maxUint24, Access: AccessRemoteWrite,
		AH: ah, AltAH: AHAttr{DLID: 1, Port: 255},
		MaxRdAtomic: 255, MaxDestRdAtomic: 255, MinRNRTimer: 655_360 * time.Microsecond, Timeout: Infinite,
		AltTimeout: time.Nanosecond, Port: 255, AltPort: 1, RetryCount: 7, RNRRetry: RNRRetryInfinite,
	}
}

func TestQPAttrCheck(t *testing.T) {
	good := goodAttr(t)
	require.NoError(t, good.check(attrsAll))

	for _, test := range []struct {
		attr QPAttrMask
		set  func(a *QPAttr)
		want string
	}{
		{AttrState, func(a *QPAttr) { a.State = QPStateUnknown }, "State: UNKNOWN is not a state"},
		{AttrState, func(a *QPAttr) { a.State = -1 }, "State: QPState(-1) is not a state"},
		{AttrCurState, func(a *QPAttr) { a.CurState = 17 }, "CurState: QPState(17) is not a state"},
		{AttrPathMTU, func(a *QPAttr) { a.PathMTU = 0 }, "PathMTU: MTU(0) is not a path MTU"},
		{AttrPathMTU, func(a *QPAttr) { a.PathMTU = 1024 }, "PathMTU: MTU(1024) is not a path MTU"},
		{AttrPathMigState, func(a *QPAttr) { a.PathMigState = 3 }, "PathMigState is 0x3, above its largest value 0x2"},
		{AttrPathMigState, func(a *QPAttr) { a.PathMigState = -1 }, "PathMigState is 0xffffffff, above"},
		{AttrRQPSN, func(a *QPAttr) { a.RQPSN++ }, "RQPSN is 0x1000000, above its largest value 0xffffff"},
		{AttrSQPSN, func(a *QPAttr) { a.SQPSN++ }, "SQPSN is 0x1000000, above"},
		{AttrDestQPN, func(a *QPAttr) { a.DestQPN++ }, "DestQPN is 0x1000000, above"},
		{AttrDestQPN, func(a *QPAttr) { a.DestQPN = 0 }, "DestQPN is not set"},
		{AttrAV, func(a *QPAttr) { a.AH.GRH.DGID = GID{} }, "AH.GRH.DGID is not set"},
		{AttrAV, func(a *QPAttr) { a.AH.IsGlobal = false }, "AH names no peer"},
		{AttrAV, func(a *QPAttr) { a.AH.GRH.FlowLabel++ }, "AH.GRH.FlowLabel is 0x100000, above its largest value 0xfffff"},
		{AttrAV, func(a *QPAttr) { a.AH.SL++ }, "AH.SL is 0x10, above its largest value 0xf"},
		{AttrAV, func(a *QPAttr) { a.AH.Port = 0 }, "AH.Port is not set"},
		{AttrMinRNRTimer, func(a *QPAttr) { a.MinRNRTimer = 0 }, "MinRNRTimer: minimum RNR timer is zero"},
		{AttrMinRNRTimer, func(a *QPAttr) { a.MinRNRTimer++ }, "is above the longest, 655.36ms"},
		{AttrPort, func(a *QPAttr) { a.Port = 0 }, "Port is not set"},
		{AttrTimeout, func(a *QPAttr) { a.Timeout = 0 }, "Timeout: ack timeout is zero: give a time from 8.192µs"},
		{AttrRetryCount, func(a *QPAttr) { a.RetryCount++ }, "RetryCount is 0x8, above its largest value 0x7"},
		{AttrRNRRetry, func(a *QPAttr) { a.RNRRetry++ }, "RNRRetry is 0x8, above"},
		{AttrAltPath, func(a *QPAttr) { a.AltAH = AHAttr{Port: 1} }, "AltAH names no peer"},
		{AttrAltPath, func(a *QPAttr) { a.AltPort = 0 }, "AltPort is not set"},
		{AttrAltPath, func(a *QPAttr) { a.AltTimeout = -1 }, "AltTimeout: ack timeout -1ns is negative"},
	} {
		bad := good
		test.set(&bad)
		assert.ErrorContains(t, bad.check(test.attr), test.want)
		assert.ErrorContains(t, bad.check(attrsAll), test.want)
		assert.NoError(t, bad.check(attrsAll&^test.attr), "fields that the mask leaves out do not count: %s", test.want)
	}
	assert.NoError(t, new(QPAttr).check(0))
}

// No value may panic, and an error is one line.
func TestQPAttrCheckAnyValue(t *testing.T) {
	for range 10_000 {
		a := QPAttr{
			State: QPState(rand.Int32()), PathMTU: MTU(rand.Int32()), PathMigState: MigState(-rand.Int32()),
			AH: AHAttr{SL: uint8(rand.Uint32()), IsGlobal: rand.N(2) == 0}, Timeout: time.Duration(rand.Uint64()),
			MinRNRTimer: time.Duration(rand.Uint64()), RetryCount: uint8(rand.Uint32()), Port: uint8(rand.N(3)),
		}
		if err := a.check(QPAttrMask(rand.Uint32())); err != nil {
			require.NotContains(t, err.Error(), "\n")
		}
	}
}

func TestQPInitAttr(t *testing.T) {
	attr := QPInitAttr{
		Type:      QPTypeRC,
		Cap:       QPCap{MaxSendWR: 16, MaxRecvWR: 32, MaxSendSGE: 1, MaxRecvSGE: 2, MaxInlineData: 64},
		SignalAll: true,
	}
	require.NoError(t, attr.Check())
	assert.Equal(t, "RC QP: send queue of 16 WRs with 1 SGEs, receive queue of 32 WRs with 2 SGEs, 64 bytes inline, every send signaled",
		attr.String())
	assert.NoError(t, QPInitAttr{Type: QPTypeDriver}.Check())
	assert.ErrorContains(t, QPInitAttr{}.Check(), "QPInitAttr.Type is not set: use QPTypeRC")
	assert.ErrorContains(t, QPInitAttr{Type: 7}.Check(), "QPType(7) does not exist")
}
