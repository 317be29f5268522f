//go:build rdma

package rdmacm

import (
	"context"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/internal/life"
	"github.com/goverbs/goverbs/internal/rdmatest"
)

// A listener can be closed while an Accept has a request but no connection yet, which goes on.
func TestListenerClosedWhileAccepting(t *testing.T) {
	rdmatest.Watchdog(t, rdmatest.Limit())
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	l, err := Listen(netip.AddrPortFrom(rdmatest.Addr(t), 0).String(), Config{})
	require.NoError(t, err)
	dialed := make(chan error, 1)
	go func() {
		conn, err := Dial(ctx, l.Addr().String(), Config{}, nil)
		if err == nil {
			err = conn.Close()
		}
		dialed <- err
	}()
	e, err := l.id.GetEvent(ctx)
	require.NoError(t, err)
	require.NoError(t, l.Close())
	conn, err := accept(e, &l.cfg, nil)
	require.NoError(t, err)
	require.NoError(t, life.Quiesce(ctx))
	assert.True(t, l.channel.s.Closed(), "it goes with the last request")
	require.NoError(t, <-dialed)
	require.NoError(t, conn.Close())
	require.NoError(t, l.Close())
}

// Without a host it listens to IPv4 too, on hosts that are set up to have :: mean IPv6 alone.
func TestListenWhereIPv6IsAlone(t *testing.T) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // for good: the thread ends with its network namespace
		if !assert.NoError(t, unix.Unshare(unix.CLONE_NEWNET)) ||
			!assert.NoError(t, os.WriteFile("/proc/sys/net/ipv6/bindv6only", []byte("1"), 0)) {
			return
		}
		l, err := Listen(":0", Config{})
		if !assert.NoError(t, err) {
			return
		}
		port := strconv.Itoa(int(l.Addr().Port()))
		_, err = Listen(net.JoinHostPort("0.0.0.0", port), Config{})
		assert.ErrorIs(t, err, syscall.EADDRNOTAVAIL, "that is taken too")
		_, err = Listen(":"+port, Config{})
		assert.ErrorIs(t, err, syscall.EADDRNOTAVAIL)
		assert.NoError(t, l.Close())

		l, err = Listen(":0", Config{Control: func(id *ID) error { return id.SetAFOnly(true) }})
		if !assert.NoError(t, err) {
			return
		}
		of4, err := Listen(net.JoinHostPort("0.0.0.0", strconv.Itoa(int(l.Addr().Port()))), Config{})
		if assert.NoError(t, err, "unless the program wants it") {
			assert.NoError(t, of4.Close())
		}
		_, err = Listen(net.JoinHostPort("", strconv.Itoa(int(l.Addr().Port()))), Config{})
		assert.ErrorIs(t, err, syscall.EADDRNOTAVAIL, "it could have IPv4 alone")
		assert.NoError(t, l.Close())
	}()
	<-done
}
