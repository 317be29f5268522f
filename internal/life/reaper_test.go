package life

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// logged collects the reports as "what: object: reason".
type logged struct {
	slog.Handler
	mu    sync.Mutex
	lines []string
	made  []string
}

func (l *logged) Enabled(context.Context, slog.Level) bool { return true }

func (l *logged) Handle(_ context.Context, r slog.Record) error {
	line := strings.TrimPrefix(r.Message, "verbs object dropped without Close: ")
	l.mu.Lock()
	defer l.mu.Unlock()
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "made" {
			l.made = append(l.made, a.Value.String())
		} else {
			line += ": " + a.Value.String()
		}
		return true
	})
	l.lines = append(l.lines, line)
	return nil
}

func (l *logged) take() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	lines := l.lines
	l.lines = nil
	return lines
}

func logTo(t *testing.T) *logged {
	t.Helper()
	l := &logged{}
	before := logger.Swap(slog.New(l))
	t.Cleanup(func() { logger.Store(before) })
	return l
}

func quiesce(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	require.NoError(t, Quiesce(ctx))
}

func wait(t *testing.T, until func() bool, what string) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !until(); runtime.Gosched() {
		require.True(t, time.Now().Before(deadline), what)
	}
}

// object is a public handle and its inner state in one test's graph.
type object struct {
	Node
	children  []*object
	destroyed atomic.Int32
}

type handle struct{ o *object }

// randomGraph makes objects below earlier ones, and handles for them. Some are in
// use when they are dropped, are attached to an older one, or do not agree at once.
func randomGraph(t *testing.T, rng *rand.Rand, wrong *atomic.Int32) (objects []*object, handles []*handle, release []func()) {
	for i := range 2 + rng.IntN(20) {
		o := new(object)
		destroy := func() error {
			for _, c := range o.children {
				if c.destroyed.Load() == 0 {
					wrong.Add(1)
				}
			}
			if o.destroyed.Add(1) > 1 {
				wrong.Add(1)
			}
			return nil
		}
		var parents []*Node
		below := func(p *object) *Node {
			p.children = append(p.children, o)
			return &p.Node
		}
		if i > 0 {
			for range 1 + rng.IntN(3) {
				parents = append(parents, below(objects[rng.IntN(i)]))
			}
		}
		require.NoError(t, o.Init("object", destroy, parents...))
		agrees := make(chan struct{})
		switch rng.IntN(4) {
		case 0:
			asked := 0
			o.Reap(func() Verdict {
				if asked++; asked < 3 {
					return Verdict{When: Later}
				}
				return Verdict{}
			})
		case 1:
			o.Reap(func() Verdict {
				select {
				case <-agrees:
					return Verdict{}
				default:
					return Verdict{When: WhenTold}
				}
			})
			release = append(release, func() { close(agrees); o.Reconsider() })
		}
		o.Ready(fmt.Sprint(i))
		if i > 0 && rng.IntN(3) == 0 {
			require.NoError(t, o.Attach(below(objects[rng.IntN(i)])))
		}
		if rng.IntN(4) == 0 {
			require.NoError(t, o.Use())
			release = append(release, o.Done)
		}
		objects = append(objects, o)
		h := &handle{o}
		Guard(h, &o.Node)
		handles = append(handles, h)
	}
	return objects, handles, release
}

func TestDroppedGraphsAreClosedChildrenFirst(t *testing.T) {
	SetLogger(nil)
	defer logger.Store(nil)
	rng := rand.New(rand.NewPCG(1, 2))
	var wrong atomic.Int32
	var all []*object
	var release []func()
	func() {
		var alive []*handle
		for range 300 {
			objects, handles, rel := randomGraph(t, rng, &wrong)
			all, release, alive = append(all, objects...), append(release, rel...), append(alive, handles...)
		}
		runtime.GC()
		for _, o := range all {
			assert.False(t, o.dropped.Load(), "the handle of %v is alive", o)
		}
		runtime.KeepAlive(alive)
	}()
	runtime.GC()
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for j := i; j < len(release); j += 4 {
				release[j]()
			}
		})
	}
	wg.Wait()
	open := func() (n int) {
		for _, o := range all {
			if o.destroyed.Load() == 0 {
				n++
			}
		}
		return n
	}
	wait(t, func() bool { runtime.GC(); return open() == 0 }, "nothing is left open")
	quiesce(t)
	assert.Zero(t, wrong.Load(), "a parent went before its child, or an object twice")
}

