//go:build rdma

package ibv_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/cq"
	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/cverbs"
	"github.com/goverbs/goverbs/internal/rdmatest"
)

func drain(t *testing.T, qp *ibv.QP) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	require.NoError(t, qp.Drain(ctx))
}

// requirePostsRefused says that a drained or draining queue pair takes nothing more.
func requirePostsRefused(t *testing.T, qp *ibv.QP) {
	t.Helper()
	n, err := qp.PostSend([]ibv.SendWR{{Opcode: ibv.OpSend, Flags: ibv.SendSignaled}})
	require.ErrorIs(t, err, ibv.ErrClosed)
	require.ErrorContains(t, err, "drained")
	require.ErrorContains(t, err, "RESET")
	require.Zero(t, n)
	n, err = qp.PostRecv([]ibv.RecvWR{{}})
	require.ErrorIs(t, err, ibv.ErrClosed)
	require.Zero(t, n)
}

// reconnect brings a pair of which one side was drained back to work.
func reconnect(t *testing.T, p *rdmatest.Pair) {
	t.Helper()
	toState(t, p.A.QP, ibv.QPStateReset)
	toState(t, p.B.QP, ibv.QPStateReset)
	p.Connect(t)
	exchangeOne(t, p)
}

// loseCompletion takes one completion of a queue from the device behind the library's
// back, as an overrun does.
func loseCompletion(t *testing.T, q *cq.CQ) {
	t.Helper()
	c := q.Core()
	c.Mu.Lock()
	defer c.Mu.Unlock()
	until(t, "a completion there", func() bool { return cverbs.PollCQ(c.Addr, c.Scratch, 1) == 1 })
}

func TestDrainKeepsEveryCompletion(t *testing.T) {
	p := rdmatest.NewPair(t, rdmatest.DefaultInit())
	// Another queue pair reports to the same completion queue.
	otherQP, err := p.PD.CreateQP(rdmatest.DefaultInit(), ibv.QPQueues{Send: p.A.CQ, Recv: p.A.CQ})
	require.NoError(t, err)
	defer otherQP.Close()
	other := &rdmatest.Pair{Ctx: p.Ctx, PD: p.PD, B: rdmatest.NewSide(t, p.PD, rdmatest.DefaultInit()),
		A: rdmatest.Side{QP: otherQP, CQ: p.A.CQ, Region: rdmatest.Region(t, p.PD, 4096)}}
	other.Connect(t)

	postRecv(t, &other.A, recvsFrom(&other.A, 70, 5)...)
	post(t, &other.B, sendsFrom(&other.B, 0, 3, 0)...)
	other.B.Wait(t, 3)                           // so that three of the other's completions are queued
	postRecv(t, &p.A, recvsFrom(&p.A, 20, 6)...) // nothing comes
	post(t, &p.A, sendsFrom(&p.A, 40, 9, 0)...)  // the peer has no receives, and waits for ever
	require.Equal(t, 15, p.A.Region.InFlight())

	drain(t, p.A.QP)
	assert.Zero(t, p.A.Region.InFlight(), "nothing of it is with the device")
	assert.Equal(t, 2, other.A.Region.InFlight(), "of the other, those that wait for messages")
	state, err := p.A.QP.State()
	require.NoError(t, err)
	assert.Equal(t, ibv.QPStateErr, state)
	requirePostsRefused(t, p.A.QP)

	// Completions that come later do not overtake those that were kept.
	post(t, &other.B, sendsFrom(&other.B, 0, 2, 0)...)
	other.B.Wait(t, 2)
	var wcs []cq.WC
	for range 20 { // one by one, so that what is kept is taken in parts
		wcs = append(wcs, p.A.Wait(t, 1)...)
	}
	requireEmpty(t, p.A.CQ)
	assert.Equal(t, numbers(40, 9), wrIDs(wcs, p.A.QP, false))
	assert.Equal(t, numbers(20, 6), wrIDs(wcs, p.A.QP, true))
	assert.Equal(t, numbers(70, 5), wrIDs(wcs, otherQP, true))
	assert.Equal(t, numbers(70, 3), wrIDs(wcs[:3], otherQP, true), "they were there first")
	assert.Equal(t, numbers(73, 2), wrIDs(wcs[18:], otherQP, true), "they came last")
	for _, wc := range wcs {
		if wc.QPNum == p.A.QP.Num() {
			requireFlushed(t, wc)
		} else {
			require.NoError(t, wc.Err())
		}
	}
	reconnect(t, p)
}

