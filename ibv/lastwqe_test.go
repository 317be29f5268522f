//go:build cgo && linux && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package ibv_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/fakedev"
	"github.com/goverbs/goverbs/internal/fakedev/fakedevtest"
	"github.com/goverbs/goverbs/internal/rdmatest"
)

// A queue pair of a shared receive queue is drained when the device says so, and what it
// said before the last RESET does not count, read or not.
func TestDrainWaitsForLastWQEReached(t *testing.T) {
	rdmatest.Watchdog(t, time.Minute)
	b := fakedevtest.New(t, fakedev.Config{})
	qp := b.NewQP(t, func(_ *ibv.QPInitAttr, q *ibv.QPQueues) { q.SRQ = b.NewSRQ(t) })
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	waits := func() {
		t.Helper()
		err := qp.Drain(ended)
		require.ErrorIs(t, err, context.Canceled)
		assert.ErrorContains(t, err, "the device has not said that it is done")
	}
	l, events := listen(t, b.Ctx), 0
	waits()
	raise(b, ibv.EventQPLastWQEReached, qp.Num())
	require.NoError(t, qp.Drain(t.Context()))
	require.NoError(t, qp.Drain(t.Context()), "it stays so")

	require.Equal(t, ibv.QPEvent{Type: ibv.EventQPLastWQEReached, QP: qp.QP}, next(t, l))
	for range 50 {
		qp.Reset(t)
		qp.Ready(t)
		waits()
		for range 20 { // so that the reader is behind
			raise(b, ibv.EventGIDChange, 1)
		}
		raise(b, ibv.EventQPLastWQEReached, qp.Num()) // for this drain, which was given up
		qp.Reset(t)
		events += 21
		qp.Ready(t)
		waits()
	}
	// What Reset has taken off the device is told all the same, in order.
	for i := range events {
		e := next(t, l)
		if i%21 == 20 {
			require.Equal(t, ibv.QPEvent{Type: ibv.EventQPLastWQEReached, QP: qp.QP}, e)
		} else {
			require.Equal(t, ibv.PortEvent{Type: ibv.EventGIDChange, Port: 1}, e)
		}
	}
	for range 50 {
		raise(b, ibv.EventGIDChange, 1)
		qp.Reset(t)
		next(t, l)
	}
}
