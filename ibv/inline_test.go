//go:build cgo && linux && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package ibv_test

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

// The provider copies inline data from this process's memory, whatever addresses the
// region has for the device.
func TestInlineFromRegionsWithTheirOwnAddresses(t *testing.T) {
	b := fakedevtest.New(t, fakedev.Config{DMABuf: true})
	qp := b.NewQP(t)
	buf, err := mr.Alloc(4096)
	require.NoError(t, err)
	defer buf.Close()
	copy(buf.Bytes()[100:], "own memory")
	for _, iova := range []uint64{0, 1 << 40} {
		r, err := mr.RegisterIOVA(b.PD, buf, iova, ibv.AccessLocalWrite)
		require.NoError(t, err)
		qp.Post(t, ibv.Send(1, ibv.SendInline|ibv.SendSignaled, r.SGE(100, 3), r.SGE(103, 7)))
		assert.Equal(t, "own memory", string(qp.SQ.Posted()[0].Inline))
		qp.SQ.Complete(fakedev.Completion{})
		require.Len(t, fakedevtest.Poll(t, qp.Send), 1)
		require.NoError(t, r.Close())
	}

	gpu, err := mr.RegisterDMABuf(b.PD, 3, 0, 4096, 0, ibv.AccessLocalWrite)
	require.NoError(t, err)
	past := b.Region.SGE(1<<16-8, 8)
	past.Length = 9
	before := b.Region.SGE(0, 8)
	before.Addr--
	for text, wr := range map[string]ibv.SendWR{
		"memory that this process cannot see": ibv.Send(1, ibv.SendInline, gpu.SGE(0, 8)),
		"9 bytes":                             ibv.Send(1, ibv.SendInline, past),
		"are not inside":                      ibv.Send(1, ibv.SendInline, before),
		"SGE 0 is inline and has no address":  ibv.Send(1, ibv.SendInline, ibv.SGE{Length: 8}),
	} {
		n, err := qp.PostSend([]ibv.SendWR{wr})
		require.ErrorContains(t, err, text)
		assert.Zero(t, n)
	}
	require.NoError(t, gpu.Close())
}

// Zero handles are refused as nil ones are, and nothing stays locked.
func TestZeroHandles(t *testing.T) {
	b := fakedevtest.New(t, fakedev.Config{MemoryWindows: true})
	ud := b.NewQP(t, func(init *ibv.QPInitAttr, _ *ibv.QPQueues) { init.Type = ibv.QPTypeUD })
	_, err := ud.PostSend([]ibv.SendWR{ibv.Send(1, 0, b.Region.SGE(0, 8)).To(ibv.Datagram{AH: &ibv.AH{}})})
	require.ErrorIs(t, err, syscall.EINVAL)
	rc := b.NewQP(t)
	zero := ibv.MWBind{MW: &ibv.MW{}}
	_, err = rc.PostSend([]ibv.SendWR{ibv.BindMW(1, 0, zero)})
	require.ErrorIs(t, err, syscall.EINVAL)
	require.ErrorIs(t, rc.BindMW(1, 0, zero), syscall.EINVAL)
	_, err = b.PD.CreateQP(ibv.QPInitAttr{Type: ibv.QPTypeRC}, ibv.QPQueues{Send: rc.Send, Recv: rc.Recv, SRQ: &ibv.SRQ{}})
	require.ErrorIs(t, err, syscall.EINVAL)
	_, err = mr.Register(b.PD, &mr.Buffer{}, 0)
	require.ErrorIs(t, err, syscall.EINVAL)
	rc.Post(t, ibv.Send(2, 0, b.Region.SGE(0, 8)))
	require.NoError(t, rc.Close())
	require.NoError(t, ud.Close())
}

// A nil context panics, as it does everywhere, but changes nothing before it does.
func TestNilContexts(t *testing.T) {
	b := fakedevtest.New(t, fakedev.Config{})
	qp := b.NewQP(t)
	qp.Post(t, ibv.Send(1, 0, b.Region.SGE(0, 8)))
	assert.Panics(t, func() { _ = b.Region.CloseWhenIdle(nil) }) //nolint:staticcheck // that is the test
	assert.Panics(t, func() { _ = qp.Drain(nil) })               //nolint:staticcheck // that is the test
	qp.Post(t, ibv.Send(2, 0, b.Region.SGE(0, 8)))
	require.NoError(t, qp.Close())
	require.NoError(t, b.Region.Close())
}
