//go:build cgo && linux && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package cq_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/cq"
	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/fakedev"
	"github.com/goverbs/goverbs/internal/fakedev/fakedevtest"
)

func postRecv(t testing.TB, q interface {
	PostRecv([]ibv.RecvWR) (int, error)
}, wrs ...ibv.RecvWR,
) {
	t.Helper()
	n, err := q.PostRecv(wrs)
	require.NoError(t, err)
	require.Equal(t, len(wrs), n)
}

// one polls the one completion that is there.
func one(t *testing.T, q *cq.CQ) *cq.WC {
	t.Helper()
	wcs := fakedevtest.Poll(t, q)
	require.Len(t, wcs, 1)
	return &wcs[0]
}

func TestWRIDsComeBack(t *testing.T) {
	b := fakedevtest.New(t, fakedev.Config{})
	qp := b.NewQP(t)
	// Every number is the caller's to use, also ones that look like the library's own.
	ids := []uint64{0, 1, math.MaxUint64, 1 << 63, 1 << 62, 0xC000000000000000, 1}
	for _, id := range ids {
		qp.Post(t, ibv.Send(id, ibv.SendSignaled, b.Region.SGE(0, 16)))
		postRecv(t, qp, ibv.Recv(id, b.Region.SGE(0, 16)))
	}
	seen := map[uint64]bool{}
	for _, wr := range append(qp.SQ.Posted(), qp.RQ.Posted()...) {
		assert.False(t, seen[wr.WRID], "the device sees each number once")
		seen[wr.WRID] = true
	}
	for range ids {
		qp.SQ.Complete(fakedev.Completion{})
	}
	for range ids {
		qp.RQ.Complete(fakedev.Completion{})
	}
	wcs := fakedevtest.Poll(t, qp.Send)
	assert.Equal(t, append(ids, ids...), fakedevtest.IDs(wcs))
	for i := range wcs {
		assert.Equal(t, i >= len(ids), wcs[i].IsRecv())
		assert.False(t, wcs[i].Foreign())
	}
}

// TestFailedCompletions: the device puts garbage where a failure defines nothing, the
// bit that tells receives from sends too.
func TestFailedCompletions(t *testing.T) {
	b := fakedevtest.New(t, fakedev.Config{})
	srq := b.NewSRQ(t)
	qp := b.NewQP(t)
	onSRQ := b.NewQP(t, func(_ *ibv.QPInitAttr, q *ibv.QPQueues) { q.Send, q.SRQ = qp.Send, srq })
	var wc cq.WC
	for i := range 3 {
		id := uint64(100 + i)
		want := qp.Num()
		c := fakedev.Completion{Status: int(cq.StatusRemOpErr), VendorErr: 0x77}
		switch i {
		case 0:
			qp.Post(t, ibv.Send(id, 0, b.Region.SGE(0, 16)))
			qp.SQ.Complete(c)
		case 1:
			postRecv(t, qp, ibv.Recv(id, b.Region.SGE(0, 16)))
			qp.RQ.Complete(c)
		case 2:
			postRecv(t, srq, ibv.Recv(id, b.Region.SGE(0, 16)))
			c.QPN = onSRQ.Num()
			want = onSRQ.Num()
			b.SRQ(b.SRQs()[0]).Complete(c)
		}
		wc = *one(t, qp.Send)
		assert.Equal(t, id, wc.WRID)
		assert.Equal(t, cq.StatusRemOpErr, wc.Status)
		assert.Equal(t, uint32(0x77), wc.VendorErr)
		assert.Equal(t, want, wc.QPNum)
		assert.Equal(t, i > 0, wc.IsRecv())
		var e *cq.Error
		require.ErrorAs(t, wc.Err(), &e)
		assert.Equal(t, i > 0, e.Recv)
		assert.Equal(t, cq.ClassRemote, e.Class())
		checkSaysNothing(t, &wc)
		assert.Zero(t, b.Region.InFlight())
	}
	// The same WC, used again, has nothing left of a success.
	postRecv(t, qp, ibv.Recv(1, b.Region.SGE(0, 16)), ibv.Recv(2, b.Region.SGE(0, 16)))
	qp.RQ.Complete(fakedev.Completion{Imm: new(uint32(5)), SrcQP: 9, GRH: true, SLID: 1, SL: 2, Payload: []byte("x")})
	qp.RQ.Complete(fakedev.Completion{Status: int(cq.StatusLocLenErr)})
	wcs := make([]cq.WC, 1)
	for i := range 2 {
		n, err := qp.Recv.Poll(wcs)
		require.NoError(t, err)
		require.Equal(t, 1, n)
		assert.Equal(t, i == 0, wcs[0].ByteLen() == 1)
	}
	checkSaysNothing(t, &wcs[0])
}

