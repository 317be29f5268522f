//go:build rdma

package rdmacm_test

import (
	"net/netip"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/rdmatest"
	"github.com/goverbs/goverbs/rdmacm"
)

// The type of service and the acknowledgement timeout are those of the queue pair.
func TestOptionsOfAConnection(t *testing.T) {
	c := channel(t)
	l := listen(t, c, rdmacm.PortSpaceTCP)
	id, err := c.CreateID(rdmacm.PortSpaceTCP)
	require.NoError(t, err)
	require.NoError(t, id.SetTOS(0x68))
	require.NoError(t, id.SetAckTimeout(100*time.Millisecond))
	require.NoError(t, id.ResolveAddr(netip.AddrPort{}, l.LocalAddr(), patience))
	next(t, id, rdmacm.EventAddrResolved)
	require.NoError(t, id.ResolveRoute(patience))
	next(t, id, rdmacm.EventRouteResolved)
	client := equip(t, id)
	require.NoError(t, id.Connect(rdmacm.DefaultConnParam()))
	server := equip(t, next(t, l, rdmacm.EventConnectRequest).ID)
	require.NoError(t, server.id.Accept(rdmacm.DefaultConnParam()))
	next(t, id, rdmacm.EventEstablished)
	attr, err := client.qp.Query(ibv.AttrAV | ibv.AttrTimeout)
	require.NoError(t, err)
	assert.Equal(t, uint8(0x68), attr.AH.GRH.TrafficClass)
	assert.InDelta(t, 134*time.Millisecond, attr.Timeout, float64(time.Millisecond))
}

func TestReuseAddr(t *testing.T) {
	c := channel(t)
	var ids [3]*rdmacm.ID
	for i := range ids {
		var err error
		ids[i], err = c.CreateID(rdmacm.PortSpaceTCP)
		require.NoError(t, err)
	}
	require.NoError(t, ids[0].SetReuseAddr(true))
	require.NoError(t, ids[0].BindAddr(netip.AddrPortFrom(rdmatest.Addr(t), 0)))
	err := ids[1].BindAddr(ids[0].LocalAddr())
	require.ErrorIs(t, err, syscall.EADDRINUSE)
	assert.ErrorContains(t, err, "see SetReuseAddr")
	require.NoError(t, ids[2].SetReuseAddr(true))
	require.NoError(t, ids[2].BindAddr(ids[0].LocalAddr()))

	all, err := c.CreateID(rdmacm.PortSpaceTCP)
	require.NoError(t, err)
	require.NoError(t, all.BindAddr(netip.MustParseAddrPort("0.0.0.0:0")))
	err = ids[1].BindAddr(netip.AddrPortFrom(rdmatest.Addr(t), all.LocalAddr().Port()))
	require.ErrorIs(t, err, syscall.EADDRNOTAVAIL)
	assert.ErrorContains(t, err, "or an id at all addresses has port")
}

// An id at :: listens to IPv4 too, but for one that was told not to.
func TestAFOnly(t *testing.T) {
	c := channel(t)
	for _, only := range []bool{false, true} {
		l, err := c.CreateID(rdmacm.PortSpaceTCP)
		require.NoError(t, err)
		require.NoError(t, l.SetAFOnly(only))
		require.NoError(t, l.BindAddr(netip.MustParseAddrPort("[::]:0")))
		require.NoError(t, l.Listen(1))
		assert.Empty(t, l.Device(), "it is at all of them")
		client := equip(t, resolved(t, c, rdmacm.PortSpaceTCP, netip.AddrPortFrom(rdmatest.Addr(t), l.LocalAddr().Port())))
		require.NoError(t, client.id.Connect(rdmacm.DefaultConnParam()))
		if only {
			next(t, client.id, rdmacm.EventRejected)
		} else {
			require.NoError(t, next(t, l, rdmacm.EventConnectRequest).ID.Reject(nil))
		}
	}
}

func TestDevices(t *testing.T) {
	names, err := rdmacm.Devices()
	require.NoError(t, err)
	assert.Contains(t, names, rdmatest.Device(t))
}

// An endpoint is made from what is found of a name, on both sides.
func TestEndpoints(t *testing.T) {
	c := channel(t)
	host := rdmatest.Addr(t).String()
	found, err := rdmacm.GetAddrInfo(within(t), host, "0", rdmacm.AddrInfo{Passive: true})
	require.NoError(t, err)
	require.Len(t, found, 1)
	assert.Equal(t, rdmacm.AddrInfo{
		Passive: true, PortSpace: rdmacm.PortSpaceTCP, QPType: ibv.QPTypeRC,
		Src: netip.AddrPortFrom(rdmatest.Addr(t), 0),
	}, found[0])
	l, err := c.CreateEP(within(t), found[0])
	require.NoError(t, err)
	require.NoError(t, l.Listen(0))

	port := strconv.Itoa(int(l.LocalAddr().Port()))
	found, err = rdmacm.GetAddrInfo(within(t), host, port, rdmacm.AddrInfo{NoRoute: true})
	require.NoError(t, err)
	assert.Equal(t, l.LocalAddr(), found[0].Dst)
	id, err := c.CreateEP(within(t), found[0])
	require.NoError(t, err)
	client := equip(t, id)
	require.NoError(t, client.id.Connect(rdmacm.DefaultConnParam()))
	next(t, l, rdmacm.EventConnectRequest)

	found, err = rdmacm.GetAddrInfo(within(t), "", port, rdmacm.AddrInfo{Passive: true, QPType: ibv.QPTypeUD})
	require.NoError(t, err)
	assert.True(t, found[0].Src.Addr().IsUnspecified())
	assert.Equal(t, rdmacm.PortSpaceUDP, found[0].PortSpace)
	_, err = rdmacm.GetAddrInfo(within(t), "", port, rdmacm.AddrInfo{})
	require.ErrorIs(t, err, syscall.EINVAL)
	_, err = rdmacm.GetAddrInfo(within(t), host, "no such service", rdmacm.AddrInfo{})
	require.ErrorContains(t, err, "no such service")
	_, err = c.CreateEP(within(t), rdmacm.AddrInfo{PortSpace: rdmacm.PortSpaceTCP, Dst: netip.MustParseAddrPort("127.0.0.1:1")})
	require.Error(t, err)
}
