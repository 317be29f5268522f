//go:build cgo && linux && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package cq_test

import (
	"context"
	"errors"
	"os"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/cq"
	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/fakedev"
	"github.com/goverbs/goverbs/internal/fakedev/fakedevtest"
)

// soon is long enough for what is to happen, and a test's limit for it.
func soon(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeoutCause(t.Context(), 30*time.Second, errors.New("it did not happen"))
	t.Cleanup(cancel)
	return ctx
}

// channelBed is a fake device with a channel and completion queues on it, each with a
// queue pair.
type channelBed struct {
	*fakedevtest.Bench
	ch  *cq.Channel
	qps []*fakedevtest.QP
}

func newChannelBed(t testing.TB, cqs int, change ...func(*cq.InitAttr)) *channelBed {
	b := &channelBed{Bench: fakedevtest.New(t, fakedev.Config{ResizeCQ: true, ModerateCQ: true})}
	var err error
	b.ch, err = cq.NewChannel(b.Ctx)
	require.NoError(t, err)
	b.Keep(b.ch)
	for range cqs {
		init := cq.InitAttr{Entries: 1024, Channel: b.ch}
		for _, f := range change {
			f(&init)
		}
		q, err := cq.Create(b.Ctx, init)
		require.NoError(t, err)
		b.Keep(q)
		b.qps = append(b.qps, b.NewQP(t, func(_ *ibv.QPInitAttr, queues *ibv.QPQueues) { queues.Send = q }))
	}
	return b
}

// complete has a send of queue pair i complete.
func (b *channelBed) complete(t testing.TB, i int, id uint64) {
	b.qps[i].Post(t, ibv.Send(id, ibv.SendSignaled, b.Region.SGE(0, 8)))
	b.qps[i].SQ.Complete(fakedev.Completion{})
}

// receive has a receive of queue pair i complete.
func (b *channelBed) receive(t testing.TB, i int, id uint64, c fakedev.Completion) {
	postRecv(t, b.qps[i], ibv.Recv(id, b.Region.SGE(0, 8)))
	b.qps[i].RQ.Complete(c)
}

func TestEventNamesItsCQ(t *testing.T) {
	b := newChannelBed(t, 3)
	for _, i := range []int{2, 0, 1, 0} {
		q := b.qps[i].Send
		require.NoError(t, q.ReqNotify(false))
		b.complete(t, i, 7)
		got, err := b.ch.GetEvent(soon(t))
		require.NoError(t, err)
		assert.Same(t, q, got)
		assert.Equal(t, uint64(7), one(t, q).WRID)
	}
	// One event for each time that it is asked for.
	b.complete(t, 1, 8)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
	defer cancel()
	_, err := b.ch.GetEvent(ctx)
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	assert.ErrorContains(t, err, "ibv_get_cq_event on completion channel")
}

func TestSolicitedOnly(t *testing.T) {
	b := newChannelBed(t, 1)
	q := b.qps[0].Send
	none := func() {
		t.Helper()
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := b.ch.GetEvent(ended)
		require.ErrorIs(t, err, context.Canceled)
	}
	require.NoError(t, q.ReqNotify(true))
	b.receive(t, 0, 1, fakedev.Completion{})
	none()
	b.receive(t, 0, 2, fakedev.Completion{Solicited: true})
	got, err := b.ch.GetEvent(soon(t))
	require.NoError(t, err)
	assert.Same(t, q, got)
	assert.Equal(t, []uint64{1, 2}, fakedevtest.IDs(fakedevtest.Poll(t, q)))

	require.NoError(t, q.ReqNotify(true))
	b.receive(t, 0, 3, fakedev.Completion{Status: int(cq.StatusLocLenErr)})
	_, err = b.ch.GetEvent(soon(t))
	require.NoError(t, err, "a failure is told too")
	fakedevtest.Poll(t, q)

	// Wait arms for all where it was armed for solicited ones only.
	require.NoError(t, q.ReqNotify(true))
	var wcs [4]cq.WC
	done := make(chan error)
	go func() {
		_, err := q.Wait(soon(t), wcs[:])
		done <- err
	}()
	b.waitParked(t, 1)
	b.receive(t, 0, 4, fakedev.Completion{})
	require.NoError(t, <-done)
	assert.Equal(t, uint64(4), wcs[0].WRID)

	go func() {
		_, err := q.WaitSolicited(soon(t), wcs[:])
		done <- err
	}()
	b.waitParked(t, 1)
	b.receive(t, 0, 5, fakedev.Completion{})
	select {
	case err := <-done:
		require.NoError(t, err)
		t.Error("it was woken by what nobody had solicited")
	default:
	}
	b.receive(t, 0, 6, fakedev.Completion{Solicited: true})
	require.NoError(t, <-done)
	assert.Equal(t, uint64(5), wcs[0].WRID)
}

