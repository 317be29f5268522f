//go:build rdma

package ibv_test

import (
	"bytes"
	"fmt"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/cq"
	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/rdmatest"
	"github.com/goverbs/goverbs/mr"
)

// bench is a pair and what can be wrong with a work request of A.
type bench struct {
	*rdmatest.Pair
	toB    ibv.Datagram    // on UD
	sge    ibv.SGE         // 8 bytes of A
	remote ibv.RemoteRange // 64 bytes of B

	readOnly *mr.Region // of the PD of the pair, without local write
	bindable *mr.Region // and with AccessMWBind too
	readable *mr.Region // with AccessMWBind, without local write
	closed   ibv.SGE    // made before its region was closed
	w1, w2   *ibv.MW    // of type 1 and 2

	// What belongs to another PD: a bindable region, windows of type 1 and 2, a way to B.
	foreign            *mr.Region
	foreign1, foreign2 *ibv.MW
	foreignAH          *ibv.AH
}

func newBench(t *testing.T, p *rdmatest.Pair) *bench {
	t.Helper()
	b := &bench{Pair: p, sge: p.A.Region.SGE(0, 8), remote: published(t, p, 64).Remote()}
	other := rdmatest.PD(t, p.Ctx)
	b.readOnly = regionOf(t, p.PD, 0)
	b.bindable = regionOf(t, p.PD, ibv.AccessLocalWrite|ibv.AccessMWBind)
	b.readable = regionOf(t, p.PD, ibv.AccessMWBind)
	b.foreign = regionOf(t, other, ibv.AccessLocalWrite|ibv.AccessMWBind)
	gone := regionOf(t, p.PD, ibv.AccessLocalWrite)
	b.closed = gone.SGE(0, 8)
	require.NoError(t, gone.Close())
	b.w1, b.w2 = windowOf(t, p.PD, ibv.MWType1), windowOf(t, p.PD, ibv.MWType2)
	b.foreign1, b.foreign2 = windowOf(t, other, ibv.MWType1), windowOf(t, other, ibv.MWType2)
	var err error
	b.foreignAH, err = other.CreateAH(ownAH(t, p.Ctx))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.foreignAH.Close()) })
	return b
}

// regionOf is a region of 64 bytes with these rights and no others.
func regionOf(t *testing.T, pd *ibv.PD, access ibv.AccessFlags) *mr.Region {
	t.Helper()
	r, err := mr.AllocRegion(pd, 64, access)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	return r
}

func windowOf(t *testing.T, pd *ibv.PD, typ ibv.MWType) *ibv.MW {
	t.Helper()
	mw, err := pd.AllocMW(typ)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, mw.Close()) })
	return mw
}

// isRefused looks at the error of a post of which all before the work request at index
// was accepted, and that at index refused.
func isRefused(t *testing.T, op string, err error, index int, errno syscall.Errno, text string) {
	t.Helper()
	var e *ibv.PostError
	require.ErrorAs(t, err, &e)
	require.ErrorIs(t, err, errno)
	assert.ErrorContains(t, err, text)
	assert.Equal(t, op, e.Op)
	assert.Contains(t, e.Object, "QP 0x")
	assert.Equal(t, index, e.Accepted)
	assert.Equal(t, index, e.Index)
}

// refuses posts a work request that A must refuse. Then nothing has changed.
func (b *bench) refuses(t *testing.T, wr ibv.SendWR, errno syscall.Errno, text string) {
	t.Helper()
	was1, was2 := b.w1.Remote(), b.w2.Remote()
	n, err := b.A.QP.PostSend([]ibv.SendWR{wr})
	isRefused(t, "ibv_post_send", err, 0, errno, text)
	assert.Zero(t, n)
	b.nothingInFlight(t)
	assert.Equal(t, was1, b.w1.Remote(), "a window is as it was")
	assert.Equal(t, was2, b.w2.Remote())

	fill(b.A.Region.Bytes()[:8], 3)
	grh := 0
	if b.A.QP.Type() == ibv.QPTypeUD {
		grh = 40
	}
	postRecv(t, &b.B, ibv.Recv(1, b.B.Region.SGE(0, grh+8)))
	post(t, &b.A, ibv.Send(2, 0, b.sge).To(b.toB))
	done(t, &b.A, 2, cq.OpSend)
	done(t, &b.B, 1, cq.OpRecv)
	assert.Equal(t, b.A.Region.Bytes()[:8], b.B.Region.Bytes()[grh:grh+8])
}

