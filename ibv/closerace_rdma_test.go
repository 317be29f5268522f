//go:build rdma

package ibv_test

import (
	"errors"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/cq"
	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/rdmatest"
)

// race is a queue pair, A's, that several goroutines post to and poll.
type race struct {
	t        *testing.T
	p        *rdmatest.Pair
	ids      atomic.Uint64
	accepted atomic.Int64
	quiet    atomic.Bool // the posters and the peer are to end
	deaf     atomic.Bool // the pollers too
	posters  sync.WaitGroup
	pollers  sync.WaitGroup

	mu        sync.Mutex
	completed map[uint64]bool
}

// may says whether a post may fail so while the queue pair is taken away.
func mayRefuse(err error) bool {
	return errors.Is(err, ibv.ErrClosed) || strings.Contains(err.Error(), "is being taken to RESET") ||
		strings.Contains(err.Error(), "cannot be posted in state RESET")
}

// posting posts in batches of three until the queue pair takes no more.
func (r *race) posting(batch func(id uint64) (int, error)) {
	r.posters.Go(func() {
		for !r.quiet.Load() {
			n, err := batch(r.ids.Add(3))
			r.accepted.Add(int64(n))
			switch {
			case err == nil:
			case errors.Is(err, ibv.ErrQueueFull):
				runtime.Gosched()
			case mayRefuse(err):
				return
			default:
				assert.NoError(r.t, err)
				return
			}
		}
	})
}

func (r *race) polling() {
	r.pollers.Go(func() {
		var wcs [5]cq.WC
		for !r.deaf.Load() {
			r.take(wcs[:])
		}
	})
}

func (r *race) take(wcs []cq.WC) int {
	n, err := r.p.A.CQ.Poll(wcs)
	if !assert.NoError(r.t, err) {
		r.deaf.Store(true)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, wc := range wcs[:n] {
		assert.False(r.t, r.completed[wc.WRID], "WR %d completed twice", wc.WRID)
		assert.LessOrEqual(r.t, wc.WRID, r.ids.Load()+2)
		assert.Equal(r.t, r.p.A.QP.Num(), wc.QPNum)
		r.completed[wc.WRID] = true
	}
	return n
}

// answering is the peer: it has receives, and sends. Once the queue pair is gone it fails
// in its turn.
func (r *race) answering() {
	b := &r.p.B
	postRecv(r.t, b, recvsFrom(b, 0, 16)...)
	r.posters.Go(func() {
		var wcs [8]cq.WC
		for !r.quiet.Load() {
			_, err := b.QP.PostSend(sendsFrom(b, 0, 2, 0))
			if err != nil && !assert.ErrorIs(r.t, err, ibv.ErrQueueFull) {
				return
			}
			n, err := b.CQ.Poll(wcs[:])
			assert.NoError(r.t, err)
			for i := range wcs[:n] {
				if wcs[i].IsRecv() && wcs[i].Err() == nil {
					_, err := b.QP.PostRecv(recvsFrom(b, 0, 1))
					assert.NoError(r.t, err)
				}
			}
		}
	})
}

func (r *race) start(round int) {
	a := &r.p.A
	for range 2 {
		r.posting(func(id uint64) (int, error) { return a.QP.PostSend(sendsFrom(a, int(id), 3, 0)) })
		r.polling()
	}
	r.posting(func(id uint64) (int, error) { return a.QP.PostRecv(recvsFrom(a, int(id), 3)) })
	r.answering()
	until(r.t, "under way", func() bool { return r.accepted.Load() > int64(20+round*13%100) })
}

// TestEndingWhileOthersPostAndPoll takes a queue pair away in each way while others use
// it. Every work request that was accepted completes once, or is given back by what
// discards it.
func TestEndingWhileOthersPostAndPoll(t *testing.T) {
	rdmatest.Watchdog(t, 10*time.Minute)
	for _, way := range []struct {
		name     string
		end      func(*testing.T, *ibv.QP)
		discards bool
	}{
		{"Close", func(t *testing.T, qp *ibv.QP) { require.NoError(t, qp.Close()) }, true},
		{"RESET", func(t *testing.T, qp *ibv.QP) { toState(t, qp, ibv.QPStateReset) }, true},
		{"ERR", func(t *testing.T, qp *ibv.QP) { toState(t, qp, ibv.QPStateErr) }, false},
		{"Drain", func(t *testing.T, qp *ibv.QP) { drain(t, qp) }, false},
	} {
		t.Run(way.name, func(t *testing.T) {
			for round := range rdmatest.Rounds(8, 300) {
				r := &race{t: t, p: rdmatest.NewPair(t, rdmatest.DefaultInit()), completed: map[uint64]bool{}}
				r.start(round)
				way.end(t, r.p.A.QP)
				r.quiet.Store(true)
				r.posters.Wait()
				if way.discards {
					require.Zero(t, r.p.A.Region.InFlight())
				} else {
					// Receives that were posted in ERR wait to be told again.
					toState(t, r.p.A.QP, ibv.QPStateErr)
					until(t, "all completed", func() bool {
						r.mu.Lock()
						defer r.mu.Unlock()
						return int64(len(r.completed)) == r.accepted.Load()
					})
				}
				r.deaf.Store(true)
				r.pollers.Wait()
				require.Zero(t, r.p.A.Region.InFlight())
				requireEmpty(t, r.p.A.CQ)
				require.LessOrEqual(t, int64(len(r.completed)), r.accepted.Load())
				if t.Failed() {
					return
				}
				for _, s := range []*rdmatest.Side{&r.p.A, &r.p.B} {
					require.NoError(t, s.QP.Close())
					require.NoError(t, s.CQ.Close())
				}
			}
		})
	}
}

func TestCQCloseWhilePolled(t *testing.T) {
	rdmatest.Watchdog(t, 10*time.Minute)
	for range rdmatest.Rounds(20, 1000) {
		p := rdmatest.NewPair(t, rdmatest.DefaultInit())
		postRecv(t, &p.A, recvsFrom(&p.A, 0, 8)...)
		toState(t, p.A.QP, ibv.QPStateErr)
		var pollers sync.WaitGroup
		var polls atomic.Int64
		for range 3 {
			pollers.Go(func() {
				var wcs [2]cq.WC
				for {
					_, err := p.A.CQ.Poll(wcs[:])
					if polls.Add(1); err != nil {
						assert.ErrorIs(t, err, ibv.ErrClosed)
						return
					}
				}
			})
		}
		until(t, "polled", func() bool { return polls.Load() > 3 })
		require.ErrorIs(t, p.A.CQ.Close(), ibv.ErrBusy)
		require.NoError(t, p.A.QP.Close())
		require.NoError(t, p.A.CQ.Close())
		pollers.Wait()
		require.Zero(t, p.A.Region.InFlight())
		require.NoError(t, p.B.QP.Close())
	}
}
