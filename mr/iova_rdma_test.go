//go:build rdma

package mr_test

import (
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/rdmatest"
	"github.com/goverbs/goverbs/mr"
)

// buffer allocates memory until the test ends.
func buffer(t *testing.T, size int) *mr.Buffer {
	t.Helper()
	buf, err := mr.Alloc(size)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, buf.Close()) })
	return buf
}

// send sends what from names into what to names.
func send(t *testing.T, p *rdmatest.Pair, from, to ibv.SGE) (sent, received error) {
	t.Helper()
	_, err := p.B.QP.PostRecv([]ibv.RecvWR{{SGEs: []ibv.SGE{to}}})
	require.NoError(t, err)
	_, err = p.A.QP.PostSend([]ibv.SendWR{{Opcode: ibv.OpSend, SGEs: []ibv.SGE{from}}})
	require.NoError(t, err)
	return p.A.Wait(t, 1)[0].Err(), p.B.Wait(t, 1)[0].Err()
}

// carries sends a message from and to the middle of two regions.
func carries(t *testing.T, p *rdmatest.Pair, from, to *mr.Region) {
	t.Helper()
	copy(from.Bytes()[5000:], "any address will do")
	sent, received := send(t, p, from.SGE(5000, 19), to.SGE(8100, 19))
	require.NoError(t, sent)
	require.NoError(t, received)
	assert.Equal(t, "any address will do", string(to.Bytes()[8100:8119]))
	clear(to.Bytes())
}

func TestIOVA(t *testing.T) {
	p := rdmatest.NewPair(t, rdmatest.DefaultInit())
	for _, iova := range []uint64{0, 0x7000_0000_0000, 1<<64 - 1<<20} {
		buf := buffer(t, 10000)
		r, err := mr.RegisterIOVA(p.PD, buf, iova, ibv.AccessLocalWrite)
		require.NoError(t, err)
		defer r.Close()
		assert.Equal(t, iova, r.IOVA())
		assert.Equal(t, iova+100, r.SGE(100, 1).Addr)
		carries(t, p, r, p.B.Region)
		carries(t, p, p.A.Region, r)
		require.ErrorIs(t, buf.Close(), ibv.ErrBusy)
	}
}

// A local pointer is no address of a region that has others.
func TestPointerIsNoIOVA(t *testing.T) {
	p := rdmatest.NewPair(t, rdmatest.DefaultInit())
	buf := buffer(t, 4096)
	plain, err := mr.Register(p.PD, buf, ibv.AccessLocalWrite)
	require.NoError(t, err)
	defer plain.Close()
	r, err := mr.RegisterIOVA(p.PD, buf, 0, ibv.AccessLocalWrite)
	require.NoError(t, err)
	defer r.Close()
	sge := r.SGE(0, 8)
	sge.Addr = plain.IOVA()
	_, err = p.A.QP.PostSend([]ibv.SendWR{{Opcode: ibv.OpSend, SGEs: []ibv.SGE{sge}}})
	require.NoError(t, err)
	require.Error(t, p.A.Wait(t, 1)[0].Err())
}

func TestIOVARefused(t *testing.T) {
	pd := rdmatest.PD(t, rdmatest.Open(t))
	buf := buffer(t, 2*os.Getpagesize())
	for iova, want := range map[uint64]string{
		8:                         "8 bytes into a page",
		-uint64(os.Getpagesize()): "pass the end of the address space",
	} {
		_, err := mr.RegisterIOVA(pd, buf, iova, 0)
		require.ErrorIs(t, err, syscall.EINVAL)
		assert.ErrorContains(t, err, want)
		assert.ErrorContains(t, err, "ibv_reg_mr_iova on PD")
	}
	_, err := mr.RegisterIOVA(pd, nil, 0, 0)
	require.ErrorIs(t, err, syscall.EINVAL)
	_, err = mr.RegisterIOVA(nil, buf, 0, 0)
	require.ErrorIs(t, err, syscall.EINVAL)
}

// Where the device takes the flag, addresses count from zero; where it does not, the
// error says what does.
func TestZeroBased(t *testing.T) {
	p := rdmatest.NewPair(t, rdmatest.DefaultInit())
	r, err := mr.Register(p.PD, buffer(t, 10000), ibv.AccessLocalWrite|ibv.AccessZeroBased)
	if err != nil {
		require.ErrorIs(t, err, ibv.ErrNotSupported)
		assert.ErrorContains(t, err, "LocalWrite|ZeroBased; RegisterIOVA at 0 does the same")
		return
	}
	defer r.Close()
	assert.Zero(t, r.IOVA())
	carries(t, p, r, p.B.Region)
	carries(t, p, p.A.Region, r)
}

