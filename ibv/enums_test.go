package ibv

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestEnumStrings(t *testing.T) {
	for want, value := range map[string]fmt.Stringer{
		"unknown":                  NodeUnknown,
		"CA":                       NodeCA,
		"NodeType(0)":              NodeType(0),
		"iWARP":                    TransportIWARP,
		"TransportType(-2)":        TransportType(-2),
		"PORT_ACTIVE":              PortActive,
		"PortState(6)":             PortState(6),
		"LINK_UP":                  PortPhysLinkUp,
		"PortPhysState(255)":       PortPhysState(255),
		"Ethernet":                 LinkLayerEthernet,
		"LinkLayer(3)":             LinkLayer(3),
		"1024":                     MTU1024,
		"MTU(0)":                   MTU(0),
		"ATOMIC_HCA":               AtomicHCA,
		"AtomicCap(3)":             AtomicCap(3),
		"XRC_RECV":                 QPTypeXRCRecv,
		"DRIVER":                   QPTypeDriver,
		"QPType(0)":                QPType(0),
		"QPType(7)":                QPType(7),
		"RTS":                      QPStateRTS,
		"QPState(17)":              QPState(17),
		"QPState(-1)":              QPState(-1),
		"MigState(2147483647)":     MigState(math.MaxInt32),
		"RoCE v2":                  GIDTypeRoCEv2,
		"GIDType(-2147483648)":     GIDType(math.MinInt32),
		"LocalRead":                AccessFlags(0),
		"LocalWrite|RemoteRead":    AccessRemoteRead | AccessLocalWrite,
		"RelaxedOrdering|0x400":    AccessRelaxedOrdering | 1<<10,
		"0xc0000000":               AccessFlags(3 << 30),
		"none":                     QPAttrMask(0),
		"State|PKeyIndex|Port":     AttrState | AttrPort | AttrPKeyIndex,
		"RateLimit|0x1e00000":      AttrRateLimit | 0xf<<21,
		"XRC|RawScatterFCS|0x8000": DeviceXRC | DeviceRawScatterFCS | 1<<15,
		"0x8000000000000000":       DeviceCapFlags(1 << 63),
	} {
		assert.Equal(t, want, value.String())
	}
}

// Every flag has a name of its own, so that no bit is printed as a number or
// under another's name.
func TestFlagNames(t *testing.T) {
	for _, test := range []struct {
		names []string
		flags int
	}{
		{accessNames, 11}, {deviceCapNames, 26}, {attrNames, 22}, {srqAttrNames, 2},
	} {
		seen := map[string]int{}
		for bit, name := range test.names {
			if name == "" {
				continue
			}
			assert.Equal(t, name, bitNames(1<<bit, test.names, ""))
			assert.NotContains(t, seen, name)
			seen[name] = bit
		}
		assert.Len(t, seen, test.flags)
	}
}

func TestMTU(t *testing.T) {
	bytes := map[MTU]int{MTU256: 256, MTU512: 512, MTU1024: 1024, MTU2048: 2048, MTU4096: 4096}
	for mtu, n := range bytes {
		assert.Equal(t, n, mtu.Bytes())
		parsed, err := ParseMTU(fmt.Sprint(n))
		require.NoError(t, err)
		assert.Equal(t, mtu, parsed)
	}
	for _, mtu := range []MTU{0, -1, 6, math.MaxInt32} {
		assert.Zero(t, mtu.Bytes())
	}

	for n, want := range map[int]MTU{
		256: MTU256, 511: MTU256, 512: MTU512, 1023: MTU512, 1024: MTU1024, 1500: MTU1024, 2047: MTU1024,
		2048: MTU2048, 4095: MTU2048, 4096: MTU4096, 9000: MTU4096, math.MaxInt: MTU4096,
	} {
		mtu, err := MTUOf(n)
		require.NoError(t, err, n)
		assert.Equal(t, want, mtu, n)
	}
	for _, n := range []int{255, 0, -1, math.MinInt} {
		_, err := MTUOf(n)
		assert.ErrorContains(t, err, "the smallest is 256")
	}
	for _, s := range []string{"", "0", "1", "1500", "1024 ", "+1024", "0x400", "MTU(0)", "8192"} {
		_, err := ParseMTU(s)
		assert.ErrorContains(t, err, fmt.Sprintf("%q is not a path MTU", s))
	}
}

func TestAccessCheck(t *testing.T) {
	const local = AccessLocalWrite
	for _, ok := range []AccessFlags{
		0, local, AccessRemoteRead, AccessMWBind, local | AccessRemoteWrite, local | AccessRemoteAtomic,
		AccessRemoteRead | AccessOnDemand | AccessRelaxedOrdering, math.MaxUint32,
	} {
		assert.NoError(t, ok.Check(), ok)
	}
	for access, named := range map[AccessFlags]string{
		AccessRemoteWrite:                      "grants RemoteWrite without LocalWrite: add AccessLocalWrite",
		AccessRemoteAtomic | AccessRemoteRead:  "grants RemoteAtomic without LocalWrite",
		AccessRemoteAtomic | AccessRemoteWrite: "grants RemoteWrite|RemoteAtomic without",
		^local:                                 "grants RemoteWrite|RemoteAtomic without",
	} {
		assert.ErrorContains(t, access.Check(), named, access)
	}
}
