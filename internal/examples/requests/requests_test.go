//go:build cgo && linux && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package requests

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/cq"
	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/examples/exampletest"
	"github.com/goverbs/goverbs/internal/fakedev"
	"github.com/goverbs/goverbs/internal/fakedev/fakedevtest"
	"github.com/goverbs/goverbs/internal/rdmatest"
)

func TestMain(m *testing.M) { rdmatest.Main(m) }

func TestRequestsAreShort(t *testing.T) {
	src := exampletest.Read(t, "requests.go")
	lines := exampletest.Lines(exampletest.Between(t, src, "func (c *Client) Run(", ""))
	t.Logf("%d lines of code", lines)
	assert.LessOrEqual(t, lines, 30)
	exampletest.ReadmeShows(t, exampletest.Between(t, src, "// Read returns", ""))
}

// TestBuffersOfTimedOutReads has a device that does not answer: each read that has given
// up keeps its buffer until the device has said something.
func TestBuffersOfTimedOutReads(t *testing.T) {
	const size, buffers = 1 << 12, 1 << 16 / (1 << 12)
	b := fakedevtest.New(t, fakedev.Config{})
	ch, err := cq.NewChannel(b.Ctx)
	require.NoError(t, err)
	q, err := cq.Create(b.Ctx, cq.InitAttr{Entries: 64, Channel: ch})
	require.NoError(t, err)
	qp := b.NewQP(t, func(_ *ibv.QPInitAttr, queues *ibv.QPQueues) { queues.Send = q })
	c := NewClient(qp.QP, q, ibv.RemoteRange{Length: 1 << 30}, size, b.Region)
	ended := make(chan error, 1)
	go func() { ended <- c.Run(t.Context()) }()

	for i := range buffers + 1 { // the last one waits for a buffer
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		_, err := c.Read(ctx, i)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		if i < buffers {
			require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		}
		cancel()
	}
	posted := qp.SQ.Posted()
	require.Len(t, posted, buffers)
	seen := map[uint64]bool{}
	for _, wr := range posted {
		require.False(t, seen[wr.SGEs[0].Addr], "a buffer that another read still owns")
		seen[wr.SGEs[0].Addr] = true
	}
	for range buffers {
		qp.SQ.Complete(fakedev.Completion{Payload: []byte("late")})
	}
	require.Eventually(t, func() bool { return len(c.free) == buffers }, 30*time.Second, time.Millisecond)
	require.NoError(t, qp.Close())
	require.NoError(t, q.Close())
	require.ErrorIs(t, <-ended, ibv.ErrClosed)
}
