//go:build linux

package fdwait

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

const patience = 20 * time.Second

// source is a pipe of events, each with its key.
type source struct {
	*Queue[uint32, uint32]
	r, w  int
	takes atomic.Int64
	holds atomic.Int64 // sleeps that hold a thread, also those that are over
	over  atomic.Int64

	mu   sync.Mutex
	fail []error // what take fails with before it reads
}

type event = Event[uint32, uint32]

// newSource returns an open queue on a pipe. At its end the test fails if it has left
// a descriptor or a goroutine behind.
func newSource(t testing.TB) *source {
	t.Helper()
	leavesNothing(t)
	var p [2]int
	require.NoError(t, unix.Pipe2(p[:], unix.O_CLOEXEC))
	require.NoError(t, unix.SetNonblock(p[1], true))
	s := &source{r: p[0], w: p[1]}
	t.Cleanup(func() {
		_ = unix.Close(s.r)
		_ = unix.Close(s.w)
	})
	q, err := New(s.r, s.take)
	require.NoError(t, err)
	s.Queue = q
	asleep := q.sleep
	q.sleep = func(fd int, d time.Duration) {
		s.holds.Add(1)
		defer s.over.Add(1)
		asleep(fd, d)
	}
	t.Cleanup(q.Close)
	return s
}

func (s *source) take() (event, error) {
	s.takes.Add(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.fail) > 0 {
		err := s.fail[0]
		s.fail = s.fail[1:]
		return event{}, err
	}
	var b [8]byte
	n, err := unix.Read(s.r, b[:])
	switch {
	case err != nil:
		return event{}, err
	case n != len(b):
		return event{}, os.ErrInvalid
	}
	return event{Key: binary.NativeEndian.Uint32(b[:]), What: binary.NativeEndian.Uint32(b[4:])}, nil
}

// failNext makes the next takes fail.
func (s *source) failNext(errs ...error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail = errs
}

// send is safe in several goroutines, and waits where the pipe is full.
func (s *source) send(key, what uint32) error {
	b := binary.NativeEndian.AppendUint32(nil, key)
	b = binary.NativeEndian.AppendUint32(b, what)
	for deadline := time.Now().Add(patience); ; runtime.Gosched() {
		_, err := unix.Write(s.w, b)
		if !errors.Is(err, unix.EAGAIN) || time.Now().After(deadline) {
			return err
		}
	}
}

// result is how a wait ended.
type result struct {
	event event
	err   error
}

// goWait starts a wait and returns when it is under way.
func (s *source) goWait(t testing.TB, ctx context.Context, key uint32) <-chan result {
	t.Helper()
	return s.start(t, func() (event, error) { return s.waitHolding(ctx, key, 0) })
}

func (s *source) waitHolding(ctx context.Context, key uint32, hold time.Duration) (event, error) {
	what, err := s.Wait(ctx, key, hold, nil)
	return event{key, what}, err
}

func (s *source) goNext(t testing.TB, ctx context.Context) <-chan result {
	t.Helper()
	return s.start(t, func() (event, error) { return s.Next(ctx) })
}

func (s *source) start(t testing.TB, wait func() (event, error)) <-chan result {
	t.Helper()
	before := s.waiting()
	c := began(wait)
	until(t, "the wait is under way", func() bool { return s.waiting() == before+1 })
	return c
}

// began starts a wait, which may not have begun when it returns.
func began(wait func() (event, error)) <-chan result {
	c := make(chan result, 1)
	go func() {
		e, err := wait()
		c <- result{e, err}
	}()
	return c
}

// waiting returns how many wait, once their leader is in the poller.
func (s *source) waiting() int {
	s.Queue.mu.Lock()
	defer s.Queue.mu.Unlock()
	if len(s.waiters) > 0 && !s.parked {
		return -1
	}
	return len(s.waiters)
}

func until(t testing.TB, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !condition(); runtime.Gosched() {
		if time.Now().After(deadline) {
			require.Fail(t, "never: "+what)
		}
	}
}

func ended(t testing.TB, c <-chan result) result {
	t.Helper()
	select {
	case r := <-c:
		return r
	case <-time.After(patience):
		require.Fail(t, "the wait hangs")
		return result{}
	}
}

func brings(t testing.TB, c <-chan result, want event) {
	t.Helper()
	require.Equal(t, result{want, nil}, ended(t, c))
}

func failsWith(t testing.TB, c <-chan result, target error) {
	t.Helper()
	require.ErrorIs(t, ended(t, c).err, target)
}

// leavesNothing compares the open descriptors and the goroutines at the test's end
// with those of now.
func leavesNothing(t testing.TB) {
	t.Helper()
	time.Sleep(time.Nanosecond) // which makes the runtime's poller, if nothing has yet
	fds, goroutines := openFDs(t), runtime.NumGoroutine()
	t.Cleanup(func() {
		assert.Equal(t, fds, openFDs(t), "open file descriptors")
		until(t, "the goroutines end", func() bool { return runtime.NumGoroutine() <= goroutines })
	})
}

