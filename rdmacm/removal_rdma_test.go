//go:build rdma

package rdmacm_test

import (
	"context"
	"net/netip"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/alone"
	"github.com/goverbs/goverbs/internal/rdmatest"
	"github.com/goverbs/goverbs/rdmacm"
)

// ownNetdev makes a network interface that only this test has, with that address.
func ownNetdev(t *testing.T, name string, addr netip.Addr) netip.Addr {
	t.Helper()
	if os.Getenv("RXE_VIA") == "host" {
		t.Skip("makes and removes network interfaces, which on this host are somebody's")
	}
	tool(t, "ip", "link", "add", name, "type", "dummy")
	t.Cleanup(func() { tool(t, "ip", "link", "delete", name) })
	tool(t, "ip", "address", "add", addr.String()+"/24", "dev", name)
	tool(t, "ip", "link", "set", name, "up")
	return addr
}

func tool(t *testing.T, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput()
	require.NoError(t, err, "%v: %s", args, out)
}

// A device that is removed tells every id, and is gone when they are closed: librdmacm, which
// keeps it open, does not hold it back. Another of the same name can be used then.
func TestDeviceRemoval(t *testing.T) {
	// With one arena: librdmacm 44 takes devices for removed that are not where the distance
	// of two of them does not fit an int, and then waits for itself.
	if !alone.Here(t, rdmatest.Limit(), "MALLOC_ARENA_MAX=1") {
		return
	}
	const name, netdev = "gvrxe7", "gvdummy7"
	c := channel(t)
	addr := ownNetdev(t, netdev, netip.MustParseAddr("198.51.100.7"))
	for _, asked := range []bool{false, true} {
		tool(t, "rdma", "link", "add", name, "type", "rxe", "netdev", netdev)
		l := atNewDevice(t, c, addr)
		ctx, err := l.Context()
		require.NoError(t, err)
		require.Equal(t, name, ctx.Name())
		client := equip(t, resolved(t, c, rdmacm.PortSpaceTCP, l.LocalAddr()))
		require.NoError(t, client.id.Connect(rdmacm.DefaultConnParam()))
		server := equip(t, next(t, l, rdmacm.EventConnectRequest).ID)
		require.NoError(t, server.id.Accept(rdmacm.DefaultConnParam()))
		next(t, client.id, rdmacm.EventEstablished)
		next(t, server.id, rdmacm.EventEstablished)
		exchange(t, client, server)

		conns := listenTo(t, addr, rdmacm.Config{})
		a, b := pair(t, conns)

		deleted := make(chan error, 1)
		go func() { deleted <- exec.Command("rdma", "link", "delete", name).Run() }()
		for _, id := range []*rdmacm.ID{l, client.id, server.id} {
			err := awaitRemoval(t, id).Err()
			require.ErrorIs(t, err, ibv.ErrNoDevice)
			require.ErrorContains(t, err, "the device was removed")
		}
		if asked { // librdmacm knows by now that it is gone, and frees it with the last id
			_, err := rdmacm.Devices()
			require.NoError(t, err)
		}
		require.NoError(t, l.Close())
		for _, s := range []*side{client, server} {
			s.close(t)
		}
		for _, p := range []*peer{a, b} {
			select {
			case <-p.Done(): // or disconnected, if the other was faster
				require.Error(t, p.Err())
			case <-within(t).Done():
				require.Fail(t, "a connection does not end with its device")
			}
			require.NoError(t, p.Close())
		}
		_, err = conns.Accept(within(t), nil)
		require.ErrorIs(t, err, ibv.ErrNoDevice)
		require.NoError(t, conns.Close())
		select {
		case err := <-deleted:
			require.NoError(t, err)
		case <-time.After(patience):
			require.Fail(t, "rdma link delete waits on")
		}
	}
	_, err := rdmacm.Devices() // has librdmacm forget it
	require.NoError(t, err)
}

// atNewDevice makes a listener at the address, when its device is known to have it.
func atNewDevice(t *testing.T, c *rdmacm.EventChannel, addr netip.Addr) (l *rdmacm.ID) {
	t.Helper()
	var err error
	l, err = c.CreateID(rdmacm.PortSpaceTCP)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		err = l.BindAddr(netip.AddrPortFrom(addr, 0))
		return err == nil
	}, patience, 10*time.Millisecond, "%v", err)
	require.NoError(t, l.Listen(0))
	return l
}

// awaitRemoval returns the id's DEVICE_REMOVAL, whatever comes before.
func awaitRemoval(t *testing.T, id *rdmacm.ID) *rdmacm.Event {
	t.Helper()
	for {
		e, err := id.GetEvent(within(t))
		require.NoError(t, err)
		if e.Type == rdmacm.EventDeviceRemoval {
			return e
		}
		assert.Contains(t, []rdmacm.EventType{rdmacm.EventDisconnected, rdmacm.EventAddrChange, rdmacm.EventTimewaitExit}, e.Type, "%v", e)
	}
}
