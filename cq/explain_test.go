//go:build cgo && linux && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package cq_test

import (
	"context"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/cq"
	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/fakedev"
	"github.com/goverbs/goverbs/internal/fakedev/fakedevtest"
)

// TestUnexplainedFlush: a flush has its cause in another completion, or in the program,
// or nowhere; then the error says so.
func TestUnexplainedFlush(t *testing.T) {
	toErr := func(qp *fakedevtest.QP) error {
		return qp.Modify(ibv.QPAttr{State: ibv.QPStateErr}, ibv.AttrState)
	}
	for _, c := range []struct {
		name        string
		cause       func(*testing.T, *fakedevtest.Bench, *fakedevtest.QP)
		unexplained bool
	}{
		{"the device's own", func(*testing.T, *fakedevtest.Bench, *fakedevtest.QP) {}, true},
		{"a failed send", func(t *testing.T, _ *fakedevtest.Bench, qp *fakedevtest.QP) {
			qp.SQ.Complete(fakedev.Completion{Status: int(cq.StatusRetryExcErr)})
		}, false},
		{"a failed receive", func(t *testing.T, _ *fakedevtest.Bench, qp *fakedevtest.QP) {
			qp.RQ.Complete(fakedev.Completion{Status: int(cq.StatusLocLenErr)})
		}, false},
		{"the program's Modify", func(t *testing.T, _ *fakedevtest.Bench, qp *fakedevtest.QP) {
			require.NoError(t, toErr(qp))
		}, false},
		{"a Drain", func(t *testing.T, _ *fakedevtest.Bench, qp *fakedevtest.QP) {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			require.ErrorIs(t, qp.Drain(ctx), context.Canceled)
		}, false},
		{"another QP's failure", func(t *testing.T, b *fakedevtest.Bench, qp *fakedevtest.QP) {
			other := b.NewQP(t, func(_ *ibv.QPInitAttr, q *ibv.QPQueues) { q.Send = qp.Send })
			other.Post(t, fakedevtest.Sends(b.Region, 0, 1)...)
			other.SQ.Complete(fakedev.Completion{Status: int(cq.StatusRetryExcErr)})
		}, true},
		{"an ERR that a reset has ended", func(t *testing.T, b *fakedevtest.Bench, qp *fakedevtest.QP) {
			require.NoError(t, toErr(qp))
			qp.Reset(t)
			qp.Ready(t)
			qp.Post(t, fakedevtest.Sends(b.Region, 0, 2)...)
			postRecv(t, qp, fakedevtest.Recvs(b.Region, 0, 2)...)
		}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := fakedevtest.New(t, fakedev.Config{})
			qp := b.NewQP(t)
			qp.Post(t, fakedevtest.Sends(b.Region, 0, 2)...)
			postRecv(t, qp, fakedevtest.Recvs(b.Region, 0, 2)...)
			c.cause(t, b, qp)
			b.Flush(qp.Num())
			flushed := 0
			for _, wc := range fakedevtest.Poll(t, qp.Send) {
				if wc.Status != cq.StatusWRFlushErr {
					continue
				}
				flushed++
				var e *cq.Error
				require.ErrorAs(t, wc.Err(), &e)
				assert.Equal(t, cq.ClassFlushed, e.Class())
				assert.Equal(t, c.unexplained, e.Unexplained)
				if c.unexplained {
					assert.ErrorContains(t, e, "failed by itself and gives no cause")
				} else {
					assert.ErrorContains(t, e, "another completion, or whoever closed the QP, has the cause")
				}
			}
			assert.GreaterOrEqual(t, flushed, 3)
		})
	}
}

// TestBrokenCQ: what it held comes first, then the error that says what to do.
func TestBrokenCQ(t *testing.T) {
	b := fakedevtest.New(t, fakedev.Config{})
	qp := b.NewQP(t)
	qp.Post(t, fakedevtest.Sends(b.Region, 0, 40)...)
	for range 35 {
		qp.SQ.Complete(fakedev.Completion{})
	}
	b.BreakCQ(b.QP(qp.Num()).SendCQ)
	wcs := make([]cq.WC, 64)
	n, err := qp.Send.Poll(wcs)
	require.Equal(t, 35, n)
	assert.Equal(t, uint64(34), wcs[34].WRID)
	for range 2 {
		if err == nil { // with the last completions, or after them
			n, err = qp.Send.Poll(wcs)
			require.Zero(t, n)
		}
		var op *ibv.OpError
		require.ErrorAs(t, err, &op)
		assert.Equal(t, "ibv_poll_cq", op.Op)
		assert.Equal(t, qp.Send.String(), op.Object)
		assert.ErrorContains(t, err, "close its QPs and then it")
		err = nil
	}
	assert.Equal(t, 5, b.Region.InFlight())
	err = qp.Drain(t.Context())
	assert.ErrorIs(t, err, syscall.EIO, "it cannot wait for what will not come")
	require.NoError(t, qp.Close())
	assert.Zero(t, b.Region.InFlight())
	require.NoError(t, qp.Send.Close())
}

// TestPollErrorKeepsWhatCame: an error in the second batch takes nothing from the first.
func TestPollErrorKeepsWhatCame(t *testing.T) {
	b := fakedevtest.New(t, fakedev.Config{})
	qp := b.NewQP(t)
	qp.Post(t, fakedevtest.Sends(b.Region, 0, 32)...)
	for range 32 {
		qp.SQ.Complete(fakedev.Completion{})
	}
	b.BreakCQ(b.QP(qp.Num()).SendCQ)
	wcs := make([]cq.WC, 33)
	n, err := qp.Send.Poll(wcs)
	assert.Equal(t, 32, n)
	assert.Error(t, err)
	assert.Zero(t, b.Region.InFlight(), "what came is released")
}

func TestPollAfterClose(t *testing.T) {
	b := fakedevtest.New(t, fakedev.Config{})
	q := b.NewCQ(t)
	b.Fail("ibv_destroy_cq", syscall.EBUSY, 1)
	require.ErrorIs(t, q.Close(), ibv.ErrBusy)
	_, err := q.Poll(make([]cq.WC, 1))
	require.NoError(t, err, "it is open still")
	require.NoError(t, q.Close())
	_, err = q.Poll(make([]cq.WC, 1))
	assert.ErrorIs(t, err, ibv.ErrClosed)
	require.NoError(t, q.Close())
}