func openFDs(t testing.TB) []string {
	t.Helper()
	dir, err := os.Open("/proc/self/fd")
	require.NoError(t, err)
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	require.NoError(t, err)
	var open []string
	for _, name := range names {
		if to, err := os.Readlink("/proc/self/fd/" + name); err == nil {
			open = append(open, name+" "+to)
		}
	}
	slices.Sort(open)
	return open
}

// soon is the context of a wait that is not to hang.
func soon(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

func cancelled(cause error) context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(cause)
	return ctx
}

var errEnough = errors.New("enough")

// What has come is returned without a wait, whatever its context says.
func TestWhatHasComeIsReturned(t *testing.T) {
	s := newSource(t)
	for _, ctx := range []context.Context{soon(t), cancelled(errEnough)} {
		require.NoError(t, s.send(1, 10))
		require.NoError(t, s.send(2, 20))
		require.NoError(t, s.send(2, 21))
		what, err := s.Wait(ctx, 2, 0, nil)
		require.NoError(t, err)
		require.EqualValues(t, 20, what)
		e, err := s.Next(ctx)
		require.NoError(t, err)
		require.Equal(t, event{1, 10}, e, "it was taken for the other")
		e, err = s.Next(ctx)
		require.NoError(t, err)
		require.Equal(t, event{2, 21}, e)
	}
	_, err := s.Wait(cancelled(errEnough), 1, 0, nil)
	require.ErrorIs(t, err, errEnough)
	_, err = s.Next(cancelled(errEnough))
	require.ErrorIs(t, err, errEnough)
}

// It costs what the descriptor's read costs, and no memory, also where a thread is held.
func TestWhatHasComeCostsLittle(t *testing.T) {
	for _, hold := range []time.Duration{0, time.Second} {
		c := newCounter(t)
		require.NoError(t, c.add(1<<40))
		ctx := soon(t) // of which nobody needs to be told
		assert.Zero(t, testing.AllocsPerRun(1000, func() {
			if _, err := c.Wait(ctx, 0, hold, nil); err != nil {
				t.Error(err)
			}
		}), "hold %v", hold)
	}
}

// The same holds while another goroutine leads and may not have looked yet.
func TestWhatHasComeIsReturnedToFollowers(t *testing.T) {
	s := newSource(t)
	leader := s.goWait(t, t.Context(), 1)
	for i := range uint32(1000) {
		require.NoError(t, s.send(2, i))
		what, err := s.Wait(cancelled(errEnough), 2, 0, nil)
		require.NoError(t, err)
		require.Equal(t, i, what)
	}
	require.NoError(t, s.send(1, 10))
	brings(t, leader, event{1, 10})
}

// An event that came before the wait was cancelled is its result, be it the leader or not.
func TestEventBeforeCancelIsReturned(t *testing.T) {
	s := newSource(t)
	for i := range uint32(500) {
		ctx, cancel := context.WithCancel(t.Context())
		leader, follower := s.goWait(t, ctx, 1), s.goWait(t, ctx, 2)
		require.NoError(t, s.send(1, i))
		require.NoError(t, s.send(2, i))
		cancel()
		brings(t, leader, event{1, i})
		brings(t, follower, event{2, i})
	}
}

// Several wait; each gets its own event, in any order, and whoever leaves passes the lead on.
func TestEachGetsItsOwn(t *testing.T) {
	for _, order := range [][]uint32{{0, 1, 2, 3}, {3, 2, 1, 0}, {2, 0, 3, 1}} {
		s := newSource(t)
		var waits []<-chan result
		for key := range uint32(4) {
			waits = append(waits, s.goWait(t, t.Context(), key))
		}
		for i, key := range order {
			require.NoError(t, s.send(key, 10*key))
			brings(t, waits[key], event{key, 10 * key})
			until(t, "the others wait", func() bool { return s.waiting() == len(order)-i-1 })
		}
	}
}

// Events of one key go to those that wait for it in the order of their coming.
func TestOneKeyInTurn(t *testing.T) {
	s := newSource(t)
	first, second := s.goWait(t, t.Context(), 1), s.goWait(t, t.Context(), 1)
	require.NoError(t, s.send(1, 10))
	brings(t, first, event{1, 10})
	require.NoError(t, s.send(1, 11))
	brings(t, second, event{1, 11})
}

