//go:build rdma && cgo && linux && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package fakedev_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/fakedev"
	"github.com/goverbs/goverbs/internal/rdmatest"
)

// TestBesideRealDevice has calls for a real device reach the real library, while a
// fake one is open.
func TestBesideRealDevice(t *testing.T) {
	fake := newSide(t, fakedev.Config{})
	p := rdmatest.NewPair(t, rdmatest.DefaultInit())
	devices, err := ibv.Devices()
	require.NoError(t, err)
	names := make([]string, len(devices))
	for i, d := range devices {
		names[i] = d.Name
	}
	assert.Contains(t, names, rdmatest.Device(t))
	assert.Contains(t, names, fake.Name())
	gids, err := p.Ctx.GIDTable()
	require.NoError(t, err)
	assert.NotEmpty(t, gids)

	copy(p.A.Region.Bytes(), "over the wire")
	_, err = p.B.QP.PostRecv([]ibv.RecvWR{{WRID: 1, SGEs: []ibv.SGE{p.B.Region.SGE(0, 64)}}})
	require.NoError(t, err)
	_, err = p.A.QP.PostSend([]ibv.SendWR{{WRID: 2, Opcode: ibv.OpSend, SGEs: []ibv.SGE{p.A.Region.SGE(0, 13)}}})
	require.NoError(t, err)
	require.NoError(t, p.A.Wait(t, 1)[0].Err())
	wc := p.B.Wait(t, 1)[0]
	require.NoError(t, wc.Err())
	assert.Equal(t, "over the wire", string(p.B.Region.Bytes()[:wc.ByteLen()]))

	_, err = fake.qp.PostSend(fake.sends(1))
	require.NoError(t, err)
	fake.sq.Complete(fakedev.Completion{})
	assert.Len(t, fake.poll(t), 1)

	err = p.PD.Close()
	assert.ErrorIs(t, err, ibv.ErrBusy)
	for _, closer := range []interface{ Close() error }{p.A.QP, p.B.QP} {
		require.NoError(t, closer.Close())
	}
}
