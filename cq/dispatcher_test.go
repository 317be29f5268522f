//go:build cgo && linux && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package cq_test

import (
	"context"
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/cq"
	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/fakedev"
)

// dispatcherBed is a running dispatcher on a fake device.
type dispatcherBed struct {
	*channelBed
	d     *cq.Dispatcher
	other chan uint64
	stop  func() error // ends Run, and returns its error
}

func newDispatcherBed(t *testing.T) *dispatcherBed {
	b := &dispatcherBed{channelBed: newChannelBed(t, 1), other: make(chan uint64, 16)}
	b.d = cq.NewDispatcher(b.qps[0].Send, func(wc *cq.WC) { b.other <- wc.WRID })
	b.run(t)
	return b
}

func (b *dispatcherBed) run(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- b.d.Run(ctx) }()
	b.stop = func() error {
		cancel()
		return <-ended
	}
	t.Cleanup(cancel)
}

// send posts an operation, which stays with the device.
func (b *dispatcherBed) send(t *testing.T) *cq.Op {
	t.Helper()
	op, err := b.d.Start(func(id uint64) error {
		_, err := b.qps[0].PostSend([]ibv.SendWR{ibv.Send(id, ibv.SendSignaled, b.Region.SGE(0, 8))})
		return err
	})
	require.NoError(t, err)
	return op
}

func TestDispatcher(t *testing.T) {
	b := newDispatcherBed(t)
	ops := []*cq.Op{b.send(t), b.send(t), b.send(t)}
	assert.Equal(t, 3, b.d.InFlight())
	b.qps[0].SQ.Complete(fakedev.Completion{})
	wc, err := ops[0].Wait(soon(t))
	require.NoError(t, err)
	assert.Equal(t, b.qps[0].Num(), wc.QPNum)
	b.qps[0].SQ.Complete(fakedev.Completion{Status: int(cq.StatusRemAccessErr)})
	wc, err = ops[1].Wait(soon(t))
	var failed *cq.Error
	require.ErrorAs(t, err, &failed)
	assert.Equal(t, cq.StatusRemAccessErr, wc.Status)
	assert.Equal(t, 1, b.d.InFlight())

	// What is not an operation's goes elsewhere, a receive for one.
	b.receive(t, 0, 77, fakedev.Completion{})
	assert.Equal(t, uint64(77), <-b.other)

	// An operation stays in flight while nobody runs the dispatcher.
	require.ErrorIs(t, b.stop(), context.Canceled)
	b.qps[0].SQ.Complete(fakedev.Completion{})
	b.run(t)
	_, err = ops[2].Wait(soon(t))
	require.NoError(t, err)
	_, err = ops[2].Wait(t.Context())
	require.NoError(t, err, "a second time")
	err = b.d.Run(t.Context())
	require.ErrorIs(t, err, syscall.EALREADY)
}

