//go:build cgo && linux && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package ibv_test

import (
	"context"
	"errors"
	"fmt"
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
	"github.com/goverbs/goverbs/mr"
)

// seen waits until the library has handled what was raised so far.
func seen(t *testing.T, b *fakedevtest.Bench, l *ibv.Listener) {
	t.Helper()
	raise(b, ibv.EventGIDChange, 1)
	for next(t, l).EventType() != ibv.EventGIDChange {
	}
}

func TestCQErr(t *testing.T) {
	// Devices that fail polls after an overrun, and those that do not.
	for _, silent := range []bool{false, true} {
		t.Run(fmt.Sprintf("silent %t", silent), func(t *testing.T) {
			log := captureReports(t)
			b := fakedevtest.New(t, fakedev.Config{SilentOverrun: silent})
			q, other := b.NewCQ(t), b.NewCQ(t)
			uses := func(send, recv *cq.CQ) func(*ibv.QPInitAttr, *ibv.QPQueues) {
				return func(_ *ibv.QPInitAttr, q *ibv.QPQueues) { q.Send, q.Recv = send, recv }
			}
			qp, sends, recvs, foreign := b.NewQP(t, uses(q, q)), b.NewQP(t, uses(q, other)), b.NewQP(t, uses(other, q)), b.NewQP(t, uses(other, other))
			idle, err := b.PD.CreateQP(ibv.QPInitAttr{Type: ibv.QPTypeRC, Cap: qp.Cap()}, ibv.QPQueues{Send: q, Recv: q})
			require.NoError(t, err)
			gone := b.NewQP(t, uses(q, q))
			require.NoError(t, gone.Close())
			l := listen(t, b.Ctx)
			qp.Post(t, fakedevtest.Sends(b.Region, 1, 3)...)
			qp.SQ.Complete(fakedev.Completion{})
			qp.SQ.Complete(fakedev.Completion{})

			for range 3 {
				b.BreakCQ(b.QP(qp.Num()).SendCQ)
			}
			assert.Equal(t, ibv.CQEvent{Type: ibv.EventCQErr, CQ: q}, next(t, l))
			raise(b, ibv.EventGIDChange, 1)
			assert.Equal(t, ibv.EventGIDChange, next(t, l).EventType(), "the queue is told of once")

			for i := range 2 {
				wcs := make([]cq.WC, 8)
				n, err := q.Poll(wcs)
				assert.ErrorIs(t, err, syscall.EIO)
				assert.ErrorContains(t, err, "ibv_poll_cq on "+q.String()+": the completion queue failed")
				if i == 0 {
					require.Equal(t, []uint64{1, 2}, fakedevtest.IDs(wcs[:n]), "what was there comes first")
				} else {
					assert.Zero(t, n)
				}
			}
			n, err := other.Poll(make([]cq.WC, 1))
			require.NoError(t, err)
			assert.Zero(t, n)

			for _, p := range []*fakedevtest.QP{qp, sends, recvs} {
				state, err := p.State()
				require.NoError(t, err)
				assert.Equal(t, ibv.QPStateErr, state)
				p.Post(t, fakedevtest.Sends(b.Region, 4, 1)...) // which the device flushes
			}
			state, err := foreign.State()
			require.NoError(t, err)
			assert.Equal(t, ibv.QPStateRTS, state)

			err = idle.Modify(ibv.QPAttr{State: ibv.QPStateInit, Port: 1}, ibv.AttrState|ibv.AttrPKeyIndex|ibv.AttrPort|ibv.AttrAccess)
			assert.ErrorContains(t, err, "the completion queue failed")
			qp.Reset(t)
			_, err = qp.Init(ibv.GIDRequest{}, 0)
			assert.ErrorIs(t, err, syscall.EIO)
			_, err = b.PD.CreateQP(ibv.QPInitAttr{Type: ibv.QPTypeRC, Cap: qp.Cap()}, ibv.QPQueues{Send: other, Recv: q})
			assert.ErrorContains(t, err, "the completion queue failed")
			require.ErrorIs(t, sends.Drain(t.Context()), syscall.EIO)
			require.Eventually(t, func() bool { return len(log.of("CQ")) > 0 }, 10*time.Second, time.Millisecond)
			assert.Len(t, log.of("CQ"), 1)
			for _, p := range []*ibv.QP{qp.QP, sends.QP, recvs.QP, idle} {
				require.NoError(t, p.Close())
			}
			require.NoError(t, q.Close())
		})
	}
}