func TestDrainOfQueuesApart(t *testing.T) {
	ctx := rdmatest.Open(t)
	pd := rdmatest.PD(t, ctx)
	p := &rdmatest.Pair{Ctx: ctx, PD: pd, A: rdmatest.NewSide(t, pd, rdmatest.DefaultInit())}
	sends, recvs := rdmatest.CQ(t, ctx, 32), rdmatest.CQ(t, ctx, 32)
	qp, err := pd.CreateQP(rdmatest.DefaultInit(), ibv.QPQueues{Send: sends, Recv: recvs})
	require.NoError(t, err)
	defer qp.Close()
	p.B = rdmatest.Side{QP: qp, CQ: sends, Region: rdmatest.Region(t, pd, 4096)}
	p.Connect(t)
	postRecv(t, &p.B, recvsFrom(&p.B, 1, 3)...)
	post(t, &p.B, sendsFrom(&p.B, 4, 3, 0)...)
	drain(t, qp)
	recvSide := rdmatest.Side{CQ: recvs}
	assert.Equal(t, numbers(4, 3), wrIDs(p.B.Wait(t, 3), qp, false))
	assert.Equal(t, numbers(1, 3), wrIDs(recvSide.Wait(t, 3), qp, true))
}

// Of unsignaled datagrams that have gone nothing tells but a marker, which needs an address.
func TestDrainOfUnsignaledDatagrams(t *testing.T) {
	p, _, toB := rdmatest.NewDatagrams(t, func(a *ibv.QPInitAttr) { a.SignalAll = false })
	postRecv(t, &p.B, recvsFrom(&p.B, 1, 2)...)
	datagram := ibv.Send(3, 0, p.A.Region.SGE(0, 8)).To(toB)
	post(t, &p.A, datagram, datagram)
	p.B.Wait(t, 2)
	sends, _ := p.A.QP.InFlight()
	assert.Equal(t, 2, sends)
	require.ErrorIs(t, toB.AH.Close(), ibv.ErrBusy)
	drain(t, p.A.QP)
	sends, _ = p.A.QP.InFlight()
	assert.Zero(t, sends)
	var wcs [1]cq.WC
	n, err := p.A.CQ.Poll(wcs[:])
	require.NoError(t, err)
	assert.Zero(t, n, "the marker is nobody's")
	require.NoError(t, toB.AH.Close())
}

// A receive that is posted in ERR is flushed by some devices only when told again.
func TestDrainOfReceivePostedInERR(t *testing.T) {
	p := rdmatest.NewPair(t, rdmatest.DefaultInit())
	postRecv(t, &p.A, recvsFrom(&p.A, 1, 1)...)
	toState(t, p.A.QP, ibv.QPStateErr)
	requireFlushed(t, p.A.Wait(t, 1)[0])
	postRecv(t, &p.A, recvsFrom(&p.A, 2, 2)...)
	drain(t, p.A.QP)
	assert.Equal(t, numbers(2, 2), wrIDs(p.A.Wait(t, 2), p.A.QP, true))
	reconnect(t, p)

	toState(t, p.A.QP, ibv.QPStateErr)
	postRecv(t, &p.A, recvsFrom(&p.A, 2, 2)...)
	post(t, &p.A, sendsFrom(&p.A, 4, 2, 0)...)
	drain(t, p.A.QP)
	wcs := p.A.Wait(t, 4)
	assert.Equal(t, numbers(2, 2), wrIDs(wcs, p.A.QP, true))
	assert.Equal(t, numbers(4, 2), wrIDs(wcs, p.A.QP, false))
}