func TestEventsAreKeptInOrder(t *testing.T) {
	s := newSource(t)
	leader := s.goWait(t, t.Context(), 9)
	for i := range uint32(10) {
		require.NoError(t, s.send(i%2, i))
	}
	require.NoError(t, s.send(9, 90))
	brings(t, leader, event{9, 90})
	for i := uint32(1); i < 10; i += 2 {
		what, err := s.Wait(soon(t), 1, 0, nil)
		require.NoError(t, err)
		require.Equal(t, i, what)
	}
	for i := uint32(0); i < 10; i += 2 {
		e, err := s.Next(soon(t))
		require.NoError(t, err)
		require.Equal(t, event{0, i}, e)
	}
}

// Next leaves events to those that wait for their key, also where it came first.
func TestNextGetsTheRest(t *testing.T) {
	s := newSource(t)
	next, keyed := s.goNext(t, t.Context()), s.goWait(t, t.Context(), 1)
	require.NoError(t, s.send(1, 10))
	brings(t, keyed, event{1, 10})
	require.NoError(t, s.send(2, 20))
	brings(t, next, event{2, 20})

	keyed, next = s.goWait(t, t.Context(), 1), s.goNext(t, t.Context())
	require.NoError(t, s.send(2, 21))
	brings(t, next, event{2, 21})
	require.NoError(t, s.send(1, 11))
	brings(t, keyed, event{1, 11})
}

// Interrupted takes are tried again; one that fails ends one wait, and no event is lost.
func TestTakeFails(t *testing.T) {
	s := newSource(t)
	require.NoError(t, s.send(1, 10))
	s.failNext(syscall.EINTR, syscall.EINTR)
	what, err := s.Wait(soon(t), 1, 0, nil)
	require.NoError(t, err)
	require.EqualValues(t, 10, what)

	s.failNext(syscall.EIO)
	_, err = s.Wait(soon(t), 1, 0, nil)
	require.ErrorIs(t, err, syscall.EIO)

	leader, follower := s.goWait(t, t.Context(), 1), s.goWait(t, t.Context(), 1)
	s.failNext(syscall.EINTR, syscall.EIO)
	require.NoError(t, s.send(1, 11))
	failsWith(t, leader, syscall.EIO)
	brings(t, follower, event{1, 11})

	leader, follower = s.goWait(t, t.Context(), 1), s.goWait(t, t.Context(), 2)
	s.failNext(syscall.EIO)
	ctx := soon(t)
	_, err = s.Wait(ctx, 3, 0, nil)
	require.ErrorIs(t, err, syscall.EIO, "who takes gets the error")
	require.NoError(t, ctx.Err(), "before it waits")
	require.NoError(t, s.send(1, 12))
	require.NoError(t, s.send(2, 20))
	brings(t, leader, event{1, 12})
	brings(t, follower, event{2, 20})
}

// With a take that goes on failing all waits end.
func TestTakeFailsForGood(t *testing.T) {
	s := newSource(t)
	waits := []<-chan result{s.goWait(t, t.Context(), 1), s.goWait(t, t.Context(), 2), s.goNext(t, t.Context())}
	require.NoError(t, unix.Close(s.w)) // the end of the file is no event
	for _, w := range waits {
		failsWith(t, w, os.ErrInvalid)
	}
	_, err := s.Next(soon(t))
	require.ErrorIs(t, err, os.ErrInvalid)
	s.w = -1
}

// A descriptor of which the poller has only an error to tell ends the wait, and does
// not have it turn in circles.
func TestPollerError(t *testing.T) {
	leavesNothing(t)
	var p [2]int
	require.NoError(t, unix.Pipe2(p[:], unix.O_CLOEXEC))
	defer unix.Close(p[1])
	q, err := New(p[1], func() (event, error) { return event{}, unix.EAGAIN })
	require.NoError(t, err)
	defer q.Close()
	for err := error(nil); !errors.Is(err, unix.EAGAIN); _, err = unix.Write(p[1], make([]byte, 1<<16)) {
	}
	require.NoError(t, unix.Close(p[0])) // a full pipe that nobody reads: EPOLLERR alone
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for range 2 {
		_, err = q.Wait(ctx, 1, 0, nil)
		require.ErrorContains(t, err, "polling the file descriptor")
		require.NoError(t, ctx.Err())
	}
}

// A nil context panics, as everywhere, and leaves the queue as it was.
func TestNilContext(t *testing.T) {
	s := newSource(t)
	assert.Panics(t, func() { _, _ = s.Wait(nil, 1, 0, nil) }) //nolint:staticcheck // that is the test
	assert.Panics(t, func() { _, _ = s.Next(nil) })            //nolint:staticcheck // that is the test
	leader := s.goWait(t, t.Context(), 1)
	assert.Panics(t, func() { _, _ = s.Wait(nil, 2, 0, nil) }) //nolint:staticcheck // that is the test
	require.NoError(t, s.send(1, 10))
	brings(t, leader, event{1, 10})
}