// waitParked waits until n goroutines wait for events of the channel.
func (b *channelBed) waitParked(t testing.TB, n int) {
	t.Helper()
	require.Eventually(t, func() bool { return cq.Waiting(b.ch) == n }, 30*time.Second, 100*time.Microsecond)
}

func TestWait(t *testing.T) {
	b := newChannelBed(t, 2)
	q := b.qps[0].Send
	var wcs [4]cq.WC

	// What is there comes at once, also where ctx has ended.
	ended, cancel := context.WithCancelCause(t.Context())
	why := errors.New("enough")
	cancel(why)
	b.complete(t, 0, 1)
	n, err := q.Wait(ended, wcs[:])
	require.NoError(t, err)
	assert.Equal(t, 1, n)
	_, err = q.Wait(ended, wcs[:])
	require.ErrorIs(t, err, why)

	// Two wait, each for its own.
	got := make(chan uint64)
	for i := range 2 {
		go func() {
			var wcs [4]cq.WC
			n, err := b.qps[i].Send.Wait(soon(t), wcs[:])
			assert.NoError(t, err)
			assert.Equal(t, 1, n)
			got <- wcs[0].WRID
		}()
	}
	b.waitParked(t, 2)
	b.complete(t, 1, 11)
	assert.Equal(t, uint64(11), <-got)
	b.complete(t, 0, 10)
	assert.Equal(t, uint64(10), <-got)

	timeout, cancelTimeout := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancelTimeout()
	_, err = q.Wait(timeout, wcs[:])
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	assert.ErrorContains(t, err, q.String())

	_, err = q.Wait(t.Context(), nil)
	require.ErrorIs(t, err, syscall.EINVAL)
	bare := b.NewQP(t)
	bare.Post(t, ibv.Send(3, ibv.SendSignaled, b.Region.SGE(0, 8)))
	bare.SQ.Complete(fakedev.Completion{})
	_, err = bare.Send.Wait(t.Context(), wcs[:])
	require.ErrorIs(t, err, syscall.EINVAL, "also where there is something")
	require.ErrorContains(t, err, "without InitAttr.Channel")
	require.ErrorIs(t, bare.Send.ReqNotify(false), syscall.EINVAL)
	assert.Equal(t, uint64(3), one(t, bare.Send).WRID, "which is not lost")
}

// TestWaitersOfOneCQ has several goroutines take the completions of one queue, each with
// room for few: while one sleeps nothing may be left in it.
func TestWaitersOfOneCQ(t *testing.T) {
	b := newChannelBed(t, 1)
	q := b.qps[0].Send
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wg sync.WaitGroup
	got := make(chan uint64)
	for range 4 {
		wg.Go(func() {
			var wcs [1]cq.WC
			for {
				if _, err := q.Wait(ctx, wcs[:]); err != nil {
					assert.ErrorIs(t, err, context.Canceled)
					return
				}
				got <- wcs[0].WRID
			}
		})
	}
	within := soon(t)
	for round := range 300 {
		for range 5 {
			b.complete(t, 0, uint64(round))
		}
		for range 5 {
			select {
			case id := <-got:
				require.EqualValues(t, round, id)
			case <-within.Done():
				t.Fatalf("round %d: a completion is in the queue, and %d goroutines sleep", round, cq.Waiting(b.ch))
			}
		}
	}
	cancel()
	wg.Wait()
}

