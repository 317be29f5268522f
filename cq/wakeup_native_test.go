//go:build cgo && linux && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package cq_test

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/cq"
	"github.com/goverbs/goverbs/internal/alone"
	"github.com/goverbs/goverbs/internal/fakedev"
	"github.com/goverbs/goverbs/internal/fakedev/fakedevtest"
)

func TestNoLostWakeup(t *testing.T) {
	for _, tt := range []struct {
		name  string
		wait  func(*cq.Channel) waitFunc
		total int
	}{
		{"Wait", func(*cq.Channel) waitFunc { return library }, 100_000},
		{"by hand", func(ch *cq.Channel) waitFunc { return byHand(ch, true, func() {}) }, 20_000},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newChannelBed(t, 1)
			b.SetComplete(true)
			qp, q := b.qps[0], b.qps[0].Send
			assert.False(t, sleepsThrough(t, q, tt.total, 30*time.Second, tt.wait(b.ch), func(n int) {
				qp.Post(t, fakedevtest.Sends(b.Region, 0, n)...)
			}), "it has slept with completions in the queue")
		})
	}
}

// TestSecondPoll has a completion arrive between the first poll and the arming: a loop that
// does not poll again sleeps, with the completion in the queue.
func TestSecondPoll(t *testing.T) {
	for _, pollAgain := range []bool{true, false} {
		t.Run(fmt.Sprintf("poll again %t", pollAgain), func(t *testing.T) {
			b := newChannelBed(t, 1)
			b.SetComplete(true)
			qp, q := b.qps[0], b.qps[0].Send
			wait := byHand(b.ch, pollAgain, sync.OnceFunc(func() {
				qp.Post(t, fakedevtest.Sends(b.Region, 0, 1)...)
			}))
			var wcs [1]cq.WC
			if pollAgain {
				n, err := wait(t.Context(), q, wcs[:])
				require.NoError(t, err)
				assert.Equal(t, 1, n)
				return
			}
			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			wg.Go(func() {
				_, err := wait(ctx, q, wcs[:])
				assert.ErrorIs(t, err, context.Canceled, "an event would have come first")
			})
			require.Eventually(t, func() bool { return cq.Waiting(b.ch) == 1 }, 30*time.Second, 100*time.Microsecond)
			cancel()
			wg.Wait()
			n, err := q.Poll(wcs[:])
			require.NoError(t, err)
			assert.Equal(t, 1, n, "it has slept with a completion in the queue")
		})
	}
}

// TestNoLostWakeupBesideReqNotify has somebody else ask for solicited events all the time.
func TestNoLostWakeupBesideReqNotify(t *testing.T) {
	b := newChannelBed(t, 1)
	b.SetComplete(true)
	qp, q := b.qps[0], b.qps[0].Send
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	wg.Go(func() {
		for ctx.Err() == nil {
			for range 100 {
				assert.NoError(t, q.ReqNotify(true))
			}
			time.Sleep(time.Microsecond) // for the others, where there is one processor
		}
	})
	assert.False(t, sleepsThrough(t, q, 20_000, 10*time.Second, library, func(n int) {
		qp.Post(t, fakedevtest.Sends(b.Region, 0, n)...)
	}), "it has slept with completions in the queue")
}

// hooked is a context that calls a hook when it is asked for the first time: whether it has
// ended, which a Wait with Spin asks after its first poll; or for Done, which a Wait asks when it has
// armed, polled again and is to sleep.
type hooked struct {
	context.Context
	beforeArm, beforeSleep func()
}

func (h *hooked) Err() error {
	call(&h.beforeArm)
	return h.Context.Err()
}

func (h *hooked) Done() <-chan struct{} {
	call(&h.beforeSleep)
	return h.Context.Done()
}

func call(hook *func()) {
	if f := *hook; f != nil {
		*hook = nil
		f()
	}
}

