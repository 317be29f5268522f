package ibv

import (
	"bytes"
	"log/slog"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/internal/life"
)

// dropNode makes an object that nothing holds when it returns.
func dropNode(t *testing.T) {
	t.Helper()
	type handle struct{ n *life.Node }
	n := new(life.Node)
	require.NoError(t, n.Init("PD", func() error { return nil }))
	n.Ready("7 of rxe0")
	life.Guard(&handle{n}, n)
}

// collect runs the collector until no object is open, and then waits for the reports.
func collect(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool { runtime.GC(); return len(life.Report()) == 0 }, 10*time.Second, time.Millisecond)
	require.NoError(t, life.Quiesce(t.Context()))
}

func TestSetLogger(t *testing.T) {
	defer SetLogger(slog.Default())
	var out bytes.Buffer
	SetLogger(slog.New(slog.NewTextHandler(&out, nil)))
	dropNode(t)
	collect(t)
	assert.Contains(t, out.String(), `level=WARN msg="verbs object dropped without Close: closed" object="PD 7 of rxe0"`)

	out.Reset()
	SetLogger(nil)
	dropNode(t)
	collect(t)
	assert.Empty(t, out.String())
}
