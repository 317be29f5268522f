//go:build rdma

package ibv_test

import (
	"bytes"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/cq"
	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/rdmatest"
)

func send(wrID uint64, sges ...ibv.SGE) ibv.SendWR {
	return ibv.SendWR{WRID: wrID, Opcode: ibv.OpSend, SGEs: sges}
}

func recv(wrID uint64, sges ...ibv.SGE) ibv.RecvWR { return ibv.RecvWR{WRID: wrID, SGEs: sges} }

func post(t *testing.T, s *rdmatest.Side, wrs ...ibv.SendWR) {
	t.Helper()
	n, err := s.QP.PostSend(wrs)
	require.NoError(t, err)
	require.Equal(t, len(wrs), n)
}

func postRecv(t *testing.T, s *rdmatest.Side, wrs ...ibv.RecvWR) {
	t.Helper()
	n, err := s.QP.PostRecv(wrs)
	require.NoError(t, err)
	require.Equal(t, len(wrs), n)
}

func exchangeOne(t *testing.T, p *rdmatest.Pair) {
	t.Helper()
	postRecv(t, &p.B, recv(1, p.B.Region.SGE(0, 64)))
	post(t, &p.A, send(2, p.A.Region.SGE(0, 64)))
	for _, s := range []*rdmatest.Side{&p.A, &p.B} {
		wc := s.Wait(t, 1)[0]
		require.NoError(t, wc.Err())
	}
}

// failSend makes a send of A fail with a bad lkey.
func failSend(t *testing.T, p *rdmatest.Pair) cq.WC {
	t.Helper()
	bad := p.A.Region.SGE(0, 64)
	bad.LKey ^= 0xffff00
	post(t, &p.A, send(666, bad))
	wc := p.A.Wait(t, 1)[0]
	require.Error(t, wc.Err())
	return wc
}

func TestBatchesLargerThanScratch(t *testing.T) {
	init := rdmatest.DefaultInit()
	init.Cap.MaxSendWR, init.Cap.MaxRecvWR = 100, 100
	p := rdmatest.NewPair(t, init)
	var sends []ibv.SendWR
	var recvs []ibv.RecvWR
	for i := range 100 {
		p.A.Region.Bytes()[i] = byte(i)
		sends = append(sends, send(uint64(i), p.A.Region.SGE(i, 1)))
		recvs = append(recvs, recv(uint64(1000+i), p.B.Region.SGE(i*8, 8)))
	}
	postRecv(t, &p.B, recvs...)
	post(t, &p.A, sends...)
	for i, wc := range p.A.Wait(t, 100) {
		require.NoError(t, wc.Err())
		require.EqualValues(t, i, wc.WRID)
	}
	for i, wc := range p.B.Wait(t, 100) {
		require.NoError(t, wc.Err())
		require.EqualValues(t, 1000+i, wc.WRID)
		require.Equal(t, byte(i), p.B.Region.Bytes()[i*8])
	}
}

func TestScatterGatherAndSizes(t *testing.T) {
	p := rdmatest.NewPair(t, rdmatest.DefaultInit())
	src := p.A.Region.Bytes()
	for i := range src {
		src[i] = byte(i * 7)
	}
	for _, size := range []int{0, 1, 1024, 1025, 30000} {
		third := size / 3
		postRecv(t, &p.B, recv(1, p.B.Region.SGE(0, third), p.B.Region.SGE(third, size-third)))
		post(t, &p.A, send(2, p.A.Region.SGE(5, third), p.A.Region.SGE(5+third, third), p.A.Region.SGE(5+2*third, size-2*third)))
		sent, got := p.A.Wait(t, 1)[0], p.B.Wait(t, 1)[0]
		require.NoError(t, sent.Err())
		require.NoError(t, got.Err())
		assert.Equal(t, size, got.ByteLen())
		assert.True(t, bytes.Equal(src[5:5+size], p.B.Region.Bytes()[:size]), "size %d", size)
	}
}

