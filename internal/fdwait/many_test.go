//go:build linux

package fdwait

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/internal/alone"
)

// counter is an eventfd whose every unit is an event.
type counter struct {
	*Queue[int, int]
	fd  int
	buf [8]byte // of take, for which the race detector would allocate one each time
}

func newCounter(t testing.TB) *counter {
	t.Helper()
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_SEMAPHORE)
	require.NoError(t, err)
	c := &counter{fd: fd}
	t.Cleanup(func() { _ = unix.Close(fd) })
	c.Queue, err = New(fd, c.take)
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

func (c *counter) take() (Event[int, int], error) {
	_, err := unix.Read(c.fd, c.buf[:])
	return Event[int, int]{}, err
}

func (c *counter) add(n uint64) error {
	_, err := unix.Write(c.fd, binary.NativeEndian.AppendUint64(nil, n))
	return err
}

const (
	many       = 1000
	maxThreads = 12 // with GOMAXPROCS=4
)

func threads(t *testing.T) int {
	t.Helper()
	tasks, err := os.ReadDir("/proc/self/task")
	require.NoError(t, err)
	return len(tasks)
}

// parked returns how many goroutines the runtime has in its poller.
func parked() int {
	buf := make([]byte, 64<<20)
	return bytes.Count(buf[:runtime.Stack(buf, true)], []byte("[IO wait"))
}

// waitsOfMany has many goroutines wait, one for each index, looks at the process, and
// cancels their contexts.
func waitsOfMany(t *testing.T, inPoller int, waiting func() int, wait func(ctx context.Context, i int) error) {
	t.Helper()
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	before := runtime.NumGoroutine()
	ends := make(chan error, many)
	for i := range many {
		// Each has a context of its own, with a deadline, as a program's would.
		ctx, cancel := context.WithTimeout(ctx, time.Hour)
		defer cancel()
		go func() { ends <- wait(ctx, i) }()
	}
	until(t, "all wait", func() bool { return waiting() == many })
	until(t, "the leaders are in the poller", func() bool { return parked() == inPoller })
	assert.Equal(t, before+many, runtime.NumGoroutine(), "none is started for a wait")
	assert.LessOrEqual(t, threads(t), maxThreads)
	assert.Empty(t, ends)

	cancel(errEnough)
	for range many {
		select {
		case err := <-ends:
			require.ErrorIs(t, err, errEnough)
		case <-time.After(patience):
			require.Fail(t, "a wait hangs")
		}
	}
	assert.LessOrEqual(t, threads(t), maxThreads)
	until(t, "the goroutines end", func() bool { return runtime.NumGoroutine() <= before })
	assert.Zero(t, waiting())
}

func TestManyQueues(t *testing.T) {
	if !alone.Here(t, 3*patience, "GOMAXPROCS=4") {
		return
	}
	var queues []*counter
	for range many {
		queues = append(queues, newCounter(t))
	}
	waiting := func() (n int) {
		for _, q := range queues {
			q.mu.Lock()
			n += len(q.waiters)
			q.mu.Unlock()
		}
		return n
	}
	waitsOfMany(t, many, waiting, func(ctx context.Context, i int) error {
		_, err := queues[i].Wait(ctx, 0, 0, nil)
		return err
	})
}

func TestManyKeys(t *testing.T) {
	if !alone.Here(t, 3*patience, "GOMAXPROCS=4") {
		return
	}
	s := newSource(t)
	waitsOfMany(t, 1, s.waiting, func(ctx context.Context, i int) error {
		_, err := s.Wait(ctx, uint32(i), 0, nil)
		return err
	})
	// Each gets what is for it, whoever leads.
	var waits sync.WaitGroup
	for i := range uint32(many) {
		waits.Go(func() {
			what, err := s.Wait(t.Context(), i, 0, nil)
			assert.NoError(t, err)
			assert.Equal(t, i+1, what)
		})
	}
	until(t, "all wait", func() bool { return s.waiting() == many })
	for _, i := range rand.Perm(many) {
		require.NoError(t, s.send(uint32(i), uint32(i)+1))
	}
	waits.Wait()
	assert.LessOrEqual(t, threads(t), maxThreads)
}