// A poll that fails is the same failure, and the event is told all the same when it comes.
func TestPollThatFailsIsACQErr(t *testing.T) {
	captureReports(t)
	b := fakedevtest.New(t, fakedev.Config{})
	qp, l := b.NewQP(t), listen(t, b.Ctx)
	b.Fail("ibv_poll_cq", 0, 1)
	for range 2 {
		_, err := qp.Send.Poll(make([]cq.WC, 1))
		require.ErrorIs(t, err, syscall.EIO)
		assert.Equal(t, int(ibv.QPStateErr), b.QP(qp.Num()).State)
	}
	raise(b, ibv.EventCQErr, b.CQs()[0])
	assert.IsType(t, ibv.CQEvent{}, next(t, l))
}

// Who waits for a completion queue that fails is told, and so is who waits for any.
func TestWaitsEndWithCQErr(t *testing.T) {
	for _, event := range []ibv.EventType{ibv.EventCQErr, ibv.EventDeviceFatal} {
		t.Run(event.String(), func(t *testing.T) {
			captureReports(t)
			b := fakedevtest.New(t, fakedev.Config{SilentOverrun: true})
			ch, err := cq.NewChannel(b.Ctx)
			require.NoError(t, err)
			q, err := cq.Create(b.Ctx, cq.InitAttr{Entries: 4, Channel: ch})
			require.NoError(t, err)
			b.Keep(ch)
			b.Keep(q)
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			fails := func(what string, err error) {
				assert.ErrorIs(t, err, syscall.EIO, what)
				assert.Equal(t, event == ibv.EventDeviceFatal, errors.Is(err, ibv.ErrDeviceFatal), what)
			}
			var all sync.WaitGroup
			for range 3 {
				all.Go(func() { fails("Wait", second(q.Wait(ctx, make([]cq.WC, 1)))) })
			}
			require.Eventually(t, func() bool { return q.Core().Channel.Events.Waiting() == 3 }, 10*time.Second, time.Millisecond)
			raise(b, event, b.CQs()[0])
			all.Wait()
			fails("Wait", second(q.Wait(ctx, make([]cq.WC, 1))))
			fails("ReqNotify", q.ReqNotify(false))
			fails("Resize", q.Resize(8))
		})
	}
	t.Run("GetEvent", func(t *testing.T) {
		captureReports(t)
		b := fakedevtest.New(t, fakedev.Config{SilentOverrun: true})
		ch, err := cq.NewChannel(b.Ctx)
		require.NoError(t, err)
		q, err := cq.Create(b.Ctx, cq.InitAttr{Entries: 4, Channel: ch})
		require.NoError(t, err)
		require.NoError(t, q.ReqNotify(false))
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		raise(b, ibv.EventCQErr, b.CQs()[0])
		got, err := ch.GetEvent(ctx)
		require.NoError(t, err)
		assert.Same(t, q, got)
		assert.ErrorIs(t, second(q.Poll(make([]cq.WC, 1))), syscall.EIO)
		require.NoError(t, q.Close())
		require.NoError(t, ch.Close())
	})
}

// The reader of events does not wait for a Drain, which may wait for it.
func TestCQErrDuringADrain(t *testing.T) {
	captureReports(t)
	b := fakedevtest.New(t, fakedev.Config{SilentOverrun: true})
	qp, l := b.NewQP(t, func(_ *ibv.QPInitAttr, q *ibv.QPQueues) { q.SRQ = b.NewSRQ(t) }), listen(t, b.Ctx)
	qp.Post(t, fakedevtest.Sends(b.Region, 1, 1)...)
	drained := make(chan error, 1)
	go func() { drained <- qp.Drain(context.Background()) }()
	require.Eventually(t, func() bool { return b.QP(qp.Num()).State == int(ibv.QPStateErr) }, 10*time.Second, time.Millisecond)
	b.BreakCQ(b.QP(qp.Num()).SendCQ)
	assert.IsType(t, ibv.CQEvent{}, next(t, l))
	seen(t, b, l)
	select {
	case err := <-drained:
		require.ErrorIs(t, err, syscall.EIO)
		require.ErrorContains(t, err, qp.Send.String())
	case <-time.After(10 * time.Second):
		require.Fail(t, "Drain waits on")
	}
}