// On-demand paging and dma-bufs are what soft-RoCE has not.
func TestNotSupported(t *testing.T) {
	ctx := rdmatest.Open(t)
	pd := rdmatest.PD(t, ctx)
	attr, err := ctx.QueryDevice()
	require.NoError(t, err)
	if attr.ODPGeneralCaps == 0 {
		_, err = mr.AllocRegion(pd, 4096, ibv.AccessOnDemand)
		require.ErrorIs(t, err, ibv.ErrNotSupported)
		assert.ErrorContains(t, err, "the device has no on-demand paging")
	}
	_, err = mr.RegisterDMABuf(pd, 0, 0, 4096, 0, ibv.AccessLocalWrite)
	require.Error(t, err, "standard input is no dma-buf")
	assert.ErrorContains(t, err, "ibv_reg_dmabuf_mr on PD")
	if ctx.Software() {
		require.ErrorIs(t, err, ibv.ErrNotSupported)
		assert.ErrorContains(t, err, "cannot register dma-bufs")
	}
	_, err = mr.RegisterDMABuf(pd, 0, 1, 4096, 0, 0)
	require.ErrorIs(t, err, syscall.EINVAL)
	require.NoError(t, pd.Close(), "nothing is left of what could not be registered")
}

// Soft-RoCE's provider has no rereg: the region must be as it was, and what it was to
// become be free again.
func TestRereg(t *testing.T) {
	p := rdmatest.NewPair(t, rdmatest.DefaultInit())
	old, next := buffer(t, 10000), buffer(t, 20000)
	otherPD := rdmatest.PD(t, p.Ctx)
	r, err := mr.Register(p.PD, old, ibv.AccessLocalWrite)
	require.NoError(t, err)
	defer r.Close()
	lkey, iova := r.LKey(), r.IOVA()
	all := mr.ReregAttr{Buffer: next, PD: otherPD, Access: ibv.AccessLocalWrite | ibv.AccessRemoteRead}
	for _, mask := range []mr.ReregMask{
		mr.ReregTranslation, mr.ReregPD, mr.ReregAccess, mr.ReregTranslation | mr.ReregPD | mr.ReregAccess,
	} {
		err := r.Rereg(all, mask)
		var e *mr.ReregError
		require.ErrorAs(t, err, &e)
		require.ErrorIs(t, err, ibv.ErrNotSupported)
		assert.Equal(t, mr.RegistrationOld, e.Holds)
		assert.Equal(t, mr.ReregErrCmd, e.Code)
		assert.ErrorContains(t, err, "the region is as it was")
		assert.ErrorContains(t, err, "ibv_rereg_mr on MR lkey")
		assert.Equal(t, []any{10000, lkey, iova, ibv.AccessLocalWrite}, []any{r.Len(), r.LKey(), r.IOVA(), r.Access()})
		carries(t, p, r, p.B.Region)
	}
	require.ErrorIs(t, old.Close(), ibv.ErrBusy)
	require.NoError(t, next.Close())
	require.NoError(t, otherPD.Close())
	require.ErrorIs(t, r.Rereg(mr.ReregAttr{Buffer: next}, mr.ReregTranslation), ibv.ErrClosed)
	require.ErrorIs(t, r.Rereg(mr.ReregAttr{PD: otherPD}, mr.ReregPD), ibv.ErrClosed)
	require.NoError(t, r.Close())
	require.ErrorIs(t, r.Rereg(all, mr.ReregAccess), ibv.ErrClosed)
}

func TestReregRefused(t *testing.T) {
	ctx := rdmatest.Open(t)
	pd, buf := rdmatest.PD(t, ctx), buffer(t, 4096)
	foreign := rdmatest.PD(t, rdmatest.Open(t))
	r := rdmatest.Region(t, pd, 4096)
	for _, test := range []struct {
		attr mr.ReregAttr
		mask mr.ReregMask
		want string
	}{
		{mr.ReregAttr{}, 0, "use ReregTranslation"},
		{mr.ReregAttr{}, 1 << 3, "ReregMask 0x8"},
		{mr.ReregAttr{}, mr.ReregTranslation, "the Buffer is nil"},
		{mr.ReregAttr{}, mr.ReregPD, "the PD is nil"},
		{mr.ReregAttr{PD: foreign}, mr.ReregPD, "another device"},
		{mr.ReregAttr{Access: ibv.AccessRemoteWrite}, mr.ReregAccess, "without LocalWrite"},
		{mr.ReregAttr{Access: ibv.AccessZeroBased}, mr.ReregAccess, "ZeroBased cannot be changed"},
	} {
		err := r.Rereg(test.attr, test.mask)
		var e *mr.ReregError
		require.ErrorAs(t, err, &e)
		require.ErrorIs(t, err, syscall.EINVAL)
		assert.Equal(t, mr.RegistrationOld, e.Holds)
		assert.Zero(t, e.Code, "C was not called")
		assert.ErrorContains(t, err, test.want)
	}
	err := r.Rereg(mr.ReregAttr{Buffer: buf, Access: ibv.AccessOnDemand}, mr.ReregTranslation|mr.ReregAccess)
	require.ErrorIs(t, err, ibv.ErrNotSupported)
}