// haste returns a context that ends at once, soon, or not before ctx.
func haste(ctx context.Context) (context.Context, context.CancelFunc) {
	switch n := rand.IntN(8); n {
	case 0:
		return context.WithCancel(ctx)
	case 1:
		ctx, cancel := context.WithCancel(ctx)
		cancel()
		return ctx, cancel
	case 2, 3:
		ctx, cancel := context.WithCancel(ctx)
		go func() {
			for range rand.IntN(20) {
				runtime.Gosched()
			}
			cancel()
		}()
		return ctx, cancel
	default:
		return context.WithTimeout(ctx, time.Duration(rand.IntN(200))*time.Microsecond)
	}
}

// someHold is none, or a short time in which an event may come or not.
func someHold() time.Duration { return time.Duration(rand.IntN(3)) * 30 * time.Microsecond }

// brief says whether a wait of haste ended as it may.
func brief(err error) bool {
	return errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.Canceled) || errors.Is(err, ErrWoken)
}

// Events come as waits are given up: each is returned to exactly one wait.
func TestNoneIsLostOfOneKey(t *testing.T) {
	const producers, consumers, each = 2, 6, 10_000
	leavesNothing(t)
	c := newCounter(t)
	ctx, cancel := context.WithTimeout(t.Context(), 3*patience)
	defer cancel()
	all, enough := context.WithCancel(ctx)
	defer enough()
	var got atomic.Int64
	var run sync.WaitGroup
	for range producers {
		run.Go(func() {
			for n := 0; n < each; {
				k := min(1+rand.IntN(3), each-n)
				if !assert.NoError(t, c.add(uint64(k))) {
					return
				}
				n += k
				for range rand.IntN(4) {
					runtime.Gosched()
				}
			}
		})
	}
	for i := range consumers {
		run.Go(func() {
			for all.Err() == nil {
				ctx, cancel := haste(all)
				var err error
				if i%3 == 0 {
					_, err = c.Next(ctx)
				} else {
					_, err = c.Wait(ctx, 0, someHold(), nil)
				}
				cancel()
				switch {
				case err == nil:
					if got.Add(1) == producers*each {
						enough()
					}
				case !brief(err):
					assert.NoError(t, err)
					return
				}
			}
		})
	}
	run.Wait()
	require.NoError(t, ctx.Err(), "%d of %d events came", got.Load(), producers*each)
	require.EqualValues(t, producers*each, got.Load())
	_, err := c.Next(cancelled(errEnough))
	require.ErrorIs(t, err, errEnough, "one came twice")
}

// The same for several keys, of which each gets its own, in order.
func TestNoneIsLostOfManyKeys(t *testing.T) {
	const keys, each = 8, 500
	s := newSource(t)
	ctx, cancel := context.WithTimeout(t.Context(), 3*patience)
	defer cancel()
	var run, wakes sync.WaitGroup
	over := make(chan struct{})
	for key := range uint32(keys) {
		run.Go(func() {
			for i := range uint32(each) {
				if !assert.NoError(t, s.send(key, i)) {
					return
				}
			}
		})
		run.Go(func() {
			for next := uint32(0); next < each; {
				hasty, cancel := haste(ctx)
				what, err := s.Wait(hasty, key, someHold(), nil)
				cancel()
				switch {
				case err == nil && what == next:
					next++
				case err == nil || !brief(err) || ctx.Err() != nil:
					assert.Fail(t, "wrong", "key %d at %d: %d, %v", key, next, what, err)
					return
				}
			}
		})
	}
	wakes.Go(func() {
		for {
			select {
			case <-over:
				return
			default:
				s.Wake(rand.Uint32N(keys))
				runtime.Gosched()
			}
		}
	})
	run.Wait()
	close(over)
	wakes.Wait()
	_, err := s.Next(cancelled(errEnough))
	require.ErrorIs(t, err, errEnough, "one came twice")
}

// No wakeup is lost: two play with an event that only a wait without end returns.
func TestNoWakeupIsLost(t *testing.T) {
	const rounds = 20_000
	leavesNothing(t)
	ctx, cancel := context.WithTimeout(t.Context(), 3*patience)
	defer cancel()
	a, b := newCounter(t), newCounter(t)
	var run sync.WaitGroup
	for _, side := range [][2]*counter{{a, b}, {b, a}} {
		run.Go(func() {
			for range rounds {
				if _, err := side[0].Wait(ctx, 0, someHold(), nil); !assert.NoError(t, err) || !assert.NoError(t, side[1].add(1)) {
					return
				}
			}
		})
	}
	require.NoError(t, a.add(1))
	run.Wait()
}
