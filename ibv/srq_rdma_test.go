//go:build rdma

package ibv_test

import (
	"encoding/binary"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/cq"
	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/rdmatest"
	"github.com/goverbs/goverbs/mr"
)

// hub is a shared receive queue with a completion queue, and queue pairs that use both,
// each connected to a sender.
type hub struct {
	pd     *ibv.PD
	srq    *ibv.SRQ
	in     rdmatest.Side // its CQ is that of all receivers
	region *mr.Region    // of the receives
	pairs  []*rdmatest.Pair
	index  map[uint32]int // of the receivers' QP numbers
}

func newSRQ(t *testing.T, pd *ibv.PD, maxWR, maxSGE uint32) *ibv.SRQ {
	t.Helper()
	srq, err := pd.CreateSRQ(ibv.SRQInitAttr{MaxWR: maxWR, MaxSGE: maxSGE})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, srq.Close()) })
	return srq
}

// newHub makes one whose receives have room for size bytes.
func newHub(t *testing.T, pairs, recvs, size int) *hub {
	t.Helper()
	ctx := rdmatest.Open(t)
	pd := rdmatest.PD(t, ctx)
	h := &hub{pd: pd, srq: newSRQ(t, pd, uint32(recvs), 1), index: map[uint32]int{}}
	h.in.CQ = rdmatest.CQ(t, ctx, recvs+64)
	h.region = rdmatest.Region(t, pd, recvs*size)
	for range pairs {
		h.add(t)
	}
	return h
}

// add makes one more pair, whose B takes its receives from the shared queue.
func (h *hub) add(t *testing.T, change ...func(*ibv.ConnectParams)) *rdmatest.Pair {
	t.Helper()
	init := rdmatest.DefaultInit()
	init.Cap.MaxRecvWR, init.Cap.MaxRecvSGE = 0, 0
	qp, err := h.pd.CreateQP(init, ibv.QPQueues{Send: h.in.CQ, Recv: h.in.CQ, SRQ: h.srq})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, qp.Close()) })
	p := &rdmatest.Pair{Ctx: h.pd.Context(), PD: h.pd, Access: rdmatest.RemoteAccess,
		A: rdmatest.NewSide(t, h.pd, rdmatest.DefaultInit()), B: rdmatest.Side{QP: qp, CQ: h.in.CQ}}
	p.Connect(t, change...)
	h.index[qp.Num()] = len(h.pairs)
	h.pairs = append(h.pairs, p)
	return p
}

// post gives receives with the numbers of their places in the region.
func (h *hub) post(t *testing.T, size int, places ...int) {
	wrs := make([]ibv.RecvWR, len(places))
	for i, place := range places {
		wrs[i] = ibv.Recv(uint64(place), h.region.SGE(place*size, size))
	}
	n, err := h.srq.PostRecv(wrs)
	assert.NoError(t, err)
	assert.Equal(t, len(wrs), n)
}

// slot sizes: a message says of which pair it is, which of its messages, and goes on
// with bytes that follow from both.
const slotSize = 256

func message(b []byte, pair, seq int) []byte {
	b = b[:16+(pair*31+seq*7)%(slotSize-16)]
	fill(b, pair*101+seq)
	binary.BigEndian.PutUint32(b, uint32(pair))
	binary.BigEndian.PutUint32(b[4:], uint32(seq))
	return b
}

