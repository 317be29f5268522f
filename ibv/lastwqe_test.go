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

const eventLastWQEReached = 16 // IBV_EVENT_QP_LAST_WQE_REACHED

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
	waits()
	b.Raise(eventLastWQEReached, qp.Num())
	require.NoError(t, qp.Drain(t.Context()))
	require.NoError(t, qp.Drain(t.Context()), "it stays so")

	qp.Reset(t)
	qp.Ready(t)
	waits()
	b.Raise(eventLastWQEReached, qp.Num()) // for this drain, which was given up
	qp.Reset(t)
	qp.Ready(t)
	waits()
}