// refusesInChain posts it in the middle of a chain: what stands before it is done. It is
// for RC, where work requests without a receive stay in flight.
func (b *bench) refusesInChain(t *testing.T, wr ibv.SendWR, errno syscall.Errno, text string) {
	t.Helper()
	src, dst := b.A.Region.Bytes()[100:112], b.B.Region.Bytes()[:12]
	fill(src, 1)
	clear(dst)
	part := func(wrID uint64, off int) ibv.SendWR { return ibv.Send(wrID, 0, b.A.Region.SGE(off, 4)) }
	n, err := b.A.QP.PostSend([]ibv.SendWR{part(1, 100), part(2, 104), wr, part(4, 108)})
	isRefused(t, "ibv_post_send", err, 2, errno, text)
	require.Equal(t, 2, n)
	assert.Equal(t, 2, b.A.Region.InFlight())
	err = b.A.Region.Close()
	require.ErrorIs(t, err, ibv.ErrBusy)
	assert.ErrorContains(t, err, "2 work requests in flight")
	postRecv(t, &b.B, ibv.Recv(1, b.B.Region.SGE(0, 4)), ibv.Recv(2, b.B.Region.SGE(4, 4)))
	for _, s := range []*rdmatest.Side{&b.A, &b.B} {
		for i, wc := range s.Wait(t, 2) {
			require.NoError(t, wc.Err())
			assert.EqualValues(t, i+1, wc.WRID)
		}
	}
	assert.Equal(t, append(bytes.Clone(src[:8]), 0, 0, 0, 0), dst)
	b.nothingInFlight(t)
}

func (b *bench) nothingInFlight(t *testing.T) {
	t.Helper()
	for _, r := range []*mr.Region{b.A.Region, b.B.Region, b.readOnly, b.bindable, b.readable, b.foreign} {
		assert.Zero(t, r.InFlight(), "%v", r)
	}
	var wcs [1]cq.WC
	for _, s := range []*rdmatest.Side{&b.A, &b.B} {
		n, err := s.CQ.Poll(wcs[:])
		require.NoError(t, err)
		require.Zero(t, n, "a completion of what was refused")
	}
}

