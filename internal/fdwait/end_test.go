//go:build linux

package fdwait

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestCause(t *testing.T) {
	assert.NoError(t, Cause(t.Context()))

	err := Cause(cancelled(errEnough))
	assert.Equal(t, errEnough, err)
	assert.Equal(t, context.Canceled, Cause(cancelled(nil)))
	err = Cause(cancelled(context.DeadlineExceeded))
	assert.NotErrorIs(t, err, os.ErrDeadlineExceeded, "somebody else's deadline")

	timedOut, cancel := context.WithTimeout(context.Background(), 0)
	defer cancel()
	err = Cause(timedOut)
	assert.ErrorIs(t, err, os.ErrDeadlineExceeded)
	assert.ErrorIs(t, err, context.DeadlineExceeded)
	assert.True(t, os.IsTimeout(err))
	assert.EqualError(t, err, context.DeadlineExceeded.Error())

	why, cancel := context.WithTimeoutCause(context.Background(), 0, errEnough)
	defer cancel()
	child, cancel := context.WithCancel(why)
	defer cancel()
	err = Cause(child)
	assert.ErrorIs(t, err, os.ErrDeadlineExceeded)
	assert.ErrorIs(t, err, errEnough)
	assert.EqualError(t, err, "enough")
}

// Each way in which a wait ends but by an event, with the wait leading or not. The
// others go on.
func TestWaitEnds(t *testing.T) {
	const key, other = 1, 2
	ways := map[string]struct {
		end   func(t *testing.T, s *source, cancel context.CancelCauseFunc)
		wants error
	}{
		"cancelled": {func(_ *testing.T, _ *source, cancel context.CancelCauseFunc) { cancel(errEnough) }, errEnough},
		"woken":     {func(_ *testing.T, s *source, _ context.CancelCauseFunc) { s.Wake(key) }, ErrWoken},
		"removed": {func(t *testing.T, s *source, _ context.CancelCauseFunc) {
			require.NoError(t, s.Remove(key, func() error { return nil }))
		}, ErrWoken},
	}
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			for _, leads := range []bool{true, false} {
				s := newSource(t)
				var others []<-chan result
				waitOthers := func() {
					others = append(others, s.goWait(t, t.Context(), other), s.goNext(t, t.Context()))
				}
				if !leads {
					waitOthers()
				}
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				w := s.goWait(t, ctx, key)
				if leads {
					waitOthers()
				}
				way.end(t, s, cancel)
				failsWith(t, w, way.wants)
				until(t, "the others wait", func() bool { return s.waiting() == len(others) })
				require.NoError(t, s.send(other, 20))
				require.NoError(t, s.send(key, 10))
				brings(t, others[0], event{other, 20})
				brings(t, others[1], event{key, 10}) // nobody waits for it by its key any more
			}
		})
	}
}

// Deadlines end each wait in its time, and none that has a later one or none.
func TestDeadlines(t *testing.T) {
	s := newSource(t)
	forever := s.goWait(t, t.Context(), 0)
	var waits []<-chan result
	for key := range uint32(3) {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		// Not goWait: a slow machine may see the end before the beginning.
		waits = append(waits, began(func() (event, error) { return s.waitHolding(ctx, key+1, 0) }))
	}
	for _, w := range waits {
		err := ended(t, w).err
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.ErrorIs(t, err, context.DeadlineExceeded)
	}
	require.NoError(t, s.send(0, 5))
	brings(t, forever, event{0, 5})

	ctx, cancel := context.WithTimeoutCause(t.Context(), time.Millisecond, errEnough) // and as the leader
	defer cancel()
	_, err := s.Wait(ctx, 1, 0, nil)
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.ErrorIs(t, err, errEnough)
}

// An interrupt that was meant for a leader of before does not end the wait of this one.
func TestLateInterrupt(t *testing.T) {
	s := newSource(t)
	leader, follower := s.goWait(t, t.Context(), 1), s.goWait(t, t.Context(), 2)
	for range 100 {
		s.Queue.mu.Lock()
		s.interrupt()
		s.Queue.mu.Unlock()
	}
	require.NoError(t, s.send(2, 20))
	brings(t, follower, event{2, 20})
	require.NoError(t, s.send(1, 10))
	brings(t, leader, event{1, 10})
}

// A leader that leaves with its event as its context ends takes no other with it.
func TestCancelWithTheEvent(t *testing.T) {
	s := newSource(t)
	for i := range uint32(500) {
		ctx, cancel := context.WithCancel(t.Context())
		leader, follower := s.goWait(t, ctx, 1), s.goWait(t, t.Context(), 2)
		var both sync.WaitGroup
		both.Go(func() { assert.NoError(t, s.send(1, i)) })
		both.Go(cancel)
		both.Wait()
		if r := ended(t, leader); r.err != nil {
			require.ErrorIs(t, r.err, context.Canceled)
			what, err := s.Wait(soon(t), 1, 0, nil)
			require.NoError(t, err)
			require.Equal(t, i, what, "the event was kept")
		}
		require.NoError(t, s.send(2, i))
		brings(t, follower, event{2, i})
	}
}

// late cancels a context as it says that it has not ended.
type late struct {
	context.Context
	cancel context.CancelFunc
}

func (l late) Err() error {
	err := l.Context.Err()
	l.cancel()
	for range rand.IntN(300) { // while the goroutine that interrupts comes to the lock
		_ = l.Done()
	}
	return err
}

