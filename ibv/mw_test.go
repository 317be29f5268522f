//go:build cgo && linux && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package ibv_test

import (
	"strings"
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
	"github.com/goverbs/goverbs/internal/rdmatest"
	"github.com/goverbs/goverbs/mr"
)

// windowed is a QP with a window of type 2 and a region that can be bound to it.
type windowed struct {
	*fakedevtest.Bench
	qp     *fakedevtest.QP
	region *mr.Region
	mw     *ibv.MW
	first  ibv.RemoteRange // before any bind
}

func newWindowed(t *testing.T, config fakedev.Config) *windowed {
	config.MemoryWindows = true
	w := &windowed{Bench: fakedevtest.New(t, config)}
	w.qp = w.NewQP(t)
	w.region = w.NewRegion(t, ibv.AccessMWBind)
	w.mw = w.NewMW(t, ibv.MWType2)
	w.first = w.mw.Remote()
	return w
}

func (w *windowed) bind(id uint64, off, n int, flags ibv.SendFlags) ibv.SendWR {
	return ibv.BindMW(id, flags, w.region.MWBind(w.mw, off, n, ibv.AccessRemoteRead))
}

// bound is the range of a bind that counted up the rkey so often.
func (w *windowed) bound(off, n, times int) ibv.RemoteRange {
	all := w.region.Remote()
	return ibv.RemoteRange{Addr: all.Addr + uint64(off), Length: uint64(n), RKey: w.first.RKey + uint32(times)}
}

func (w *windowed) poll(t *testing.T, n int) []cq.WC {
	t.Helper()
	wcs := fakedevtest.Poll(t, w.qp.Send)
	require.Len(t, wcs, n)
	return wcs
}

// free checks that nothing keeps region and window, in this order.
func (w *windowed) free(t *testing.T) {
	t.Helper()
	require.NoError(t, w.region.Close())
	require.NoError(t, w.mw.Close())
}

func TestBindThatCompletes(t *testing.T) {
	for _, flags := range []ibv.SendFlags{ibv.SendSignaled, 0} {
		w := newWindowed(t, fakedev.Config{})
		w.qp.Post(t, w.bind(1, 64, 128, flags))
		posted := w.qp.SQ.Posted()[0].Bind
		assert.Equal(t, w.region.LKey(), posted.LKey)
		assert.Equal(t, w.bound(64, 128, 1), ibv.RemoteRange{Addr: posted.Addr, Length: posted.Length, RKey: posted.RKey})
		assert.Equal(t, w.bound(64, 128, 1), w.mw.Remote())
		assert.False(t, w.mw.Bound(), "posted is not bound")
		assert.ErrorIs(t, w.region.Close(), ibv.ErrBusy)
		assert.ErrorIs(t, w.mw.Close(), ibv.ErrBusy)

		if flags == 0 { // the completion of a later one says it
			w.qp.Post(t, fakedevtest.Sends(w.Region, 2, 1)...)
			w.qp.SQ.Complete(fakedev.Completion{Index: 1})
		} else {
			w.qp.SQ.Complete(fakedev.Completion{})
		}
		w.poll(t, 1)
		assert.True(t, w.mw.Bound())
		assert.Zero(t, w.region.InFlight())
		err := w.region.Close()
		assert.ErrorIs(t, err, ibv.ErrBusy)
		assert.ErrorContains(t, err, w.mw.String(), "what keeps it")
		require.NoError(t, w.mw.Close())
		require.NoError(t, w.region.Close())
	}
}

// A peer reaches what was bound zero-based from 0 on.
func TestZeroBasedBind(t *testing.T) {
	w := newWindowed(t, fakedev.Config{Complete: true})
	w.qp.Post(t, ibv.BindMW(1, ibv.SendSignaled, w.region.MWBind(w.mw, 64, 128, ibv.AccessRemoteRead|ibv.AccessZeroBased)))
	w.poll(t, 1)
	want := w.bound(0, 128, 1)
	want.Addr = 0
	assert.Equal(t, want, w.mw.Remote())
	err := w.qp.BindMW(2, 0, w.region.MWBind(w.NewMW(t, ibv.MWType1), 0, 64, ibv.AccessRemoteRead|ibv.AccessZeroBased))
	require.ErrorIs(t, err, syscall.EINVAL)
	assert.ErrorContains(t, err, "for windows of type 2")
}

