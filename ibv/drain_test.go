//go:build cgo && linux && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package ibv_test

import (
	"context"
	"errors"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/cq"
	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/fakedev"
	"github.com/goverbs/goverbs/internal/fakedev/fakedevtest"
	"github.com/goverbs/goverbs/internal/rdmatest"
)

// Unsignaled sends at the end of the queue that have succeeded have no completion, not
// even a flush.
func TestDrainOfUnsignaledSends(t *testing.T) {
	b := fakedevtest.New(t, fakedev.Config{Complete: true})
	ahs := []*ibv.AH{b.NewAH(t), b.NewAH(t)}
	for _, typ := range []ibv.QPType{ibv.QPTypeRC, ibv.QPTypeUC, ibv.QPTypeUD} {
		for _, sends := range []int{1, 64} { // 64 fill the queue
			qp := b.NewQP(t, func(a *ibv.QPInitAttr, _ *ibv.QPQueues) { a.Type = typ })
			wrs := fakedevtest.Sends(b.Region, 1, sends)
			for i := range wrs {
				wrs[i].Flags = 0
				if typ == ibv.QPTypeUD {
					wrs[i].Datagram.AH = ahs[i%2]
				}
			}
			qp.Post(t, wrs...)
			if typ == ibv.QPTypeUD {
				assert.ErrorIs(t, ahs[(sends-1)%2].Close(), ibv.ErrBusy, "the marker needs it")
			}
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			require.NoError(t, qp.Drain(ctx))
			assert.Empty(t, fakedevtest.Poll(t, qp.Send), "the marker is nobody's")
			assert.Zero(t, b.Region.InFlight())
			require.NoError(t, qp.Close())
		}
	}
	for _, ah := range ahs {
		require.NoError(t, ah.Close())
	}
}

// Drain's marker takes no place that was not counted: a full queue of unsignaled sends is flushed
// into a completion queue that holds just these.
func TestDrainOverrunsNothing(t *testing.T) {
	const depth = 4
	for _, flushed := range []int{0, 1, depth} { // the rest has succeeded before, and makes no completion
		b := fakedevtest.New(t, fakedev.Config{})
		q, err := cq.Create(b.Ctx, cq.InitAttr{Entries: depth, Strict: true})
		require.NoError(t, err)
		b.Keep(q)
		qp := b.NewQP(t, func(a *ibv.QPInitAttr, queues *ibv.QPQueues) {
			a.Cap.MaxSendWR, a.Cap.MaxRecvWR, queues.Send = depth, 0, q
		})
		sends := fakedevtest.Sends(b.Region, 1, depth)
		for i := range sends {
			sends[i].Flags = 0
		}
		b.SetComplete(true)
		qp.Post(t, sends[:depth-flushed]...)
		b.SetComplete(false)
		qp.Post(t, sends[depth-flushed:]...)
		b.SetComplete(true) // so that ERR flushes
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		require.NoError(t, qp.Drain(ctx))
		assert.Len(t, fakedevtest.Poll(t, q), flushed)
	}
}

// A Modify or Drain that fails does not explain the flushes that come later.
func TestFailedMoveToErrExplainsNothing(t *testing.T) {
	b := fakedevtest.New(t, fakedev.Config{})
	qp := b.NewQP(t)
	b.Fail("ibv_modify_qp", syscall.ENOMEM, 2)
	require.ErrorIs(t, qp.Drain(t.Context()), syscall.ENOMEM)
	require.ErrorIs(t, qp.Modify(ibv.QPAttr{State: ibv.QPStateErr}, ibv.AttrState), syscall.ENOMEM)
	qp.Post(t, fakedevtest.Sends(b.Region, 1, 1)...)
	b.Flush(qp.Num())
	wcs := fakedevtest.Poll(t, qp.Send)
	require.Len(t, wcs, 1)
	assert.ErrorContains(t, wcs[0].Err(), "the QP failed by itself")
}

// Closing everything does not wait for a Drain whose completions nobody brings.
func TestCloseAllEndsADrain(t *testing.T) {
	rdmatest.Watchdog(t, time.Minute)
	b := fakedevtest.New(t, fakedev.Config{})
	qp := b.NewQP(t)
	qp.Post(t, fakedevtest.Sends(b.Region, 1, 1)...)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	drained := make(chan error, 1)
	go func() { drained <- qp.Drain(ctx) }()
	require.Eventually(t, func() bool { return b.QP(qp.Num()).State == int(ibv.QPStateErr) }, 10*time.Second, time.Millisecond)
	require.NoError(t, b.Ctx.CloseAll())
	err := <-drained
	assert.ErrorIs(t, err, ibv.ErrClosed)
	assert.ErrorContains(t, err, "closed while draining")
	assert.Empty(t, b.Open())
}

// A Drain that times out matches what waits for files and connections match too, and the
// context's own cause.
func TestDrainTimesOut(t *testing.T) {
	b := fakedevtest.New(t, fakedev.Config{})
	qp := b.NewQP(t)
	qp.Post(t, fakedevtest.Sends(b.Region, 1, 2)...)
	cause := errors.New("the peer is slow")
	for _, timedOut := range []struct{ cause, matches error }{{nil, context.DeadlineExceeded}, {cause, cause}} {
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Millisecond, timedOut.cause)
		defer cancel()
		err := qp.Drain(ctx)
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.ErrorIs(t, err, timedOut.matches)
		require.ErrorContains(t, err, "2 sends and 0 receives have not completed")
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	err := qp.Drain(ctx)
	require.ErrorIs(t, err, cause)
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
}
