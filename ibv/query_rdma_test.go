//go:build rdma

package ibv_test

import (
	"net/netip"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/rdmatest"
	"github.com/goverbs/goverbs/internal/sysfs"
)

func TestDeviceListHasTheDevice(t *testing.T) {
	devices, err := ibv.Devices()
	require.NoError(t, err)
	for _, d := range devices {
		if d.Name == rdmatest.Device(t) {
			assert.NotZero(t, d.GUID)
			assert.Equal(t, ibv.NodeCA, d.NodeType)
			assert.Equal(t, ibv.TransportIB, d.Transport)
			assert.Equal(t, d.Software, rdmatest.Open(t).Software())
			return
		}
	}
	t.Fatalf("%s is not among %v", rdmatest.Device(t), devices)
}

func TestOpenUnknownDevice(t *testing.T) {
	_, err := ibv.Open("nonesuch0")
	require.ErrorIs(t, err, ibv.ErrNoDevice)
	assert.ErrorContains(t, err, rdmatest.Device(t), "the error names what there is")
}

func TestQueriesOfWrongPorts(t *testing.T) {
	ctx := rdmatest.Open(t)
	for _, port := range []uint8{0, 2, 255} {
		_, err := ctx.QueryPort(port)
		require.ErrorIs(t, err, syscall.EINVAL)
		assert.ErrorContains(t, err, "ports 1 to 1")
		_, err = ctx.QueryPKey(port, 0)
		require.ErrorIs(t, err, syscall.EINVAL)
	}
	pkey, err := ctx.QueryPKey(1, 0)
	require.NoError(t, err)
	assert.EqualValues(t, 0xffff, pkey)
	_, err = ctx.QueryPKey(1, 60000)
	require.ErrorIs(t, err, syscall.EINVAL)
	assert.ErrorContains(t, err, "there is no entry 60000")
}

// The GID table that the verbs give is the one that sysfs shows.
func TestGIDTableIsSysfs(t *testing.T) {
	ctx := rdmatest.Open(t)
	entries, err := ctx.GIDTable()
	require.NoError(t, err)
	devices, err := sysfs.Host.Devices()
	require.NoError(t, err)
	var want []ibv.GIDEntry
	for _, d := range devices {
		if d.Name != ctx.Name() {
			continue
		}
		for _, p := range d.Ports {
			for _, g := range p.GIDs {
				want = append(want, ibv.GIDEntry{GID: g.Addr.As16(), Index: uint32(g.Index), Port: uint8(p.Number), Netdev: g.Netdev})
			}
		}
	}
	require.NotEmpty(t, want)
	require.Len(t, entries, len(want))
	for i, e := range entries {
		assert.Equal(t, want[i].GID, e.GID)
		assert.Equal(t, want[i].Index, e.Index)
		assert.Equal(t, want[i].Port, e.Port)
		assert.Equal(t, want[i].Netdev, e.Netdev)
		assert.Equal(t, ibv.GIDTypeRoCEv2, e.Type, "rxe has no other")
	}
}

func TestChooseGIDOnTheDevice(t *testing.T) {
	ctx := rdmatest.Open(t)
	addr := rdmatest.Addr(t)
	for name, req := range map[string]ibv.GIDRequest{
		"own address":  {Local: addr},
		"peer is self": {Peer: addr},
		"neighbour":    {Peer: addr.Next()},
	} {
		choice, err := ctx.ChooseGID(req)
		require.NoError(t, err, name)
		assert.Equal(t, addr, choice.Entry.GID.Addr(), name)
		assert.Contains(t, choice.String(), "RoCE v2")
	}
	_, err := ctx.ChooseGID(ibv.GIDRequest{Local: netip.MustParseAddr("203.0.113.77")})
	require.Error(t, err)
	assert.ErrorContains(t, err, addr.String(), "the error lists what there is")
	_, err = ctx.ChooseGID(ibv.GIDRequest{Index: new(uint32(200))})
	require.Error(t, err)
}
