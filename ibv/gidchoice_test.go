package ibv

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What is chosen and why is tested in gidchoice; here, that nothing is lost on the way
// there and back.
func TestChooseGID(t *testing.T) {
	entries := []GIDEntry{
		{GID: mustGID(t, "fe80::1"), Index: 0, Port: 1, Type: GIDTypeRoCEv1, NetdevIndex: 7, Netdev: "eth0"},
		{GID: mustGID(t, "::ffff:10.0.0.1"), Index: 3, Port: 1, Type: GIDTypeRoCEv1, NetdevIndex: 7, Netdev: "eth0"},
		{GID: mustGID(t, "::ffff:10.0.0.1"), Index: 4, Port: 1, Type: GIDTypeRoCEv2, NetdevIndex: 7, Netdev: "eth0"},
		{GID: mustGID(t, "::ffff:10.0.1.1"), Index: 4, Port: 2, Type: GIDTypeRoCEv2, NetdevIndex: 8, Netdev: "eth1"},
	}
	all := map[uint8]bool{1: true, 2: true}
	for name, tt := range map[string]struct {
		active map[uint8]bool
		req    GIDRequest
		want   int
	}{
		"best":        {all, GIDRequest{}, 2},
		"active port": {map[uint8]bool{2: true}, GIDRequest{}, 3},
		"port":        {all, GIDRequest{Port: 2}, 3},
		"type":        {all, GIDRequest{Type: new(GIDTypeRoCEv1)}, 1},
		"index":       {all, GIDRequest{Index: new(uint32(0))}, 0},
		"local":       {all, GIDRequest{Local: netip.MustParseAddr("10.0.1.1")}, 3},
		"peer":        {all, GIDRequest{Peer: netip.MustParseAddr("127.0.0.1")}, 2},
	} {
		choice, err := chooseGID(entries, tt.active, tt.req)
		require.NoError(t, err, name)
		assert.Equal(t, entries[tt.want], choice.Entry, name)
		assert.NotEmpty(t, choice.Why, name)
	}
	_, err := chooseGID(entries, all, GIDRequest{Port: 9})
	assert.ErrorContains(t, err, "GID 4 of port 2 (::ffff:10.0.1.1, RoCE v2, eth1) is not on port 9")
}
