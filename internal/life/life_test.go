package life

import (
	"errors"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func node(t *testing.T, kind, name string, parents ...*Node) *Node {
	t.Helper()
	n := new(Node)
	require.NoError(t, n.Init(kind, parents...))
	n.SetName(name)
	t.Cleanup(n.Discard)
	return n
}

func destroyed() error { return nil }

func TestCloseWithChildrenNamesThemAndChangesNothing(t *testing.T) {
	ctx := node(t, "context", "rxe0")
	pd := node(t, "PD", "1", ctx)
	cq := node(t, "CQ", "2", ctx)
	qp := node(t, "QP", "0x11", pd, cq)

	calls := 0
	count := func() error { calls++; return nil }
	for _, parent := range []*Node{pd, cq, ctx} {
		err := parent.Close(count)
		var busy *BusyError
		require.ErrorAs(t, err, &busy)
		require.ErrorIs(t, err, syscall.EBUSY)
		require.NoError(t, parent.Use(), "a refused Close leaves the object usable")
		parent.Done()
	}
	assert.Zero(t, calls, "nothing was destroyed")
	err := ctx.Close(count)
	assert.EqualError(t, err, "still used by PD 1, CQ 2: close that first")

	for _, n := range []*Node{qp, cq, pd, ctx} {
		require.NoError(t, n.Close(count))
	}
	assert.Equal(t, 4, calls)
}

func TestCloseRunsDestroyOnce(t *testing.T) {
	n := node(t, "PD", "1")
	var calls atomic.Int32
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			assert.NoError(t, n.Close(func() error { calls.Add(1); return nil }))
		})
	}
	wg.Wait()
	assert.EqualValues(t, 1, calls.Load())
}

func TestCloseWaitsForCallsInProgress(t *testing.T) {
	n := node(t, "QP", "0x11")
	require.NoError(t, n.Use())
	var ended atomic.Bool
	done := make(chan error)
	go func() {
		done <- n.Close(func() error {
			if !ended.Load() {
				return errors.New("destroyed during a call")
			}
			return nil
		})
	}()
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
	n := node(t, "MR", "1")
	require.ErrorIs(t, n.Close(func() error { return syscall.EBUSY }), syscall.EBUSY)
	require.NoError(t, n.Use())
	n.Done()
	require.NoError(t, n.Close(destroyed))
}

func TestClosedParentAndUse(t *testing.T) {
	n := node(t, "PD", "1")
	require.NoError(t, n.Close(destroyed))
	child := new(Node)
	err := child.Init("QP", n)
	require.ErrorIs(t, err, ErrClosed)
	assert.EqualError(t, err, "PD 1: already closed")
	require.ErrorIs(t, n.Use(), ErrClosed)
}

func TestInitFailureLeavesOtherParentsFree(t *testing.T) {
	pd, cq := node(t, "PD", "1"), node(t, "CQ", "1")
	require.NoError(t, cq.Close(destroyed))
	require.ErrorIs(t, new(Node).Init("QP", pd, cq), ErrClosed)
	require.NoError(t, pd.Close(destroyed), "no half-made child is left behind")
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
	require.NoError(t, n.Close(destroyed))
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
				if !assert.NoError(t, n.Init("PD", root)) {
					return
				}
				assert.Error(t, root.Close(destroyed))
				assert.NoError(t, n.Close(destroyed))
			}
		})
	}
	wg.Wait()
	require.NoError(t, root.Close(destroyed))
}
