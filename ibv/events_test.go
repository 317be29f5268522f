//go:build cgo && linux && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package ibv_test

import (
	"context"
	"errors"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/fakedev"
	"github.com/goverbs/goverbs/internal/fakedev/fakedevtest"
	"github.com/goverbs/goverbs/internal/life"
)

func listen(t *testing.T, ctx *ibv.Context) *ibv.Listener {
	t.Helper()
	l, err := ctx.Listen()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	return l
}

// next returns the next event, for which it waits ten seconds.
func next(t *testing.T, l *ibv.Listener) ibv.Event {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	e, err := l.Next(ctx)
	require.NoError(t, err)
	return e
}

// raise raises an event that is about the device's only CQ or SRQ, or about number.
func raise(b *fakedevtest.Bench, event ibv.EventType, number uint32) { b.Raise(int(event), number) }

func TestEventTypes(t *testing.T) {
	b := fakedevtest.New(t, fakedev.Config{Ports: make([]fakedev.Port, 3)})
	srq := b.NewSRQ(t)
	init := ibv.QPInitAttr{Type: ibv.QPTypeRC, Cap: ibv.QPCap{MaxSendWR: 1, MaxSendSGE: 1}}
	q := b.NewCQ(t)
	qp, err := b.PD.CreateQP(init, ibv.QPQueues{Send: q, Recv: q, SRQ: srq})
	require.NoError(t, err)
	b.Keep(qp)
	l := listen(t, b.Ctx)

	for _, typ := range []ibv.EventType{
		ibv.EventQPFatal, ibv.EventQPReqErr, ibv.EventQPAccessErr, ibv.EventCommEst, ibv.EventSQDrained,
		ibv.EventPathMig, ibv.EventPathMigErr, ibv.EventQPLastWQEReached,
	} {
		raise(b, typ, qp.Num())
		e := next(t, l)
		require.Equal(t, ibv.QPEvent{Type: typ, QP: qp}, e)
		assert.Same(t, qp, e.(ibv.QPEvent).QP)
		assert.Equal(t, typ, e.EventType())
		assert.Equal(t, typ.String()+" of "+qp.String(), e.String())
	}
	for _, typ := range []ibv.EventType{
		ibv.EventPortActive, ibv.EventPortErr, ibv.EventLIDChange, ibv.EventPKeyChange, ibv.EventSMChange,
		ibv.EventClientReregister, ibv.EventGIDChange,
	} {
		raise(b, typ, 3)
		e := next(t, l)
		require.Equal(t, ibv.PortEvent{Type: typ, Port: 3}, e)
		assert.Equal(t, typ.String()+" of port 3", e.String())
	}
	for _, typ := range []ibv.EventType{ibv.EventSRQErr, ibv.EventSRQLimitReached} {
		raise(b, typ, b.SRQs()[0])
		e := next(t, l)
		require.Equal(t, ibv.SRQEvent{Type: typ, SRQ: srq}, e)
		assert.Same(t, srq, e.(ibv.SRQEvent).SRQ)
		assert.Equal(t, typ.String()+" of "+srq.String(), e.String())
	}
	raise(b, ibv.EventCQErr, b.CQs()[0])
	e := next(t, l)
	require.Equal(t, ibv.CQEvent{Type: ibv.EventCQErr, CQ: q}, e)
	assert.Same(t, q, e.(ibv.CQEvent).CQ)
	assert.Equal(t, "CQ_ERR of "+q.String(), e.String())

	raise(b, ibv.EventWQFatal, 0)
	assert.Equal(t, ibv.WQEvent{Type: ibv.EventWQFatal}, next(t, l))
	for _, unknown := range []ibv.EventType{20, 77} {
		raise(b, unknown, 1)
		require.Equal(t, ibv.DeviceEvent{Type: unknown}, next(t, l))
	}
	assert.Equal(t, "EventType(77)", ibv.EventType(77).String())
	assert.Equal(t, "EventType(-1)", ibv.DeviceEvent{Type: -1}.String())
	raise(b, ibv.EventDeviceFatal, 0)
	assert.Equal(t, ibv.DeviceEvent{Type: ibv.EventDeviceFatal}, next(t, l))
}