func TestDrainAgainAndOfNothing(t *testing.T) {
	p := rdmatest.NewPair(t, rdmatest.DefaultInit())
	postRecv(t, &p.A, recvsFrom(&p.A, 1, 3)...)
	errs := make(chan error)
	for range 3 {
		go func() { errs <- p.A.QP.Drain(t.Context()) }()
	}
	for range 3 {
		require.NoError(t, <-errs)
	}
	drain(t, p.A.QP)
	requirePostsRefused(t, p.A.QP)
	for i, wc := range p.A.Wait(t, 3) {
		require.EqualValues(t, 1+i, wc.WRID)
		requireFlushed(t, wc)
	}
	requireEmpty(t, p.A.CQ)

	idle := rdmatest.NewSide(t, p.PD, rdmatest.DefaultInit())
	drain(t, idle.QP) // there is nothing in RESET
	_, err := idle.QP.Init(ibv.GIDRequest{Local: rdmatest.Addr(t)}, 0)
	require.NoError(t, err)
	postRecv(t, &idle, recvsFrom(&idle, 1, 1)...)
	drain(t, idle.QP) // from INIT
	requirePostsRefused(t, idle.QP)
	requireFlushed(t, idle.Wait(t, 1)[0])
	require.NoError(t, idle.QP.Close())
	err = idle.QP.Drain(t.Context())
	require.ErrorIs(t, err, ibv.ErrClosed)
	require.ErrorContains(t, err, idle.QP.String())
}

func TestLostCompletionIsCoveredByLaterOnes(t *testing.T) {
	p := rdmatest.NewPair(t, rdmatest.DefaultInit())
	postRecv(t, &p.A, recvsFrom(&p.A, 1, 4)...)
	toState(t, p.A.QP, ibv.QPStateErr)
	loseCompletion(t, p.A.CQ)
	drain(t, p.A.QP)
	assert.Zero(t, p.A.Region.InFlight())
	assert.Equal(t, numbers(2, 3), wrIDs(p.A.Wait(t, 3), p.A.QP, true))
}

// beginStuckDrain drains the first queue pair, which has one receive and two sends, after
// the receive's completion was lost, and returns when only that is missing.
func beginStuckDrain(t *testing.T, p *rdmatest.Pair, ctx context.Context) (ended chan error) {
	t.Helper()
	postRecv(t, &p.A, recvsFrom(&p.A, 1, 1)...)
	toState(t, p.A.QP, ibv.QPStateErr)
	loseCompletion(t, p.A.CQ)
	post(t, &p.A, sendsFrom(&p.A, 10, 2, 0)...)
	ended = make(chan error, 1)
	go func() { ended <- p.A.QP.Drain(ctx) }()
	until(t, "harvested", func() bool { return p.A.Region.InFlight() == 1 })
	requirePostsRefused(t, p.A.QP)
	require.Empty(t, ended, "it waits")
	return ended
}

// A completion that is lost never comes: the context ends Drain, which says how much is
// left, and RESET gives the memory back.
func TestDrainEndsWithItsContext(t *testing.T) {
	p := rdmatest.NewPair(t, rdmatest.DefaultInit())
	ctx, cancel := context.WithCancelCause(t.Context())
	ended := beginStuckDrain(t, p, ctx)
	cause := errors.New("enough")
	cancel(cause)
	err := <-ended
	require.ErrorIs(t, err, cause)
	require.ErrorContains(t, err, "0 sends and 1 receives have not completed")
	require.ErrorContains(t, err, p.A.QP.String())
	requirePostsRefused(t, p.A.QP)
	assert.Equal(t, numbers(10, 2), wrIDs(p.A.Wait(t, 2), p.A.QP, false))
	require.Equal(t, 1, p.A.Region.InFlight())
	reconnect(t, p)
	require.Zero(t, p.A.Region.InFlight())
}

func TestCloseEndsDrain(t *testing.T) {
	rdmatest.Watchdog(t, 2*time.Minute)
	p := rdmatest.NewPair(t, rdmatest.DefaultInit())
	ended := beginStuckDrain(t, p, t.Context())
	require.NoError(t, p.A.QP.Close())
	err := <-ended
	require.ErrorIs(t, err, ibv.ErrClosed)
	require.ErrorContains(t, err, "closed while draining")
	require.Zero(t, p.A.Region.InFlight())
	requireEmpty(t, p.A.CQ) // also of the sends whose completions Drain kept
}
