//go:build rdma

package rdmacm_test

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/internal/rdmatest"
	"github.com/goverbs/goverbs/rdmacm"
)

// Everything is closed while others connect, accept, migrate and wait, early or late. All
// calls end, and nothing is left behind.
func TestCloseWhileConnecting(t *testing.T) {
	rdmatest.Watchdog(t, rdmatest.Limit())
	const clients = 4
	for i := range rdmatest.Rounds(24, 200) {
		closeAfter(t, clients, i%(3*clients))
	}
}

// closeAfter closes after so many steps of all, of which each client makes one to begin with
// and one to end with, and the server one for each.
func closeAfter(t *testing.T, clients, steps int) {
	ctx, cancel := context.WithCancelCause(within(t))
	defer cancel(nil)
	var mu sync.Mutex
	step := func() {
		mu.Lock()
		defer mu.Unlock()
		if steps--; steps < 0 {
			cancel(nil)
		}
	}
	check := func(err error) (ok bool) {
		if err != nil && ctx.Err() == nil {
			cancel(err)
		}
		return err == nil
	}

	listening, connecting := channel(t), channel(t)
	l := listen(t, listening, rdmacm.PortSpaceTCP)
	shared := newSharedQueues(t, l)
	var all sync.WaitGroup
	all.Go(func() {
		for {
			e, err := listening.GetEvent(ctx)
			if !check(err) {
				return
			}
			shared.ids.Store(e.ID, true)
			_, err = shared.createQP(e.ID)
			if !check(err) || !check(e.ID.Migrate(connecting)) || !check(e.ID.Accept(rdmacm.DefaultConnParam())) {
				return
			}
			step()
		}
	})
	for range clients {
		all.Go(func() {
			id, err := connecting.CreateID(rdmacm.PortSpaceTCP)
			if !check(err) {
				return
			}
			shared.ids.Store(id, true)
			step()
			if check(connectTo(ctx, id, l, shared)) {
				step()
			}
		})
	}
	<-ctx.Done()

	var closers sync.WaitGroup
	for _, end := range []func() error{connecting.CloseAll, listening.CloseAll, l.Close} {
		closers.Go(func() { assert.NoError(t, end()) })
	}
	shared.ids.Range(func(id, _ any) bool {
		closers.Go(func() { assert.NoError(t, id.(*rdmacm.ID).Close()) })
		return true
	})
	closers.Wait()
	all.Wait()
	require.ErrorIs(t, context.Cause(ctx), context.Canceled)
}