func TestListenersSeeAllInOrder(t *testing.T) {
	b := fakedevtest.New(t, fakedev.Config{})
	const events = 100
	early := []*ibv.Listener{listen(t, b.Ctx), listen(t, b.Ctx), listen(t, b.Ctx)}
	var all sync.WaitGroup
	for _, l := range early[:2] {
		all.Go(func() {
			for i := range events {
				assert.Equal(t, ibv.PortEvent{Type: ibv.EventGIDChange, Port: uint8(i)}, next(t, l))
			}
		})
	}
	for i := range events {
		raise(b, ibv.EventGIDChange, uint32(i))
	}
	all.Wait()

	late := listen(t, b.Ctx) // all events were taken
	ended, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("the reason")
	cancel(cause)
	for i := range events {
		e, err := early[2].Next(ended)
		require.NoError(t, err, "an event that is there is returned")
		require.Equal(t, ibv.PortEvent{Type: ibv.EventGIDChange, Port: uint8(i)}, e)
	}
	for _, l := range []*ibv.Listener{early[2], late} {
		_, err := l.Next(ended)
		require.ErrorIs(t, err, cause)
	}
	raise(b, ibv.EventLIDChange, 1)
	assert.Equal(t, ibv.EventLIDChange, next(t, late).EventType())
}

// An event goes to one of the calls of Next of a listener.
func TestNextFromSeveralGoroutines(t *testing.T) {
	b := fakedevtest.New(t, fakedev.Config{})
	const events, goroutines = 200, 4
	l := listen(t, b.Ctx)
	got := make(chan uint8, 2*events)
	var all sync.WaitGroup
	for range goroutines {
		all.Go(func() {
			for {
				e, err := l.Next(t.Context())
				if err != nil {
					assert.ErrorIs(t, err, ibv.ErrClosed)
					return
				}
				got <- e.(ibv.PortEvent).Port
			}
		})
	}
	for i := range events {
		raise(b, ibv.EventSMChange, uint32(i))
	}
	seen := map[uint8]bool{}
	for range events {
		seen[<-got] = true
	}
	assert.Len(t, seen, events)
	require.NoError(t, l.Close())
	all.Wait()
	assert.Empty(t, got)
}

