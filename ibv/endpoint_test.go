package ibv

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const endpointText = "rdma-endpoint/1 qpn=0x000011 psn=0x1a2b3c gid=::ffff:10.0.0.1 lid=0x0000 mtu=1024"

func someEndpoint(t testing.TB) Endpoint {
	return Endpoint{QPN: 17, PSN: 0x1a2b3c, GID: mustGID(t, "::ffff:10.0.0.1"), MTU: MTU1024}
}

func TestEndpointText(t *testing.T) {
	e := someEndpoint(t)
	text, err := e.MarshalText()
	require.NoError(t, err)
	assert.Equal(t, endpointText, string(text))
	assert.Equal(t, endpointText, e.String())

	for _, e := range []Endpoint{
		e,
		{},
		{QPN: maxUint24, PSN: maxUint24, GID: mustGID(t, "fe80::1"), LID: 0xffff, MTU: MTU4096},
	} {
		text, err := e.MarshalText()
		require.NoError(t, err)
		var back Endpoint
		require.NoError(t, back.UnmarshalText(fmt.Appendf(nil, " %s\r\n", text)), "white space around it is fine")
		assert.Equal(t, e, back)
	}
}

func TestEndpointMarshalRefused(t *testing.T) {
	for want, e := range map[string]Endpoint{
		"QPN 0x1000000 has more than 24 bits": {QPN: 1 << 24},
		"PSN 0x1000000 has more than 24 bits": {PSN: 1 << 24},
		"MTU(6) is not a path MTU":            {MTU: 6},
		"MTU(-1) is not a path MTU":           {MTU: -1},
	} {
		_, err := e.MarshalText()
		assert.ErrorContains(t, err, want)
		assert.NotPanics(t, func() { _ = e.String() })
	}
}

func TestEndpointUnmarshalRefused(t *testing.T) {
	long := strings.Repeat("x", 10_000)
	for _, test := range []struct{ old, new, want string }{
		{endpointText, "", "does not begin with rdma-endpoint/1"},
		{endpointText, long, "does not begin with rdma-endpoint/1"},
		{"endpoint/1", "endpoint/2", "does not begin with rdma-endpoint/1"},
		{" mtu=1024", "", "the text ends before the field mtu"},
		{"qpn=0x000011 ", "", `"psn=0x1a2b3c" stands where the field qpn is due`},
		{"psn=0x1a2b3c", "qpn=0x000011", "stands where the field psn is due"},
		{"qpn=", "qpn= ", "field qpn"},
		{"qpn=0x000011", "qpn=17", `field qpn: "17" is not a hexadecimal number of at most 24 bits`},
		{"qpn=0x000011", "qpn=0x", "field qpn"},
		{"qpn=0x000011", "qpn=0x+1", "field qpn"},
		{"qpn=0x000011", "qpn=0x1_1", "field qpn"},
		{"qpn=0x000011", "qpn=0x1000000", "field qpn"},
		{"psn=0x1a2b3c", "psn=0x1000000", "field psn"},
		{"gid=::ffff:10.0.0.1", "gid=10.0.0.1", "field gid"},
		{"gid=::ffff:10.0.0.1", "gid=" + long, "field gid"},
		{"lid=0x0000", "lid=0x10000", "field lid"},
		{"mtu=1024", "mtu=1500", `field mtu: "1500" is not a path MTU`},
		{"mtu=1024", "mtu=00", "field mtu"},
		{"mtu=1024", "mtu=1024 port=1", `"port=1" follows the last field`},
		{"mtu=1024", "mtu=1024 " + endpointText, "follows the last field"},
	} {
		text := strings.Replace(endpointText, test.old, test.new, 1)
		require.NotEqual(t, endpointText, text)
		e := Endpoint{QPN: 5}
		err := e.UnmarshalText([]byte(text))
		require.ErrorContains(t, err, test.want)
		assert.Less(t, len(err.Error()), 250)
		assert.Equal(t, Endpoint{QPN: 5}, e, "unchanged")
	}
}

// What only the local side knows stays there.
func TestLocalEndpointText(t *testing.T) {
	local := LocalEndpoint{Endpoint: someEndpoint(t), Choice: GIDChoice{Why: "only here"}}
	text, err := json.Marshal(local)
	require.NoError(t, err)
	assert.Equal(t, `"`+endpointText+`"`, string(text))
	assert.Equal(t, endpointText, fmt.Sprint(local))

	var remote Endpoint
	require.NoError(t, json.Unmarshal(text, &remote))
	assert.Equal(t, local.Endpoint, remote)
}

func TestRandomPSN(t *testing.T) {
	var or uint32
	for range 1000 {
		psn := RandomPSN()
		require.LessOrEqual(t, psn, uint32(maxUint24))
		or |= psn
	}
	assert.Equal(t, uint32(maxUint24), or, "every bit varies")
}

func FuzzEndpointText(f *testing.F) {
	f.Add([]byte(endpointText))
	f.Add([]byte("rdma-endpoint/1 qpn=0x0 psn=0xffffff gid=:: lid=0xffff mtu=0\n"))
	f.Add([]byte("rdma-endpoint/1 qpn= psn="))
	f.Add([]byte{0xff, 0, ' '})
	f.Fuzz(func(t *testing.T, text []byte) {
		var e Endpoint
		if err := e.UnmarshalText(text); err != nil {
			require.Zero(t, e)
			require.NotContains(t, err.Error(), "\n")
			return
		}
		again, err := e.MarshalText()
		require.NoError(t, err)
		var back Endpoint
		require.NoError(t, back.UnmarshalText(again))
		require.Equal(t, e, back)
	})
}

func FuzzEndpointValue(f *testing.F) {
	f.Add(uint32(17), uint32(1), []byte{10: 0xff, 0xff, 10, 0, 0, 1}, uint16(0), int32(3))
	f.Add(uint32(1<<24), uint32(1), []byte{}, uint16(9), int32(0))
	f.Fuzz(func(t *testing.T, qpn, psn uint32, gid []byte, lid uint16, mtu int32) {
		e := Endpoint{QPN: qpn, PSN: psn, LID: lid, MTU: MTU(mtu)}
		copy(e.GID[:], gid)
		text, err := e.MarshalText()
		fits := qpn <= maxUint24 && psn <= maxUint24 && mtu >= 0 && mtu <= int32(MTU4096)
		require.Equal(t, fits, err == nil, err)
		if !fits {
			return
		}
		var back Endpoint
		require.NoError(t, back.UnmarshalText(text))
		require.Equal(t, e, back)
	})
}