// Eight queue pairs take their receives from one queue. Every message arrives once, in
// its pair's order, whole, in a receive that nobody else has; writes with immediate data
// take a receive too, and leave its memory alone.
func TestSharedReceiveQueue(t *testing.T) {
	const pairs, recvs, window = 8, 64, 4
	messages := rdmatest.Rounds(500, 5000) // of each pair
	h := newHub(t, pairs, recvs, slotSize)
	written := rdmatest.Region(t, h.pd, pairs*slotSize, rdmatest.RemoteAccess)
	posted := make([]bool, recvs)
	for i := range posted {
		posted[i] = true
	}
	poison := func(place int) []byte {
		b := h.region.Bytes()[place*slotSize:][:slotSize]
		for i := range b {
			b[i] = 0xa5
		}
		return b
	}
	all := make([]int, recvs)
	for i := range all {
		all[i] = i
		poison(i)
	}
	h.post(t, slotSize, all...)

	// Receives are posted again by others than who polls.
	repost := make(chan int, recvs)
	var reposting sync.WaitGroup
	for range 2 {
		reposting.Go(func() {
			for place := range repost {
				h.post(t, slotSize, place)
			}
		})
	}
	defer reposting.Wait()
	defer close(repost)

	var sent, sending, got [pairs]int
	isWrite := func(seq int) bool { return seq%5 == 4 }
	send := func(i int) {
		side := &h.pairs[i].A
		off := sent[i] % window * slotSize
		b := message(side.Region.Bytes()[off:off+slotSize], i, sent[i])
		wr := ibv.Send(uint64(sent[i]), 0, side.Region.SGE(off, len(b)))
		if isWrite(sent[i]) {
			wr = ibv.WriteImm(wr.WRID, 0, uint32(sent[i]), written.Remote().Slice(i*slotSize, slotSize), wr.SGEs...)
		}
		post(t, side, wr)
		sent[i]++
		sending[i]++
	}
	want := make([]byte, slotSize)
	receive := func(wc *cq.WC) {
		require.NoError(t, wc.Err())
		require.True(t, wc.IsRecv())
		place := int(wc.WRID)
		require.True(t, posted[place], "receive %d completed twice", place)
		posted[place] = false
		i, known := h.index[wc.QPNum]
		require.True(t, known)
		want := message(want, i, got[i])
		require.Equal(t, len(want), wc.ByteLen())
		b := h.region.Bytes()[place*slotSize:][:slotSize]
		if isWrite(got[i]) {
			imm, hasImm := wc.Imm()
			require.True(t, hasImm)
			require.EqualValues(t, got[i], imm)
			require.Equal(t, cq.OpRecvRDMAWithImm, wc.Opcode())
			require.Equal(t, byte(0xa5), b[0], "the receive's own memory")
			require.Equal(t, want, written.Bytes()[i*slotSize:][:len(want)])
		} else {
			require.Equal(t, want, b[:len(want)], "message %d of pair %d", got[i], i)
			if len(want) < slotSize {
				require.Equal(t, byte(0xa5), b[len(want)], "behind the message")
			}
		}
		got[i]++
		poison(place)
		posted[place] = true
		repost <- place
	}
	var wcs [16]cq.WC
	total := func() (n int) {
		for _, k := range got {
			n += k
		}
		return n
	}
	until(t, "all messages there", func() bool {
		for i, p := range h.pairs {
			// A write's target is read before the next write may overwrite it.
			for sending[i] < window && sent[i] < messages && (sent[i] == got[i] || !isWrite(sent[i]) && sent[i]-got[i] < window) {
				send(i)
			}
			n, err := p.A.CQ.Poll(wcs[:])
			require.NoError(t, err)
			for _, wc := range wcs[:n] {
				require.NoError(t, wc.Err())
				sending[i]--
			}
		}
		n, err := h.in.CQ.Poll(wcs[:])
		require.NoError(t, err)
		for i := range wcs[:n] {
			receive(&wcs[i])
		}
		return total() == pairs*messages
	})
	until(t, "all reposted", func() bool { return h.srq.InFlight() == recvs })
	require.Equal(t, recvs, h.region.InFlight())
	require.NoError(t, h.closeAll())
	require.Zero(t, h.region.InFlight(), "the closed queue has let go")
}

// closeAll closes the receivers and the shared queue.
func (h *hub) closeAll() error {
	for _, p := range h.pairs {
		if err := p.B.QP.Close(); err != nil {
			return err
		}
	}
	return h.srq.Close()
}

