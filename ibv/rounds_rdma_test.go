//go:build rdma

package ibv_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/cq"
	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/rdmatest"
)

// Pairs of queue pairs come and go on one completion queue, often with completions that
// nobody has polled. None of them is seen later, and nothing stays behind.
func TestManyConnectionsOnOneCQ(t *testing.T) {
	ctx := rdmatest.Open(t)
	pd, q := rdmatest.PD(t, ctx), rdmatest.CQ(t, ctx, 256)
	region := rdmatest.Region(t, pd, 4096)
	side := func() rdmatest.Side {
		qp, err := pd.CreateQP(rdmatest.DefaultInit(), ibv.QPQueues{Send: q, Recv: q})
		require.NoError(t, err)
		return rdmatest.Side{QP: qp, CQ: q, Region: region}
	}
	before, fds := rdmatest.Resources(t), rdmatest.OpenFDs(t)
	numbersSeen, unpolled := map[uint32]int{}, 0
	for round := range rdmatest.Rounds(300, 10_000) {
		p := &rdmatest.Pair{Ctx: ctx, PD: pd, A: side(), B: side()}
		p.Connect(t)
		numbersSeen[p.A.QP.Num()]++
		numbersSeen[p.B.QP.Num()]++
		first := round * 10 // no two rounds have the same WRIDs
		postRecv(t, &p.B, recvsFrom(&p.B, first, 5)...)
		post(t, &p.A, sendsFrom(&p.A, first+5, 3, 0)...)

		// One completion at least says that the rest of the messages is under way.
		want := 1 + round%6
		for _, wc := range p.A.Wait(t, want) {
			require.NoError(t, wc.Err())
			requireOf(t, &wc, p, first)
		}
		if round%3 == 1 {
			toState(t, p.B.QP, ibv.QPStateErr) // two receives come back as well
			wc := p.B.Wait(t, 1)[0]
			requireOf(t, &wc, p, first)
		}
		if round%4 == 3 {
			toState(t, p.A.QP, ibv.QPStateReset)
		}
		unpolled += region.InFlight()
		require.NoError(t, p.A.QP.Close())
		require.NoError(t, p.B.QP.Close())
		require.Zero(t, region.InFlight(), "round %d", round)
		if round%2 == 0 { // else the next round's polls find what was left
			requireEmpty(t, q)
		}
	}
	requireEmpty(t, q)
	assert.Positive(t, unpolled)
	assert.Equal(t, before, rdmatest.Resources(t))
	assert.Equal(t, fds, rdmatest.OpenFDs(t))
	t.Logf("%d queue pair numbers, %d work requests not completed at the close", len(numbersSeen), unpolled)
}

// requireOf says that a completion is one of this round.
func requireOf(t *testing.T, wc *cq.WC, p *rdmatest.Pair, first int) {
	t.Helper()
	require.GreaterOrEqual(t, wc.WRID, uint64(first))
	require.Less(t, wc.WRID, uint64(first+8))
	qp := p.A.QP
	if wc.IsRecv() {
		qp = p.B.QP
	}
	require.Equal(t, qp.Num(), wc.QPNum)
}