// TestWaitersWhoComeOnce has as many goroutines as there are completions wait, each for one of
// them: the event that there was has had only one of them look.
func TestWaitersWhoComeOnce(t *testing.T) {
	for _, hold := range []time.Duration{0, time.Millisecond} {
		b := newChannelBed(t, 1, func(a *cq.InitAttr) { a.Hold = hold })
		for round := range uint64(50) {
			const waiters = 3
			within := soon(t)
			var wg sync.WaitGroup
			for range waiters {
				wg.Go(func() {
					var wcs [1]cq.WC
					_, err := b.qps[0].Send.Wait(within, wcs[:])
					assert.NoError(t, err)
				})
			}
			b.waitParked(t, waiters)
			for range waiters {
				b.complete(t, 0, round)
			}
			wg.Wait()
			require.False(t, t.Failed(), "hold %v, round %d: one has slept with a completion in the queue", hold, round)
		}
	}
}

func TestSpin(t *testing.T) {
	b := newChannelBed(t, 1, func(a *cq.InitAttr) { a.Spin = time.Hour })
	q := b.qps[0].Send
	var wcs [4]cq.WC
	done := make(chan error)
	go func() {
		_, err := q.Wait(soon(t), wcs[:])
		done <- err
	}()
	b.complete(t, 0, 1)
	require.NoError(t, <-done)
	assert.False(t, cq.Armed(q), "it has polled for as long as it may")

	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		_, err := q.Wait(ctx, wcs[:])
		done <- err
	}()
	cancel()
	require.ErrorIs(t, <-done, context.Canceled, "also while it polls")
}

// TestHold has waits get events while they hold their thread, and end when they do no more.
func TestHold(t *testing.T) {
	const hold = 10 * time.Millisecond
	b := newChannelBed(t, 1, func(a *cq.InitAttr) { a.Hold = hold })
	b.SetComplete(true)
	qp, q := b.qps[0], b.qps[0].Send
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	wait := func(ctx context.Context) {
		go func() {
			var wcs [1]cq.WC
			_, err := q.Wait(ctx, wcs[:])
			done <- err
		}()
		b.waitParked(t, 1)
	}
	begun := time.Now()
	wait(ctx)
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
	assert.GreaterOrEqual(t, time.Since(begun), hold, "it was parked instead")

	assert.False(t, sleepsThrough(t, q, 10_000, 30*time.Second, library, func(n int) {
		qp.Post(t, fakedevtest.Sends(b.Region, 0, n)...)
	}), "it has slept with completions in the queue")
	wait(t.Context())
	require.NoError(t, qp.Close())
	require.NoError(t, q.Close())
	require.ErrorIs(t, <-done, ibv.ErrClosed)
}

// TestUnacknowledgedEvents has completion queues go of which events were taken, or were
// not, in each order with others and the channel: the fake device reports a destroy
// that would have waited for ever.
func TestUnacknowledgedEvents(t *testing.T) {
	for _, events := range []int{0, 1, 63, 64, 65, 300} {
		for _, order := range [][]int{{0, 1, 2}, {2, 1, 0}, {1, 0, 2}} {
			b := newChannelBed(t, 3)
			for i := range events {
				q := b.qps[i%2].Send
				require.NoError(t, q.ReqNotify(false))
				b.complete(t, i%2, uint64(i))
				fakedevtest.Poll(t, q)
				if i != events-1 { // the last one waits in the kernel
					_, err := b.ch.GetEvent(soon(t))
					require.NoError(t, err)
				}
			}
			for _, i := range order {
				require.ErrorIs(t, b.ch.Close(), ibv.ErrBusy)
				require.NoError(t, b.qps[i].Close())
				require.NoError(t, b.qps[i].Send.Close())
			}
			require.NoError(t, b.ch.Close())
			require.NoError(t, b.ch.Close())
			assert.Empty(t, b.Misuse())
		}
	}
}

func TestCloseEndsWaits(t *testing.T) {
	b := newChannelBed(t, 1)
	q := b.qps[0].Send
	require.NoError(t, b.qps[0].Close())
	wait := make(chan error)
	for range 3 {
		go func() {
			var wcs [1]cq.WC
			_, err := q.Wait(soon(t), wcs[:])
			wait <- err
		}()
	}
	event := make(chan error)
	go func() {
		_, err := b.ch.GetEvent(soon(t))
		event <- err
	}()
	b.waitParked(t, 4)
	require.NoError(t, q.Close())
	for range 3 {
		require.ErrorIs(t, <-wait, ibv.ErrClosed)
	}
	b.waitParked(t, 1)
	require.NoError(t, b.ch.Close())
	err := <-event
	require.ErrorIs(t, err, ibv.ErrClosed)
	require.ErrorIs(t, err, os.ErrClosed)

	var wcs [1]cq.WC
	_, err = q.Wait(t.Context(), wcs[:])
	require.ErrorIs(t, err, ibv.ErrClosed)
	require.ErrorIs(t, q.ReqNotify(false), ibv.ErrClosed)
	require.ErrorIs(t, q.Resize(8), ibv.ErrClosed)
	require.ErrorIs(t, q.Moderate(1, 0), ibv.ErrClosed)
	_, err = b.ch.GetEvent(t.Context())
	require.ErrorIs(t, err, ibv.ErrClosed)
	_, err = cq.Create(b.Ctx, cq.InitAttr{Entries: 1, Channel: b.ch})
	require.ErrorIs(t, err, ibv.ErrClosed)
}

