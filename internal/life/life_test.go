package life

import (
	"errors"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func node(t *testing.T, kind, name string, parents ...*Node) *Node {
	t.Helper()
	return nodeWith(t, destroyed, kind, name, parents...)
}

func nodeWith(t *testing.T, destroy func() error, kind, name string, parents ...*Node) *Node {
	t.Helper()
	n := new(Node)
	require.NoError(t, n.Init(kind, destroy, parents...))
	n.Ready(name)
	t.Cleanup(n.Discard)
	return n
}

func destroyed() error { return nil }

func TestCloseWithChildrenNamesThemAndChangesNothing(t *testing.T) {
	calls := 0
	count := func() error { calls++; return nil }
	ctx := nodeWith(t, count, "context", "rxe0")
	pd := nodeWith(t, count, "PD", "1", ctx)
	cq := nodeWith(t, count, "CQ", "2", ctx)
	qp := nodeWith(t, count, "QP", "0x11", pd, cq)

	for _, parent := range []*Node{pd, cq, ctx} {
		err := parent.Close()
		var busy *BusyError
		require.ErrorAs(t, err, &busy)
		require.ErrorIs(t, err, syscall.EBUSY)
		require.NoError(t, parent.Use(), "a refused Close leaves the object usable")
		parent.Done()
	}
	assert.Zero(t, calls, "nothing was destroyed")
	err := ctx.Close()
	assert.EqualError(t, err, "still used by PD 1, CQ 2: close that first")

	for _, n := range []*Node{qp, cq, pd, ctx} {
		require.NoError(t, n.Close())
	}
	assert.Equal(t, 4, calls)
}

func TestCloseRunsDestroyOnce(t *testing.T) {
	var calls atomic.Int32
	n := nodeWith(t, func() error { calls.Add(1); return nil }, "PD", "1")
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			assert.NoError(t, n.Close())
		})
	}
	wg.Wait()
	assert.EqualValues(t, 1, calls.Load())
}

func TestCloseWaitsForCallsInProgress(t *testing.T) {
	var ended atomic.Bool
	n := nodeWith(t, func() error {
		if !ended.Load() {
			return errors.New("destroyed during a call")
		}
		return nil
	}, "QP", "0x11")
	require.NoError(t, n.Use())
	done := make(chan error)
	go func() { done <- n.Close() }()
	for {
		err := n.Use()
		if errors.Is(err, ErrClosed) {
			break // Close has begun
		}
		require.NoError(t, err)
		n.Done()
	}
	ended.Store(true)
	n.Done()
	require.NoError(t, <-done)
}

func TestFailedDestroyLeavesItOpen(t *testing.T) {
	err := error(syscall.EIO)
	n := nodeWith(t, func() error { return err }, "MR", "1")
	require.ErrorIs(t, n.Close(), syscall.EIO)
	require.NoError(t, n.Use())
	n.Done()
	err = nil
	require.NoError(t, n.Close())
}

func TestClosedParentAndUse(t *testing.T) {
	n := node(t, "PD", "1")
	require.NoError(t, n.Close())
	child := new(Node)
	err := child.Init("QP", destroyed, n)
	require.ErrorIs(t, err, ErrClosed)
	assert.EqualError(t, err, "PD 1: already closed")
	require.ErrorIs(t, n.Use(), ErrClosed)
}

func TestInitFailureLeavesOtherParentsFree(t *testing.T) {
	pd, cq := node(t, "PD", "1"), node(t, "CQ", "1")
	require.NoError(t, cq.Close())
	require.ErrorIs(t, new(Node).Init("QP", destroyed, pd, cq), ErrClosed)
	require.NoError(t, pd.Close(), "no half-made child is left behind")
}

func TestReportNamesWhatIsOpen(t *testing.T) {
	before := len(Report())
	Trace(true)
	defer Trace(false)
	n := node(t, "PD", "7")
	report := Report()
	require.Len(t, report, before+1)
	assert.Contains(t, report[before], "PD 7, made at")
	assert.Contains(t, report[before], "life_test.go:")
	require.NoError(t, n.Close())
	assert.Len(t, Report(), before)
}

func TestManyChildrenAreCutShort(t *testing.T) {
	err := &BusyError{Children: []string{"a", "b", "c", "d", "e", "f", "g", "h", "i", "j"}}
	assert.EqualError(t, err, "still used by a, b, c, d, e, f, g, h and 2 more: close that first")
}

