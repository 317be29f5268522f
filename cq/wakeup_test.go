package cq_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/cq"
)

// waitFunc is a way to wait for completions.
type waitFunc func(ctx context.Context, q *cq.CQ, wcs []cq.WC) (int, error)

func library(ctx context.Context, q *cq.CQ, wcs []cq.WC) (int, error) { return q.Wait(ctx, wcs) }

// byHand is the loop of a program that does without Wait; without its second poll it is
// what many do. It calls beforeArm when its first poll has found nothing.
func byHand(ch *cq.Channel, pollAgain bool, beforeArm func()) waitFunc {
	return func(ctx context.Context, q *cq.CQ, wcs []cq.WC) (int, error) {
		for {
			if n, err := q.Poll(wcs); n > 0 || err != nil {
				return n, err
			}
			beforeArm()
			if err := q.ReqNotify(false); err != nil {
				return 0, err
			}
			if pollAgain {
				if n, err := q.Poll(wcs); n > 0 || err != nil {
					return n, err
				}
			}
			if _, err := ch.GetEvent(ctx); err != nil {
				return 0, err
			}
		}
	}
}

// sleepsThrough has total completions arrive at random times, in bursts of which the next
// comes when the last was taken, and takes them by wait. It reports whether wait has slept
// for patience with completions in the queue: burst has n of them made.
func sleepsThrough(t *testing.T, q *cq.CQ, total int, patience time.Duration, wait waitFunc, burst func(n int)) bool {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	var taken atomic.Int64
	var wg sync.WaitGroup
	more := make(chan struct{}, 1)
	wg.Go(func() {
		var wcs [3]cq.WC
		for {
			n, err := wait(ctx, q, wcs[:])
			if err != nil {
				assert.ErrorIs(t, err, context.Canceled)
				return
			}
			for i := range wcs[:n] {
				assert.NoError(t, wcs[i].Err())
			}
			taken.Add(int64(n))
			select {
			case more <- struct{}{}:
			default:
			}
		}
	})
	defer wg.Wait()
	defer stop()
	random := rand.New(rand.NewPCG(1, 2))
	for sent := 0; sent < total; {
		n := min(1+random.IntN(5), total-sent)
		burst(n)
		sent += n
		late := time.NewTimer(patience)
		for taken.Load() < int64(sent) {
			select {
			case <-more:
			case <-late.C:
				return true
			}
		}
		late.Stop()
		// From none to longer than a loop takes to go to sleep.
		for begin, pause := time.Now(), time.Duration(random.IntN(20))*time.Microsecond; time.Since(begin) < pause; {
		}
	}
	require.EqualValues(t, total, taken.Load())
	return false
}