func second[T any](_ T, err error) error { return err }

// A Drain whose own poll fails has the queue pair moved to ERR by itself: nobody waits for
// another, or for itself.
func TestPollThatFailsInADrain(t *testing.T) {
	captureReports(t)
	b := fakedevtest.New(t, fakedev.Config{})
	qp := b.NewQP(t)
	second := b.NewQP(t, func(_ *ibv.QPInitAttr, q *ibv.QPQueues) { q.Send = qp.Send })
	qp.Post(t, fakedevtest.Sends(b.Region, 1, 1)...)
	b.Fail("ibv_poll_cq", 0, 1)
	drained := make(chan error, 1)
	go func() { drained <- qp.Drain(context.Background()) }()
	select {
	case err := <-drained:
		require.ErrorIs(t, err, syscall.EIO)
	case <-time.After(10 * time.Second):
		require.Fail(t, "Drain waits on")
	}
	assert.Equal(t, int(ibv.QPStateErr), b.QP(second.Num()).State)
}

// everythingFails says that what is done with objects of a dead device fails and tells why.
func (a *all) everythingFails(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	choice := ibv.AHAttr{IsGlobal: true, Port: 1, GRH: ibv.GRH{HopLimit: 64}}
	for what, err := range map[string]error{
		"AllocPD":    second(a.Ctx.AllocPD()),
		"QueryPort":  second(a.Ctx.QueryPort(1)),
		"GIDTable":   second(a.Ctx.GIDTable()),
		"Listen":     second(a.Ctx.Listen()),
		"cq.Create":  second(cq.Create(a.Ctx, cq.InitAttr{Entries: 1})),
		"CreateSRQ":  second(a.PD.CreateSRQ(ibv.SRQInitAttr{MaxWR: 1, MaxSGE: 1})),
		"CreateQP":   second(a.PD.CreateQP(ibv.QPInitAttr{Type: ibv.QPTypeRC, Cap: a.ud.Cap()}, ibv.QPQueues{Send: a.ud.Send, Recv: a.ud.Send})),
		"CreateAH":   second(a.PD.CreateAH(choice)),
		"AllocMW":    second(a.PD.AllocMW(ibv.MWType2)),
		"register":   second(mr.AllocRegion(a.PD, 64, 0)),
		"rereg":      a.Region.Rereg(mr.ReregAttr{Access: ibv.AccessLocalWrite}, mr.ReregAccess),
		"Modify":     a.ud.Modify(ibv.QPAttr{State: ibv.QPStateErr}, ibv.AttrState),
		"Query":      second(a.ud.State()),
		"Drain":      a.ud.Drain(ctx),
		"PostSend":   second(a.ud.PostSend(fakedevtest.Sends(a.Region, 0, 1))),
		"PostRecv":   second(a.ud.PostRecv(fakedevtest.Recvs(a.Region, 0, 1))),
		"SRQ post":   second(a.srq.PostRecv(fakedevtest.Recvs(a.Region, 0, 1))),
		"SRQ query":  second(a.srq.Query()),
		"SRQ modify": a.srq.Modify(ibv.SRQAttr{Limit: 1}, ibv.SRQLimit),
		"Poll":       second(a.ud.Send.Poll(make([]cq.WC, 1))),
	} {
		assert.ErrorIs(t, err, ibv.ErrDeviceFatal, what)
		assert.ErrorIs(t, err, syscall.EIO, what)
		assert.ErrorContains(t, err, a.Name()+" has failed for good", what)
	}
}