func TestNextEnds(t *testing.T) {
	b := fakedevtest.New(t, fakedev.Config{})
	l := listen(t, b.Ctx)
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	_, err := l.Next(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.ErrorContains(t, err, "ibv_get_async_event on "+b.Name())

	// nextFails waits in Next until does has been done.
	nextFails := func(l *ibv.Listener, does func() error) error {
		ended := make(chan error, 1)
		go func() { _, err := l.Next(t.Context()); ended <- err }()
		parked(t)
		require.NoError(t, does())
		select {
		case err := <-ended:
			return err
		case <-time.After(10 * time.Second):
			require.Fail(t, "Next waits on")
			return nil
		}
	}
	closed := func(err error) {
		t.Helper()
		require.ErrorIs(t, err, ibv.ErrClosed)
		require.ErrorIs(t, err, os.ErrClosed)
		require.ErrorContains(t, err, "the Listener or the device was closed")
	}
	other := listen(t, b.Ctx)
	closed(nextFails(l, l.Close))
	require.NoError(t, l.Close(), "closing again does nothing")
	_, err = l.Next(t.Context())
	closed(err)

	unread := listen(t, b.Ctx)
	raise(b, ibv.EventLIDChange, 1)
	next(t, other)
	closed(nextFails(other, b.Ctx.CloseAll))
	assert.Equal(t, ibv.EventLIDChange, next(t, unread).EventType(), "what was there")
	_, err = unread.Next(t.Context())
	closed(err)
	_, err = b.Ctx.Listen()
	require.ErrorIs(t, err, ibv.ErrClosed)
}

// parked waits until a goroutine waits in a listener's Next.
func parked(t *testing.T) {
	t.Helper()
	waiting(t, waitsInNext)
}

// waiting waits until a goroutine's stack is as wanted.
func waiting(t *testing.T, wanted func(stack string) bool) {
	t.Helper()
	buf := make([]byte, 1<<20)
	require.Eventually(t, func() bool {
		return slices.ContainsFunc(splitStacks(buf[:runtime.Stack(buf, true)]), wanted)
	}, 10*time.Second, time.Millisecond)
}

// A device whose close failed goes on to tell its events.
func TestEventsAfterACloseThatFailed(t *testing.T) {
	b := fakedevtest.New(t, fakedev.Config{})
	l := listen(t, b.Ctx)
	require.NoError(t, b.Region.Close())
	require.NoError(t, b.PD.Close())
	b.Fail("ibv_close_device", syscall.EBUSY, 1)
	require.ErrorIs(t, b.Ctx.Close(), ibv.ErrBusy)
	raise(b, ibv.EventPortErr, 1)
	assert.Equal(t, ibv.PortEvent{Type: ibv.EventPortErr, Port: 1}, next(t, l))
}

// Events of an object whose handle was dropped are not told, and a queue of them does not
// keep the handle.
func TestEventOfADroppedHandle(t *testing.T) {
	captureReports(t)
	b := fakedevtest.New(t, fakedev.Config{})
	l := listen(t, b.Ctx)
	q := b.NewCQ(t)
	func() {
		qp, err := b.PD.CreateQP(ibv.QPInitAttr{Type: ibv.QPTypeRC, Cap: ibv.QPCap{MaxSendWR: 1, MaxSendSGE: 1}}, ibv.QPQueues{Send: q, Recv: q})
		require.NoError(t, err)
		raise(b, ibv.EventCommEst, qp.Num())
		raise(b, ibv.EventCommEst, qp.Num())
		assert.Same(t, qp, next(t, l).(ibv.QPEvent).QP)
		raise(b, ibv.EventLIDChange, 1) // which all are taken before
	}()
	collectUntil(t, "the QP", func() bool { return len(b.QPs()) == 0 })
	assert.Equal(t, ibv.EventLIDChange, next(t, l).EventType())
}

// A device whose handle was dropped is closed, and its reader ends, as TestMain checks. A
// Listener keeps its device.
func TestDroppedDeviceEndsItsReader(t *testing.T) {
	captureReports(t)
	d := fakedev.New(t, fakedev.Config{})
	func() {
		l := func() *ibv.Listener {
			ctx, err := ibv.Open(d.Name())
			require.NoError(t, err)
			l, err := ctx.Listen()
			require.NoError(t, err)
			return l
		}()
		for range 3 {
			runtime.GC()
			require.NoError(t, life.Quiesce(t.Context()))
			d.Raise(int(ibv.EventLIDChange), 1)
			assert.Equal(t, ibv.EventLIDChange, next(t, l).EventType())
		}
	}()
	collectUntil(t, "the device", func() bool { return len(d.Open()) == 0 })
}

// No Close waits for an event, whether it is unread or being read. Fake devices report the
// destroy of an object with an event that is not acknowledged.
func TestCloseWithEventsOnTheWay(t *testing.T) {
	b := fakedevtest.New(t, fakedev.Config{})
	for range 50 {
		srq, qp := b.NewSRQ(t), b.NewQP(t)
		for range 3 {
			raise(b, ibv.EventCommEst, qp.Num())
			raise(b, ibv.EventSRQLimitReached, b.SRQs()[0])
			raise(b, ibv.EventCQErr, b.CQs()[0])
		}
		require.NoError(t, qp.Close())
		require.NoError(t, qp.Send.Close())
		require.NoError(t, srq.Close())
	}
	assert.Empty(t, b.Misuse())
}

// Memory of queue pairs is used again and again, and an event is told of the one that it
// was raised for.
func TestEventsOfQueuePairsThatComeAndGo(t *testing.T) {
	b := fakedevtest.New(t, fakedev.Config{})
	l := listen(t, b.Ctx)
	const workers, rounds, each = 4, 150, 3
	init := ibv.QPInitAttr{Type: ibv.QPTypeRC, Cap: ibv.QPCap{MaxSendWR: 1, MaxSendSGE: 1}}
	q := b.NewCQ(t)
	var mu sync.Mutex
	raised, told := map[*ibv.QP]bool{}, map[*ibv.QP]int{}
	var all, listener sync.WaitGroup
	listener.Go(func() {
		for {
			e, ok := next(t, l).(ibv.QPEvent)
			if !ok {
				return
			}
			mu.Lock()
			told[e.QP]++
			mu.Unlock()
		}
	})
	for range workers {
		all.Go(func() {
			for round := range rounds {
				qp, err := b.PD.CreateQP(init, ibv.QPQueues{Send: q, Recv: q})
				if !assert.NoError(t, err) {
					return
				}
				mu.Lock()
				raised[qp] = round%2 == 0
				mu.Unlock()
				for range each * (1 - round%2) {
					raise(b, ibv.EventCommEst, qp.Num())
				}
				if round%10 == 0 { // else it is closed with events unread, or being read
					assert.Eventually(t, func() bool {
						mu.Lock()
						defer mu.Unlock()
						return told[qp] == each
					}, 10*time.Second, 10*time.Microsecond)
				}
				assert.NoError(t, qp.Close())
			}
		})
	}
	all.Wait()
	raise(b, ibv.EventLIDChange, 1)
	listener.Wait()
	for qp, n := range told {
		assert.True(t, raised[qp], "%v never had an event", qp)
		assert.LessOrEqual(t, n, each)
	}
	assert.Empty(t, b.Misuse())
}

func splitStacks(all []byte) []string { return strings.Split(string(all), "\n\n") }

func waitsInNext(stack string) bool {
	return strings.Contains(stack, "core.(*Listener).Next") && stateIs(stack, "select")
}

func stateIs(stack, state string) bool {
	return strings.Contains(stack[:strings.Index(stack, "\n")], "["+state)
}
