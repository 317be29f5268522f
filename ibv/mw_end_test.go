//go:build cgo && linux && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package ibv_test

import (
	"context"
	"runtime"
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

// TestEndTellsOfBinds takes a queue pair to RESET, or closes it, when the device has carried
// out a bind or an invalidation of which nobody has polled the completion, or which makes none. A peer can use what
// was bound.
func TestEndTellsOfBinds(t *testing.T) {
	reset := func(t *testing.T, w *windowed) { w.qp.Reset(t) }
	closed := func(t *testing.T, w *windowed) { require.NoError(t, w.qp.Close()) }
	for name, c := range map[string]struct {
		typ     ibv.MWType
		flags   ibv.SendFlags
		invalid bool
		end     func(*testing.T, *windowed)
	}{
		"type 2, reset":                         {ibv.MWType2, ibv.SendSignaled, false, reset},
		"type 2, unsignaled, reset":             {ibv.MWType2, 0, false, reset},
		"type 2, invalidated, reset":            {ibv.MWType2, ibv.SendSignaled, true, reset},
		"type 2, unsignaled invalidated, reset": {ibv.MWType2, 0, true, reset},
		"type 2, invalidated, closed":           {ibv.MWType2, ibv.SendSignaled, true, closed},
		"type 1, reset":                         {ibv.MWType1, ibv.SendSignaled, false, reset},
		"type 1, unsignaled, reset":             {ibv.MWType1, 0, false, reset},
		"type 1, closed":                        {ibv.MWType1, ibv.SendSignaled, false, closed},
		"type 1, unsignaled, closed":            {ibv.MWType1, 0, false, closed},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWindowed(t, fakedev.Config{Complete: true})
			mw := w.NewMW(t, c.typ)
			bind := w.region.MWBind(mw, 0, 64, ibv.AccessRemoteRead)
			if c.typ == ibv.MWType1 {
				require.NoError(t, w.qp.BindMW(1, c.flags, bind))
			} else {
				w.qp.Post(t, ibv.BindMW(1, c.flags, bind))
			}
			want := mw.Remote()
			if c.invalid {
				w.qp.Post(t, ibv.LocalInv(2, c.flags, want.RKey))
			}
			c.end(t, w)
			assert.Equal(t, want, mw.Remote())
			assert.Equal(t, !c.invalid, mw.Bound())
			assert.Empty(t, fakedevtest.Poll(t, w.qp.Send), "completions are not told")
			if !c.invalid {
				err := w.region.Close()
				assert.ErrorIs(t, err, ibv.ErrBusy)
				assert.ErrorContains(t, err, mw.String())
				require.NoError(t, mw.Close())
			}
			require.NoError(t, w.region.Close())
		})
	}
}

// A reset that fails, of which the sends in flight were not flushed, leaves the queue pair as it
// was.
func TestResetThatFailsAfterABind(t *testing.T) {
	w := newWindowed(t, fakedev.Config{})
	w.qp.Post(t, w.bind(1, 0, 64, ibv.SendSignaled))
	for _, calls := range []int{2, 1} { // to ERR and to RESET, while the bind is in flight; to RESET
		w.Fail("ibv_modify_qp", syscall.ENOMEM, calls)
		require.ErrorIs(t, w.qp.Modify(ibv.QPAttr{State: ibv.QPStateReset}, ibv.AttrState), syscall.ENOMEM)
		w.qp.Post(t, ibv.Send(2, ibv.SendSignaled, w.Region.SGE(0, 8)))
		for len(w.qp.SQ.WRIDs()) > 0 {
			w.qp.SQ.Complete(fakedev.Completion{})
		}
		assert.EqualValues(t, 2, w.poll(t, calls)[calls-1].WRID)
	}
	require.NoError(t, w.mw.Close())
}