// After DEVICE_FATAL everything but closing fails at once, and a destroy call that fails
// because the device is gone counts, without the device being asked.
func TestDeviceFatal(t *testing.T) {
	log := captureReports(t)
	a := newAll(t)
	l := listen(t, a.Ctx)
	_, err := a.ud.PostRecv(fakedevtest.Recvs(a.Region, 7, 1))
	require.NoError(t, err)
	a.ud.RQ.Complete(fakedev.Completion{})
	raise(a.Bench, ibv.EventCQErr, a.QP(a.qp.Num()).SendCQ)
	assert.IsType(t, ibv.CQEvent{}, next(t, l))
	for range 2 {
		raise(a.Bench, ibv.EventDeviceFatal, 0)
		assert.Equal(t, ibv.DeviceEvent{Type: ibv.EventDeviceFatal}, next(t, l))
	}

	var wcs [4]cq.WC
	n, err := a.ud.Send.Poll(wcs[:])
	require.ErrorIs(t, err, ibv.ErrDeviceFatal)
	require.Equal(t, 1, n, "what was there comes first")
	assert.Equal(t, uint64(7), wcs[0].WRID)
	assert.ErrorIs(t, second(a.qp.Send.Poll(wcs[:])), ibv.ErrDeviceFatal, "the device's failure is told instead of the queue's")
	a.everythingFails(t)
	raise(a.Bench, ibv.EventPortErr, 1)
	assert.Equal(t, ibv.PortEvent{Type: ibv.EventPortErr, Port: 1}, next(t, l), "events go on as long as the device tells them")
	require.Eventually(t, func() bool { return len(log.with("verbs device failed")) > 0 }, 10*time.Second, time.Millisecond)
	assert.Len(t, log.with("verbs device failed"), 1)

	require.ErrorIs(t, a.region.Close(), ibv.ErrBusy, "the order is the same")
	a.Fail("ibv_destroy_qp", syscall.EBUSY, 1)
	require.ErrorIs(t, a.qp.Close(), ibv.ErrBusy)
	assert.ErrorIs(t, second(a.qp.PostSend(fakedevtest.Sends(a.Region, 0, 1))), ibv.ErrDeviceFatal, "also after a close that failed")
	a.Fail("ibv_destroy_qp", syscall.EIO, 1)
	require.NoError(t, a.qp.Close())
	assert.ErrorIs(t, second(a.qp.PostSend(fakedevtest.Sends(a.Region, 0, 1))), ibv.ErrClosed)
	a.Unplug()
	for _, closer := range a.closers() {
		require.NoError(t, closer())
	}
	assert.Empty(t, a.Open())
}

// A window whose invalidation is lost with the device keeps nothing open.
func TestDeviceFatalDuringAnInvalidation(t *testing.T) {
	captureReports(t)
	b := fakedevtest.New(t, fakedev.Config{MemoryWindows: true})
	l := listen(t, b.Ctx)
	qp, mw, region := b.NewQP(t), b.NewMW(t, ibv.MWType2), b.NewRegion(t, ibv.AccessMWBind)
	qp.Post(t, ibv.BindMW(1, ibv.SendSignaled, region.MWBind(mw, 0, 16, ibv.AccessRemoteRead)))
	qp.SQ.Complete(fakedev.Completion{})
	fakedevtest.Poll(t, qp.Send)
	require.True(t, mw.Bound())
	qp.Post(t, ibv.LocalInv(2, ibv.SendSignaled, mw.Remote().RKey))
	require.ErrorIs(t, mw.Close(), ibv.ErrBusy)
	require.ErrorIs(t, qp.Close(), ibv.ErrBusy)
	raise(b, ibv.EventDeviceFatal, 0)
	seen(t, b, l)
	require.NoError(t, qp.Close())
	require.NoError(t, mw.Close())
	require.NoError(t, region.Close())
}