// A context that ends between the leader's look at it and the poller ends the wait.
func TestCancelOnTheWayToThePoller(t *testing.T) {
	s := newSource(t)
	for range 3000 {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan result, 1)
		go func() {
			_, err := s.Wait(late{ctx, cancel}, 1, 0, nil)
			done <- result{err: err}
		}()
		failsWith(t, done, context.Canceled)
	}
}

// A context that ends after the wait has done its work does nothing to the next wait.
func TestCancelAfterwards(t *testing.T) {
	s := newSource(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	first := s.goWait(t, ctx, 1)
	require.NoError(t, s.send(1, 10))
	brings(t, first, event{1, 10})
	second := s.goWait(t, t.Context(), 1)
	cancel()
	require.NoError(t, s.send(1, 11))
	brings(t, second, event{1, 11})
}

// Before the wait is seen by Wake, stop says whether it is to begin: under the same lock,
// so that no Wake falls between.
func TestStop(t *testing.T) {
	s := newSource(t)
	require.NoError(t, s.send(1, 10))
	_, err := s.Wait(soon(t), 1, 0, func() error { return errEnough })
	require.ErrorIs(t, err, errEnough)
	require.Zero(t, s.waiting())
	what, err := s.Wait(soon(t), 1, 0, func() error {
		free := s.Queue.mu.TryLock()
		if free {
			s.Queue.mu.Unlock()
		}
		assert.False(t, free)
		return nil
	})
	require.NoError(t, err)
	require.EqualValues(t, 10, what)

	for range 500 {
		var failed atomic.Bool
		c := make(chan result, 1)
		go func() {
			_, err := s.Wait(soon(t), 1, 0, func() error {
				if failed.Load() {
					return errEnough
				}
				return nil
			})
			c <- result{err: err}
		}()
		failed.Store(true)
		s.Wake(1)
		if err := ended(t, c).err; !errors.Is(err, errEnough) {
			require.ErrorIs(t, err, ErrWoken)
		}
	}
}

func TestWakeIsForThoseOfNow(t *testing.T) {
	s := newSource(t)
	s.Wake(1)
	require.NoError(t, s.send(1, 10))
	what, err := s.Wait(soon(t), 1, 0, nil)
	require.NoError(t, err)
	require.EqualValues(t, 10, what)
}

func TestRemove(t *testing.T) {
	s := newSource(t)
	leader := s.goWait(t, t.Context(), 9)
	for i := range uint32(6) {
		require.NoError(t, s.send(i%2, i))
	}
	require.NoError(t, s.send(9, 90))
	brings(t, leader, event{9, 90})

	require.ErrorIs(t, s.Remove(0, func() error { return syscall.EBUSY }), syscall.EBUSY)
	what, err := s.Wait(soon(t), 0, 0, nil)
	require.NoError(t, err, "a Remove that fails changes nothing")
	require.EqualValues(t, 0, what)

	require.NoError(t, s.Remove(0, func() error { return nil }))
	for i := uint32(1); i < 6; i += 2 {
		e, err := s.Next(soon(t))
		require.NoError(t, err)
		require.Equal(t, event{1, i}, e, "those of others are kept")
	}
	waiter := s.goWait(t, t.Context(), 0)
	require.ErrorIs(t, s.Remove(0, func() error { return syscall.EBUSY }), syscall.EBUSY)
	require.NoError(t, s.send(0, 7))
	brings(t, waiter, event{0, 7}) // it may be used again

	// Nothing is taken while end runs, though the leader is told of events.
	leader = s.goWait(t, t.Context(), 9)
	require.NoError(t, s.Remove(0, func() error {
		takes := s.takes.Load()
		assert.NoError(t, s.send(9, 91))
		for range 100 {
			time.Sleep(10 * time.Microsecond) // time to do wrong, which a right queue lets pass
		}
		assert.Equal(t, takes, s.takes.Load())
		return nil
	}))
	brings(t, leader, event{9, 91})
	s.Close()
	require.NoError(t, s.Remove(1, func() error { return nil }))
}

func TestClose(t *testing.T) {
	s := newSource(t)
	waits := []<-chan result{s.goWait(t, t.Context(), 1), s.goWait(t, t.Context(), 2), s.goNext(t, t.Context())}
	var closers sync.WaitGroup
	for range 3 {
		closers.Go(s.Close)
	}
	for _, w := range waits {
		failsWith(t, w, os.ErrClosed)
	}
	closers.Wait()
	s.Close()
	require.NoError(t, s.send(1, 10))
	takes := s.takes.Load()
	_, err := s.Wait(soon(t), 1, 0, func() error { return errEnough })
	require.ErrorIs(t, err, os.ErrClosed)
	_, err = s.Next(cancelled(errEnough))
	require.ErrorIs(t, err, os.ErrClosed)
	s.Wake(1)
	require.Equal(t, takes, s.takes.Load())
}

// Close against waits that begin and end, and events that come: no wait hangs, and
// nothing is taken afterwards.
func TestCloseUnderWay(t *testing.T) {
	for range 200 {
		s := newSource(t)
		var users sync.WaitGroup
		for key := range uint32(4) {
			users.Go(func() {
				for {
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(key)*20*time.Microsecond)
					_, err := s.Wait(ctx, key, someHold(), nil)
					cancel()
					switch {
					case errors.Is(err, os.ErrClosed):
						return
					case err != nil:
						if !assert.ErrorIs(t, err, os.ErrDeadlineExceeded) {
							return
						}
					}
				}
			})
			users.Go(func() { assert.NoError(t, s.send(key, 0)) })
		}
		s.Close()
		takes := s.takes.Load()
		done := make(chan result)
		go func() { users.Wait(); close(done) }()
		ended(t, done)
		require.Equal(t, takes, s.takes.Load())
	}
}
