package life

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func attachable(t *testing.T, name string, parents ...*Node) *Node {
	t.Helper()
	n := new(Node)
	require.NoError(t, n.Init(name, func() error { return nil }, parents...))
	n.Ready("")
	t.Cleanup(func() { _ = n.Close() })
	return n
}

func TestAttachAndDetach(t *testing.T) {
	first, second := attachable(t, "first"), attachable(t, "second")
	child := attachable(t, "child", first)

	require.NoError(t, child.Attach(second))
	require.NoError(t, child.Attach(second), "once more changes nothing")
	for _, parent := range []*Node{first, second} {
		var busy *BusyError
		require.ErrorAs(t, parent.Close(), &busy)
		assert.Equal(t, []string{"child"}, busy.Children)
	}
	child.Detach(first)
	require.NoError(t, first.Close())
	require.Error(t, second.Close())
	require.ErrorIs(t, child.Attach(first), ErrClosed)
	require.ErrorContains(t, child.Attach(first), "first")
	child.Detach(second)
	child.Detach(second)
	require.NoError(t, second.Close())
	require.NoError(t, child.Close())
}

func TestCloseLeavesAttachedParents(t *testing.T) {
	parent, child := attachable(t, "parent"), attachable(t, "child")
	require.NoError(t, child.Attach(parent))
	require.NoError(t, child.Close())
	require.NoError(t, parent.Close())
}

func TestRename(t *testing.T) {
	n := attachable(t, "MR")
	n.Rename("0x2")
	assert.Equal(t, "MR 0x2", n.String())
}
