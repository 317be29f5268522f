//go:build cgo && linux && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package rdmacm

import (
	"fmt"
	"math"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/ccm"
)

func TestConstantsHaveCsValues(t *testing.T) {
	for name, value := range map[string]int64{
		"RDMA_MAX_RESP_RES":                     MaxRespRes,
		"RDMA_MAX_INIT_DEPTH":                   MaxInitDepth,
		"RDMA_MC_JOIN_FLAG_FULLMEMBER":          int64(JoinFullMember),
		"RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER": int64(JoinSendOnly),
		"RDMA_OPTION_ID":                        levelID,
		"RDMA_OPTION_IB":                        levelIB,
		"RDMA_OPTION_ID_TOS":                    optionTOS,
		"RDMA_OPTION_ID_REUSEADDR":              optionReuseAddr,
		"RDMA_OPTION_ID_AFONLY":                 optionAFOnly,
		"RDMA_OPTION_ID_ACK_TIMEOUT":            optionAckTimeout,
		"RDMA_OPTION_IB_PATH":                   optionIBPath,
		"RAI_PASSIVE":                           ccm.RAIPassive,
		"RAI_NUMERICHOST":                       ccm.RAINumericHost,
		"RAI_NOROUTE":                           ccm.RAINoRoute,
		"RAI_FAMILY":                            ccm.RAIFamily,
	} {
		c, ok := ccm.Constants()[name]
		require.True(t, ok, name)
		assert.Equal(t, c, value, name)
	}
	for e := EventAddrResolved; e <= EventTimewaitExit; e++ {
		c, ok := ccm.Constants()["RDMA_CM_EVENT_"+e.String()]
		assert.True(t, ok, "%v", e)
		assert.Equal(t, c, int64(e), "%v", e)
	}
	for _, ps := range []PortSpace{PortSpaceIPoIB, PortSpaceTCP, PortSpaceUDP, PortSpaceIB} {
		assert.Equal(t, ccm.Constants()["RDMA_PS_"+ps.String()], int64(ps), "%v", ps)
	}
}

func TestUnknownValuesPrintAsNumbers(t *testing.T) {
	assert.Equal(t, "EventType(99) PortSpace(7) RejectReason(-1)", fmt.Sprint(EventType(99), " ", PortSpace(7), " ", RejectReason(-1)))
	e := Event{Type: 99, Status: -math.MaxInt32}
	assert.Equal(t, "EventType(99) of no CM id: errno 2147483647", e.String())
	assert.NoError(t, e.Err())
}

func TestAckTimeoutCode(t *testing.T) {
	for timeout, want := range map[time.Duration]uint8{
		1:                      1,
		8192 * time.Nanosecond: 1,
		8193 * time.Nanosecond: 2,
		67 * time.Millisecond:  14,
		68 * time.Millisecond:  15,
		4096 << 31:             31,
	} {
		code, err := ackTimeoutCode(timeout)
		require.NoError(t, err)
		assert.Equal(t, want, code, "%v", timeout)
	}
	for _, timeout := range []time.Duration{0, -1, 4096<<31 + 1} {
		_, err := ackTimeoutCode(timeout)
		assert.ErrorIs(t, err, syscall.EINVAL, "%v", timeout)
	}
}

func TestMilliseconds(t *testing.T) {
	for timeout, want := range map[time.Duration]int32{1: 1, time.Millisecond: 1, time.Millisecond + 1: 2, math.MaxInt32 * time.Millisecond: math.MaxInt32} {
		ms, err := milliseconds(timeout)
		require.NoError(t, err)
		assert.Equal(t, want, ms)
	}
	for _, timeout := range []time.Duration{0, -1, math.MinInt64, math.MaxInt32*time.Millisecond + 1, math.MaxInt64} {
		_, err := milliseconds(timeout)
		assert.ErrorIs(t, err, syscall.EINVAL, "%v", timeout)
	}
}