func TestConcurrentMakeAndClose(t *testing.T) {
	root := node(t, "context", "rxe0")
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 200 {
				var n Node
				if !assert.NoError(t, n.Init("PD", destroyed, root)) {
					return
				}
				n.Ready("")
				assert.Error(t, root.Close())
				assert.NoError(t, n.Close())
			}
		})
	}
	wg.Wait()
	require.NoError(t, root.Close())
}

func TestCloseAllClosesTheYoungestFirst(t *testing.T) {
	var order []string
	destroy := func(name string, err error) func() error {
		return func() error { order = append(order, name); return err }
	}
	root := nodeWith(t, destroy("context", nil), "context", "rxe0")
	pd := nodeWith(t, destroy("PD", nil), "PD", "1", root)
	cq := nodeWith(t, destroy("CQ", nil), "CQ", "1", root)
	nodeWith(t, destroy("QP", nil), "QP", "1", pd, cq)
	nodeWith(t, destroy("MR", nil), "MR", "1", pd)
	require.NoError(t, root.CloseAll())
	assert.Equal(t, []string{"QP", "CQ", "MR", "PD", "context"}, order)
	require.NoError(t, root.CloseAll())

	order = nil
	root = nodeWith(t, destroy("context", nil), "context", "rxe1")
	pd = nodeWith(t, destroy("PD", nil), "PD", "2", root)
	nodeWith(t, destroy("MR", syscall.EBUSY), "MR", "2", pd)
	nodeWith(t, destroy("QP", nil), "QP", "2", pd)
	err := root.CloseAll()
	require.ErrorIs(t, err, syscall.EBUSY)
	assert.ErrorContains(t, err, "MR 2: ")
	assert.ErrorContains(t, err, "PD 2: still used by MR 2")
	assert.Equal(t, []string{"QP", "MR", "MR"}, order, "what can be closed is closed, and what refuses tried again")

	// Memory that work requests use is free once their queue pair is closed.
	root = nodeWith(t, func() error { return nil }, "context", "rxe2")
	pd = nodeWith(t, func() error { return nil }, "PD", "3", root)
	inUse := true
	nodeWith(t, func() error { inUse = false; return nil }, "QP", "3", pd)
	nodeWith(t, func() error {
		if inUse {
			return syscall.EBUSY
		}
		return nil
	}, "MR", "3", pd)
	require.NoError(t, root.CloseAll())
}

func TestCloseWaitsForTheMaking(t *testing.T) {
	var n Node
	made := false // written before Ready, read by destroy: the race detector watches
	require.NoError(t, n.Init("QP", func() error {
		if !made {
			return errors.New("destroyed before it was made")
		}
		return nil
	}))
	done := make(chan error)
	go func() { done <- n.CloseAll() }()
	made = true
	n.Ready("1")
	require.NoError(t, <-done)
}

func TestRename(t *testing.T) {
	n := new(Node)
	require.NoError(t, n.Init("MR", func() error { return nil }))
	n.Ready("0x1")
	n.Rename("0x2")
	assert.Equal(t, "MR 0x2", n.String())
	require.NoError(t, n.Close())
}

// The reaper may close what CloseAll could not: whoever closed it, nothing is left to report.
func TestCloseAllReportsNothingThatWasClosedMeanwhile(t *testing.T) {
	ctx := node(t, "context", "rxe0")
	var inUse *Node
	nodeWith(t, func() error { return inUse.Close() }, "PD", "1", ctx)
	calls := 0
	inUse = nodeWith(t, func() error {
		if calls++; calls == 1 {
			return syscall.EBUSY
		}
		return nil
	}, "MR", "2", ctx)
	require.NoError(t, ctx.CloseAll())
	assert.Equal(t, 2, calls)
	assert.True(t, ctx.Closed())
}

// Others that make objects all the time do not keep CloseAll from its end.
func TestCloseAllEndsWhileOthersMake(t *testing.T) {
	ctx := nodeWith(t, destroyed, "context", "rxe0")
	pd := node(t, "PD", "1", ctx)
	var wg sync.WaitGroup
	for _, parent := range []*Node{ctx, pd, ctx, pd} {
		wg.Go(func() {
			for {
				n := new(Node)
				if err := n.Init("QP", destroyed, parent); err != nil {
					assert.ErrorIs(t, err, ErrClosed)
					return
				}
				n.Ready("0x11")
			}
		})
	}
	for !busyWith(ctx, 10) || !busyWith(pd, 10) {
		runtime.Gosched()
	}
	require.NoError(t, ctx.CloseAll())
	wg.Wait()
}