func TestInline(t *testing.T) {
	p := rdmatest.NewPair(t, rdmatest.DefaultInit())
	limit := int(p.A.QP.Cap().MaxInlineData)
	require.GreaterOrEqual(t, limit, 64)
	text := bytes.Repeat([]byte("abcdefgh"), limit/8)

	// Go bytes may be reused as soon as the post has returned.
	postRecv(t, &p.B, recv(1, p.B.Region.SGE(0, limit)))
	scribble := bytes.Clone(text)
	post(t, &p.A, ibv.SendWR{WRID: 2, Opcode: ibv.OpSend, Inline: scribble})
	clear(scribble)
	require.NoError(t, p.A.Wait(t, 1)[0].Err())
	got := p.B.Wait(t, 1)[0]
	require.NoError(t, got.Err())
	assert.Equal(t, text, p.B.Region.Bytes()[:got.ByteLen()])

	// So may memory that SGEs name, registered or not.
	postRecv(t, &p.B, recv(3, p.B.Region.SGE(0, limit)))
	wr := send(4, p.A.Region.SGE(0, 3), p.A.Region.SGE(8, 3))
	wr.Flags = ibv.SendInline
	wr.SGEs[0].LKey, wr.SGEs[1].LKey = 0, 0
	copy(p.A.Region.Bytes(), "one-----two")
	post(t, &p.A, wr)
	clear(p.A.Region.Bytes())
	require.NoError(t, p.A.Wait(t, 1)[0].Err())
	got = p.B.Wait(t, 1)[0]
	require.NoError(t, got.Err())
	assert.Equal(t, "onetwo", string(p.B.Region.Bytes()[:got.ByteLen()]))

	// An empty message is a message.
	postRecv(t, &p.B, recv(5))
	post(t, &p.A, ibv.SendWR{WRID: 6, Opcode: ibv.OpSend, Inline: []byte{}})
	got = p.B.Wait(t, 1)[0]
	require.NoError(t, got.Err())
	assert.Zero(t, got.ByteLen())
}

func TestPostsNeedTheRightState(t *testing.T) {
	qp, gid := newQP(t)
	refusesSend := func() {
		t.Helper()
		n, err := qp.PostSend([]ibv.SendWR{send(1)})
		require.ErrorIs(t, err, syscall.EINVAL)
		assert.ErrorContains(t, err, "cannot be posted in state")
		assert.Zero(t, n)
	}
	refusesSend()
	_, err := qp.PostRecv([]ibv.RecvWR{recv(1)})
	assert.ErrorContains(t, err, "cannot be posted in state RESET")
	require.NoError(t, qp.Modify(toINIT(gid), initMask))
	refusesSend()
	_, err = qp.PostRecv([]ibv.RecvWR{recv(1)})
	require.NoError(t, err)
	require.NoError(t, qp.Modify(toRTR(gid, qp), rtrMask))
	refusesSend()
	require.NoError(t, qp.Modify(toRTS(), rtsMask))
	_, err = qp.PostSend([]ibv.SendWR{send(1)})
	require.NoError(t, err)
}