// CloseAll and the reaper reach the same objects: each is destroyed once, after its
// children, and CloseAll leaves nothing behind.
func TestCloseAllRacesWithTheReaper(t *testing.T) {
	SetLogger(nil)
	defer logger.Store(nil)
	rng := rand.New(rand.NewPCG(3, 4))
	var wrong atomic.Int32
	for range 300 {
		objects, handles, release := randomGraph(t, rng, &wrong)
		var wg sync.WaitGroup
		wg.Go(func() {
			for _, o := range objects {
				o.drop()
			}
		})
		wg.Go(func() {
			for _, f := range release {
				f()
			}
		})
		wg.Go(func() { assert.NoError(t, objects[0].CloseAll()) })
		wg.Wait()
		for _, o := range objects {
			assert.EqualValues(t, 1, o.destroyed.Load())
		}
		runtime.KeepAlive(handles)
	}
	quiesce(t)
	assert.Zero(t, wrong.Load(), "a parent went before its child, or an object twice")
}

func TestClosedHandleIsNotDropped(t *testing.T) {
	out := logTo(t)
	n := node(t, "PD", "1")
	h := &handle{}
	Guard(h, n)
	var second atomic.Bool // the cleanup after Guard's, on another object
	runtime.AddCleanup(&handle{}, func(b *atomic.Bool) { b.Store(true) }, &second)
	require.NoError(t, n.Close())
	runtime.KeepAlive(h)
	wait(t, func() bool { runtime.GC(); return second.Load() }, "the handle is collected")
	quiesce(t)
	assert.Empty(t, out.take())
	assert.False(t, n.dropped.Load(), "a closed node is not the reaper's")

	// Dropped while somebody closes it: that was closed by hand too.
	begun, end := make(chan struct{}), make(chan struct{})
	n = nodeWith(t, func() error { close(begun); <-end; return nil }, "PD", "2")
	done := make(chan error)
	go func() { done <- n.Close() }()
	<-begun
	n.drop()
	close(end)
	require.NoError(t, <-done)
	quiesce(t)
	assert.Empty(t, out.take())

	// But not if the closing fails.
	fail := error(syscall.EBUSY)
	n = nodeWith(t, func() error { n.drop(); err := fail; fail = nil; return err }, "PD", "3")
	require.ErrorIs(t, n.Close(), syscall.EBUSY)
	quiesce(t)
	assert.Equal(t, []string{"closed: PD 3"}, out.take())
}

// The reaper asks, is told to wait, and in between the count reaches zero.
func TestReconsiderIsNeverLost(t *testing.T) {
	SetLogger(nil)
	defer logger.Store(nil)
	for i := range 5000 {
		var inFlight atomic.Int32
		inFlight.Store(1)
		n := new(Node)
		require.NoError(t, n.Init("MR", destroyed))
		n.Reap(func() Verdict {
			if inFlight.Load() == 0 {
				return Verdict{}
			}
			runtime.Gosched()
			return Verdict{When: WhenTold, Reason: "1 in flight"}
		})
		n.Ready("1")
		var wg sync.WaitGroup
		wg.Go(n.drop)
		wg.Go(func() {
			if i%2 == 0 {
				runtime.Gosched()
			}
			inFlight.Store(0)
			n.Reconsider()
		})
		wg.Wait()
		quiesce(t)
		require.ErrorIs(t, n.Use(), ErrClosed, "round %d: still open", i)
	}

	// And while the reaper surely is asking.
	asking, answer := make(chan struct{}), make(chan Verdict)
	n := new(Node)
	require.NoError(t, n.Init("MR", destroyed))
	n.Reap(func() Verdict { asking <- struct{}{}; return <-answer })
	n.Ready("2")
	n.Reconsider()
	quiesce(t)
	n.drop()
	<-asking
	n.Reconsider()
	answer <- Verdict{When: WhenTold}
	<-asking
	answer <- Verdict{}
	quiesce(t)
	require.ErrorIs(t, n.Use(), ErrClosed)
}