func checkSaysNothing(t *testing.T, wc *cq.WC) {
	t.Helper()
	assert.Zero(t, wc.Opcode())
	assert.Zero(t, wc.ByteLen())
	assert.Zero(t, wc.SrcQP())
	assert.Zero(t, wc.SLID())
	assert.Zero(t, wc.SL())
	assert.False(t, wc.HasGRH())
	_, imm := wc.Imm()
	assert.False(t, imm)
	rkey, mw, inv := wc.Invalidated()
	assert.False(t, inv)
	assert.Zero(t, rkey)
	assert.Nil(t, mw)
}

func TestImmediateData(t *testing.T) {
	b := fakedevtest.New(t, fakedev.Config{})
	qp := b.NewQP(t)
	qp.Post(t,
		ibv.SendImm(1, 0, 0x01020304, b.Region.SGE(0, 1)),
		ibv.WriteImm(2, 0, 0xfffefdfc, ibv.RemoteRange{Length: 1}, b.Region.SGE(0, 1)),
		ibv.Send(3, 0, b.Region.SGE(0, 1)))
	posted := qp.SQ.Posted()
	assert.Equal(t, uint32(0x01020304), posted[0].Imm)
	assert.Equal(t, uint32(0xfffefdfc), posted[1].Imm)
	postRecv(t, qp, fakedevtest.Recvs(b.Region, 0, 4)...)
	qp.RQ.Complete(fakedev.Completion{Imm: &posted[0].Imm})
	qp.RQ.Complete(fakedev.Completion{Imm: &posted[1].Imm, Opcode: new(int(cq.OpRecvRDMAWithImm) - 1), ByteLen: new(1)})
	qp.RQ.Complete(fakedev.Completion{})
	wcs := fakedevtest.Poll(t, qp.Recv)
	require.Len(t, wcs, 3)
	for i, want := range []uint32{0x01020304, 0xfffefdfc, 0} {
		imm, ok := wcs[i].Imm()
		assert.Equal(t, want, imm)
		assert.Equal(t, i < 2, ok)
		_, _, inv := wcs[i].Invalidated()
		assert.False(t, inv)
		assert.True(t, wcs[i].IsRecv())
	}
	assert.Equal(t, cq.OpRecvRDMAWithImm, wcs[1].Opcode())
	assert.Equal(t, 1, wcs[1].ByteLen())

	qp.RQ.Complete(fakedev.Completion{InvRKey: new(uint32(0x01020304))})
	wc := one(t, qp.Recv)
	_, ok := wc.Imm()
	assert.False(t, ok)
	rkey, mw, ok := wc.Invalidated()
	assert.True(t, ok)
	assert.Equal(t, uint32(0x01020304), rkey)
	assert.Nil(t, mw, "of no window here")
}

// TestForeignCompletions has wr_ids that the library did not give out: they pass as they
// are, and release nothing.
func TestForeignCompletions(t *testing.T) {
	b := fakedevtest.New(t, fakedev.Config{})
	qp := b.NewQP(t)
	qp.Post(t, fakedevtest.Sends(b.Region, 0, 2)...)
	postRecv(t, qp, fakedevtest.Recvs(b.Region, 0, 1)...)
	used := qp.SQ.WRIDs()
	handle := b.QP(qp.Num()).SendCQ
	for _, c := range []struct {
		name   string
		id     uint64
		opcode int
		status cq.Status
		isRecv bool
	}{
		{"a small number", 7, 0, 0, false},
		{"an address", 0x7fff12345678, 128, 0, true},
		{"with immediate data", 8, 129, 0, true},
		{"a position that is not posted", used[1] + 1, 0, 0, false},
		{"a generation to come", used[0] + 1<<21, 0, 0, false},
		{"a queue that never was", used[0] + 1<<60, 0, 0, false},
		{"a failure", 9, 0, cq.StatusGeneralErr, false},
		{"all bits", math.MaxUint64, 0, 0, false},
	} {
		b.Push(handle, fakedev.WC{WRID: c.id, Opcode: c.opcode, Status: int(c.status), QPN: 0x99})
		wc := one(t, qp.Send)
		assert.True(t, wc.Foreign(), c.name)
		assert.Equal(t, c.id, wc.WRID, c.name)
		assert.Equal(t, c.status, wc.Status, c.name)
		assert.Equal(t, c.isRecv, wc.IsRecv(), c.name)
		assert.Equal(t, uint32(0x99), wc.QPNum)
		assert.Equal(t, 3, b.Region.InFlight(), c.name)
	}
}