func TestFullQueues(t *testing.T) {
	init := rdmatest.DefaultInit()
	init.SignalAll = false
	p := rdmatest.NewPair(t, init)
	sge := p.A.Region.SGE(0, 8)
	depth := int(p.A.QP.Cap().MaxSendWR)
	wrs := make([]ibv.SendWR, depth+3)
	for i := range wrs {
		wrs[i] = send(uint64(i), sge)
	}
	// No receive is posted, so nothing completes, and nothing is signaled.
	n, err := p.A.QP.PostSend(wrs)
	require.ErrorIs(t, err, ibv.ErrQueueFull)
	require.ErrorIs(t, err, syscall.ENOMEM)
	assert.ErrorContains(t, err, "unsignaled")
	assert.Equal(t, depth, n, "all that fit were accepted")
	var e *ibv.PostError
	require.ErrorAs(t, err, &e)
	assert.Equal(t, depth, e.Index)

	rdepth := int(p.B.QP.Cap().MaxRecvWR)
	rwrs := make([]ibv.RecvWR, rdepth+1)
	for i := range rwrs {
		rwrs[i] = recv(uint64(i), p.B.Region.SGE(0, 64))
	}
	n, err = p.B.QP.PostRecv(rwrs)
	require.ErrorIs(t, err, ibv.ErrQueueFull)
	assert.Equal(t, rdepth, n)

	// A queue of only unsignaled work requests never empties by itself. To ERR: the
	// flush is a completion even of unsignaled ones, and frees the places.
	require.NoError(t, p.A.QP.Modify(ibv.QPAttr{State: ibv.QPStateErr}, ibv.AttrState))
	post := func() error {
		_, err := p.A.QP.PostSend([]ibv.SendWR{send(99, sge)})
		return err
	}
	var wcs [4]cq.WC
	for deadline := time.Now().Add(10 * time.Second); post() != nil; {
		if time.Now().After(deadline) {
			// About once in a hundred times rdma_rxe of Linux 6.12 flushes nothing of a queue that
			// waits for the peer's receives. RESET frees the places on every device.
			sends, _ := p.A.QP.InFlight()
			require.Equal(t, depth, sends, "the queue does not empty")
			require.NoError(t, p.A.QP.Modify(ibv.QPAttr{State: ibv.QPStateReset}, ibv.AttrState))
			sends, _ = p.A.QP.InFlight()
			require.Zero(t, sends)
			return
		}
		_, err := p.A.CQ.Poll(wcs[:])
		require.NoError(t, err)
	}
}

func TestSignaledCompletionCoversEarlierOnes(t *testing.T) {
	init := rdmatest.DefaultInit()
	init.SignalAll = false
	p := rdmatest.NewPair(t, init)
	depth := int(p.A.QP.Cap().MaxSendWR)
	for round := range rdmatest.Rounds(3, 300) * depth {
		var wrs []ibv.SendWR
		for i := range 8 {
			postRecv(t, &p.B, recv(0, p.B.Region.SGE(0, 64)))
			wrs = append(wrs, send(uint64(round*8+i), p.A.Region.SGE(0, 8)))
		}
		wrs[7].Flags = ibv.SendSignaled
		post(t, &p.A, wrs...) // fails with ErrQueueFull if a place were lost
		wc := p.A.Wait(t, 1)[0]
		require.NoError(t, wc.Err())
		require.EqualValues(t, round*8+7, wc.WRID)
		p.B.Wait(t, 8)
	}
}

func TestFlushedReceivesAreReportedAsReceives(t *testing.T) {
	p := rdmatest.NewPair(t, rdmatest.DefaultInit())
	postRecv(t, &p.A, recv(1, p.A.Region.SGE(0, 8)), recv(2, p.A.Region.SGE(8, 8)))
	require.NoError(t, p.A.QP.Modify(ibv.QPAttr{State: ibv.QPStateErr}, ibv.AttrState))
	for i, wc := range p.A.Wait(t, 2) {
		assert.EqualValues(t, i+1, wc.WRID)
		assert.True(t, wc.IsRecv())
		var e *cq.Error
		require.ErrorAs(t, wc.Err(), &e)
		assert.Equal(t, cq.ClassFlushed, e.Class())
	}
}

func TestPeerThatIsGone(t *testing.T) {
	// The default RetryCount ends: to rdma_rxe the highest one is for ever.
	p := rdmatest.NewPair(t, rdmatest.DefaultInit(), func(c *ibv.ConnectParams) { c.Timeout = 10 * time.Millisecond })
	require.NoError(t, p.B.QP.Close())
	post(t, &p.A, send(1, p.A.Region.SGE(0, 8)))
	wc := p.A.Wait(t, 1)[0]
	var e *cq.Error
	require.ErrorAs(t, wc.Err(), &e)
	assert.Equal(t, cq.ClassRetryExceeded, e.Class())
}

