//go:build rdma

package ibv_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/cq"
	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/rdmatest"
	"github.com/goverbs/goverbs/mr"
)

// The series of the lab's kernels, whose rdma_rxe differ.
const linux61, linux612 = "6.1", "6.12"

// kernel returns the series of the kernel that runs.
func kernel(t *testing.T) string {
	t.Helper()
	var u unix.Utsname
	require.NoError(t, unix.Uname(&u))
	release := unix.ByteSliceToString(u.Release[:])
	for _, series := range []string{linux61, linux612} {
		if strings.HasPrefix(release, series+".") {
			return series
		}
	}
	require.Fail(t, "nothing is known of this kernel's rdma_rxe", release)
	return ""
}

// ending is how what A posted and what B posted ends: the faulty work request of A, a
// SEND behind it, and the first receive of B. A recv of StatusSuccess is none: B is as
// before, and has its receives.
type ending struct{ fault, behind, recv cq.Status }

// endings are by kernel.
type endings map[string]ending

func onBoth(fault, behind, recv cq.Status) endings {
	e := ending{fault, behind, recv}
	return endings{linux61: e, linux612: e}
}

const flushed = cq.StatusWRFlushErr

var (
	// 6.12 gives no cause for a fault of this side.
	badLocal = endings{linux61: {cq.StatusLocQPOpErr, flushed, 0}, linux612: {flushed, flushed, 0}}
	outside  = endings{linux61: {cq.StatusLocProtErr, flushed, 0}, linux612: {flushed, flushed, 0}}

	badResult  = onBoth(cq.StatusLocProtErr, flushed, 0)
	badReceive = onBoth(cq.StatusRemOpErr, flushed, cq.StatusLocQPOpErr)
	noAccess   = onBoth(cq.StatusRemAccessErr, flushed, flushed)
	noRight    = onBoth(cq.StatusRemInvReqErr, flushed, flushed)
	// A WRITE_WITH_IMM fails after it has taken a receive.
	noAccessImm = onBoth(cq.StatusRemAccessErr, flushed, cq.StatusRemAccessErr)
	// The message has arrived when the invalidation fails, and is acknowledged; then the
	// peer is dead.
	badInvalidation = onBoth(cq.StatusSuccess, cq.StatusRetryExcErr, cq.StatusRemInvReqErr)
)

// telling is what a program is told of a failed completion: its class, and a hint.
type telling struct {
	class cq.Class
	hint  string
}

func tellingOf(e *cq.Error) telling {
	switch {
	case e.Unexplained:
		return telling{cq.ClassFlushed, "the QP failed by itself and gives no cause; look at what the peer saw"}
	case e.Recv && e.Status == cq.StatusLocQPOpErr:
		return telling{cq.ClassLocal, "the message is longer than the receive, or the receive's memory"}
	case e.Recv && e.Status == cq.StatusRemAccessErr:
		return telling{cq.ClassRemote, "the rkey and address that the peer used"}
	case e.Recv && e.Status == cq.StatusRemInvReqErr:
		return telling{cq.ClassRemote, "the peer asked for what is not allowed here"}
	}
	return map[cq.Status]telling{
		cq.StatusLocQPOpErr:     {cq.ClassLocal, "look at its SGEs, keys"},
		cq.StatusLocProtErr:     {cq.ClassLocal, "an SGE is not inside a memory region"},
		flushed:                 {cq.ClassFlushed, "another completion, or whoever closed the QP, has the cause"},
		cq.StatusMWBindErr:      {cq.ClassLocal, "the window is bound already, or"},
		cq.StatusRemInvReqErr:   {cq.ClassRemote, "the peer's QP does not allow the operation"},
		cq.StatusRemAccessErr:   {cq.ClassRemote, "do not name memory of the peer with the right that is needed, or no longer"},
		cq.StatusRemOpErr:       {cq.ClassRemote, "its own completion has the cause, or it has just ended"},
		cq.StatusRetryExcErr:    {cq.ClassRetryExceeded, "the peer does not answer"},
		cq.StatusRNRRetryExcErr: {cq.ClassRNR, "no receive posted for as long as RNRRetry allowed"},
	}[e.Status]
}

// requireFailed looks at everything that a completion says.
func requireFailed(t *testing.T, s *rdmatest.Side, wc *cq.WC, want cq.Error) {
	t.Helper()
	var e *cq.Error
	require.ErrorAs(t, wc.Err(), &e)
	want.QPNum, want.VendorErr = s.QP.Num(), e.VendorErr
	require.Equal(t, want, *e)
	assert.Equal(t, want.WRID, wc.WRID)
	assert.Equal(t, want.Status, wc.Status)
	assert.Equal(t, want.QPNum, wc.QPNum)
	assert.Equal(t, want.Recv, wc.IsRecv(), "the library knows which queue it was")
	told := tellingOf(e)
	require.NotEmpty(t, told.hint)
	assert.Equal(t, told.class, e.Class())
	assert.ErrorContains(t, e, told.hint)
	assert.ErrorContains(t, e, e.Status.String())

	// Nothing else is known.
	assert.False(t, wc.Foreign())
	assert.Zero(t, wc.Opcode())
	assert.Zero(t, wc.ByteLen())
	_, hasImm := wc.Imm()
	_, _, hasInv := wc.Invalidated()
	assert.False(t, hasImm || hasInv || wc.HasGRH())
	assert.Zero(t, wc.SrcQP())
}

