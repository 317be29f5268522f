//go:build cgo && linux && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package mr_test

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/fakedev"
	"github.com/goverbs/goverbs/internal/fakedev/fakedevtest"
	"github.com/goverbs/goverbs/mr"
)

// What some devices have and others have not.

func TestDMABuf(t *testing.T) {
	b := fakedevtest.New(t, fakedev.Config{DMABuf: true})
	const iova = 7 << 20
	r, err := mr.RegisterDMABuf(b.PD, 5, 8192, 4096, iova, ibv.AccessLocalWrite|ibv.AccessRemoteRead)
	require.NoError(t, err)
	assert.Equal(t, uint64(iova), r.IOVA())
	assert.Equal(t, ibv.RemoteRange{Addr: iova, Length: 4096, RKey: r.RKey()}, r.Remote())
	assert.Nil(t, r.Bytes(), "this process cannot see it")
	qp := b.NewQP(t)
	qp.Post(t, ibv.Send(1, ibv.SendSignaled, r.SGE(16, 32)))
	assert.Equal(t, []fakedev.SGE{{Addr: iova + 16, Length: 32, LKey: r.LKey()}}, qp.SQ.Posted()[0].SGEs)
	assert.ErrorIs(t, r.Close(), ibv.ErrBusy)
	qp.SQ.Complete(fakedev.Completion{})
	require.Len(t, fakedevtest.Poll(t, qp.Send), 1)
	assert.ErrorContains(t, r.Rereg(mr.ReregAttr{Access: ibv.AccessLocalWrite}, mr.ReregAccess), "dma-buf cannot be changed")
	require.NoError(t, r.Close())
}

func TestDMABufErrors(t *testing.T) {
	b := fakedevtest.New(t, fakedev.Config{DMABuf: true})
	for errno, says := range map[syscall.Errno]string{
		syscall.EBADF:      "file descriptor 5 is not open",
		syscall.EINVAL:     "file descriptor 5 is no dma-buf",
		syscall.EOPNOTSUPP: "cannot register dma-bufs",
	} {
		b.Fail("ibv_reg_dmabuf_mr", errno, 1)
		_, err := mr.RegisterDMABuf(b.PD, 5, 0, 4096, 0, ibv.AccessLocalWrite)
		assert.ErrorIs(t, err, errno)
		assert.ErrorContains(t, err, says)
		assert.ErrorContains(t, err, "ibv_reg_dmabuf_mr on PD ")
	}
}

func TestNotSupportedOnFake(t *testing.T) {
	b := fakedevtest.New(t, fakedev.Config{})
	_, err := mr.RegisterDMABuf(b.PD, 5, 0, 4096, 0, ibv.AccessLocalWrite)
	assert.ErrorIs(t, err, ibv.ErrNotSupported)
	assert.ErrorIs(t, err, syscall.EOPNOTSUPP)
	assert.ErrorContains(t, err, "cannot register dma-bufs")

	_, err = mr.AllocRegion(b.PD, 4096, ibv.AccessOnDemand|ibv.AccessLocalWrite)
	assert.ErrorIs(t, err, ibv.ErrNotSupported)
	assert.ErrorContains(t, err, "no on-demand paging")

	for _, typ := range []ibv.MWType{ibv.MWType1, ibv.MWType2} {
		_, err = b.PD.AllocMW(typ)
		assert.ErrorIs(t, err, ibv.ErrNotSupported)
	}
}

func TestOnDemand(t *testing.T) {
	b := fakedevtest.New(t, fakedev.Config{ODP: fakedev.ODPCaps{General: 1, RC: 0x1f}})
	r, err := mr.AllocRegion(b.PD, 4096, ibv.AccessOnDemand|ibv.AccessLocalWrite)
	require.NoError(t, err)
	require.NoError(t, r.Close())
}

func TestIOVAIsWhatWorkRequestsName(t *testing.T) {
	b := fakedevtest.New(t, fakedev.Config{})
	buf, err := mr.Alloc(4096)
	require.NoError(t, err)
	qp := b.NewQP(t)
	for _, iova := range []uint64{0, 1 << 40} {
		r, err := mr.RegisterIOVA(b.PD, buf, iova, ibv.AccessLocalWrite)
		require.NoError(t, err)
		assert.Equal(t, iova, r.IOVA())
		copy(buf.Bytes()[64:], "hello")
		qp.Post(t, ibv.Send(1, ibv.SendSignaled, r.SGE(64, 5)))
		assert.Equal(t, iova+64, qp.SQ.Posted()[0].SGEs[0].Addr)
		assert.Equal(t, "hello", string(qp.SQ.Data(0)))
		qp.SQ.Complete(fakedev.Completion{})
		require.Len(t, fakedevtest.Poll(t, qp.Send), 1)
		require.NoError(t, r.Close())
	}
	require.NoError(t, buf.Close())
}