func TestSendsThatAreRefused(t *testing.T) {
	b := newBench(t, newPairOf(t, ibv.QPTypeRC))
	caps := b.A.QP.Cap()
	long := int(caps.MaxInlineData) + 1
	withFlags := func(wr ibv.SendWR, f ibv.SendFlags) ibv.SendWR { wr.Flags |= f; return wr }
	inline := func(wr ibv.SendWR) ibv.SendWR { wr.Inline = []byte("x"); return wr }
	for _, c := range []struct {
		text  string
		wr    ibv.SendWR
		errno syscall.Errno
	}{
		{"Opcode 0 is not an operation", ibv.SendWR{}, syscall.EINVAL},
		{"Opcode 77 is not an operation", ibv.SendWR{Opcode: 77}, syscall.EINVAL},
		{"Opcode 19 is not an operation", ibv.SendWR{Opcode: 16 + ibv.OpSend}, syscall.EINVAL},
		{"unknown bits 0x80", ibv.Send(0, 0x81), syscall.EINVAL},
		{
			fmt.Sprintf("%d SGEs are more than the MaxSendSGE %d that was granted", caps.MaxSendSGE+1, caps.MaxSendSGE),
			ibv.Send(0, 0, make([]ibv.SGE, caps.MaxSendSGE+1)...), syscall.EINVAL,
		},
		{fmt.Sprintf("%d bytes inline are more than the MaxInlineData %d", long, long-1), ibv.SendWR{Opcode: ibv.OpSend, Inline: make([]byte, long)}, syscall.EINVAL},
		{fmt.Sprintf("%d bytes inline are more than", long), ibv.Send(0, ibv.SendInline, b.A.Region.SGE(0, long)), syscall.EINVAL},
		{"both SGEs and Inline: use one", inline(ibv.Send(0, 0, b.sge)), syscall.EINVAL},
		{"RDMA_READ sends no data that could be inline", ibv.Read(0, ibv.SendInline, b.remote, b.sge), syscall.EINVAL},
		{"RDMA_READ sends no data that could be inline", inline(ibv.Read(0, 0, b.remote)), syscall.EINVAL},
		{"ATOMIC_FETCH_AND_ADD sends no data that could be inline", ibv.FetchAdd(0, ibv.SendInline, b.remote, 1, b.sge), syscall.EINVAL},
		{"LOCAL_INV sends no data that could be inline", inline(ibv.LocalInv(0, 0, 1)), syscall.EINVAL},

		{"the SGEs are 16 bytes together, and SendWR.Remote only 15", ibv.Write(0, 0, b.remote.Slice(0, 15), b.sge, b.sge), syscall.EINVAL},
		{"the SGEs are 8 bytes together, and SendWR.Remote only 0", ibv.WriteImm(0, 0, 1, ibv.RemoteRange{}, b.sge), syscall.EINVAL},
		{"the SGEs are 8 bytes together, and SendWR.Remote only 7", ibv.Read(0, 0, b.remote.Slice(0, 7), b.sge), syscall.EINVAL},
		{"ATOMIC_FETCH_AND_ADD reaches 8 bytes, and SendWR.Remote has only 4", ibv.FetchAdd(0, 0, b.remote.Slice(0, 4), 1, b.sge), syscall.EINVAL},
		{"which is no multiple of 8", ibv.FetchAdd(0, 0, b.remote.Slice(4, 8), 1, b.sge), syscall.EINVAL},
		{"which is no multiple of 8", ibv.CompareSwap(0, 0, b.remote.Slice(1, 8), 1, 2, b.sge), syscall.EINVAL},
		{"a result of 8 bytes in one SGE, not 4 bytes in 1", ibv.CompareSwap(0, 0, b.remote, 1, 2, b.A.Region.SGE(0, 4)), syscall.EINVAL},
		{"a result of 8 bytes in one SGE, not 16 bytes in 1", ibv.FetchAdd(0, 0, b.remote, 1, b.A.Region.SGE(0, 16)), syscall.EINVAL},
		{
			"a result of 8 bytes in one SGE, not 8 bytes in 2",
			ibv.SendWR{Opcode: ibv.OpFetchAdd, Remote: b.remote, SGEs: []ibv.SGE{b.A.Region.SGE(0, 4), b.A.Region.SGE(4, 4)}}, syscall.EINVAL,
		},
		{"a result of 8 bytes in one SGE, not 0 bytes in 0", ibv.SendWR{Opcode: ibv.OpFetchAdd, Remote: b.remote}, syscall.EINVAL},

		{b.foreign.String() + " belongs to another PD than the queue", ibv.Send(0, 0, b.sge, b.foreign.SGE(0, 8)), syscall.EINVAL},
		{b.readOnly.String() + " was registered without LocalWrite", ibv.Read(0, 0, b.remote, b.readOnly.SGE(0, 8)), syscall.EACCES},
		{b.readOnly.String() + " was registered without LocalWrite", ibv.FetchAdd(0, 0, b.remote, 1, b.readOnly.SGE(0, 8)), syscall.EACCES},
		{"was closed, or is being closed", ibv.Write(0, 0, b.remote, b.sge, b.closed), syscall.EINVAL},
		{"was closed, or is being closed", withFlags(ibv.Send(0, 0, b.closed), ibv.SendFence), syscall.EINVAL},
	} {
		t.Run(c.text, func(t *testing.T) {
			b.refuses(t, c.wr, c.errno, c.text)
			b.refusesInChain(t, c.wr, c.errno, c.text)
		})
	}
	_, err := b.A.QP.PostSend([]ibv.SendWR{ibv.Send(0, 0, b.closed)})
	assert.ErrorIs(t, err, ibv.ErrClosed)
}