// fault is a work request that is accepted and fails.
type fault struct {
	name string
	give ibv.AccessFlags              // the rights of the queue pairs; all if zero
	recv func(ibv.SGE) ibv.SGE        // spoils the first receive of B
	make func(*faultyPair) ibv.SendWR // what A posts, as number 7
	ends endings
}

type faultyPair struct {
	*rdmatest.Pair
	*testing.T
	sge ibv.SGE // 8 bytes of A
}

// granting are 8 bytes of B for a peer, with those rights.
func (p *faultyPair) granting(access ibv.AccessFlags) ibv.RemoteRange {
	return rdmatest.Region(p, p.PD, 64, access).Remote().Slice(0, 8)
}

func (p *faultyPair) ofAnotherPD() ibv.RemoteRange {
	pd, err := p.Ctx.AllocPD()
	require.NoError(p, err)
	r, err := mr.AllocRegion(pd, 64, ibv.AccessLocalWrite|rdmatest.RemoteAccess)
	require.NoError(p, err)
	p.Cleanup(func() { require.NoError(p, r.Close()); require.NoError(p, pd.Close()) })
	return r.Remote().Slice(0, 8)
}

// readOnly are 8 bytes of a region of A without local write. The library would refuse
// an SGE that the region made.
func (p *faultyPair) readOnly() ibv.SGE {
	r, err := mr.AllocRegion(p.PD, 64, 0)
	require.NoError(p, err)
	p.Cleanup(func() { require.NoError(p, r.Close()) })
	sge := r.SGE(0, 8)
	return ibv.SGE{Addr: sge.Addr, Length: 8, LKey: sge.LKey}
}

func withBadKey[K ibv.SGE | ibv.RemoteRange](k K) K {
	switch k := any(&k).(type) {
	case *ibv.SGE:
		k.LKey ^= 0xffff00
	case *ibv.RemoteRange:
		k.RKey ^= 0xffff00
	}
	return k
}

func send7(p *faultyPair) ibv.SendWR { return ibv.Send(7, 0, p.sge) }

var localFaults = []fault{
	{name: "send of a bad lkey", ends: badLocal, make: func(p *faultyPair) ibv.SendWR { return ibv.Send(7, 0, withBadKey(p.sge)) }},
	{name: "send beyond the region", ends: outside, make: func(p *faultyPair) ibv.SendWR {
		p.sge.Addr += uint64(p.A.Region.Len())
		return ibv.Send(7, 0, p.sge)
	}},
	{name: "read into memory that is read-only", ends: badResult, make: func(p *faultyPair) ibv.SendWR {
		return ibv.Read(7, 0, p.granting(rdmatest.RemoteAccess), p.readOnly())
	}},
	{name: "LOCAL_INV of a region", ends: badLocal, make: func(p *faultyPair) ibv.SendWR { return ibv.LocalInv(7, 0, p.A.Region.RKey()) }},
	{name: "receive with a bad lkey", recv: withBadKey[ibv.SGE], make: send7, ends: badReceive},
	{name: "receive too short", recv: func(s ibv.SGE) ibv.SGE { s.Length = 7; return s }, make: send7, ends: badReceive},
	{name: "SEND_WITH_INV of a region", ends: badInvalidation, make: func(p *faultyPair) ibv.SendWR {
		return ibv.SendInv(7, 0, p.granting(rdmatest.RemoteAccess).RKey, p.sge)
	}},
}