// The device was removed: its events end with EIO.
func TestRemovedDevice(t *testing.T) {
	captureReports(t)
	a := newAll(t)
	l, other := listen(t, a.Ctx), listen(t, a.Ctx)
	a.Unplug()
	a.Fail("ibv_get_async_event", syscall.EIO, -1)
	raise(a.Bench, ibv.EventPortErr, 1) // has the descriptor be readable, as a removal does
	for _, l := range []*ibv.Listener{l, other} {
		assert.Equal(t, ibv.DeviceEvent{Type: ibv.EventDeviceFatal}, next(t, l))
		for range 2 {
			_, err := l.Next(t.Context())
			require.ErrorIs(t, err, ibv.ErrDeviceFatal)
			require.ErrorContains(t, err, "it was removed")
		}
	}
	a.everythingFails(t)
	require.NoError(t, a.Ctx.CloseAll())
	assert.Empty(t, a.Open())
	_, err := l.Next(t.Context())
	require.ErrorIs(t, err, ibv.ErrDeviceFatal)
}

// Events that cannot be read for another reason end, and nothing else.
func TestEventsThatCannotBeRead(t *testing.T) {
	log := captureReports(t)
	b := fakedevtest.New(t, fakedev.Config{})
	l := listen(t, b.Ctx)
	b.Fail("ibv_get_async_event", syscall.ENOBUFS, 1)
	raise(b, ibv.EventPortErr, 1)
	_, err := l.Next(t.Context())
	require.ErrorIs(t, err, syscall.ENOBUFS)
	qp := b.NewQP(t)
	qp.Post(t, fakedevtest.Sends(b.Region, 1, 1)...)
	require.Eventually(t, func() bool { return len(log.with("reading verbs events failed")) == 1 }, 10*time.Second, time.Millisecond)
}

// What was in flight on a dead device, and dropped, does not wait for its completions.
func TestDroppedOnADeadDevice(t *testing.T) {
	captureReports(t)
	b := fakedevtest.New(t, fakedev.Config{})
	l := listen(t, b.Ctx)
	q := b.NewCQ(t)
	func() {
		qp, err := b.PD.CreateQP(ibv.QPInitAttr{Type: ibv.QPTypeRC, Cap: ibv.QPCap{MaxSendWR: 4, MaxSendSGE: 1}}, ibv.QPQueues{Send: q, Recv: q})
		require.NoError(t, err)
		local, err := qp.Init(ibv.GIDRequest{}, 0)
		require.NoError(t, err)
		require.NoError(t, qp.Connect(local, local.Endpoint))
		_, err = qp.PostSend(fakedevtest.Sends(b.Region, 1, 1))
		require.NoError(t, err)
	}()
	raise(b, ibv.EventDeviceFatal, 0)
	seen(t, b, l)
	collectUntil(t, "the QP", func() bool { return len(b.QPs()) == 0 && b.Region.InFlight() == 0 })
}

// Objects that are made while the device fails are found by the failure, or refused.
func TestDeviceFatalWhileObjectsAreMade(t *testing.T) {
	captureReports(t)
	for range 20 {
		b := fakedevtest.New(t, fakedev.Config{})
		q := b.NewCQ(t)
		var all sync.WaitGroup
		for range 3 {
			all.Go(func() {
				for {
					made, err := cq.Create(b.Ctx, cq.InitAttr{Entries: 4})
					if err != nil {
						assert.ErrorIs(t, err, ibv.ErrDeviceFatal)
						break
					}
					srq, err := b.PD.CreateSRQ(ibv.SRQInitAttr{MaxWR: 4, MaxSGE: 1})
					assert.True(t, err == nil || errors.Is(err, ibv.ErrDeviceFatal), "%v", err)
					if second(b.Ctx.QueryPort(1)) != nil { // it is failing, or has failed
						assert.Eventually(t, func() bool {
							return errors.Is(second(made.Poll(make([]cq.WC, 1))), ibv.ErrDeviceFatal) &&
								(srq == nil || errors.Is(second(srq.PostRecv(nil)), ibv.ErrDeviceFatal))
						}, 10*time.Second, 10*time.Microsecond)
					}
					if srq != nil {
						assert.NoError(t, srq.Close())
					}
					assert.NoError(t, made.Close())
				}
			})
		}
		raise(b, ibv.EventDeviceFatal, 0)
		all.Wait()
		require.Eventually(t, func() bool { return errors.Is(q.Core().Failure(), ibv.ErrDeviceFatal) }, 10*time.Second, 10*time.Microsecond)
		require.NoError(t, b.Ctx.CloseAll())
	}
}