func TestAddresses(t *testing.T) {
	for _, text := range []string{"192.0.2.1:7471", "[2001:db8::1]:0", "[fe80::1%lo]:9", "0.0.0.0:1", "[::]:1"} {
		want := netip.MustParseAddrPort(text)
		c, err := toCM(want)
		require.NoError(t, err)
		assert.Equal(t, want, addrPort(c))
	}
	c, err := toCM(netip.MustParseAddrPort("[::ffff:192.0.2.1]:5"))
	require.NoError(t, err)
	assert.Equal(t, netip.MustParseAddrPort("192.0.2.1:5"), addrPort(c))
	c, err = toCM(netip.MustParseAddrPort("[fe80::1%4000000000]:5"))
	require.NoError(t, err)
	assert.Equal(t, uint32(4000000000), c.Scope)
	assert.Equal(t, "[fe80::1%4000000000]:5", addrPort(c).String(), "an interface that is gone stays a number")
	assert.False(t, addrPort(ccm.Addr{}).IsValid())
}

// Each event that tells of a failure says which call it answers, and matches its errno.
func TestEventErrors(t *testing.T) {
	for _, tc := range []struct {
		event Event
		errno error
		text  string
	}{
		{Event{Type: EventAddrError, Status: -int(syscall.EHOSTUNREACH)}, syscall.EHOSTUNREACH, "rdma_resolve_addr on no CM id: there is no route to the address (no route to host)"},
		{Event{Type: EventAddrError, Status: -int(syscall.ETIMEDOUT)}, syscall.ETIMEDOUT, "no host answers"},
		{Event{Type: EventRouteError, Status: -int(syscall.ETIMEDOUT)}, syscall.ETIMEDOUT, "rdma_resolve_route on no CM id: connection timed out"},
		{Event{Type: EventConnectError, Status: -int(syscall.EINVAL)}, syscall.EINVAL, "the connection could not be made"},
		{Event{Type: EventConnectError, cause: syscall.EPERM}, syscall.EPERM, ""},
		{Event{Type: EventUnreachable, Status: -int(syscall.ETIMEDOUT)}, syscall.ETIMEDOUT, "the peer does not answer"},
		{Event{Type: EventUnreachable, Status: 1}, syscall.EHOSTUNREACH, "the peer does not answer"},
		{Event{Type: EventRejected, Status: 8}, syscall.ECONNREFUSED, "nobody listens there"},
		{Event{Type: EventRejected, Status: 28}, syscall.ECONNREFUSED, "the peer's program has rejected"},
		{Event{Type: EventRejected, Status: 10}, syscall.ECONNREFUSED, "rejected: stale connection"},
		{Event{Type: EventRejected, Status: -int(syscall.ECONNREFUSED)}, syscall.ECONNREFUSED, "the peer has rejected"},
		{Event{Type: EventDisconnected}, syscall.ECONNRESET, "the connection has ended"},
		{Event{Type: EventDeviceRemoval}, ibv.ErrNoDevice, "the device was removed"},
		{Event{Type: EventMulticastError, Status: -int(syscall.EOPNOTSUPP)}, ibv.ErrNotSupported, "rdma_join_multicast"},
	} {
		require.ErrorIs(t, tc.event.Err(), tc.errno, "%v", &tc.event)
		assert.ErrorContains(t, tc.event.Err(), tc.text)
	}
	for _, good := range []EventType{EventAddrResolved, EventRouteResolved, EventConnectRequest, EventConnectResponse, EventEstablished, EventMulticastJoin, EventAddrChange, EventTimewaitExit} {
		assert.NoError(t, (&Event{Type: good}).Err(), "%v", good)
	}
}

func TestGrant(t *testing.T) {
	assert.Equal(t, uint8(3), grant(3, 200, 1), "what the program says counts")
	assert.Equal(t, uint8(5), grant(MaxRespRes, 5, 128))
	assert.Equal(t, uint8(128), grant(MaxRespRes, 200, 128))
	assert.Equal(t, uint8(255), grant(MaxRespRes, 255, 1000))
}
