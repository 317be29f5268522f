//go:build linux

package fdwait

import (
	"errors"
	"os"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// An event that is not waited for is there when somebody asks, whatever becomes of the
// descriptor.
func TestCollect(t *testing.T) {
	s := newSource(t)
	require.NoError(t, s.send(1, 10))
	require.NoError(t, s.send(2, 20))
	s.Collect()
	assert.Equal(t, int64(3), s.takes.Load(), "until there are none")
	e, err := s.Wait(t.Context(), 2, 0, nil)
	require.NoError(t, err)
	assert.Equal(t, uint32(20), e)
	s.Close()
	s.Collect()
}

// What has come before the move goes along, in order, and so do the waits of the key.
func TestMove(t *testing.T) {
	from, to := newSource(t), newSource(t)
	for _, q := range [][2]*source{{from, to}, {to, from}} { // the order of the locks
		from, to := q[0], q[1]
		require.NoError(t, from.send(1, 10))
		require.NoError(t, from.send(2, 20))
		from.Collect()
		require.NoError(t, from.send(1, 11))
		woken := from.goWait(t, t.Context(), 3)
		fails := errors.New("no")
		require.ErrorIs(t, from.Move(1, to.Queue, func() error { return fails }), fails)
		require.NoError(t, from.Move(1, to.Queue, func() error {
			require.NoError(t, to.send(1, 12)) // the poller of to is not told of what moves there in the kernel
			return nil
		}))
		require.NoError(t, from.Move(3, to.Queue, func() error { return nil }))
		require.ErrorIs(t, ended(t, woken).err, ErrWoken)
		for _, want := range []uint32{10, 11, 12} {
			e, err := to.Wait(t.Context(), 1, 0, nil)
			require.NoError(t, err)
			assert.Equal(t, want, e)
		}
		e, err := from.Wait(t.Context(), 2, 0, nil)
		require.NoError(t, err)
		assert.Equal(t, uint32(20), e)
	}
}

// Somebody who waits at the new queue gets what moves there.
func TestMoveToAWait(t *testing.T) {
	from, to := newSource(t), newSource(t)
	require.NoError(t, from.send(1, 10))
	got := to.goNext(t, t.Context())
	require.NoError(t, from.Move(1, to.Queue, func() error { return nil }))
	assert.Equal(t, event{Key: 1, What: 10}, ended(t, got).event)
}

func TestMoveToAClosedQueue(t *testing.T) {
	from, to := newSource(t), newSource(t)
	to.Close()
	err := from.Move(1, to.Queue, func() error { t.Error("moved"); return nil })
	require.ErrorIs(t, err, os.ErrClosed)
}

// What the kernel moves to a descriptor wakes nobody who waits there.
func TestMoveWithoutWakeup(t *testing.T) {
	from, silent := newSource(t), newSource(t)
	moved := make(chan event, 1)
	silent.Queue.take = func() (event, error) {
		select {
		case e := <-moved:
			return e, nil
		default:
			return event{}, syscall.EAGAIN
		}
	}
	got := silent.goWait(t, t.Context(), 1)
	require.NoError(t, from.Move(1, silent.Queue, func() error {
		moved <- event{Key: 1, What: 10}
		return nil
	}))
	assert.Equal(t, uint32(10), ended(t, got).event.What)
}

// Two queues can move to each other at once.
func TestMoveBothWays(t *testing.T) {
	a, b := newSource(t), newSource(t)
	var both sync.WaitGroup
	for _, q := range [][2]*source{{a, b}, {b, a}} {
		both.Go(func() {
			for range 10000 {
				assert.NoError(t, q[0].Move(1, q[1].Queue, func() error { return nil }))
			}
		})
	}
	done := make(chan result, 1)
	go func() {
		both.Wait()
		done <- result{}
	}()
	ended(t, done)
}
