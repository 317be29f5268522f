//go:build rdma

package cq_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/cq"
	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/rdmatest"
)

func TestPollOfAnEmptyQueue(t *testing.T) {
	q := rdmatest.CQ(t, rdmatest.Open(t), 16)
	for _, n := range []int{0, 1, 100} {
		got, err := q.Poll(make([]cq.WC, n))
		require.NoError(t, err)
		assert.Zero(t, got)
	}
}

// A failure in the middle does not end the batch: all completions come, in order.
func TestEveryCompletionOfABatchIsReturned(t *testing.T) {
	p := rdmatest.NewPair(t, rdmatest.DefaultInit())
	good := p.A.Region.SGE(0, 8)
	bad := good
	bad.LKey ^= 0xffff00
	for i := range 8 {
		_, err := p.B.QP.PostRecv([]ibv.RecvWR{{WRID: uint64(i), SGEs: []ibv.SGE{p.B.Region.SGE(i*8, 8)}}})
		require.NoError(t, err)
	}
	var wrs []ibv.SendWR
	for i := range 8 {
		wr := ibv.SendWR{WRID: uint64(100 + i), Opcode: ibv.OpSend, SGEs: []ibv.SGE{good}}
		if i == 3 {
			wr.SGEs[0] = bad
		}
		wrs = append(wrs, wr)
	}
	n, err := p.A.QP.PostSend(wrs)
	require.NoError(t, err)
	require.Equal(t, 8, n)
	// The work requests before the bad one may be done, or be flushed while they wait
	// for their acknowledgement; those after it are flushed.
	for i, wc := range p.A.Wait(t, 8) {
		require.EqualValues(t, 100+i, wc.WRID)
		if i < 3 && wc.Status == cq.StatusSuccess {
			continue
		}
		var e *cq.Error
		require.ErrorAs(t, wc.Err(), &e)
		if i != 3 {
			require.Equal(t, cq.ClassFlushed, e.Class())
		}
	}
}

func TestSeparateQueuesForSendAndReceive(t *testing.T) {
	p := rdmatest.NewPair(t, rdmatest.DefaultInit())
	sends, recvs := rdmatest.CQ(t, p.Ctx, 16), rdmatest.CQ(t, p.Ctx, 16)
	qp, err := p.PD.CreateQP(rdmatest.DefaultInit(), ibv.QPQueues{Send: sends, Recv: recvs})
	require.NoError(t, err)
	defer qp.Close()
	other := rdmatest.NewSide(t, p.PD, rdmatest.DefaultInit())
	q := &rdmatest.Pair{Ctx: p.Ctx, PD: p.PD, A: rdmatest.Side{QP: qp, CQ: sends, Region: p.A.Region}, B: other}
	q.Connect(t)
	_, err = other.QP.PostRecv([]ibv.RecvWR{{WRID: 1, SGEs: []ibv.SGE{other.Region.SGE(0, 8)}}})
	require.NoError(t, err)
	_, err = qp.PostRecv([]ibv.RecvWR{{WRID: 2, SGEs: []ibv.SGE{p.A.Region.SGE(0, 8)}}})
	require.NoError(t, err)
	for _, s := range []*ibv.QP{qp, other.QP} {
		_, err = s.PostSend([]ibv.SendWR{{WRID: 3, Opcode: ibv.OpSend, Inline: []byte("12345678")}})
		require.NoError(t, err)
	}
	wc := q.A.Wait(t, 1)[0]
	require.NoError(t, wc.Err())
	assert.EqualValues(t, 3, wc.WRID)
	recvSide := rdmatest.Side{CQ: recvs}
	wc = recvSide.Wait(t, 1)[0]
	require.NoError(t, wc.Err())
	assert.EqualValues(t, 2, wc.WRID)
	other.Wait(t, 2)
}

func TestDataPathAllocatesNothing(t *testing.T) {
	p := rdmatest.NewPair(t, rdmatest.DefaultInit())
	sends := []ibv.SendWR{{Opcode: ibv.OpSend, SGEs: []ibv.SGE{p.A.Region.SGE(0, 8)}}}
	recvs := []ibv.RecvWR{{SGEs: []ibv.SGE{p.B.Region.SGE(0, 8)}}}
	wcs := make([]cq.WC, 1)
	poll := func(q *cq.CQ) {
		for {
			n, err := q.Poll(wcs)
			if err != nil || n > 0 && wcs[0].Status != cq.StatusSuccess {
				panic("poll failed")
			}
			if n > 0 {
				return
			}
		}
	}
	assert.Zero(t, testing.AllocsPerRun(50, func() {
		if _, err := p.B.QP.PostRecv(recvs); err != nil {
			panic(err)
		}
		if _, err := p.A.QP.PostSend(sends); err != nil {
			panic(err)
		}
		poll(p.A.CQ)
		poll(p.B.CQ)
	}))
}
