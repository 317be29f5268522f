//go:build rdma

package cq_test

import (
	"context"
	"errors"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/cq"
	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/rdmatest"
)

// inTime fails the test if f has not ended after a minute.
func inTime(t *testing.T, what string, f func() error) {
	t.Helper()
	ended := make(chan error, 1)
	go func() { ended <- f() }()
	select {
	case err := <-ended:
		require.NoError(t, err, what)
	case <-time.After(time.Minute):
		t.Fatalf("%s does not return", what)
	}
}

// sends posts n sends from A, for each of which B has posted a receive.
func sends(t testing.TB, p *rdmatest.Pair, n int, flags ibv.SendFlags) {
	t.Helper()
	for i := range n {
		postRecv(t, p.B.QP, ibv.Recv(uint64(i), p.B.Region.SGE(i*8, 8)))
	}
	for i := range n {
		_, err := p.A.QP.PostSend([]ibv.SendWR{ibv.Send(uint64(i), flags|ibv.SendSignaled, p.A.Region.SGE(i*8, 8))})
		require.NoError(t, err)
	}
	p.A.Wait(t, n)
}

func TestNoLostWakeupOnTheDevice(t *testing.T) {
	p := rdmatest.NewPair(t, rdmatest.DefaultInit())
	total := rdmatest.Rounds(5_000, 100_000)
	assert.False(t, sleepsThrough(t, p.B.CQ, total, time.Minute, library, func(n int) { sends(t, p, n, 0) }),
		"it has slept with completions in the queue")
}

func TestEventsOfSeveralCQs(t *testing.T) {
	ctx := rdmatest.Open(t)
	pd, ch := rdmatest.PD(t, ctx), rdmatest.Channel(t, ctx)
	var pairs []*rdmatest.Pair
	for range 3 {
		p := &rdmatest.Pair{Ctx: ctx, PD: pd, A: rdmatest.NewSide(t, pd, rdmatest.DefaultInit())}
		p.B = rdmatest.NewSideOn(t, pd, rdmatest.DefaultInit(), rdmatest.CQOn(t, ch, ctx, 32))
		p.Connect(t)
		pairs = append(pairs, p)
	}
	for _, p := range pairs {
		require.NoError(t, p.B.CQ.ReqNotify(false))
	}
	for _, i := range []int{2, 0, 1, 1} {
		sends(t, pairs[i], 1, 0)
		got, err := ch.GetEvent(soon(t))
		require.NoError(t, err)
		assert.Same(t, pairs[i].B.CQ, got)
		pairs[i].B.Wait(t, 1)
		require.NoError(t, got.ReqNotify(false))
	}
}

// TestSolicitedOnTheDevice also holds what rdma_rxe does against the manual page: it does
// not tell a solicited wait of failed sends, nor of flushed receives on Linux 6.12.
func TestSolicitedOnTheDevice(t *testing.T) {
	p := rdmatest.NewPair(t, rdmatest.DefaultInit())
	var wcs [8]cq.WC
	got := make(chan int, 1)
	go func() {
		n, err := p.B.CQ.WaitSolicited(soon(t), wcs[:])
		assert.NoError(t, err)
		got <- n
	}()
	require.Eventually(t, func() bool { return cq.Armed(p.B.CQ) }, 30*time.Second, 100*time.Microsecond)
	sends(t, p, 3, 0)
	select {
	case n := <-got:
		// Its second poll may have found the first one, before it slept.
		t.Logf("%d completions before it slept", n)
	default:
		sends(t, p, 1, ibv.SendSolicited)
		assert.Positive(t, <-got)
	}

	require.NoError(t, p.A.CQ.ReqNotify(true))
	bad := p.A.Region.SGE(0, 8)
	bad.LKey ^= 0xffff00
	_, err := p.A.QP.PostSend([]ibv.SendWR{{WRID: 1, Opcode: ibv.OpSend, SGEs: []ibv.SGE{bad}}})
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = p.A.CQ.WaitSolicited(ctx, wcs[:])
	if err != nil {
		require.ErrorIs(t, err, os.ErrDeadlineExceeded, "no event for a failed send: the deadline ends the wait")
	}
}