// TestBindThatDoesNot has each end of a bind that changes nothing. Then Remote is again
// what it was, and the next bind gets the rkey that this one did not have.
func TestBindThatDoesNot(t *testing.T) {
	refuse := func(taken fakedev.Taken) func(*testing.T, *windowed) {
		return func(t *testing.T, w *windowed) {
			w.qp.SQ.FailPost(fakedev.Refusal{RC: int(syscall.EINVAL), Taken: taken})
			_, err := w.qp.PostSend([]ibv.SendWR{w.bind(1, 0, 64, ibv.SendSignaled)})
			require.ErrorIs(t, err, syscall.EINVAL)
		}
	}
	fail := func(status cq.Status) func(*testing.T, *windowed) {
		return func(t *testing.T, w *windowed) {
			w.qp.Post(t, w.bind(1, 0, 64, ibv.SendSignaled))
			w.qp.SQ.Complete(fakedev.Completion{Status: int(status)})
			wcs := w.poll(t, 1)
			assert.Equal(t, status, wcs[0].Status)
		}
	}
	for name, end := range map[string]func(*testing.T, *windowed){
		"refused": refuse(fakedev.TakenNone),
		"failed":  fail(cq.StatusMWBindErr),
		"flushed": fail(cq.StatusWRFlushErr),
		"reset": func(t *testing.T, w *windowed) {
			w.qp.Post(t, w.bind(1, 0, 64, ibv.SendSignaled))
			w.qp.Reset(t)
			w.qp.Ready(t)
		},
		"two flushed": func(t *testing.T, w *windowed) {
			w.qp.Post(t, w.bind(1, 0, 64, ibv.SendSignaled))
			w.qp.Post(t, w.bind(2, 0, 32, ibv.SendSignaled))
			require.Equal(t, uint64(32), w.mw.Remote().Length, "the last one's")
			w.Flush(w.qp.Num())
			w.poll(t, 2)
		},
		"the second refused, the first flushed": func(t *testing.T, w *windowed) {
			w.qp.Post(t, w.bind(1, 0, 64, ibv.SendSignaled))
			w.qp.SQ.FailPost(fakedev.Refusal{RC: int(syscall.EINVAL)})
			_, err := w.qp.PostSend([]ibv.SendWR{w.bind(2, 0, 32, 0)})
			require.ErrorIs(t, err, syscall.EINVAL)
			require.Equal(t, uint64(64), w.mw.Remote().Length, "the first one's")
			w.Flush(w.qp.Num())
			w.poll(t, 1)
		},
		"an earlier work request refused": func(t *testing.T, w *windowed) {
			w.qp.SQ.FailPost(fakedev.Refusal{RC: int(syscall.EINVAL)})
			_, err := w.qp.PostSend(append(fakedevtest.Sends(w.Region, 1, 1), w.bind(2, 0, 32, 0)))
			require.ErrorIs(t, err, syscall.EINVAL)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWindowed(t, fakedev.Config{})
			end(t, w)
			assert.Equal(t, w.first, w.mw.Remote())
			assert.False(t, w.mw.Bound())

			w.qp.Post(t, w.bind(3, 64, 128, ibv.SendSignaled))
			assert.Equal(t, w.bound(64, 128, 1), w.mw.Remote())
			w.qp.SQ.Complete(fakedev.Completion{})
			w.poll(t, 1)
			end(t, w)
			assert.Equal(t, w.bound(64, 128, 1), w.mw.Remote(), "the bind that holds")
			assert.True(t, w.mw.Bound())
			require.NoError(t, w.mw.Close())
			require.NoError(t, w.region.Close())
		})
	}
}