// What the object agreed to is no longer so when the reaper acts on it.
func TestReaperLooksAgainAfterAsking(t *testing.T) {
	out := logTo(t)
	n, child := new(Node), new(Node)
	require.NoError(t, n.Init("PD", destroyed))
	asked := 0
	n.Reap(func() Verdict {
		switch asked++; asked {
		case 1:
			assert.NoError(t, n.Use())
		case 2:
			assert.NoError(t, child.Init("QP", destroyed, n))
			child.Ready("0x11")
		}
		return Verdict{}
	})
	n.Ready("1")
	require.NoError(t, n.Use())
	n.drop()
	quiesce(t)
	assert.Equal(t, 0, asked, "not while it is in use")
	for i, end := range []func(){n.Done, n.Done, func() { assert.NoError(t, child.Close()) }} {
		require.NoError(t, n.Use(), "it is open")
		n.Done()
		end()
		quiesce(t)
		assert.Equal(t, i+1, asked)
	}
	require.ErrorIs(t, n.Use(), ErrClosed)
	assert.Equal(t, []string{"closed: PD 1"}, out.take())
}

// milliseconds returns the times since start.
func milliseconds(start time.Time, times []time.Time) (ms []int) {
	for _, at := range times {
		ms = append(ms, int(at.Sub(start).Milliseconds()))
	}
	return ms
}

func TestLaterBacksOff(t *testing.T) {
	out := logTo(t)
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var asked []time.Time
		n := new(Node)
		require.NoError(t, n.Init("QP", destroyed))
		n.Reap(func() Verdict {
			asked = append(asked, time.Now())
			if len(asked) < 12 {
				return Verdict{When: Later, Reason: "the queue is not empty"}
			}
			return Verdict{}
		})
		n.Ready("0x11")
		n.drop()
		synctest.Wait()
		assert.Equal(t, []string{"QP 0x11 (dropped without Close), waiting: the queue is not empty"}, Report())
		short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		require.ErrorIs(t, Quiesce(short), context.DeadlineExceeded)
		n.Reconsider() // asks at once, and once
		require.NoError(t, Quiesce(t.Context()))
		assert.Equal(t, []int{0, 1, 3, 7, 15, 31, 50, 114, 214, 314, 414, 514}, milliseconds(start, asked))
		require.ErrorIs(t, n.Use(), ErrClosed)
	})
	assert.Equal(t, []string{"closed: QP 0x11"}, out.take())
}

func TestFailingDestroyIsTriedAgainAndKept(t *testing.T) {
	out := logTo(t)
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var tries []time.Time
		works := 3
		destroy := func() error {
			tries = append(tries, time.Now())
			if len(tries) >= works {
				return nil
			}
			return syscall.EBUSY
		}
		nodeWith(t, destroy, "CQ", "1").drop()
		require.NoError(t, Quiesce(t.Context()))
		assert.Equal(t, []int{0, 1, 3}, milliseconds(start, tries))
		again := "closing failed, will be tried again: CQ 1: device or resource busy"
		assert.Equal(t, []string{again, "closed: CQ 1"}, out.take())

		start, tries, works = time.Now(), nil, maxTries+1
		parent := node(t, "context", "rxe0")
		n := nodeWith(t, destroy, "CQ", "1", parent)
		parent.drop()
		n.drop()
		require.NoError(t, Quiesce(t.Context()))
		assert.Equal(t, []int{0, 1, 3, 7, 15, 31, 63, 127, 227, 327}, milliseconds(start, tries))
		assert.Equal(t, []string{again, "kept open: CQ 1: closing it failed 10 times: device or resource busy",
			"kept open: context rxe0: still used by CQ 1"}, out.take())
		n.Reconsider()
		require.NoError(t, Quiesce(t.Context()))
		assert.Len(t, tries, maxTries, "kept is for good")

		require.NoError(t, n.CloseAll())
		require.NoError(t, Quiesce(t.Context()))
		require.ErrorIs(t, parent.Use(), ErrClosed, "its last child is gone")
		assert.Empty(t, out.take(), "each is reported once")
	})
}