// TestRepeatedCompletions has a device that says a thing twice.
func TestRepeatedCompletions(t *testing.T) {
	b := fakedevtest.New(t, fakedev.Config{})
	srq := b.NewSRQ(t)
	qp := b.NewQP(t, func(_ *ibv.QPInitAttr, q *ibv.QPQueues) { q.SRQ = srq })
	onSRQ := b.SRQ(b.SRQs()[0])
	handle := b.QP(qp.Num()).SendCQ
	qp.Post(t, fakedevtest.Sends(b.Region, 10, 2)...)
	postRecv(t, srq, fakedevtest.Recvs(b.Region, 20, 2)...)
	for i, q := range []fakedev.Queue{qp.SQ, onSRQ} {
		token := q.WRIDs()[0]
		q.Complete(fakedev.Completion{QPN: qp.Num()})
		for range 2 {
			b.Push(handle, fakedev.WC{WRID: token, QPN: qp.Num()})
		}
		b.Push(handle, fakedev.WC{WRID: token, QPN: qp.Num(), Status: int(cq.StatusWRFlushErr)})
		wcs := fakedevtest.Poll(t, qp.Send)
		require.Len(t, wcs, 4)
		assert.False(t, wcs[0].Foreign())
		for k := range wcs[1:] {
			assert.True(t, wcs[1+k].Foreign())
			assert.Equal(t, token, wcs[1+k].WRID)
		}
		assert.Equal(t, 3-i, b.Region.InFlight(), "what is left is in flight all the same")
	}
	assert.Equal(t, 1, srq.InFlight())
}

func TestUnsignaledSends(t *testing.T) {
	b := fakedevtest.New(t, fakedev.Config{})
	qp := b.NewQP(t)
	regions := []interface{ InFlight() int }{}
	for i := range 4 {
		r := b.NewRegion(t)
		regions = append(regions, r)
		qp.Post(t, ibv.Send(uint64(i), ibv.SendFlags(i%2)*ibv.SendSignaled, r.SGE(0, 8)))
	}
	inFlight := func() (n []int) {
		for _, r := range regions {
			n = append(n, r.InFlight())
		}
		return n
	}
	qp.SQ.Complete(fakedev.Completion{Index: 1})
	assert.Equal(t, []int{1, 1, 1, 1}, inFlight(), "until it is polled")
	assert.Equal(t, uint64(1), one(t, qp.Send).WRID)
	assert.Equal(t, []int{0, 0, 1, 1}, inFlight())

	// A failure, also of an unsignaled one, covers what was posted before it.
	qp.Post(t, ibv.Send(9, 0, b.Region.SGE(0, 8)))
	qp.SQ.Complete(fakedev.Completion{Index: 2, Status: int(cq.StatusRetryExcErr)})
	assert.Equal(t, uint64(9), one(t, qp.Send).WRID)
	assert.Equal(t, []int{0, 0, 0, 0}, inFlight())
	assert.Zero(t, b.Region.InFlight())
}

func TestSharedReceivesInAnyOrder(t *testing.T) {
	b := fakedevtest.New(t, fakedev.Config{})
	srq := b.NewSRQ(t)
	same := func(_ *ibv.QPInitAttr, q *ibv.QPQueues) { q.SRQ = srq }
	x, y := b.NewQP(t, same), b.NewQP(t, same)
	postRecv(t, srq, fakedevtest.Recvs(b.Region, 0, 6)...)
	queue := b.SRQ(b.SRQs()[0])
	var got []uint64
	for _, index := range []int{5, 0, 2, 1} { // of those that are left: 5, 0, 3, 2
		qp := x
		if index%2 == 0 {
			qp = y
		}
		queue.Complete(fakedev.Completion{Index: index, QPN: qp.Num(), Payload: []byte("hello")})
		wc := one(t, qp.Recv)
		require.NoError(t, wc.Err())
		assert.Equal(t, qp.Num(), wc.QPNum)
		assert.Equal(t, 5, wc.ByteLen())
		got = append(got, wc.WRID)
		assert.Equal(t, 6-len(got), srq.InFlight())
		assert.Equal(t, 6-len(got), b.Region.InFlight())
	}
	assert.Equal(t, []uint64{5, 0, 3, 2}, got)
	assert.Equal(t, "hello", string(b.Region.Bytes()[2*64:][:5]))
	postRecv(t, srq, fakedevtest.Recvs(b.Region, 10, 6)...)
	assert.Equal(t, 8, srq.InFlight())
	require.NoError(t, x.Close())
	require.NoError(t, y.Close())
	assert.Equal(t, 8, b.Region.InFlight(), "they are the SRQ's, not a QP's")
	require.NoError(t, srq.Close())
	assert.Zero(t, b.Region.InFlight())
}