// TestTimedOutOperation: its memory is the device's until its completion, whoever waits.
func TestTimedOutOperation(t *testing.T) {
	b := newDispatcherBed(t)
	op := b.send(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	_, err := op.Wait(ctx)
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	free := make(chan struct{})
	op.AfterDone(func() { close(free) })
	require.ErrorIs(t, b.Region.Close(), ibv.ErrBusy)
	select {
	case <-free:
		t.Error("free while the device has it")
	default:
	}
	b.qps[0].SQ.Complete(fakedev.Completion{})
	<-free
	assert.Zero(t, b.Region.InFlight())
	at := false
	op.AfterDone(func() { at = true })
	assert.True(t, at, "at once, now that it is")
	_, err = op.Wait(t.Context())
	require.NoError(t, err)
}

func TestOperationNotPosted(t *testing.T) {
	b := newDispatcherBed(t)
	why := errors.New("no")
	ids := map[uint64]bool{}
	for range 2 {
		_, err := b.d.Start(func(id uint64) error {
			assert.GreaterOrEqual(t, id, uint64(cq.FirstOpID))
			ids[id] = true
			return why
		})
		require.ErrorIs(t, err, why)
	}
	assert.Len(t, ids, 2)
	assert.Zero(t, b.d.InFlight())
}

// TestOperationPostedInSpiteOfAnError: a device may fail a post and queue it all the same.
func TestOperationPostedInSpiteOfAnError(t *testing.T) {
	b := newDispatcherBed(t)
	b.qps[0].SQ.FailPost(fakedev.Refusal{RC: int(syscall.EIO), Errno: fakedev.KeepErrno, Bad: fakedev.BadUntouched, Taken: fakedev.TakenAll})
	op := b.send(t)
	_, err := op.Wait(soon(t))
	var failed *ibv.PostError
	require.ErrorAs(t, err, &failed)
	require.ErrorIs(t, err, syscall.EIO)
	free := make(chan struct{})
	op.AfterDone(func() { close(free) })
	assert.Equal(t, 1, b.d.InFlight())
	select {
	case <-free:
		t.Error("free while the device has it")
	default:
	}
	b.qps[0].SQ.Complete(fakedev.Completion{})
	<-free
	_, err = op.Wait(t.Context())
	require.ErrorIs(t, err, syscall.EIO, "as it was told before")
	assert.Zero(t, b.d.InFlight())
}

// TestDispatcherToldOfTheEndAndMore: what ends Run's ctx does not hide, nor look like, what
// becomes of the completion queue.
func TestDispatcherToldOfTheEndAndMore(t *testing.T) {
	b := newDispatcherBed(t)
	op := b.send(t)
	require.ErrorIs(t, b.stop(), context.Canceled)
	ended, end := context.WithCancelCause(t.Context())
	end(ibv.ErrClosed)
	require.ErrorIs(t, b.d.Run(ended), ibv.ErrClosed)
	op.AfterDone(func() { t.Error("free while the device has it") })
	assert.Equal(t, 1, b.d.InFlight())

	b.BreakCQ(b.CQs()[0])
	require.ErrorIs(t, b.d.Run(ended), syscall.EIO)
	within, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	_, err := op.Wait(within)
	require.ErrorIs(t, err, syscall.EIO)
}

func TestDispatcherOfFailedCQ(t *testing.T) {
	b := newDispatcherBed(t)
	op := b.send(t)
	var free atomic.Bool
	op.AfterDone(func() { free.Store(true) })
	q := b.qps[0].Send
	b.BreakCQ(b.CQs()[0])
	b.Notify(b.CQs()[0])
	_, err := op.Wait(soon(t))
	require.ErrorIs(t, err, syscall.EIO)
	assert.False(t, free.Load(), "the device may still use it")
	require.ErrorIs(t, b.stop(), syscall.EIO)
	_, err = b.d.Start(func(uint64) error { t.Error("posted"); return nil })
	require.ErrorIs(t, err, syscall.EIO)

	require.NoError(t, b.qps[0].Close())
	require.NoError(t, q.Close())
	require.ErrorIs(t, b.d.Run(t.Context()), ibv.ErrClosed)
	assert.True(t, free.Load())
	assert.Zero(t, b.d.InFlight())
}

func TestDispatcherOfClosedCQ(t *testing.T) {
	b := newDispatcherBed(t)
	op := b.send(t)
	require.NoError(t, b.qps[0].Close())
	require.NoError(t, b.qps[0].Send.Close())
	_, err := op.Wait(soon(t))
	require.ErrorIs(t, err, ibv.ErrClosed)
	free := false
	op.AfterDone(func() { free = true })
	assert.True(t, free, "with its queue pair the device has nothing of it")
	require.ErrorIs(t, b.stop(), ibv.ErrClosed)
}

// TestManyOperations has goroutines come and go, of which half do not wait long enough.
func TestManyOperations(t *testing.T) {
	const goroutines, each = 8, 500
	b := newDispatcherBed(t)
	b.SetComplete(true)
	var wg sync.WaitGroup
	var done atomic.Int64
	for g := range goroutines {
		wg.Go(func() {
			for range each {
				ctx, cancel := context.WithCancel(t.Context())
				if g%2 == 0 {
					cancel()
				}
				op, err := b.d.Start(func(id uint64) error {
					for {
						_, err := b.qps[0].PostSend([]ibv.SendWR{ibv.Send(id, ibv.SendSignaled, b.Region.SGE(0, 8))})
						if !errors.Is(err, ibv.ErrQueueFull) {
							return err
						}
					}
				})
				if assert.NoError(t, err) {
					op.AfterDone(func() { done.Add(1) })
					if _, err := op.Wait(ctx); err != nil {
						assert.ErrorIs(t, err, context.Canceled)
					}
				}
				cancel()
			}
		})
	}
	wg.Wait()
	require.Eventually(t, func() bool { return done.Load() == goroutines*each }, 30*time.Second, time.Millisecond)
	assert.Zero(t, b.d.InFlight())
}
