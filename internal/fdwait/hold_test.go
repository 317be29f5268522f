//go:build linux

package fdwait

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/internal/alone"
)

// goHold starts a wait that is the leader and holds its thread for d.
func (s *source) goHold(t *testing.T, ctx context.Context, key uint32, d time.Duration) <-chan result {
	t.Helper()
	before := s.holds.Load()
	c := began(func() (event, error) { return s.waitHolding(ctx, key, d) })
	until(t, "the thread is held, or was", func() bool { return s.holds.Load() > before })
	return c
}

// A wait that holds its thread gets its event without the runtime's poller.
func TestHold(t *testing.T) {
	s := newSource(t)
	for i := range uint32(100) {
		w := s.goHold(t, t.Context(), 1, time.Hour)
		require.NoError(t, s.send(1, i))
		brings(t, w, event{1, i})
	}
	require.NoError(t, s.send(1, 10))
	what, err := s.Wait(t.Context(), 1, time.Hour, nil)
	require.NoError(t, err, "what has come needs no sleep")
	require.EqualValues(t, 10, what)
	_, err = s.Wait(cancelled(errEnough), 1, time.Hour, nil)
	require.ErrorIs(t, err, errEnough)
	require.Zero(t, s.waiting())
}

// poller returns the descriptor of the runtime's poller.
func poller(t *testing.T) int {
	t.Helper()
	for _, open := range openFDs(t) {
		if number, ok := strings.CutSuffix(open, " anon_inode:[eventpoll]"); ok {
			fd, err := strconv.Atoi(number)
			require.NoError(t, err)
			return fd
		}
	}
	require.Fail(t, "there is no poller")
	return -1
}

// polled returns how many descriptors it watches.
func polled(t *testing.T) int {
	t.Helper()
	info, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", poller(t)))
	require.NoError(t, err)
	return bytes.Count(info, []byte("tfd:"))
}

// The poller, which wakes a thread for each event, does not know the descriptor while a thread
// is held, and until a wait parks.
func TestHoldIsOutOfThePoller(t *testing.T) {
	before := polled(t)
	s := newSource(t)
	require.Equal(t, before+1, polled(t))
	for range 2 {
		w := s.goHold(t, t.Context(), 1, patience)
		require.Equal(t, before, polled(t))
		require.NoError(t, s.send(1, 10))
		brings(t, w, event{1, 10})
		require.Equal(t, before, polled(t))

		w = s.goHold(t, t.Context(), 1, time.Millisecond)
		until(t, "it is in the poller", func() bool { return s.waiting() == 1 })
		require.Equal(t, before+1, polled(t))
		require.NoError(t, s.send(1, 11))
		brings(t, w, event{1, 11})
	}
	s.goHold(t, t.Context(), 1, time.Millisecond)
	s.Close()
	require.Equal(t, before, polled(t))
}

// A deadline that ended a wait in the poller is none of a wait that comes after a hold.
func TestHoldAfterAnInterrupt(t *testing.T) {
	s := newSource(t)
	for range 3 {
		ctx, cancel := context.WithCancelCause(t.Context())
		w := s.goHold(t, ctx, 1, time.Millisecond)
		until(t, "it is in the poller", func() bool { return s.waiting() == 1 })
		cancel(errEnough)
		failsWith(t, w, errEnough)
		w = s.goHold(t, t.Context(), 1, patience)
		require.NoError(t, s.send(1, 10))
		brings(t, w, event{1, 10})
		w = s.goWait(t, t.Context(), 1)
		require.NoError(t, s.send(1, 11))
		brings(t, w, event{1, 11})
	}
}

// Where no descriptor can be had the wait parks.
func TestHoldWithoutDescriptors(t *testing.T) {
	if !alone.Here(t, 3*patience) {
		return
	}
	s := newSource(t)
	var old unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &old))
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 0, Max: old.Max}))
	w := began(func() (event, error) { return s.waitHolding(t.Context(), 1, patience) })
	until(t, "it is in the poller", func() bool { return s.waiting() == 1 })
	require.NoError(t, s.send(1, 10))
	brings(t, w, event{1, 10})
	require.Zero(t, s.holds.Load())
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &old))
	w = s.goHold(t, t.Context(), 1, patience)
	require.NoError(t, s.send(1, 11))
	brings(t, w, event{1, 11})
}

// Where the poller refuses the descriptor a wait fails, and the next tries again.
func TestPollerRefuses(t *testing.T) {
	s := newSource(t)
	w := s.goHold(t, t.Context(), 1, patience)
	require.NoError(t, s.send(1, 10))
	brings(t, w, event{1, 10})
	ep := poller(t)
	fd := s.fd
	require.NoError(t, unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{})) // once is all it takes
	_, err := s.Wait(soon(t), 1, 0, nil)
	require.ErrorContains(t, err, "polling the file descriptor: the runtime cannot poll it: ")
	require.NoError(t, unix.EpollCtl(ep, unix.EPOLL_CTL_DEL, fd, nil))
	for i := range uint32(2) {
		w = s.goWait(t, t.Context(), 1)
		require.NoError(t, s.send(1, i))
		brings(t, w, event{1, i})
	}
}

// When its time is over it waits as others do.
func TestHoldIsOver(t *testing.T) {
	s := newSource(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	w := s.goHold(t, ctx, 1, time.Millisecond)
	until(t, "it is in the poller", func() bool { return s.waiting() == 1 })
	s.failNext(syscall.EIO)
	_, err := s.Wait(soon(t), 2, 0, nil)
	require.ErrorIs(t, err, syscall.EIO, "others take what there is again")
	cancel(errEnough)
	failsWith(t, w, errEnough)
}

// Events of others wake the leader, which hands them on and leaves its thread. A follower
// takes none from it.
func TestFollowersOfAHold(t *testing.T) {
	s := newSource(t)
	follow := func(key uint32) <-chan result {
		return began(func() (event, error) { return s.waitHolding(t.Context(), key, time.Hour) })
	}
	leader := s.goHold(t, t.Context(), 1, time.Hour)
	takes := s.takes.Load()
	first, second := follow(2), follow(3)
	until(t, "they follow", func() bool { return s.Waiting() == 3 })
	require.Equal(t, takes, s.takes.Load())
	require.NoError(t, s.send(2, 20))
	brings(t, first, event{2, 20})
	until(t, "the leader is in the poller", func() bool { return s.waiting() == 2 })
	require.NoError(t, s.send(1, 10))
	require.NoError(t, s.send(3, 30))
	brings(t, leader, event{1, 10})
	brings(t, second, event{3, 30})
}

// What ends it otherwise does so at the latest when it leaves its thread.
func TestHoldEnds(t *testing.T) {
	s := newSource(t)
	const hold = 50 * time.Millisecond
	ctx, cancel := context.WithCancelCause(t.Context())
	w := s.goHold(t, ctx, 1, hold)
	cancel(errEnough)
	failsWith(t, w, errEnough)

	w = s.goHold(t, t.Context(), 1, hold)
	s.Wake(1)
	failsWith(t, w, ErrWoken)

	w = s.goHold(t, t.Context(), 1, hold)
	s.Close()
	require.Equal(t, s.holds.Load(), s.over.Load(), "nobody sleeps on a descriptor that is closed")
	takes := s.takes.Load()
	failsWith(t, w, os.ErrClosed)
	require.Equal(t, takes, s.takes.Load(), "nothing is taken after Close")
}
