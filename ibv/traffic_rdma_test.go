//go:build rdma

package ibv_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/cq"
	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/rdmatest"
)

func TestSendArrives(t *testing.T) {
	p := rdmatest.NewPair(t, rdmatest.DefaultInit())
	copy(p.A.Region.Bytes(), "over the wire")

	accepted, err := p.B.QP.PostRecv([]ibv.RecvWR{{WRID: 7, SGEs: []ibv.SGE{p.B.Region.SGE(100, 64)}}})
	require.NoError(t, err)
	require.Equal(t, 1, accepted)
	accepted, err = p.A.QP.PostSend([]ibv.SendWR{{WRID: 8, Opcode: ibv.OpSend, SGEs: []ibv.SGE{p.A.Region.SGE(0, 13)}}})
	require.NoError(t, err)
	require.Equal(t, 1, accepted)

	sent := p.A.Wait(t, 1)[0]
	require.NoError(t, sent.Err())
	assert.EqualValues(t, 8, sent.WRID)
	assert.Equal(t, cq.OpSend, sent.Opcode())
	assert.False(t, sent.IsRecv())
	assert.Equal(t, p.A.QP.Num(), sent.QPNum)

	got := p.B.Wait(t, 1)[0]
	require.NoError(t, got.Err())
	assert.EqualValues(t, 7, got.WRID)
	assert.Equal(t, cq.OpRecv, got.Opcode())
	assert.True(t, got.IsRecv())
	assert.Equal(t, 13, got.ByteLen())
	assert.Equal(t, "over the wire", string(p.B.Region.Bytes()[100:113]))
}