// TestInvalidation has the invalidation at each moment after the bind: a program need
// not poll the bind's completion first, and cannot where it is unsignaled.
func TestInvalidation(t *testing.T) {
	type step func(*testing.T, *windowed)
	complete := func(t *testing.T, w *windowed) {
		for len(w.qp.SQ.WRIDs()) > 0 {
			index := 0
			for !w.qp.SQ.Posted()[index].Signaled {
				index++
			}
			w.qp.SQ.Complete(fakedev.Completion{Index: index})
		}
	}
	poll := func(n int) step { return func(t *testing.T, w *windowed) { w.poll(t, n) } }
	local := func(t *testing.T, w *windowed) {
		w.qp.Post(t, ibv.LocalInv(2, ibv.SendSignaled, w.mw.Remote().RKey))
	}
	send := func(t *testing.T, w *windowed) { w.qp.Post(t, fakedevtest.Sends(w.Region, 3, 1)...) }
	fromPeer := func(t *testing.T, w *windowed) {
		_, err := w.qp.PostRecv(fakedevtest.Recvs(w.Region, 7, 1))
		require.NoError(t, err)
		w.qp.RQ.Complete(fakedev.Completion{InvRKey: new(w.mw.Remote().RKey)})
		wcs := fakedevtest.Poll(t, w.qp.Recv)
		require.Len(t, wcs, 1)
		rkey, mw, ok := wcs[0].Invalidated()
		assert.True(t, ok)
		assert.Equal(t, w.mw.Remote().RKey, rkey)
		assert.Same(t, w.mw, mw)
	}
	for _, c := range []struct {
		name  string
		flags ibv.SendFlags
		steps []step
	}{
		{"local, after the bind's completion", ibv.SendSignaled, []step{complete, poll(1), local, complete, poll(1)}},
		{"local, beside a signaled bind", ibv.SendSignaled, []step{local, complete, poll(2)}},
		{"local, after an unsignaled bind", 0, []step{local, complete, poll(1)}},
		{"by the peer, after the bind's completion", ibv.SendSignaled, []step{complete, poll(1), fromPeer}},
		{"by the peer, before an unsignaled bind is known to be done", 0, []step{fromPeer, send, complete, poll(1)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWindowed(t, fakedev.Config{})
			separate := w.NewCQ(t)
			w.qp = w.NewQP(t, func(_ *ibv.QPInitAttr, q *ibv.QPQueues) { q.Recv = separate })
			w.qp.Post(t, w.bind(1, 0, 64, c.flags))
			for _, s := range c.steps {
				s(t, w)
			}
			assert.False(t, w.mw.Bound())
			assert.Equal(t, w.bound(0, 64, 1), w.mw.Remote(), "as its last bind")
			w.free(t)
		})
	}
}

// TestInvalidationThatFails leaves the window bound, and is not taken for one of a later bind.
func TestInvalidationThatFails(t *testing.T) {
	w := newWindowed(t, fakedev.Config{})
	w.qp.Post(t, w.bind(1, 0, 64, ibv.SendSignaled))
	w.qp.SQ.Complete(fakedev.Completion{})
	w.poll(t, 1)
	old := w.mw.Remote().RKey
	w.qp.Post(t, ibv.LocalInv(2, ibv.SendSignaled, old))
	assert.ErrorIs(t, w.mw.Close(), ibv.ErrBusy, "it is in flight")
	w.qp.SQ.Complete(fakedev.Completion{Status: int(cq.StatusLocAccessErr)})
	w.poll(t, 1)
	assert.True(t, w.mw.Bound())

	w.qp.Post(t, w.bind(3, 64, 64, ibv.SendSignaled))
	w.qp.SQ.Complete(fakedev.Completion{})
	w.poll(t, 1)
	w.qp.Post(t, ibv.LocalInv(4, ibv.SendSignaled, old), ibv.LocalInv(5, ibv.SendSignaled, 0x1234))
	w.qp.SQ.Complete(fakedev.Completion{})
	w.qp.SQ.Complete(fakedev.Completion{})
	w.poll(t, 2)
	assert.True(t, w.mw.Bound(), "that rkey was no longer its own")

	// The same of a peer, and of one that was posted when the rkey still was its own.
	_, err := w.qp.PostRecv(fakedevtest.Recvs(w.Region, 6, 1))
	require.NoError(t, err)
	w.qp.RQ.Complete(fakedev.Completion{InvRKey: &old})
	rkey, mw, ok := w.poll(t, 1)[0].Invalidated()
	assert.True(t, ok)
	assert.Equal(t, old, rkey)
	assert.Nil(t, mw)
	old = w.mw.Remote().RKey
	w.qp.Post(t, w.bind(7, 128, 64, 0), ibv.LocalInv(8, ibv.SendSignaled, old))
	w.qp.SQ.Complete(fakedev.Completion{Index: 1})
	w.poll(t, 1)
	assert.True(t, w.mw.Bound())
	assert.ErrorIs(t, w.region.Close(), ibv.ErrBusy)
	require.NoError(t, w.mw.Close())
}

func TestRebindMovesTheWindow(t *testing.T) {
	w := newWindowed(t, fakedev.Config{})
	old := w.region
	w.qp.Post(t, w.bind(1, 0, 64, ibv.SendSignaled))
	w.region = w.NewRegion(t, ibv.AccessMWBind)
	w.qp.Post(t, w.bind(2, 64, 64, ibv.SendSignaled))
	assert.ErrorIs(t, old.Close(), ibv.ErrBusy)
	w.qp.SQ.Complete(fakedev.Completion{})
	w.poll(t, 1)
	assert.True(t, w.mw.Bound())
	assert.Equal(t, w.bound(64, 64, 2), w.mw.Remote(), "of the last bind that was accepted")
	assert.ErrorIs(t, old.Close(), ibv.ErrBusy)
	w.qp.SQ.Complete(fakedev.Completion{})
	w.poll(t, 1)
	require.NoError(t, old.Close())
	assert.ErrorIs(t, w.region.Close(), ibv.ErrBusy)
	require.NoError(t, w.mw.Close())
}