func busyWith(n *Node, children int) bool {
	var busy *BusyError
	return errors.As(n.Busy(), &busy) && len(busy.Children) >= children
}

// CloseAll takes no more children until it has ended, but for those by AttachInUse: those are
// there already, and it closes them too. What it could not close is as before.
func TestCloseAllTakesNoChildren(t *testing.T) {
	ctx := node(t, "context", "rxe0")
	pd := node(t, "PD", "1", ctx)
	window, region := node(t, "MW", "1", pd), new(Node)
	refuses := errors.New("refuses")
	require.NoError(t, region.Init("MR", func() error {
		late := new(Node)
		assert.ErrorIs(t, late.Init("PD", destroyed, ctx), ErrClosed)
		assert.ErrorIs(t, late.Init("QP", destroyed, pd), ErrClosed)
		if !window.Closed() {
			assert.ErrorIs(t, window.Attach(region), ErrClosed)
			assert.NoError(t, window.AttachInUse(region)) // its bind has completed
		}
		return refuses
	}, pd))
	region.Ready("1")
	t.Cleanup(region.Discard)
	for range 2 {
		require.ErrorIs(t, ctx.CloseAll(), refuses)
		assert.True(t, window.Closed())
		for _, parent := range []*Node{ctx, pd} {
			n := new(Node)
			require.NoError(t, n.Init("QP", destroyed, parent))
			n.Discard()
		}
	}
}

// A parent outlives the question to its child, which may look at the parent.
func TestCloseAllWaitsForTheReapersQuestion(t *testing.T) {
	logTo(t)
	var parentGone atomic.Bool
	cq := nodeWith(t, func() error { parentGone.Store(true); return nil }, "CQ", "1")
	qp := new(Node)
	require.NoError(t, qp.Init("QP", destroyed, cq))
	asked, gone := make(chan struct{}), make(chan bool)
	qp.Reap(func() Verdict {
		close(asked)
		for !qp.Closing() { // CloseAll has come
			runtime.Gosched()
		}
		for range 100 {
			runtime.Gosched()
		}
		gone <- parentGone.Load()
		return Verdict{}
	})
	qp.Ready("0x11")
	qp.drop()
	<-asked
	closed := make(chan error)
	go func() { closed <- cq.CloseAll() }()
	assert.False(t, <-gone)
	require.NoError(t, <-closed)
	quiesce(t)
}

// Below a node that failed nothing is used or made any more, and all of it can be closed.
func TestFailAll(t *testing.T) {
	ctx, other := node(t, "context", "rxe0"), node(t, "context", "rxe1")
	pd, buf := node(t, "PD", "1", ctx), node(t, "buffer", "2")
	region := node(t, "MR", "3", pd, buf)
	var half Node
	require.NoError(t, half.Init("QP", destroyed, pd))
	require.NoError(t, pd.Use())
	cause := errors.New("the device died")
	ctx.FailAll(cause)
	ctx.FailAll(errors.New("once more"))
	half.Ready("4")
	pd.Done()
	for _, n := range []*Node{ctx, pd, region, &half} {
		require.Same(t, cause, n.Use())
		require.Same(t, cause, new(Node).Init("CQ", destroyed, n))
	}
	for _, n := range []*Node{other, buf} {
		require.NoError(t, n.Use())
		n.Done()
	}
	require.NoError(t, ctx.CloseAll())
	require.ErrorIs(t, region.Use(), ErrClosed)
	require.ErrorIs(t, ErrClosed, os.ErrClosed)
	require.NotErrorIs(t, ErrClosed, cause)
}

// What was lent is closed when nothing hangs from it any more, and is nobody's leak.
func TestCloseUnused(t *testing.T) {
	out := logTo(t)
	destroys := 0
	count := func() error { destroys++; return nil }
	alone := nodeWith(t, count, "device", "a")
	require.NoError(t, alone.CloseUnused())
	assert.True(t, alone.Closed(), "at once")

	parent := nodeWith(t, count, "device", "b")
	child := nodeWith(t, count, "PD", "1", parent)
	require.NoError(t, parent.CloseUnused())
	require.NoError(t, parent.Use(), "it is in use")
	parent.Done()
	require.NoError(t, child.Close())
	quiesce(t)
	assert.True(t, parent.Closed())
	assert.Equal(t, 3, destroys)
	assert.Empty(t, out.take())

	stuck := nodeWith(t, func() error { return syscall.EIO }, "device", "c")
	require.ErrorIs(t, stuck.CloseUnused(), syscall.EIO)
}
