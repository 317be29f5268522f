//go:build rdma

package rdmacm

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

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