func TestType1Window(t *testing.T) {
	w := newWindowed(t, fakedev.Config{})
	mw := w.NewMW(t, ibv.MWType1)
	bind := func(b ibv.MWBind) {
		require.NoError(t, w.qp.BindMW(1, ibv.SendSignaled, b))
	}
	first := mw.Remote()
	bind(w.region.MWBind(mw, 0, 64, ibv.AccessRemoteRead))
	assert.Equal(t, first.RKey+1, mw.Remote().RKey)
	assert.ErrorIs(t, w.region.Close(), ibv.ErrBusy)
	w.qp.SQ.Complete(fakedev.Completion{})
	w.poll(t, 1)
	assert.True(t, mw.Bound())
	bind(ibv.MWBind{MW: mw})
	assert.Equal(t, first.RKey+2, mw.Remote().RKey)
	assert.Zero(t, mw.Remote().Length)
	w.qp.SQ.Complete(fakedev.Completion{})
	w.poll(t, 1)
	assert.False(t, mw.Bound())
	require.NoError(t, w.region.Close())
	require.NoError(t, mw.Close())
}

// TestWindowClosedWhileItsBindIsPosted: a bind can complete before the call that posts it
// returns, and until then the window is written to. Closing waits for that.
func TestWindowClosedWhileItsBindIsPosted(t *testing.T) {
	for typ, post := range map[ibv.MWType]func(*fakedevtest.QP, ibv.MWBind) error{
		ibv.MWType1: func(qp *fakedevtest.QP, b ibv.MWBind) error { return qp.BindMW(1, ibv.SendSignaled, b) },
		ibv.MWType2: func(qp *fakedevtest.QP, b ibv.MWBind) error {
			_, err := qp.PostSend([]ibv.SendWR{ibv.BindMW(1, ibv.SendSignaled, b)})
			return err
		},
	} {
		t.Run(typ.String(), func(t *testing.T) {
			rdmatest.Watchdog(t, time.Minute)
			w := newWindowed(t, fakedev.Config{Complete: true})
			mw := w.NewMW(t, typ)
			w.HoldSends(true)
			posted, closed := make(chan error, 1), make(chan error, 1)
			go func() { posted <- post(w.qp, w.region.MWBind(mw, 0, 64, ibv.AccessRemoteRead)) }()
			require.Eventually(t, func() bool { return len(fakedevtest.Poll(t, w.qp.Send)) == 1 }, 10*time.Second, time.Millisecond)
			go func() { closed <- mw.Close() }()
			waiting(t, func(stack string) bool {
				return len(closed) > 0 || strings.Contains(stack, "life.(*Node).Close") && stateIs(stack, "sync.Cond.Wait")
			})
			assert.Empty(t, closed, "it waits")
			assert.ErrorIs(t, post(w.NewQP(t), w.region.MWBind(mw, 0, 64, 0)), ibv.ErrClosed)
			w.HoldSends(false)
			require.NoError(t, <-posted)
			require.NoError(t, <-closed)
		})
	}
}

// TestRegionClosedWhileABindCompletes: the region goes before the bind is posted, or
// after the window; never between. The device notices the rest.
func TestRegionClosedWhileABindCompletes(t *testing.T) {
	rdmatest.Watchdog(t, time.Minute)
	w := newWindowed(t, fakedev.Config{Complete: true})
	closedFirst := 0
	const rounds = 300
	for round := range rounds {
		region := w.NewRegion(t, ibv.AccessMWBind)
		mw := w.NewMW(t, ibv.MWType2)
		wr := ibv.BindMW(1, ibv.SendSignaled, region.MWBind(mw, 0, 64, ibv.AccessRemoteRead))
		var wg sync.WaitGroup
		var closed, posted error
		done := make(chan struct{})
		bind := func() {
			defer close(done)
			if _, posted = w.qp.PostSend([]ibv.SendWR{wr}); posted == nil {
				var wcs [2]cq.WC
				n, err := w.qp.Send.Poll(wcs[:])
				assert.NoError(t, err)
				assert.Equal(t, 1, n)
			}
		}
		if round%2 == 0 { // who comes first is the scheduler's choice, but not always the same
			wg.Go(bind)
		}
		wg.Go(func() {
			for bound := false; !bound; {
				select {
				case <-done:
					bound = true // and one try more
				default:
				}
				if closed = region.Close(); closed == nil {
					return
				}
				assert.ErrorIs(t, closed, ibv.ErrBusy)
			}
		})
		if round%2 != 0 {
			wg.Go(bind)
		}
		wg.Wait()
		if closed == nil {
			closedFirst++
			assert.ErrorIs(t, posted, ibv.ErrClosed)
			assert.False(t, mw.Bound())
		} else {
			require.NoError(t, posted)
			assert.True(t, mw.Bound())
		}
		require.NoError(t, mw.Close())
		require.NoError(t, region.Close())
	}
	t.Logf("the region was closed first in %d of %d rounds", closedFirst, rounds)
}

