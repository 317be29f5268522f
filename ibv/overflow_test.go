//go:build cgo && linux && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package ibv_test

import (
	"bytes"
	"log/slog"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/cq"
	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/fakedev"
	"github.com/goverbs/goverbs/internal/fakedev/fakedevtest"
)

// logged returns what the library logs until the test ends: a function that returns, and
// forgets, what there is.
func logged(t *testing.T) (take func() string) {
	var out bytes.Buffer
	ibv.SetLogger(slog.New(slog.NewTextHandler(&out, nil)))
	t.Cleanup(func() { ibv.SetLogger(slog.Default()) })
	return func() string {
		defer out.Reset()
		return out.String()
	}
}

// sized makes a completion queue, and queue pairs of 10 sends and 6 receives on it.
func sized(t *testing.T, b *fakedevtest.Bench, entries int, strict bool) (q *cq.CQ, create func(*ibv.SRQ) (*ibv.QP, error)) {
	q, err := cq.Create(b.Ctx, cq.InitAttr{Entries: entries, Strict: strict})
	require.NoError(t, err)
	b.Keep(q)
	return q, func(srq *ibv.SRQ) (*ibv.QP, error) {
		init := ibv.QPInitAttr{Type: ibv.QPTypeRC, Cap: ibv.QPCap{MaxSendWR: 10, MaxSendSGE: 1, MaxRecvWR: 6, MaxRecvSGE: 1}}
		if srq != nil {
			init.Cap.MaxRecvWR = 0
		}
		qp, err := b.PD.CreateQP(init, ibv.QPQueues{Send: q, Recv: q, SRQ: srq})
		b.Keep(qp)
		return qp, err
	}
}

func TestCQThatCanOverflow(t *testing.T) {
	b := fakedevtest.New(t, fakedev.Config{ResizeCQ: true})
	log := logged(t)
	q, create := sized(t, b, 32, false)
	first, err := create(nil)
	require.NoError(t, err)
	_, err = create(nil)
	require.NoError(t, err)
	assert.Empty(t, log(), "32 work requests and 32 entries")

	third, err := create(nil)
	require.NoError(t, err, "it is allowed, as verbs allow it")
	text := log()
	assert.Contains(t, text, "level=WARN msg=\"completion queue can overflow\" object=\""+q.String()+"\"")
	assert.Contains(t, text, "it holds 32 completions, and 48 work requests can complete there")
	assert.Contains(t, text, "give it 48 entries")
	assert.Contains(t, text, "with=\""+third.String()+"\"")

	require.NoError(t, q.Resize(48))
	assert.Empty(t, log())
	require.NoError(t, q.Resize(47))
	assert.Contains(t, log(), "it holds 47 completions, and 48 work requests")

	require.NoError(t, first.Close())
	require.NoError(t, q.Resize(32))
	assert.Empty(t, log(), "what is closed counts no more")
}

func TestStrictCQ(t *testing.T) {
	b := fakedevtest.New(t, fakedev.Config{ResizeCQ: true})
	log := logged(t)
	q, create := sized(t, b, 31, true)
	first, err := create(nil)
	require.NoError(t, err)
	_, err = create(nil)
	require.ErrorIs(t, err, syscall.EINVAL)
	require.ErrorContains(t, err, q.String()+" is strict: it holds 31 completions, and 32 work requests can complete there")
	assert.Len(t, b.QPs(), 1, "nothing is left of it")
	require.NoError(t, q.Resize(32))
	second, err := create(nil)
	require.NoError(t, err)
	require.ErrorIs(t, q.Resize(31), syscall.EINVAL)
	assert.Equal(t, 32, q.Entries())
	require.NoError(t, first.Close())
	require.NoError(t, second.Close())
	require.NoError(t, q.Resize(1))
	assert.Empty(t, log())
}

// TestSharedReceivesOfACQ: those of a shared queue count once, whoever takes them.
func TestSharedReceivesOfACQ(t *testing.T) {
	b := fakedevtest.New(t, fakedev.Config{ResizeCQ: true})
	q, create := sized(t, b, 100+2*10, true)
	srq, err := b.PD.CreateSRQ(ibv.SRQInitAttr{MaxWR: 100, MaxSGE: 1})
	require.NoError(t, err)
	first, err := create(srq)
	require.NoError(t, err)
	second, err := create(srq)
	require.NoError(t, err)
	_, err = create(srq)
	require.ErrorContains(t, err, "130 work requests")
	require.NoError(t, first.Close())
	require.ErrorIs(t, q.Resize(109), syscall.EINVAL)
	require.NoError(t, q.Resize(110))
	require.NoError(t, second.Close())
	require.NoError(t, q.Resize(1))
}

// TestCQsOfSendsAndReceives: each counts what completes there.
func TestCQsOfSendsAndReceives(t *testing.T) {
	b := fakedevtest.New(t, fakedev.Config{})
	for _, tt := range []struct{ sends, recvs int }{{9, 6}, {10, 5}, {10, 6}} {
		var queues ibv.QPQueues
		var err error
		queues.Send, err = cq.Create(b.Ctx, cq.InitAttr{Entries: tt.sends, Strict: true})
		require.NoError(t, err)
		queues.Recv, err = cq.Create(b.Ctx, cq.InitAttr{Entries: tt.recvs, Strict: true})
		require.NoError(t, err)
		b.Keep(queues)
		qp, err := b.PD.CreateQP(ibv.QPInitAttr{Type: ibv.QPTypeRC,
			Cap: ibv.QPCap{MaxSendWR: 10, MaxSendSGE: 1, MaxRecvWR: 6, MaxRecvSGE: 1}}, queues)
		b.Keep(qp)
		assert.Equal(t, tt.sends == 10 && tt.recvs == 6, err == nil, "%v", err)
	}
}

// TestMoreIsGrantedThanAsked: a program counts what it has asked for, a strict completion
// queue what there is.
func TestMoreIsGrantedThanAsked(t *testing.T) {
	b := fakedevtest.New(t, fakedev.Config{RoundUp: true})
	log := logged(t)
	for _, tt := range []struct {
		entries int
		strict  bool
		refused bool
	}{{16, false, false}, {16, true, true}, {24, true, false}} {
		q, create := sized(t, b, tt.entries, tt.strict)
		require.GreaterOrEqual(t, q.Entries(), tt.entries)
		_, err := create(nil) // 10 and 6, of which 16 and 8 are granted
		assert.Equal(t, tt.refused, err != nil, "%v", err)
	}
	assert.Empty(t, log())
}