// TestPostAfterACloseThatFailed has Close post a marker behind an unsignaled send, and fail. Its
// completion must not be taken for that of what is posted later: that is with the device still.
func TestPostAfterACloseThatFailed(t *testing.T) {
	w := newWindowed(t, fakedev.Config{})
	w.qp.Post(t, w.bind(1, 0, 64, ibv.SendSignaled), ibv.Send(2, 0, w.Region.SGE(0, 8)))
	closed := make(chan error)
	go func() { closed <- w.qp.Close() }()
	require.Eventually(t, func() bool { return len(w.qp.SQ.WRIDs()) == 3 }, 10*time.Second, 10*time.Microsecond)
	w.qp.SQ.Complete(fakedev.Completion{}) // of the bind, and the device takes its time for the rest
	require.ErrorIs(t, <-closed, ibv.ErrBusy)

	send := []ibv.SendWR{ibv.Send(3, ibv.SendSignaled, w.Region.SGE(8, 8))}
	_, err := w.qp.PostSend(send)
	require.ErrorIs(t, err, ibv.ErrClosed)
	require.ErrorContains(t, err, "take the QP to RESET")
	w.qp.SQ.Complete(fakedev.Completion{Index: 1, Status: int(cq.StatusWRFlushErr)})
	w.poll(t, 1) // the bind; of the unsignaled send the marker tells

	w.qp.Reset(t)
	w.qp.Ready(t)
	_, err = w.qp.PostSend(send)
	require.NoError(t, err)
	w.qp.SQ.Complete(fakedev.Completion{})
	assert.EqualValues(t, 3, w.poll(t, 1)[0].WRID)
	require.NoError(t, w.mw.Close())
	require.NoError(t, w.qp.Close())
}

// TestInvalidatedByAnotherQueuePair has that one reset before anybody has polled.
func TestInvalidatedByAnotherQueuePair(t *testing.T) {
	w := newWindowed(t, fakedev.Config{Complete: true})
	other := w.NewQP(t)
	w.qp.Post(t, w.bind(1, 0, 64, ibv.SendSignaled))
	w.poll(t, 1)
	other.Post(t, ibv.LocalInv(2, ibv.SendSignaled, w.mw.Remote().RKey))
	other.Reset(t)
	assert.False(t, w.mw.Bound())
	w.free(t)
}

// A peer's invalidation, told by a receive that nobody will be told of, counts when its queue
// pair is reset.
func TestInvalidatedByAPeerBeforeAReset(t *testing.T) {
	w := newWindowed(t, fakedev.Config{KeepCompletions: true})
	w.qp.Post(t, w.bind(1, 0, 64, ibv.SendSignaled))
	w.qp.SQ.Complete(fakedev.Completion{})
	w.poll(t, 1)
	_, err := w.qp.PostRecv(fakedevtest.Recvs(w.Region, 2, 1))
	require.NoError(t, err)
	w.qp.RQ.Complete(fakedev.Completion{InvRKey: new(w.mw.Remote().RKey)})
	w.qp.Reset(t)
	assert.False(t, w.mw.Bound())
	w.free(t)
}

// TestFirstBindBesideReset has one be accepted just before the reset, which must not take it for
// one that was not carried out.
func TestFirstBindBesideReset(t *testing.T) {
	b := fakedevtest.New(t, fakedev.Config{Complete: true, MemoryWindows: true})
	region := b.NewRegion(t, ibv.AccessMWBind)
	for i := range 3000 {
		qp, mw := b.NewQP(t), b.NewMW(t, ibv.MWType1)
		first := mw.Remote()
		posted := make(chan error)
		go func() {
			for range i % 20 {
				runtime.Gosched()
			}
			posted <- qp.BindMW(1, ibv.SendSignaled, region.MWBind(mw, 0, 64, ibv.AccessRemoteRead))
		}()
		for range i / 20 % 20 {
			runtime.Gosched()
		}
		qp.Reset(t)
		accepted := <-posted == nil
		require.Equal(t, accepted, mw.Remote() != first)
		require.Equal(t, accepted, mw.Bound())
		require.NoError(t, mw.Close())
		require.NoError(t, qp.Close())
		require.NoError(t, qp.Send.Close())
	}
}

// A marker that the device has taken, though its post failed, is posted no second time.
func TestMarkerThatMayBeQueued(t *testing.T) {
	b := fakedevtest.New(t, fakedev.Config{})
	qp := b.NewQP(t)
	qp.Post(t, ibv.Send(1, 0, b.Region.SGE(0, 8)))
	qp.SQ.FailPost(fakedev.Refusal{RC: int(syscall.EIO), Errno: fakedev.KeepErrno, Bad: fakedev.BadUntouched, Taken: fakedev.TakenAll})
	drained := make(chan error)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	go func() { drained <- qp.Drain(ctx) }()
	require.Eventually(t, func() bool { return len(qp.SQ.WRIDs()) == 2 }, 10*time.Second, 10*time.Microsecond)
	qp.SQ.Complete(fakedev.Completion{Index: 1, Status: int(cq.StatusWRFlushErr)})
	require.NoError(t, <-drained)
	assert.Empty(t, qp.SQ.WRIDs())
	assert.Empty(t, fakedevtest.Poll(t, qp.Send))
}
