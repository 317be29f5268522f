//go:build rdma

package rdmacm_test

import (
	"net/netip"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/rdmatest"
	"github.com/goverbs/goverbs/rdmacm"
)

// member makes an id of datagrams that is bound to the device.
func member(t *testing.T, c *rdmacm.EventChannel) *side {
	t.Helper()
	id, err := c.CreateID(rdmacm.PortSpaceUDP)
	require.NoError(t, err)
	require.NoError(t, id.BindAddr(netip.AddrPortFrom(rdmatest.Addr(t), 0)))
	return equip(t, id)
}

func TestMulticast(t *testing.T) {
	c := channel(t)
	group := netip.MustParseAddr("239.1.2.3")
	a, b := member(t, c), member(t, c)
	for _, s := range []*side{a, b} {
		require.NoError(t, s.id.JoinMulticast(group, rdmacm.JoinFullMember))
		e := next(t, s.id, rdmacm.EventMulticastJoin)
		assert.Equal(t, group, e.Group.Addr)
		assert.Equal(t, e.UD.AH.GRH.DGID, e.Group.MGID)
		assert.Equal(t, uint32(0xFFFFFF), e.UD.QPNum)
		require.ErrorIs(t, s.id.JoinMulticast(group, rdmacm.JoinFullMember), syscall.EINVAL)
		if s == b && os.Getenv("RXE_KERNEL") == "6.1" { // later ones do not loop packets back
			a.sendTo(t, e.UD, "to all")
			assert.Equal(t, "to all", b.received(t)[40:])
		}
	}
	require.NoError(t, a.id.LeaveMulticast(group))
	require.ErrorIs(t, a.id.LeaveMulticast(group), syscall.EADDRNOTAVAIL)
	require.NoError(t, b.qp.Close(), "in the group")
	require.NoError(t, b.id.Close(), "in the group")
	require.NoError(t, a.id.JoinMulticast(group, rdmacm.JoinFullMember))
	require.NoError(t, a.id.Close(), "with the join under way")
}

func TestMulticastRefusals(t *testing.T) {
	c := channel(t)
	s := member(t, c)
	require.ErrorIs(t, s.id.JoinMulticast(rdmatest.Addr(t), rdmacm.JoinFullMember), syscall.EINVAL)
	require.ErrorIs(t, s.id.JoinMulticast(netip.MustParseAddr("239.1.2.3"), 2), syscall.EINVAL)
	require.ErrorIs(t, s.id.JoinMulticast(netip.MustParseAddr("ff0e::1:2:3"), rdmacm.JoinFullMember), ibv.ErrNotSupported)
}

// A member that only sends gets nothing.
func TestMulticastSendOnly(t *testing.T) {
	c := channel(t)
	s := member(t, c)
	require.NoError(t, s.id.JoinMulticast(netip.MustParseAddr("239.1.2.4"), rdmacm.JoinSendOnly))
	e := next(t, s.id, rdmacm.EventMulticastJoin)
	assert.Equal(t, rdmacm.JoinSendOnly, e.Group.Flags)
	s.sendTo(t, e.UD, "from me")
	require.Error(t, s.qp.DetachMcast(e.Group.MGID, e.Group.MLID), "it is not attached")
}