func TestSRQAttributes(t *testing.T) {
	h := newHub(t, 1, 16, slotSize)
	dev, err := h.pairs[0].Ctx.QueryDevice()
	require.NoError(t, err)
	granted := h.srq.Cap()
	assert.GreaterOrEqual(t, granted.MaxWR, uint32(16))
	assert.GreaterOrEqual(t, granted.MaxSGE, uint32(1))
	attr, err := h.srq.Query()
	require.NoError(t, err)
	assert.GreaterOrEqual(t, attr.MaxWR, granted.MaxWR, "some devices tell the whole truth only when asked")
	assert.Equal(t, granted.MaxSGE, attr.MaxSGE)
	assert.Zero(t, attr.Limit)

	require.NoError(t, h.srq.Modify(ibv.SRQAttr{Limit: 5}, ibv.SRQLimit))
	attr, err = h.srq.Query()
	require.NoError(t, err)
	assert.EqualValues(t, 5, attr.Limit)
	assert.Equal(t, attr.MaxWR, h.srq.Cap().MaxWR)
	err = h.srq.Modify(ibv.SRQAttr{Limit: attr.MaxWR + 1}, ibv.SRQLimit)
	require.ErrorIs(t, err, syscall.EINVAL)
	require.ErrorContains(t, err, "Limit")
	require.NoError(t, h.srq.Modify(ibv.SRQAttr{Limit: 0}, ibv.SRQLimit))

	// A queue that grows keeps the receives that are posted.
	h.post(t, slotSize, 0, 1, 2)
	err = h.srq.Modify(ibv.SRQAttr{MaxWR: uint32(dev.MaxSRQWR) + 1}, ibv.SRQMaxWR)
	require.ErrorIs(t, err, syscall.EINVAL)
	err = h.srq.Modify(ibv.SRQAttr{MaxWR: 100}, ibv.SRQMaxWR)
	if dev.CapFlags&ibv.DeviceSRQResize == 0 {
		require.ErrorIs(t, err, ibv.ErrNotSupported)
		require.ErrorContains(t, err, "DeviceSRQResize")
		return
	}
	require.NoError(t, err)
	assert.GreaterOrEqual(t, h.srq.Cap().MaxWR, uint32(100))
	for place := 3; place < 100; place++ {
		h.post(t, slotSize, place%16)
	}
	require.Equal(t, 100, h.srq.InFlight())
	for i := range 5 {
		post(t, &h.pairs[0].A, ibv.Send(0, 0, h.pairs[0].A.Region.SGE(0, 64)))
		h.pairs[0].A.Wait(t, 1)
		wc := h.in.Wait(t, 1)[0]
		require.NoError(t, wc.Err())
		require.EqualValues(t, i, wc.WRID)
	}
	err = h.srq.Modify(ibv.SRQAttr{MaxWR: 8}, ibv.SRQMaxWR)
	require.ErrorIs(t, err, syscall.EINVAL, "95 are posted")
	require.Equal(t, 95, h.srq.InFlight())
}

func TestSRQRefusals(t *testing.T) {
	h := newHub(t, 1, 16, slotSize)
	sge := h.region.SGE(0, 64)
	refused := func(want string, wr ibv.RecvWR) {
		t.Helper()
		before := h.srq.InFlight()
		n, err := h.srq.PostRecv([]ibv.RecvWR{ibv.Recv(1, sge), wr, ibv.Recv(3, sge)})
		var e *ibv.PostError
		require.ErrorAs(t, err, &e)
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, h.srq.String())
		require.Equal(t, 1, n)
		require.Equal(t, 1, e.Index)
		require.Equal(t, before+1, h.srq.InFlight(), "what stands before it is posted")
	}
	refused("SGEs are more than the MaxSGE", ibv.Recv(2, make([]ibv.SGE, h.srq.Cap().MaxSGE+1)...))
	other := rdmatest.Region(t, rdmatest.PD(t, h.pairs[0].Ctx), 64)
	refused("another PD than the queue", ibv.Recv(2, other.SGE(0, 64)))
	require.Zero(t, other.InFlight())
	for want, access := range map[string]ibv.AccessFlags{"without LocalWrite": 0, "was closed": ibv.AccessLocalWrite} {
		region, err := mr.AllocRegion(h.pd, 64, access)
		require.NoError(t, err)
		wr := ibv.Recv(2, region.SGE(0, 64))
		require.NoError(t, region.Close())
		refused(want, wr)
	}

	// A queue pair on it has no receive queue of its own.
	n, err := h.pairs[0].B.QP.PostRecv([]ibv.RecvWR{ibv.Recv(1, sge)})
	require.ErrorIs(t, err, syscall.EINVAL)
	require.ErrorContains(t, err, h.srq.String())
	require.Zero(t, n)
	_, err = h.pd.CreateQP(rdmatest.DefaultInit(), ibv.QPQueues{Send: h.in.CQ, Recv: h.in.CQ, SRQ: h.srq})
	require.ErrorIs(t, err, syscall.EINVAL)
	require.ErrorContains(t, err, "MaxRecvWR")
	_, err = h.pd.CreateSRQ(ibv.SRQInitAttr{MaxSGE: 1})
	require.ErrorIs(t, err, syscall.EINVAL)
}