func TestReceivesThatAreRefused(t *testing.T) {
	b := newBench(t, newPairOf(t, ibv.QPTypeRC))
	most := b.B.QP.Cap().MaxRecvSGE
	for _, c := range []struct {
		text  string
		sges  []ibv.SGE
		errno syscall.Errno
	}{
		{fmt.Sprintf("%d SGEs are more than the MaxRecvSGE %d that was granted", most+1, most), make([]ibv.SGE, most+1), syscall.EINVAL},
		{b.foreign.String() + " belongs to another PD than the queue", []ibv.SGE{b.foreign.SGE(0, 8)}, syscall.EINVAL},
		{b.readOnly.String() + " was registered without LocalWrite", []ibv.SGE{b.B.Region.SGE(0, 8), b.readOnly.SGE(0, 8)}, syscall.EACCES},
		{"was closed, or is being closed", []ibv.SGE{b.closed}, syscall.EINVAL},
	} {
		n, err := b.B.QP.PostRecv([]ibv.RecvWR{ibv.Recv(0, c.sges...)})
		isRefused(t, "ibv_post_recv", err, 0, c.errno, c.text)
		assert.Zero(t, n)
		b.nothingInFlight(t)

		n, err = b.B.QP.PostRecv([]ibv.RecvWR{ibv.Recv(1, b.B.Region.SGE(0, 8)), ibv.Recv(0, c.sges...), ibv.Recv(2)})
		isRefused(t, "ibv_post_recv", err, 1, c.errno, c.text)
		require.Equal(t, 1, n)
		assert.Equal(t, 1, b.B.Region.InFlight())
		require.ErrorIs(t, b.B.Region.Close(), ibv.ErrBusy)
		fill(b.A.Region.Bytes()[:8], 3)
		post(t, &b.A, ibv.Send(2, 0, b.sge))
		done(t, &b.A, 2, cq.OpSend)
		done(t, &b.B, 1, cq.OpRecv)
		assert.Equal(t, b.A.Region.Bytes()[:8], b.B.Region.Bytes()[:8])
		b.nothingInFlight(t)
	}
}

// The accepted ones may be more than one call into C takes.
func TestRefusedFarDownAChain(t *testing.T) {
	init := rdmatest.DefaultInit()
	init.Cap.MaxSendWR = 100
	p := rdmatest.NewPair(t, init)
	remote := published(t, p, 100)
	fill(p.A.Region.Bytes()[:100], 5)
	var wrs []ibv.SendWR
	for i := range 100 {
		wrs = append(wrs, ibv.Write(uint64(i), 0, remote.Remote().Slice(i, 1), p.A.Region.SGE(i, 1)))
	}
	wrs[70].Remote.Length = 0
	n, err := p.A.QP.PostSend(wrs)
	isRefused(t, "ibv_post_send", err, 70, syscall.EINVAL, "SendWR.Remote only 0")
	require.Equal(t, 70, n)
	for i, wc := range p.A.Wait(t, 70) {
		require.NoError(t, wc.Err())
		require.EqualValues(t, i, wc.WRID)
	}
	assert.Zero(t, p.A.Region.InFlight())
	assert.Equal(t, p.A.Region.Bytes()[:70], remote.Bytes()[:70])
	assert.Zero(t, bytes.Trim(remote.Bytes()[70:], "\x00"))
}

// TestOperationsOfOtherTypes posts on UC and UD what they do not have.
func TestOperationsOfOtherTypes(t *testing.T) {
	refuses := func(t *testing.T, b *bench, rcOnly bool) {
		typ := b.A.QP.Type()
		wrs := []ibv.SendWR{
			ibv.SendInv(0, 0, 1, b.sge), ibv.Read(0, 0, b.remote, b.sge),
			ibv.FetchAdd(0, 0, b.remote, 1, b.sge), ibv.CompareSwap(0, 0, b.remote, 1, 2, b.sge),
		}
		if !rcOnly {
			wrs = append(wrs, ibv.Write(0, 0, b.remote, b.sge), ibv.WriteImm(0, 0, 1, b.remote, b.sge),
				ibv.LocalInv(0, 0, 1), ibv.BindMW(0, 0, b.bindable.MWBind(b.w2, 0, 8, ibv.AccessRemoteRead)))
			err := b.A.QP.BindMW(0, 0, b.bindable.MWBind(b.w1, 0, 8, ibv.AccessRemoteRead))
			isRefused(t, "ibv_bind_mw", err, 0, syscall.EOPNOTSUPP, "a QP of type UD has no BIND_MW")
			require.ErrorIs(t, err, ibv.ErrNotSupported)
		}
		for _, wr := range wrs {
			b.refuses(t, wr.To(b.toB), syscall.EOPNOTSUPP, fmt.Sprintf("a QP of type %v has no %v", typ, wr.Opcode))
		}
		b.refuses(t, ibv.Send(0, ibv.SendFence, b.sge).To(b.toB), syscall.EINVAL, "SendFence goes with RC only, this QP is "+typ.String())
	}
	t.Run("UC", func(t *testing.T) { refuses(t, newBench(t, newPairOf(t, ibv.QPTypeUC)), true) })
	t.Run("UD", func(t *testing.T) {
		p, _, toB := rdmatest.NewDatagrams(t)
		b := newBench(t, p)
		b.toB = toB
		refuses(t, b, false)
	})
}