// remoteFaults has for each operation on remote memory what can be wrong with it.
func remoteFaults() (list []fault) {
	for _, op := range []struct {
		name  string
		right ibv.AccessFlags
		make  func(ibv.RemoteRange, ibv.SGE) ibv.SendWR
	}{
		{"write", ibv.AccessRemoteWrite, func(r ibv.RemoteRange, s ibv.SGE) ibv.SendWR { return ibv.Write(7, 0, r, s) }},
		{"write with immediate", ibv.AccessRemoteWrite, func(r ibv.RemoteRange, s ibv.SGE) ibv.SendWR { return ibv.WriteImm(7, 0, 1, r, s) }},
		{"read", ibv.AccessRemoteRead, func(r ibv.RemoteRange, s ibv.SGE) ibv.SendWR { return ibv.Read(7, 0, r, s) }},
		{"fetch and add", ibv.AccessRemoteAtomic, func(r ibv.RemoteRange, s ibv.SGE) ibv.SendWR { return ibv.FetchAdd(7, 0, r, 1, s) }},
		{"compare and swap", ibv.AccessRemoteAtomic, func(r ibv.RemoteRange, s ibv.SGE) ibv.SendWR { return ibv.CompareSwap(7, 0, r, 0, 1, s) }},
	} {
		const all = rdmatest.RemoteAccess
		others := all &^ op.right
		refused := noAccess
		if op.name == "write with immediate" {
			refused = noAccessImm
		}
		for _, f := range []struct {
			name  string
			give  ibv.AccessFlags
			ends  endings
			where func(*faultyPair) ibv.RemoteRange
		}{
			{"QP without the right", others, noRight, func(p *faultyPair) ibv.RemoteRange { return p.granting(all) }},
			{"region without the right", all, refused, func(p *faultyPair) ibv.RemoteRange { return p.granting(others) }},
			{"bad rkey", all, refused, func(p *faultyPair) ibv.RemoteRange { return withBadKey(p.granting(all)) }},
			{"rkey of another PD", all, refused, (*faultyPair).ofAnotherPD},
			{"beyond the region", all, refused, func(p *faultyPair) ibv.RemoteRange {
				r := p.granting(all)
				r.Addr += 64
				return r
			}},
		} {
			list = append(list, fault{name: op.name + ", " + f.name, give: f.give, ends: f.ends,
				make: func(p *faultyPair) ibv.SendWR { return op.make(f.where(p), p.sge) }})
		}
	}
	return list
}

// TestStatuses has every way in which an accepted work request fails, and all that
// both sides are told.
func TestStatuses(t *testing.T) {
	here := kernel(t)
	for _, f := range append(remoteFaults(), localFaults...) {
		t.Run(f.name, func(t *testing.T) { f.run(t, f.ends[here]) })
	}
}

func (f *fault) run(t *testing.T, want ending) {
	pair := rdmatest.NewPair(t, rdmatest.DefaultInit())
	if f.give != 0 {
		reconnectWith(t, pair, f.give)
	}
	p := &faultyPair{pair, t, pair.A.Region.SGE(0, 8)}
	first := p.B.Region.SGE(0, 8)
	if f.recv != nil {
		first = f.recv(first)
	}
	postRecv(t, &p.B, ibv.Recv(1, first), ibv.Recv(2, p.B.Region.SGE(8, 8)))
	// The fence keeps it behind a READ too, which it could overtake.
	post(t, &p.A, f.make(p), ibv.Send(8, fence(t), p.A.Region.SGE(0, 8)))

	wcs := p.A.Wait(t, 2)
	unexplained := want.fault == flushed // and so are others of that QP
	if want.fault == cq.StatusSuccess {
		require.NoError(t, wcs[0].Err())
	} else {
		requireFailed(t, &p.A, &wcs[0], cq.Error{WRID: 7, Status: want.fault, Unexplained: unexplained})
	}
	requireFailed(t, &p.A, &wcs[1], cq.Error{WRID: 8, Status: want.behind, Unexplained: unexplained})
	assert.Zero(t, p.A.Region.InFlight())
	requireState(t, p.A.QP, ibv.QPStateErr)

	if want.recv == cq.StatusSuccess {
		// The peer saw nothing. What the program flushes has a cause.
		requireState(t, p.B.QP, ibv.QPStateRTS)
		assert.Equal(t, 2, p.B.Region.InFlight())
		want.recv, unexplained = flushed, false
		require.NoError(t, p.B.QP.Modify(ibv.QPAttr{State: ibv.QPStateErr}, ibv.AttrState))
	} else {
		unexplained = want.recv == flushed
	}
	wcs = p.B.Wait(t, 2)
	requireFailed(t, &p.B, &wcs[0], cq.Error{WRID: 1, Status: want.recv, Recv: true, Unexplained: unexplained})
	requireFailed(t, &p.B, &wcs[1], cq.Error{WRID: 2, Status: flushed, Recv: true, Unexplained: unexplained})
	assert.Zero(t, p.B.Region.InFlight())
	requireState(t, p.B.QP, ibv.QPStateErr)
}

// reconnect takes a pair through RESET to RTS, where each side gives those rights.
func reconnectWith(t *testing.T, p *rdmatest.Pair, access ibv.AccessFlags, change ...func(*ibv.ConnectParams)) {
	t.Helper()
	for _, s := range []*rdmatest.Side{&p.A, &p.B} {
		require.NoError(t, s.QP.Modify(ibv.QPAttr{State: ibv.QPStateReset}, ibv.AttrState))
	}
	p.Access = access
	p.Connect(t, change...)
}