// TestRegionClosedBeforeABindIsCounted: a region may go until Commit has counted it, and then the
// window's Remote is what it was.
func TestRegionClosedBeforeABindIsCounted(t *testing.T) {
	for sends := range 2 {
		w := newWindowed(t, fakedev.Config{})
		wrs := append(fakedevtest.Sends(w.Region, 1, sends), w.bind(2, 0, 64, ibv.SendSignaled))
		wrs = append(wrs, fakedevtest.Sends(w.Region, 3, 2)...)
		n, err := ibv.PostSendAround(w.qp.QP, wrs, func() { require.NoError(t, w.region.Close()) })
		assert.Equal(t, sends, n)
		assert.ErrorIs(t, err, ibv.ErrClosed)
		assert.Len(t, w.qp.SQ.WRIDs(), sends, "the device has what stands before it")
		assert.Equal(t, sends, w.Region.InFlight())
		assert.Equal(t, w.first, w.mw.Remote())
		assert.False(t, w.mw.Bound())

		w.region = w.NewRegion(t, ibv.AccessMWBind)
		w.qp.Post(t, w.bind(5, 0, 64, ibv.SendSignaled))
		assert.Equal(t, w.bound(0, 64, 1), w.mw.Remote())
		for range sends + 1 {
			w.qp.SQ.Complete(fakedev.Completion{})
		}
		w.poll(t, sends+1)
		assert.True(t, w.mw.Bound())
		require.NoError(t, w.mw.Close())
		require.NoError(t, w.region.Close())
	}
}

// A bind that is in flight when its queue pair is closed may still be done.
func TestBindCompletesWhileItsQueuePairIsClosed(t *testing.T) {
	rdmatest.Watchdog(t, time.Minute)
	for _, status := range []cq.Status{cq.StatusSuccess, cq.StatusWRFlushErr} {
		w := newWindowed(t, fakedev.Config{})
		w.qp.Post(t, w.bind(1, 0, 64, ibv.SendSignaled))
		closed := make(chan error)
		go func() { closed <- w.qp.Close() }()
		require.Eventually(t, func() bool { return w.Device.QP(w.qp.Num()).State == int(ibv.QPStateErr) }, 10*time.Second, 10*time.Microsecond)
		w.qp.SQ.Complete(fakedev.Completion{Status: int(status)})
		err := <-closed
		if status == cq.StatusSuccess {
			require.ErrorIs(t, err, ibv.ErrBusy)
			require.ErrorContains(t, err, w.mw.String())
			require.NoError(t, w.mw.Close())
			err = w.qp.Close()
		}
		require.NoError(t, err)
	}
}

// Some devices wait for ever for the window when its queue pair is destroyed.
func TestQueuePairIsClosedAfterItsWindows(t *testing.T) {
	rdmatest.Watchdog(t, time.Minute)
	b := fakedevtest.New(t, fakedev.Config{MemoryWindows: true})
	r, older := b.NewRegion(t, ibv.AccessMWBind), b.NewMW(t, ibv.MWType2)
	for _, polled := range []bool{true, false} {
		qp := b.NewQP(t)
		mw := older
		if !polled {
			mw = b.NewMW(t, ibv.MWType2)
		}
		qp.Post(t, ibv.BindMW(1, ibv.SendSignaled, r.MWBind(mw, 0, 64, ibv.AccessRemoteRead)))
		qp.SQ.Complete(fakedev.Completion{})
		if polled {
			require.Len(t, fakedevtest.Poll(t, qp.Send), 1)
		}
		err := qp.Close()
		require.ErrorIs(t, err, ibv.ErrBusy)
		require.ErrorContains(t, err, mw.String())
		qp.Post(t, ibv.Send(2, 0, r.SGE(0, 8))) // nothing has changed
		if !polled {
			require.NoError(t, mw.Close())
			require.NoError(t, qp.Close())
		}
	}
	require.NoError(t, b.Ctx.CloseAll(), "which knows the order")
}