func TestFullSRQ(t *testing.T) {
	h := newHub(t, 1, 16, slotSize)
	wrs := make([]ibv.RecvWR, 1000)
	for i := range wrs {
		wrs[i] = ibv.Recv(uint64(i), h.region.SGE(0, 64))
	}
	n, err := h.srq.PostRecv(wrs)
	require.ErrorIs(t, err, ibv.ErrQueueFull)
	require.GreaterOrEqual(t, n, int(h.srq.Cap().MaxWR))
	require.Less(t, n, len(wrs))
	var e *ibv.PostError
	require.ErrorAs(t, err, &e)
	require.Equal(t, n, e.Index)
	require.Equal(t, n, h.srq.InFlight())
	require.Equal(t, n, h.region.InFlight())
	// A message makes room for one.
	post(t, &h.pairs[0].A, ibv.Send(0, 0, h.pairs[0].A.Region.SGE(0, 64)))
	require.EqualValues(t, 0, h.in.Wait(t, 1)[0].WRID)
	k, err := h.srq.PostRecv(wrs)
	require.ErrorIs(t, err, ibv.ErrQueueFull)
	require.Equal(t, 1, k)
}

func TestSRQCloseOrder(t *testing.T) {
	h := newHub(t, 2, 16, slotSize)
	h.post(t, slotSize, 0, 1, 2)
	err := h.srq.Close()
	require.ErrorIs(t, err, ibv.ErrBusy)
	for _, p := range h.pairs {
		require.ErrorContains(t, err, p.B.QP.String())
	}
	require.ErrorContains(t, h.pd.Close(), h.srq.String())
	require.ErrorIs(t, h.region.Close(), ibv.ErrBusy)
	require.ErrorContains(t, h.region.Close(), "3 work requests")

	// Nothing has changed by that.
	post(t, &h.pairs[1].A, ibv.Send(0, 0, h.pairs[1].A.Region.SGE(0, 64)))
	require.NoError(t, h.in.Wait(t, 1)[0].Err())

	require.NoError(t, h.closeAll())
	require.NoError(t, h.srq.Close(), "closing again")
	require.NoError(t, h.region.Close(), "its receives are released")
	_, err = h.srq.PostRecv([]ibv.RecvWR{ibv.Recv(1)})
	require.ErrorIs(t, err, ibv.ErrClosed)
	require.ErrorIs(t, h.srq.Modify(ibv.SRQAttr{}, ibv.SRQLimit), ibv.ErrClosed)
	_, err = h.srq.Query()
	require.ErrorIs(t, err, ibv.ErrClosed)
	_, err = h.pd.CreateQP(ibv.QPInitAttr{Type: ibv.QPTypeRC, Cap: ibv.QPCap{MaxSendWR: 1}}, ibv.QPQueues{Send: h.in.CQ, Recv: h.in.CQ, SRQ: h.srq})
	require.ErrorIs(t, err, ibv.ErrClosed)
}