// TestWakeupTaken has a Wait that is about to sleep while somebody else takes the event that it
// has armed for, and the completion, and arms again: what came before that makes no event.
func TestWakeupTaken(t *testing.T) {
	const spin = time.Millisecond
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for name, others := range map[string]func(*testing.T, *channelBed, *cq.CQ){
		"by GetEvent, then a Wait": func(t *testing.T, b *channelBed, q *cq.CQ) {
			b.complete(t, 0, 1)
			takeEvent(t, b, q)
			waitForOneOf2(t, b, q, spin)
		},
		"by GetEvent, then a WaitSolicited": func(t *testing.T, b *channelBed, q *cq.CQ) {
			b.complete(t, 0, 1)
			takeEvent(t, b, q)
			_, err := q.WaitSolicited(ended, make([]cq.WC, 1))
			require.ErrorIs(t, err, context.Canceled)
			b.receive(t, 0, 2, fakedev.Completion{})
		},
		"by GetEvent, then a WaitSolicited, and later a completion": func(t *testing.T, b *channelBed, q *cq.CQ) {
			b.complete(t, 0, 1)
			takeEvent(t, b, q)
			_, err := q.WaitSolicited(ended, make([]cq.WC, 1))
			require.ErrorIs(t, err, context.Canceled)
			go func() {
				b.waitParked(t, 1)
				b.receive(t, 0, 2, fakedev.Completion{})
			}()
		},
		"by a Wait, which waits again": func(t *testing.T, b *channelBed, q *cq.CQ) {
			first := make(chan error)
			go func() {
				_, err := q.Wait(soon(t), make([]cq.WC, 1))
				first <- err
			}()
			b.waitParked(t, 1)
			b.complete(t, 0, 1)
			require.NoError(t, <-first)
			waitForOneOf2(t, b, q, spin)
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newChannelBed(t, 1, func(a *cq.InitAttr) { a.Spin = spin })
			q := b.qps[0].Send
			var wcs [4]cq.WC
			n, err := q.Wait(&hooked{Context: soon(t), beforeSleep: func() { others(t, b, q) }}, wcs[:])
			require.NoError(t, err, "it has slept with a completion in the queue")
			assert.Equal(t, 1, n)
		})
	}
}

// takeEvent takes an event, and the completion of which it tells.
func takeEvent(t *testing.T, b *channelBed, q *cq.CQ) {
	t.Helper()
	got, err := b.ch.GetEvent(soon(t))
	require.NoError(t, err)
	require.Same(t, q, got)
	one(t, q)
}

// waitForOneOf2 waits for one completion, where two come before it arms.
func waitForOneOf2(t *testing.T, b *channelBed, q *cq.CQ, spin time.Duration) {
	t.Helper()
	var wcs [1]cq.WC
	n, err := q.Wait(&hooked{Context: soon(t), beforeArm: func() {
		b.complete(t, 0, 2)
		b.complete(t, 0, 3)
		time.Sleep(spin) // so that it does not poll again before
	}}, wcs[:])
	require.NoError(t, err)
	require.Equal(t, 1, n)
}

// TestManyWaitersFewThreads has 1,000 goroutines wait on 1,000 channels. Threads stay, once
// made: each wait is on its way to sleep alone, so that they tell of those that sleep.
func TestManyWaitersFewThreads(t *testing.T) {
	if !alone.Here(t, time.Minute) {
		return
	}
	const waiters, mostThreads = 1000, 12
	b := newChannelBed(t, 0)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for i := range waiters {
		ch, err := cq.NewChannel(b.Ctx)
		require.NoError(t, err)
		q, err := cq.Create(b.Ctx, cq.InitAttr{Entries: 1, Channel: ch})
		require.NoError(t, err)
		wg.Go(func() {
			var wcs [1]cq.WC
			_, err := q.Wait(ctx, wcs[:])
			assert.ErrorIs(t, err, context.Canceled)
		})
		require.Eventually(t, func() bool { return cq.Waiting(ch) == 1 }, 30*time.Second, 100*time.Microsecond, "channel %d", i)
	}
	threads, err := os.ReadDir("/proc/self/task")
	require.NoError(t, err)
	assert.LessOrEqual(t, len(threads), mostThreads, "threads for %d waits", waiters)
	t.Logf("%d goroutines wait, in a process of %d threads", waiters, len(threads))
	cancel()
	wg.Wait()
}