func TestChannelRefused(t *testing.T) {
	b := newChannelBed(t, 1)
	other := fakedevtest.New(t, fakedev.Config{})
	_, err := cq.Create(other.Ctx, cq.InitAttr{Entries: 1, Channel: b.ch})
	require.ErrorContains(t, err, "another device")
	_, err = cq.Create(b.Ctx, cq.InitAttr{Entries: 1, Channel: new(cq.Channel)})
	require.ErrorContains(t, err, "zero Channel")
	_, err = cq.Create(b.Ctx, cq.InitAttr{Entries: 1, Spin: -1})
	require.ErrorContains(t, err, "Spin is -1ns")
	for _, hold := range []time.Duration{-time.Millisecond, 11 * time.Millisecond, 1} {
		_, err = cq.Create(b.Ctx, cq.InitAttr{Entries: 1, Hold: hold})
		require.ErrorContains(t, err, "Hold is "+hold.String()+": give how long to hold a thread, 0 to 10ms in whole milliseconds")
	}
	_, err = cq.NewChannel(nil)
	require.ErrorIs(t, err, syscall.EINVAL)

	b.Fail("ibv_create_comp_channel", syscall.EMFILE, 1)
	_, err = cq.NewChannel(b.Ctx)
	require.ErrorIs(t, err, syscall.EMFILE)
	assert.ErrorContains(t, err, "ulimit -n")

	b.Fail("ibv_req_notify_cq", syscall.EIO, 1)
	q := b.qps[0].Send
	var wcs [1]cq.WC
	_, err = q.Wait(soon(t), wcs[:])
	require.ErrorIs(t, err, syscall.EIO)
	assert.ErrorContains(t, err, "ibv_req_notify_cq on "+q.String())
	b.Fail("ibv_get_cq_event", syscall.EIO, 1)
	_, err = q.Wait(soon(t), wcs[:])
	require.ErrorIs(t, err, syscall.EIO)
	assert.ErrorContains(t, err, "ibv_get_cq_event on "+q.String())
}

func TestResize(t *testing.T) {
	b := newChannelBed(t, 1)
	q := b.qps[0].Send
	for range 5 {
		b.complete(t, 0, 1)
	}
	err := q.Resize(4)
	require.ErrorIs(t, err, syscall.EINVAL)
	require.ErrorContains(t, err, "more than 4 completions")
	assert.Equal(t, 1024, q.Entries())
	require.NoError(t, q.Resize(5))
	assert.Equal(t, 5, q.Entries())
	assert.Len(t, fakedevtest.Poll(t, q), 5)
	for _, n := range []int{0, -1, 1 << 30} {
		require.ErrorIs(t, q.Resize(n), syscall.EINVAL)
	}
	cannot := fakedevtest.New(t, fakedev.Config{})
	q = cannot.NewCQ(t)
	require.ErrorIs(t, q.Resize(5), ibv.ErrNotSupported)
	require.ErrorIs(t, q.Moderate(1, 0), ibv.ErrNotSupported)
}

func TestModerate(t *testing.T) {
	b := newChannelBed(t, 1)
	q := b.qps[0].Send
	require.NoError(t, q.Moderate(16, 65535*time.Microsecond))
	count, period := b.Moderation(b.CQs()[0])
	assert.Equal(t, []int{16, 65535}, []int{count, period})
	for _, bad := range []struct {
		count  int
		period time.Duration
	}{{-1, 0}, {65536, 0}, {0, -time.Microsecond}, {0, 65536 * time.Microsecond}, {0, 1500 * time.Nanosecond}} {
		require.ErrorIs(t, q.Moderate(bad.count, bad.period), syscall.EINVAL)
	}
}