func TestDatagramsThatAreRefused(t *testing.T) {
	p, _, toB := rdmatest.NewDatagrams(t)
	b := newBench(t, p)
	b.toB = toB
	port, err := p.Ctx.QueryPort(1)
	require.NoError(t, err)
	mtu := port.ActiveMTU.Bytes()
	gone, err := p.PD.CreateAH(ownAH(t, p.Ctx))
	require.NoError(t, err)
	require.NoError(t, gone.Close())
	to := func(change func(*ibv.Datagram)) ibv.SendWR {
		d := toB
		change(&d)
		return ibv.Send(0, 0, b.sge).To(d)
	}
	for text, wr := range map[string]ibv.SendWR{
		"needs SendWR.Datagram: address handle, QPN and QKey":                                     ibv.Send(0, 0, b.sge),
		b.foreignAH.String() + " belongs to another PD":                                           to(func(d *ibv.Datagram) { d.AH = b.foreignAH }),
		gone.String() + " was closed, or is being closed":                                         to(func(d *ibv.Datagram) { d.AH = gone }),
		"Datagram.QPN is 0x1000000":                                                               to(func(d *ibv.Datagram) { d.QPN = 1 << 24 }),
		fmt.Sprintf("a datagram of %d bytes is longer than the port's active MTU %d", mtu+1, mtu): ibv.Send(0, 0, b.A.Region.SGE(0, mtu), b.A.Region.SGE(0, 1)).To(toB),
	} {
		b.refuses(t, wr, syscall.EINVAL, text)
	}

	// One of just the MTU arrives.
	fill(b.A.Region.Bytes()[:mtu], 6)
	postRecv(t, &b.B, ibv.Recv(1, b.B.Region.SGE(0, 40+mtu)))
	post(t, &b.A, ibv.Send(2, 0, b.A.Region.SGE(0, mtu)).To(toB))
	done(t, &b.A, 2, cq.OpSend)
	done(t, &b.B, 1, cq.OpRecv)
	assert.True(t, bytes.Equal(b.A.Region.Bytes()[:mtu], b.B.Region.Bytes()[40:40+mtu]))

	for _, length := range []int{0, 39} {
		n, err := b.B.QP.PostRecv([]ibv.RecvWR{ibv.Recv(0, b.B.Region.SGE(0, length))})
		isRefused(t, "ibv_post_recv", err, 0, syscall.EINVAL, fmt.Sprintf("a receive of %d bytes on a UD QP: the first 40 are for the GRH", length))
		assert.Zero(t, n)
		b.nothingInFlight(t)
	}
}

// READs and atomics on a QP that may have none in flight would never complete.
func TestReadsWithoutMaxRdAtomicAreRefused(t *testing.T) {
	b := newBench(t, rdmatest.NewPair(t, rdmatest.DefaultInit(), func(c *ibv.ConnectParams) { c.MaxRdAtomic = 0 }))
	for _, wr := range []ibv.SendWR{
		ibv.Read(0, 0, b.remote, b.sge), ibv.FetchAdd(0, 0, b.remote, 1, b.sge), ibv.CompareSwap(0, 0, b.remote, 1, 2, b.sge),
	} {
		b.refuses(t, wr, syscall.EINVAL, wr.Opcode.String()+" on a QP with MaxRdAtomic 0 would never complete")
	}
	reconnectWith(t, b.Pair, rdmatest.RemoteAccess) // with the default of 1
	post(t, &b.A, ibv.Read(1, 0, b.remote, b.sge))
	done(t, &b.A, 1, cq.OpRDMARead)
}
