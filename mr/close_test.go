//go:build cgo && linux && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package mr_test

import (
	"context"
	"errors"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/fakedev"
	"github.com/goverbs/goverbs/internal/fakedev/fakedevtest"
	"github.com/goverbs/goverbs/internal/rdmatest"
)

const patience = 10 * time.Second

// TestUseAfterClose: who posts while somebody else closes gets an error, wherever it is.
func TestUseAfterClose(t *testing.T) {
	b := fakedevtest.New(t, fakedev.Config{MemoryWindows: true})
	qp, region, mw := b.NewQP(t), b.NewRegion(t, ibv.AccessMWBind), b.NewMW(t, ibv.MWType2)
	require.NoError(t, region.Close())
	inline := ibv.Send(1, ibv.SendSignaled|ibv.SendInline, region.SGE(0, 8))
	bind := ibv.BindMW(1, ibv.SendSignaled, region.MWBind(mw, 0, 16, ibv.AccessRemoteRead))
	for _, wr := range []ibv.SendWR{ibv.Send(1, ibv.SendSignaled, region.SGE(0, 8)), inline, bind} {
		_, err := qp.PostSend([]ibv.SendWR{wr})
		require.ErrorIs(t, err, ibv.ErrClosed)
	}
	_, err := qp.PostRecv([]ibv.RecvWR{ibv.Recv(1, region.SGE(0, 8))})
	require.ErrorIs(t, err, ibv.ErrClosed)
	assert.Empty(t, qp.SQ.WRIDs())
	assert.Empty(t, qp.RQ.WRIDs())
	require.Panics(t, func() { region.SGE(0, 1<<20) }, "outside it")

	// As the program sees it that posts while CloseAll goes on elsewhere.
	ended := make(chan error)
	for range 2 {
		go func() {
			for {
				if _, err := qp.PostSend(fakedevtest.Sends(b.Region, 1, 1)); err != nil && !errors.Is(err, ibv.ErrQueueFull) {
					ended <- err
					return
				}
			}
		}()
	}
	require.NoError(t, b.Ctx.CloseAll())
	for range 2 {
		require.ErrorIs(t, <-ended, ibv.ErrClosed)
	}
}

// TestCloseWhileCloseWhenIdleWaits: it does not wait with it, changes nothing, and no
// other CloseWhenIdle takes the region for closed because of it.
func TestCloseWhileCloseWhenIdleWaits(t *testing.T) {
	rdmatest.Watchdog(t, time.Minute)
	b := fakedevtest.New(t, fakedev.Config{})
	qp := b.NewQP(t)
	qp.Post(t, fakedevtest.Sends(b.Region, 1, 1)...)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel() // so that nothing hangs for longer than the test
	first := make(chan error, 1)
	go func() { first <- b.Region.CloseWhenIdle(ctx) }()
	require.Eventually(t, func() bool {
		n, err := qp.PostSend(fakedevtest.Sends(b.Region, 2, 1))
		if n == 1 {
			qp.SQ.Complete(fakedev.Completion{Index: 1})
		}
		return errors.Is(err, ibv.ErrClosed)
	}, patience, time.Millisecond, "it refuses posts")
	inFlight := b.Region.InFlight()

	err := b.Region.Close()
	assert.ErrorIs(t, err, ibv.ErrBusy)
	assert.ErrorIs(t, err, syscall.EBUSY)
	ended, end := context.WithCancelCause(t.Context())
	end(syscall.EINTR)
	err = b.Region.CloseWhenIdle(ended)
	assert.ErrorIs(t, err, syscall.EINTR, "the region is not closed")
	assert.Equal(t, inFlight, b.Region.InFlight())
	_, err = qp.PostSend(fakedevtest.Sends(b.Region, 3, 1))
	assert.ErrorIs(t, err, ibv.ErrClosed, "the first still waits")

	for b.Region.InFlight() > 0 {
		for len(qp.SQ.WRIDs()) > 0 {
			qp.SQ.Complete(fakedev.Completion{})
		}
		fakedevtest.Poll(t, qp.Send)
	}
	require.NoError(t, <-first)
	assert.NoError(t, b.Region.CloseWhenIdle(ended), "it is closed")
	assert.NoError(t, b.Region.Close())
}

// TestCloseWhenIdleThatFails leaves the region as it was.
func TestCloseWhenIdleThatFails(t *testing.T) {
	b := fakedevtest.New(t, fakedev.Config{})
	qp := b.NewQP(t)
	late := fakedevtest.Sends(b.Region, 2, 1)
	b.Fail("ibv_dereg_mr", syscall.EINVAL, 1)
	require.ErrorIs(t, b.Region.CloseWhenIdle(t.Context()), syscall.EINVAL)
	qp.Post(t, fakedevtest.Sends(b.Region, 1, 1)...) // it can be used as before
	qp.SQ.Complete(fakedev.Completion{})
	require.Len(t, fakedevtest.Poll(t, qp.Send), 1)
	require.NoError(t, b.Region.CloseWhenIdle(t.Context()))
	_, err := qp.PostSend(late)
	require.ErrorIs(t, err, ibv.ErrClosed)
}

// TestCloseWhenIdleTimesOut: it matches what waits for files and connections match too,
// and the context's own cause, and has changed nothing.
func TestCloseWhenIdleTimesOut(t *testing.T) {
	b := fakedevtest.New(t, fakedev.Config{})
	qp := b.NewQP(t)
	qp.Post(t, fakedevtest.Sends(b.Region, 1, 1)...)
	cause := errors.New("the peer is slow")
	for _, timedOut := range []struct{ cause, matches error }{{nil, context.DeadlineExceeded}, {cause, cause}} {
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Millisecond, timedOut.cause)
		defer cancel()
		err := b.Region.CloseWhenIdle(ctx)
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.ErrorIs(t, err, timedOut.matches)
		require.ErrorContains(t, err, "1 work requests in flight still use it")
	}
	qp.Post(t, fakedevtest.Sends(b.Region, 2, 1)...)
	require.Equal(t, 2, b.Region.InFlight())
}