// TestUnpluggedChannel: the kernel has freed all of a removed device, but libibverbs goes on
// counting what it could not destroy.
func TestUnpluggedChannel(t *testing.T) {
	b := newChannelBed(t, 2)
	q := b.qps[0].Send
	require.NoError(t, q.ReqNotify(false))
	b.complete(t, 0, 1)
	_, err := b.ch.GetEvent(soon(t))
	require.NoError(t, err)
	b.Unplug()
	require.NoError(t, b.Ctx.CloseAll())
	assert.Empty(t, b.Open())
}

// TestWaitsOfFailedDevice: nobody goes on to wait for a device that has failed, also where
// its channel has no completion queue.
func TestWaitsOfFailedDevice(t *testing.T) {
	for _, cqs := range []int{0, 2} {
		b := newChannelBed(t, cqs)
		ended := make(chan error)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		for range 3 {
			go func() {
				for {
					if _, err := b.ch.GetEvent(ctx); err != nil {
						ended <- err
						return
					}
				}
			}()
		}
		for i := range cqs {
			go func() {
				_, err := b.qps[i].Send.Wait(ctx, make([]cq.WC, 1))
				ended <- err
			}()
		}
		b.waitParked(t, 3+cqs)
		b.Raise(int(ibv.EventDeviceFatal), 0)
		for range 3 + cqs {
			require.ErrorIs(t, <-ended, ibv.ErrDeviceFatal)
		}
		for _, q := range b.qps { // what was told of them is not told again
			require.ErrorIs(t, q.Send.ReqNotify(false), ibv.ErrDeviceFatal)
		}
		require.Eventually(t, func() bool {
			_, err := b.ch.GetEvent(ctx)
			return errors.Is(err, ibv.ErrDeviceFatal)
		}, 5*time.Second, time.Millisecond)
		require.NoError(t, b.Ctx.CloseAll())
		_, err := b.ch.GetEvent(ctx)
		require.ErrorIs(t, err, ibv.ErrClosed)
		assert.Empty(t, b.Open())
	}
}

// TestWaitsOfRemovedDevice: a channel may tell of the removal before any event does.
func TestWaitsOfRemovedDevice(t *testing.T) {
	b := newChannelBed(t, 1)
	b.Unplug()
	b.Fail("ibv_get_cq_event", syscall.EIO, -1)
	_, err := b.qps[0].Send.Wait(soon(t), make([]cq.WC, 1))
	require.ErrorIs(t, err, ibv.ErrDeviceFatal)
	_, err = b.ch.GetEvent(soon(t))
	require.ErrorIs(t, err, ibv.ErrDeviceFatal)
	require.ErrorIs(t, err, syscall.EIO)
}

// Who learns of the removal from a channel finds a device there to ask, or none any more:
// others close it at once.
func TestCloseWhileWaitsFindRemoval(t *testing.T) {
	for range 50 {
		b := newChannelBed(t, 1)
		b.Unplug()
		b.Fail("ibv_get_cq_event", syscall.EIO, -1)
		ended := make(chan error)
		for range 4 {
			go func() {
				for {
					_, err := b.ch.GetEvent(t.Context())
					if !errors.Is(err, ibv.ErrDeviceFatal) {
						ended <- err
						return
					}
				}
			}()
		}
		require.NoError(t, b.Ctx.CloseAll())
		for range 4 {
			require.ErrorIs(t, <-ended, ibv.ErrClosed)
		}
	}
}

// TestDroppedChannel has the collector close a channel and its completion queue.
func TestDroppedChannel(t *testing.T) {
	b := fakedevtest.New(t, fakedev.Config{})
	func() {
		ch, err := cq.NewChannel(b.Ctx)
		require.NoError(t, err)
		q, err := cq.Create(b.Ctx, cq.InitAttr{Entries: 1, Channel: ch})
		require.NoError(t, err)
		require.NoError(t, q.ReqNotify(false))
		require.Contains(t, b.Open(), "1 completion channel")
	}()
	require.Eventually(t, func() bool {
		runtime.GC()
		return !slices.Contains(b.Open(), "1 completion channel")
	}, 30*time.Second, time.Millisecond)
}