func TestNeverIsReportedOnceAndKept(t *testing.T) {
	out := logTo(t)
	Trace(true)
	ctx := node(t, "context", "rxe0")
	pd := node(t, "PD", "1", ctx)
	n := new(Node)
	require.NoError(t, n.Init("MR", destroyed, pd))
	Trace(false)
	asked := 0
	n.Reap(func() Verdict { asked++; return Verdict{When: Never, Reason: "a peer may hold its rkey"} })
	n.Ready("1")
	held := node(t, "QP", "0x11", pd)

	for _, dropped := range []*Node{ctx, pd, n} {
		dropped.drop()
	}
	quiesce(t)
	assert.Equal(t, []string{"kept open: MR 1: a peer may hold its rkey"}, out.take(), "the others wait for the QP")
	require.Len(t, out.made, 1)
	assert.Regexp(t, `(?s)^.*life\.TestNeverIsReportedOnceAndKept \S*/reaper_test.go:\d+\n.*testing`, out.made[0])
	report := strings.Join(Report(), "\n")
	assert.Contains(t, report, "MR 1 (dropped without Close), kept: a peer may hold its rkey, made at\n\t")
	assert.EqualError(t, pd.Close(), "still used by MR 1 (dropped without Close), QP 0x11: close that first")

	n.Reconsider()
	require.NoError(t, held.Close())
	quiesce(t)
	assert.Equal(t, []string{"kept open: PD 1: still used by MR 1", "kept open: context rxe0: still used by PD 1"}, out.take())
	assert.Equal(t, 1, asked)
	require.NoError(t, n.Use(), "it is open")
	n.Done()

	require.NoError(t, ctx.CloseAll())
	quiesce(t)
	assert.Empty(t, out.take())
	assert.Empty(t, Report())
}

func TestCloseAllOfDroppedIsReported(t *testing.T) {
	out := logTo(t)
	ctx := node(t, "context", "rxe0")
	n := new(Node)
	require.NoError(t, n.Init("MR", destroyed, ctx))
	n.Reap(func() Verdict { return Verdict{When: WhenTold, Reason: "2 in flight"} })
	n.Ready("1")
	n.drop()
	quiesce(t)
	assert.Equal(t, "MR 1 (dropped without Close), waiting: 2 in flight", Report()[1])
	assert.Empty(t, out.take())
	require.NoError(t, ctx.CloseAll())
	quiesce(t)
	assert.Equal(t, []string{"closed: MR 1"}, out.take())
}

func TestLoggerIsSlogDefaultUnlessItIsSet(t *testing.T) {
	defer logger.Store(nil)
	def, flags := slog.Default(), log.Flags()
	defer func() { // SetDefault redirects package log too
		slog.SetDefault(def)
		log.SetOutput(os.Stderr)
		log.SetFlags(flags)
	}()
	l := &logged{}
	slog.SetDefault(slog.New(l))
	for i, set := range []func(){func() {}, func() { SetLogger(nil) }, func() { SetLogger(slog.New(l)) }} {
		set()
		node(t, "PD", fmt.Sprint(i)).drop()
		quiesce(t)
	}
	assert.Equal(t, []string{"closed: PD 0", "closed: PD 2"}, l.take())
}

