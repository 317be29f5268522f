//go:build cgo && linux && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

// Package fakedevtest is what native tests on a fake device share: an open device with
// memory, queue pairs in RTS, and work requests to post.
package fakedevtest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/cq"
	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/fakedev"
	"github.com/goverbs/goverbs/internal/rdmatest"
	"github.com/goverbs/goverbs/mr"
)

// Bench is an open fake device. All that is made on it is closed when the test ends.
type Bench struct {
	*fakedev.Device
	Ctx *ibv.Context
	PD  *ibv.PD
	// Region is 64 KiB with local write; its Close is the test's own concern where it
	// has one, since a second Close does nothing.
	Region *mr.Region

	handles []any // which the collector would close if only the test had them
}

// New adds a device and opens it. The test has a limit of time from then on.
func New(t testing.TB, config fakedev.Config) *Bench {
	t.Helper()
	rdmatest.Watchdog(t, rdmatest.Limit())
	b := &Bench{Device: fakedev.New(t, config)}
	var err error
	b.Ctx, err = ibv.Open(b.Name())
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, b.Ctx.CloseAll())
		b.handles = nil
	})
	b.PD, err = b.Ctx.AllocPD()
	require.NoError(t, err)
	b.Region = b.NewRegion(t)
	return b
}

// Keep keeps a handle from the collector, which would close its object.
func (b *Bench) Keep(handle any) { b.handles = append(b.handles, handle) }

// NewRegion registers another 64 KiB, with local write and what access adds.
func (b *Bench) NewRegion(t testing.TB, access ...ibv.AccessFlags) *mr.Region {
	t.Helper()
	all := ibv.AccessLocalWrite
	for _, a := range access {
		all |= a
	}
	r, err := mr.AllocRegion(b.PD, 1<<16, all)
	require.NoError(t, err)
	b.Keep(r)
	return r
}

// NewCQ makes a completion queue of 1024 entries.
func (b *Bench) NewCQ(t testing.TB) *cq.CQ {
	t.Helper()
	q, err := cq.Create(b.Ctx, cq.InitAttr{Entries: 1024})
	require.NoError(t, err)
	b.Keep(q)
	return q
}

// NewSRQ makes a shared receive queue of 128 work requests.
func (b *Bench) NewSRQ(t testing.TB) *ibv.SRQ {
	t.Helper()
	srq, err := b.PD.CreateSRQ(ibv.SRQInitAttr{MaxWR: 128, MaxSGE: 4})
	require.NoError(t, err)
	b.Keep(srq)
	return srq
}

// NewMW makes a memory window.
func (b *Bench) NewMW(t testing.TB, typ ibv.MWType) *ibv.MW {
	t.Helper()
	mw, err := b.PD.AllocMW(typ)
	require.NoError(t, err)
	b.Keep(mw)
	return mw
}

// NewAH makes an address handle of the device's own port.
func (b *Bench) NewAH(t testing.TB) *ibv.AH {
	t.Helper()
	choice, err := b.Ctx.ChooseGID(ibv.GIDRequest{})
	require.NoError(t, err)
	ah, err := b.PD.CreateAH(ibv.AHAttr{
		IsGlobal: true,
		Port:     choice.Entry.Port,
		GRH:      ibv.GRH{DGID: choice.Entry.GID, SGIDIndex: uint8(choice.Entry.Index), HopLimit: 64},
	})
	require.NoError(t, err)
	return ah
}

// QP is a queue pair of a Bench.
type QP struct {
	*ibv.QP
	Send, Recv *cq.CQ
	SQ, RQ     fakedev.Queue // as the device has them
}

// NewQP makes a queue pair and takes it to RTS: RC, 64 work requests on each side,
// sends signaled by their flags, and one completion queue of its own for both; change
// edits that.
func (b *Bench) NewQP(t testing.TB, change ...func(*ibv.QPInitAttr, *ibv.QPQueues)) *QP {
	t.Helper()
	init := rdmatest.DefaultInit()
	init.SignalAll = false
	init.Cap.MaxSendWR, init.Cap.MaxRecvWR = 64, 64
	var queues ibv.QPQueues
	for _, f := range change {
		f(&init, &queues)
	}
	if queues.Send == nil {
		queues.Send = b.NewCQ(t)
	}
	if queues.Recv == nil {
		queues.Recv = queues.Send
	}
	if queues.SRQ != nil {
		init.Cap.MaxRecvWR = 0
	}
	qp, err := b.PD.CreateQP(init, queues)
	require.NoError(t, err)
	q := &QP{
		QP:   qp,
		Send: queues.Send.(*cq.CQ),
		Recv: queues.Recv.(*cq.CQ),
		SQ:   b.Send(qp.Num()),
		RQ:   b.Recv(qp.Num()),
	}
	b.Keep(qp)
	q.Ready(t)
	return q
}

// Ready takes the queue pair from RESET to RTS, connected to itself.
func (q *QP) Ready(t testing.TB) {
	t.Helper()
	if q.Type() == ibv.QPTypeUD {
		rdmatest.ReadyDatagrams(t, q.QP, 1)
		return
	}
	local, err := q.Init(ibv.GIDRequest{}, 0)
	require.NoError(t, err)
	require.NoError(t, q.Connect(local, local.Endpoint))
}

// Reset takes the queue pair to RESET.
func (q *QP) Reset(t testing.TB) {
	t.Helper()
	require.NoError(t, q.Modify(ibv.QPAttr{State: ibv.QPStateReset}, ibv.AttrState))
}

// Post posts sends, which must be accepted.
func (q *QP) Post(t testing.TB, wrs ...ibv.SendWR) {
	t.Helper()
	n, err := q.PostSend(wrs)
	require.NoError(t, err)
	require.Equal(t, len(wrs), n)
}

// Sends makes n signaled sends from a region, with wr_ids from first on.
func Sends(r *mr.Region, first uint64, n int) []ibv.SendWR {
	wrs := make([]ibv.SendWR, n)
	for i := range wrs {
		wrs[i] = ibv.Send(first+uint64(i), ibv.SendSignaled, r.SGE(i*16, 16))
	}
	return wrs
}

// Recvs makes n receives into a region, with wr_ids from first on.
func Recvs(r *mr.Region, first uint64, n int) []ibv.RecvWR {
	wrs := make([]ibv.RecvWR, n)
	for i := range wrs {
		wrs[i] = ibv.Recv(first+uint64(i), r.SGE(i*64, 64))
	}
	return wrs
}

// Poll takes all completions that are there.
func Poll(t testing.TB, q *cq.CQ) []cq.WC {
	t.Helper()
	var all []cq.WC
	var wcs [48]cq.WC
	for {
		n, err := q.Poll(wcs[:])
		require.NoError(t, err)
		all = append(all, wcs[:n]...)
		if n < len(wcs) {
			return all
		}
	}
}

// IDs returns the wr_ids of completions.
func IDs(wcs []cq.WC) []uint64 {
	var ids []uint64
	for i := range wcs {
		ids = append(ids, wcs[i].WRID)
	}
	return ids
}