func TestUnacknowledgedEventsOnTheDevice(t *testing.T) {
	for _, events := range []int{0, 1, 70} {
		for _, channelFirst := range []bool{false, true} {
			ctx := rdmatest.Open(t)
			pd, ch := rdmatest.PD(t, ctx), rdmatest.Channel(t, ctx)
			p := &rdmatest.Pair{Ctx: ctx, PD: pd, A: rdmatest.NewSide(t, pd, rdmatest.DefaultInit())}
			q := rdmatest.CQOn(t, ch, ctx, 32)
			p.B = rdmatest.NewSideOn(t, pd, rdmatest.DefaultInit(), q)
			p.Connect(t)
			for i := range events {
				require.NoError(t, q.ReqNotify(false))
				sends(t, p, 1, 0)
				p.B.Wait(t, 1)
				if i > 0 { // one of them nobody takes
					_, err := ch.GetEvent(soon(t))
					require.NoError(t, err)
				}
			}
			if channelFirst {
				require.ErrorIs(t, ch.Close(), ibv.ErrBusy)
			}
			inTime(t, "closing the queue pair", p.B.QP.Close)
			inTime(t, "closing the completion queue", q.Close)
			inTime(t, "closing the channel", ch.Close)
		}
	}
}

// TestManyChannels waits on as many channels as 1,000, or as the device has.
func TestManyChannels(t *testing.T) {
	const most, mostThreads = 1000, 12
	dev := rdmatest.Open(t)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var channels []*cq.Channel
	var queues []*cq.CQ
	for range most {
		ch, err := cq.NewChannel(dev)
		if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENOMEM) {
			break
		}
		require.NoError(t, err)
		q, err := cq.Create(dev, cq.InitAttr{Entries: 1, Channel: ch})
		if err != nil {
			require.NoError(t, ch.Close())
			break
		}
		channels, queues = append(channels, ch), append(queues, q)
		wg.Go(func() {
			var wcs [1]cq.WC
			_, err := q.Wait(ctx, wcs[:])
			assert.ErrorIs(t, err, context.Canceled)
		})
	}
	require.Greater(t, len(channels), 200)
	for _, ch := range channels {
		require.Eventually(t, func() bool { return cq.Waiting(ch) == 1 }, 30*time.Second, 100*time.Microsecond)
	}
	threads, err := os.ReadDir("/proc/self/task")
	require.NoError(t, err)
	assert.LessOrEqual(t, len(threads), mostThreads)
	t.Logf("%d goroutines wait, in a process of %d threads", len(channels), len(threads))
	cancel()
	wg.Wait()
	for i, q := range queues {
		require.NoError(t, q.Close())
		require.NoError(t, channels[i].Close())
	}
}

func TestResizeOnTheDevice(t *testing.T) {
	p := rdmatest.NewPair(t, rdmatest.DefaultInit())
	q := p.B.CQ
	sends(t, p, 8, 0)
	require.ErrorIs(t, q.Resize(2), syscall.EINVAL, "8 are in it")
	require.NoError(t, q.Resize(1000))
	assert.GreaterOrEqual(t, q.Entries(), 1000)
	for i, wc := range p.B.Wait(t, 8) {
		require.NoError(t, wc.Err())
		assert.EqualValues(t, i, wc.WRID)
	}
	require.NoError(t, q.Resize(8))
	sends(t, p, 8, 0)
	p.B.Wait(t, 8)
	require.ErrorIs(t, q.Moderate(4, time.Microsecond), ibv.ErrNotSupported)
}

func TestCloseWhileWaiting(t *testing.T) {
	p := rdmatest.NewPair(t, rdmatest.DefaultInit())
	ended := make(chan error)
	for range 3 {
		go func() {
			var wcs [1]cq.WC
			_, err := p.B.CQ.Wait(soon(t), wcs[:])
			ended <- err
		}()
	}
	require.Eventually(t, func() bool { return cq.Armed(p.B.CQ) }, 30*time.Second, 100*time.Microsecond)
	inTime(t, "closing the queue pair", p.B.QP.Close)
	inTime(t, "closing the completion queue", p.B.CQ.Close)
	for range 3 {
		require.ErrorIs(t, <-ended, ibv.ErrClosed)
	}
}
