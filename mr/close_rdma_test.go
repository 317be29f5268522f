//go:build rdma

package mr_test

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/cq"
	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/rdmatest"
	"github.com/goverbs/goverbs/mr"
)

// writer writes pieces of one region to the peer until the region is refused.
type writer struct {
	p      *rdmatest.Pair
	sge    ibv.SGE
	target ibv.RemoteRange
	posted atomic.Int64
	done   sync.WaitGroup
}

func newWriter(t *testing.T, r *mr.Region, p *rdmatest.Pair) *writer {
	t.Helper()
	target := rdmatest.Region(t, p.PD, 4096, rdmatest.RemoteAccess)
	return &writer{p: p, sge: r.SGE(0, 512), target: target.Remote()}
}

// start posts batches. With pause it waits for each batch to complete, so that the region
// is idle at times. Every write that is accepted must succeed.
func (w *writer) start(t *testing.T, pause bool) {
	w.done.Go(func() {
		var wcs [8]cq.WC
		inFlight, refused := 0, false
		for !refused || inFlight > 0 {
			if !refused && (!pause || inFlight == 0) {
				n, err := w.p.A.QP.PostSend([]ibv.SendWR{ibv.Write(1, 0, w.target, w.sge), ibv.Write(2, 0, w.target, w.sge)})
				inFlight += n
				w.posted.Add(int64(n))
				refused = errors.Is(err, ibv.ErrClosed)
				if err != nil && !refused && !errors.Is(err, ibv.ErrQueueFull) && !assert.NoError(t, err) {
					return
				}
			}
			n, err := w.p.A.CQ.Poll(wcs[:])
			if !assert.NoError(t, err) {
				return
			}
			inFlight -= n
			for i := range wcs[:n] {
				assert.NoError(t, wcs[i].Err(), "it was posted before the region was closed")
			}
			runtime.Gosched()
		}
	})
}

func (w *writer) underWay(t *testing.T) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); w.posted.Load() < 20; runtime.Gosched() {
		require.True(t, time.Now().Before(deadline))
	}
}

func localRegion(t *testing.T, pd *ibv.PD) *mr.Region {
	t.Helper()
	r, err := mr.AllocRegion(pd, 4096, ibv.AccessLocalWrite)
	require.NoError(t, err)
	return r
}

// Close happens between the work requests of another goroutine or not at all.
func TestCloseDuringPosts(t *testing.T) {
	rdmatest.Watchdog(t, 10*time.Minute)
	p := rdmatest.NewPair(t, rdmatest.DefaultInit())
	for range rdmatest.Rounds(30, 1000) {
		r := localRegion(t, p.PD)
		w := newWriter(t, r, p)
		w.start(t, true)
		w.underWay(t)
		for deadline := time.Now().Add(20 * time.Second); ; {
			err := r.Close()
			if err == nil {
				break
			}
			require.ErrorIs(t, err, ibv.ErrBusy)
			require.ErrorContains(t, err, "in flight")
			require.True(t, time.Now().Before(deadline), "never idle")
		}
		w.done.Wait()
		require.Zero(t, r.InFlight())
	}
}

// Under traffic that never pauses CloseWhenIdle ends it: it refuses what is new, and what
// is on its way succeeds.
func TestCloseWhenIdleUnderTraffic(t *testing.T) {
	rdmatest.Watchdog(t, 10*time.Minute)
	p := rdmatest.NewPair(t, rdmatest.DefaultInit())
	for range rdmatest.Rounds(30, 1000) {
		r := localRegion(t, p.PD)
		w := newWriter(t, r, p)
		w.start(t, false)
		w.underWay(t)
		require.NoError(t, r.CloseWhenIdle(t.Context()))
		require.Zero(t, r.InFlight())
		w.done.Wait()
		_, err := p.A.QP.PostSend([]ibv.SendWR{ibv.Write(1, 0, w.target, w.sge)})
		require.ErrorIs(t, err, ibv.ErrClosed)
		require.NoError(t, r.CloseWhenIdle(t.Context()), "closing again")
	}
}

// A CloseWhenIdle that was given up has changed nothing.
func TestCloseWhenIdleGivenUp(t *testing.T) {
	rdmatest.Watchdog(t, 10*time.Minute)
	p := rdmatest.NewPair(t, rdmatest.DefaultInit())
	r := localRegion(t, p.PD)
	send := []ibv.SendWR{ibv.Send(1, 0, r.SGE(0, 8)), ibv.Send(2, 0, r.SGE(8, 8))}
	n, err := p.A.QP.PostSend(send) // the peer has no receives yet
	require.NoError(t, err)
	require.Equal(t, 2, n)

	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	ended := make(chan error, 2)
	for range cap(ended) {
		go func() { ended <- r.CloseWhenIdle(ctx) }()
	}
	for deadline := time.Now().Add(10 * time.Second); ; runtime.Gosched() {
		n, err := p.A.QP.PostSend(send[:1])
		if errors.Is(err, ibv.ErrClosed) {
			require.ErrorContains(t, err, "being closed")
			break
		}
		if !errors.Is(err, ibv.ErrQueueFull) {
			require.NoError(t, err)
		}
		require.LessOrEqual(t, n, 1)
		require.True(t, time.Now().Before(deadline), "posts are still accepted")
	}
	require.Empty(t, ended, "it waits")
	cancel(cause)
	for range cap(ended) {
		err = <-ended
		require.ErrorIs(t, err, cause)
		require.ErrorContains(t, err, "work requests in flight still use it")
		require.ErrorContains(t, err, r.String())
	}

	// It works as before.
	inFlight := r.InFlight()
	require.GreaterOrEqual(t, inFlight, 2)
	for range inFlight + 1 {
		_, err = p.B.QP.PostRecv([]ibv.RecvWR{ibv.Recv(1, p.B.Region.SGE(0, 64))})
		require.NoError(t, err)
	}
	for _, wc := range p.A.Wait(t, inFlight) {
		require.NoError(t, wc.Err())
	}
	_, err = p.A.QP.PostSend(send[:1])
	require.NoError(t, err)
	require.NoError(t, p.A.Wait(t, 1)[0].Err())
	require.NoError(t, r.Close())
}