// reapers counts the goroutines of the reaper.
func reapers() int {
	buf := make([]byte, 1<<20)
	return strings.Count(string(buf[:runtime.Stack(buf, true)]), "life.reap()")
}

// A destroy that takes its time holds up nothing but other destroys.
func TestOneGoroutineWhileThereIsSomethingDue(t *testing.T) {
	SetLogger(nil)
	defer logger.Store(nil)
	begun, end := make(chan struct{}, 100), make(chan struct{})
	for range 100 {
		nodeWith(t, func() error { begun <- struct{}{}; <-end; return nil }, "QP", "").drop()
	}
	<-begun
	n := node(t, "CQ", "1")
	require.NoError(t, n.Use())
	n.drop()
	n.Reconsider()
	n.Done()
	child := node(t, "QP", "2", n)
	require.NoError(t, child.Close())
	wait(t, func() bool { return reapers() == 1 }, "one reaper") // one that ended may still be on its way
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("enough")
	cancel(cause)
	require.ErrorIs(t, Quiesce(ctx), cause)
	close(end)
	quiesce(t)
	wait(t, func() bool { return reapers() == 0 }, "no reaper")
	assert.Empty(t, Report())
}

func TestAttachAndDetach(t *testing.T) {
	out := logTo(t)
	pd := node(t, "PD", "1")
	mw := node(t, "MW", "1", pd)
	mr := node(t, "MR", "1", pd)
	require.NoError(t, mw.Attach(mr))
	require.NoError(t, mw.Attach(mr))
	assert.EqualError(t, mr.Close(), "still used by MW 1: close that first")
	mw.Detach(mr)
	require.ErrorIs(t, mr.Close(), syscall.EBUSY, "attached twice")
	mr.drop()
	quiesce(t)
	require.NoError(t, mr.Use())
	mr.Done()
	mw.Detach(mr)
	mw.Detach(mr)
	quiesce(t)
	require.ErrorIs(t, mr.Use(), ErrClosed, "the last child is gone")
	assert.Equal(t, []string{"closed: MR 1"}, out.take())
	assert.EqualError(t, mw.Attach(mr), "MR 1: already closed")
	assert.EqualError(t, mw.AttachInUse(mr), "MR 1: already closed")

	// The window is older than the region, and goes first all the same.
	var order []string
	destroy := func(name string) func() error {
		return func() error { order = append(order, name); return nil }
	}
	pd = nodeWith(t, destroy("PD"), "PD", "2")
	mw = nodeWith(t, destroy("MW"), "MW", "2", pd)
	mr = nodeWith(t, destroy("MR"), "MR", "2", pd)
	require.NoError(t, mw.Attach(mr))
	require.NoError(t, pd.CloseAll())
	assert.Equal(t, []string{"MW", "MR", "PD"}, order)
	mw.Detach(mr)
	other := node(t, "MR", "3")
	assert.EqualError(t, mw.Attach(other), "MW 2: already closed")
	require.NoError(t, other.Close(), "nothing is left below it")

	// A parent whose destroy is running takes a child only where destroy finds out.
	begun, attached := make(chan struct{}), make(chan struct{})
	mr = new(Node)
	require.NoError(t, mr.Init("MR", func() error { close(begun); <-attached; return mr.Busy() }))
	mr.Ready("4")
	mw = node(t, "MW", "4")
	done := make(chan error)
	go func() { done <- mr.Close() }()
	<-begun
	assert.EqualError(t, mw.Attach(mr), "MR 4: already closed")
	require.NoError(t, mw.AttachInUse(mr))
	close(attached)
	var busy *BusyError
	require.ErrorAs(t, <-done, &busy)
	assert.Equal(t, []string{"MW 4"}, busy.Children)
	mw.Detach(mr)
	begun, attached = make(chan struct{}), make(chan struct{})
	close(attached)
	require.NoError(t, mr.Close())
}
