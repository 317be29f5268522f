package ibv

import (
	"encoding/json"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func mustGID(t testing.TB, s string) GID {
	t.Helper()
	g, err := ParseGID(s)
	require.NoError(t, err)
	return g
}

func TestGIDForms(t *testing.T) {
	for _, test := range []struct {
		in, out           string
		addr              string
		mapped, linkLocal bool
	}{
		{"::ffff:10.0.0.1", "::ffff:10.0.0.1", "10.0.0.1", true, false},
		{"0000:0000:0000:0000:0000:ffff:0a00:0001", "::ffff:10.0.0.1", "10.0.0.1", true, false},
		{"::FFFF:169.254.3.4", "::ffff:169.254.3.4", "169.254.3.4", true, true},
		{"fe80:0:0:0:2fc:ff:fe00:1", "fe80::2fc:ff:fe00:1", "fe80::2fc:ff:fe00:1", false, true},
		{"febf::1", "febf::1", "febf::1", false, true},
		{"fec0::1", "fec0::1", "fec0::1", false, false},
		{"2001:db8::7", "2001:db8::7", "2001:db8::7", false, false},
		{"::", "::", "::", false, false},
		{"::10.0.0.1", "::a00:1", "::a00:1", false, false},
	} {
		g := mustGID(t, test.in)
		assert.Equal(t, test.out, g.String())
		assert.Equal(t, netip.MustParseAddr(test.addr), g.Addr(), test.in)
		assert.Equal(t, test.mapped, g.IsIPv4Mapped(), test.in)
		assert.Equal(t, test.linkLocal, g.IsLinkLocal(), test.in)
		assert.Equal(t, test.in == "::", g.IsZero(), test.in)
		assert.Equal(t, g, GIDFromAddr(g.Addr()), test.in)
		assert.Equal(t, g, mustGID(t, g.String()))
	}
	assert.Equal(t, GID{10: 0xff, 11: 0xff, 12: 10, 15: 1}, mustGID(t, "::ffff:10.0.0.1"), "network byte order")
	assert.Equal(t, mustGID(t, "fe80::1"), GIDFromAddr(netip.MustParseAddr("fe80::1%eth0")))
	assert.True(t, GIDFromAddr(netip.Addr{}).IsZero())
}

func TestGIDRefused(t *testing.T) {
	for in, why := range map[string]string{
		"":                       `"" is not a GID: want IPv6 notation`,
		"10.0.0.1":               "is written ::ffff:10.0.0.1",
		"fe80::1%eth0":           "a GID has no zone",
		"fe80::1 ":               "want IPv6 notation",
		"0x1":                    "want IPv6 notation",
		"fe80:0:0:0:2fc:ff:fe00": "want IPv6 notation",
	} {
		_, err := ParseGID(in)
		assert.ErrorContains(t, err, why)
		kept := GID{1}
		require.Error(t, kept.UnmarshalText([]byte(in)))
		assert.Equal(t, GID{1}, kept)
	}
}

func TestGIDAsJSON(t *testing.T) {
	text, err := json.Marshal(map[string]GID{"gid": mustGID(t, "::ffff:10.0.0.1")})
	require.NoError(t, err)
	assert.Equal(t, `{"gid":"::ffff:10.0.0.1"}`, string(text))
	var back map[string]GID
	require.NoError(t, json.Unmarshal(text, &back))
	assert.Equal(t, mustGID(t, "::ffff:10.0.0.1"), back["gid"])
}

func TestGUIDString(t *testing.T) {
	assert.Equal(t, "00fc:00ff:fe00:0001", GUID(0x00fc00fffe000001).String())
	assert.Equal(t, "0000:0000:0000:0000", GUID(0).String())
}

func FuzzGID(f *testing.F) {
	for _, s := range []string{"::", "fe80::1", "::ffff:10.0.0.1", "10.0.0.1", "::1%x", "1:2:3:4:5:6:7:8"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		g, err := ParseGID(s)
		if err != nil {
			require.Zero(t, g)
			return
		}
		back, err := ParseGID(g.String())
		require.NoError(t, err)
		require.Equal(t, g, back)
		require.Equal(t, g, GIDFromAddr(g.Addr()))
	})
}