// Completions of a QP that is closed, or was reset, are never reported: not as its
// own, and not as those of a newer QP on the same CQ.
func TestLateCompletionsAreNotReported(t *testing.T) {
	p := rdmatest.NewPair(t, rdmatest.DefaultInit())
	shared := p.A.CQ
	fail := func(qp *ibv.QP) {
		_, err := qp.PostRecv([]ibv.RecvWR{recv(1), recv(2), recv(3)})
		require.NoError(t, err)
		require.NoError(t, qp.Modify(ibv.QPAttr{State: ibv.QPStateErr}, ibv.AttrState))
	}
	var wcs [16]cq.WC
	for range rdmatest.Rounds(5, 500) {
		old, err := p.PD.CreateQP(rdmatest.DefaultInit(), ibv.QPQueues{Send: shared, Recv: shared})
		require.NoError(t, err)
		_, err = old.Init(ibv.GIDRequest{Local: rdmatest.Addr(t)}, 0)
		require.NoError(t, err)
		fail(old) // its three flushes are queued now, or soon
		require.NoError(t, old.Close())
		exchangeOne(t, p) // reports its own completion only
		n, err := shared.Poll(wcs[:])
		require.NoError(t, err)
		require.Zero(t, n)
	}
	fail(p.A.QP)
	require.NoError(t, p.A.QP.Modify(ibv.QPAttr{State: ibv.QPStateReset}, ibv.AttrState))
	n, err := shared.Poll(wcs[:])
	require.NoError(t, err)
	require.Zero(t, n)
	require.NoError(t, p.B.QP.Modify(ibv.QPAttr{State: ibv.QPStateReset}, ibv.AttrState))
	p.Connect(t)
	exchangeOne(t, p)
}

func TestQPsShareACQ(t *testing.T) {
	ctx := rdmatest.Open(t)
	pd, q := rdmatest.PD(t, ctx), rdmatest.CQ(t, ctx, 256)
	region := rdmatest.Region(t, pd, 4096)
	const pairs = 4
	counts := map[uint32]int{}
	for range pairs {
		var sides [2]rdmatest.Side
		for i := range sides {
			qp, err := pd.CreateQP(rdmatest.DefaultInit(), ibv.QPQueues{Send: q, Recv: q})
			require.NoError(t, err)
			defer qp.Close()
			sides[i] = rdmatest.Side{QP: qp, CQ: q, Region: region}
		}
		p := &rdmatest.Pair{Ctx: ctx, PD: pd, A: sides[0], B: sides[1]}
		p.Connect(t)
		postRecv(t, &p.B, recv(uint64(p.B.QP.Num()), region.SGE(0, 64)))
		post(t, &p.A, send(uint64(p.A.QP.Num()), region.SGE(64, 64)))
	}
	side := rdmatest.Side{CQ: q}
	for _, wc := range side.Wait(t, 2*pairs) {
		require.NoError(t, wc.Err())
		assert.EqualValues(t, wc.QPNum, wc.WRID)
		counts[wc.QPNum]++
	}
	assert.Len(t, counts, 2*pairs)
}

// The deepest queue that the device says it has: some providers grant more than that.
func TestDeepestQueue(t *testing.T) {
	ctx := rdmatest.Open(t)
	dev, err := ctx.QueryDevice()
	require.NoError(t, err)
	pd, q := rdmatest.PD(t, ctx), rdmatest.CQ(t, ctx, 16)
	qp, err := pd.CreateQP(ibv.QPInitAttr{Type: ibv.QPTypeRC, Cap: ibv.QPCap{
		MaxSendWR: 1, MaxSendSGE: 1, MaxRecvWR: uint32(dev.MaxQPWR), MaxRecvSGE: 1,
	}}, ibv.QPQueues{Send: q, Recv: q})
	require.NoError(t, err)
	defer qp.Close()
	_, err = qp.Init(ibv.GIDRequest{Local: rdmatest.Addr(t)}, 0)
	require.NoError(t, err)
	depth := int(qp.Cap().MaxRecvWR)
	require.GreaterOrEqual(t, depth, dev.MaxQPWR)
	wrs := make([]ibv.RecvWR, 1024)
	posted := 0
	for err == nil {
		var n int
		n, err = qp.PostRecv(wrs)
		posted += n
	}
	require.ErrorIs(t, err, ibv.ErrQueueFull)
	assert.Equal(t, depth, posted)
}
