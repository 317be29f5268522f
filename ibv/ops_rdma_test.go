//go:build rdma

package ibv_test

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/cq"
	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/rdmatest"
	"github.com/goverbs/goverbs/mr"
)

// fill gives memory a content that no other test step leaves behind.
func fill(b []byte, seed int) {
	for i := range b {
		b[i] = byte(i*31 + seed)
	}
}

// fence is SendFence where the device keeps it: see there.
func fence(t *testing.T) ibv.SendFlags {
	if kernel(t) == linux61 {
		return 0
	}
	return ibv.SendFence
}

func newPairOf(t *testing.T, typ ibv.QPType) *rdmatest.Pair {
	init := rdmatest.DefaultInit()
	init.Type = typ
	return rdmatest.NewPair(t, init)
}

func done(t *testing.T, s *rdmatest.Side, wrID uint64, op cq.Opcode) cq.WC {
	t.Helper()
	wc := s.Wait(t, 1)[0]
	require.NoError(t, wc.Err())
	require.Equal(t, wrID, wc.WRID)
	require.Equal(t, op, wc.Opcode())
	return wc
}

// published registers memory that peers can do all to.
func published(t *testing.T, p *rdmatest.Pair, size int) *mr.Region {
	t.Helper()
	return rdmatest.Region(t, p.PD, size, rdmatest.RemoteAccess)
}

// TestMessagesAndWrites has every operation that RC and UC share, each with its data
// looked at on the other side.
func TestMessagesAndWrites(t *testing.T) {
	const size = 5000 // more than one packet
	for _, typ := range []ibv.QPType{ibv.QPTypeRC, ibv.QPTypeUC} {
		t.Run(typ.String(), func(t *testing.T) {
			p := newPairOf(t, typ)
			remote := published(t, p, 8192)
			src, dst := p.A.Region.Bytes(), p.B.Region.Bytes()
			sge := p.A.Region.SGE(0, size)

			fill(src, 1)
			postRecv(t, &p.B, ibv.Recv(10, p.B.Region.SGE(0, size)))
			post(t, &p.A, ibv.Send(11, 0, sge))
			done(t, &p.A, 11, cq.OpSend)
			wc := done(t, &p.B, 10, cq.OpRecv)
			assert.Equal(t, size, wc.ByteLen())
			assert.True(t, bytes.Equal(src[:size], dst[:size]), "SEND")
			_, hasImm := wc.Imm()
			assert.False(t, hasImm)

			fill(src, 2)
			postRecv(t, &p.B, ibv.Recv(12, p.B.Region.SGE(0, size)))
			post(t, &p.A, ibv.SendImm(13, ibv.SendSolicited, 0x01020304, sge))
			done(t, &p.A, 13, cq.OpSend)
			wc = done(t, &p.B, 12, cq.OpRecv)
			imm, hasImm := wc.Imm()
			assert.True(t, hasImm)
			assert.EqualValues(t, 0x01020304, imm)
			assert.True(t, bytes.Equal(src[:size], dst[:size]), "SEND_WITH_IMM")

			fill(src, 3)
			post(t, &p.A, ibv.Write(14, 0, remote.Remote().Slice(100, size), sge))
			done(t, &p.A, 14, cq.OpRDMAWrite)
			// On UC a completion says that it was sent. A message behind it has arrived after it.
			postRecv(t, &p.B, ibv.Recv(15))
			post(t, &p.A, ibv.Send(16, 0))
			done(t, &p.A, 16, cq.OpSend)
			done(t, &p.B, 15, cq.OpRecv)
			assert.True(t, bytes.Equal(src[:size], remote.Bytes()[100:100+size]), "WRITE")
			assert.Zero(t, remote.Bytes()[99])
			assert.Zero(t, remote.Bytes()[100+size])

			// WRITE_WITH_IMM takes a receive, and leaves its memory alone.
			fill(src, 4)
			fill(dst, 5)
			before := bytes.Clone(dst)
			postRecv(t, &p.B, ibv.Recv(17, p.B.Region.SGE(0, size)))
			post(t, &p.A, ibv.WriteImm(18, 0, 0xfffefdfc, remote.Remote(), sge))
			done(t, &p.A, 18, cq.OpRDMAWrite)
			wc = done(t, &p.B, 17, cq.OpRecvRDMAWithImm)
			imm, _ = wc.Imm()
			assert.EqualValues(t, 0xfffefdfc, imm)
			assert.Equal(t, size, wc.ByteLen())
			assert.True(t, wc.IsRecv())
			assert.True(t, bytes.Equal(src[:size], remote.Bytes()[:size]), "WRITE_WITH_IMM")
			assert.True(t, bytes.Equal(before, dst), "the receive's own memory")

			post(t, &p.A, ibv.SendWR{WRID: 19, Opcode: ibv.OpWrite, Inline: []byte("inline"), Remote: remote.Remote()})
			done(t, &p.A, 19, cq.OpRDMAWrite)
			postRecv(t, &p.B, ibv.Recv(20))
			post(t, &p.A, ibv.Send(21, 0))
			done(t, &p.A, 21, cq.OpSend)
			done(t, &p.B, 20, cq.OpRecv)
			assert.Equal(t, "inline", string(remote.Bytes()[:6]))
		})
	}
}

func TestReadsAndAtomics(t *testing.T) {
	p := newPairOf(t, ibv.QPTypeRC)
	remote := published(t, p, 8192)
	mine := p.A.Region.Bytes()

	fill(remote.Bytes(), 9)
	post(t, &p.A, ibv.Read(1, 0, remote.Remote().Slice(7, 5000), p.A.Region.SGE(1, 3000), p.A.Region.SGE(4000, 2000)))
	wc := done(t, &p.A, 1, cq.OpRDMARead)
	assert.Equal(t, 5000, wc.ByteLen())
	assert.True(t, bytes.Equal(remote.Bytes()[7:3007], mine[1:3001]))
	assert.True(t, bytes.Equal(remote.Bytes()[3007:5007], mine[4000:6000]))

	post(t, &p.A, ibv.Read(2, 0, remote.Remote().Slice(8192, 0))) // of nothing
	done(t, &p.A, 2, cq.OpRDMARead)

	word := remote.Bytes()[16:24]
	result := func() uint64 { return binary.NativeEndian.Uint64(mine[8:16]) }
	binary.NativeEndian.PutUint64(word, 40)
	post(t, &p.A, ibv.FetchAdd(3, 0, remote.Remote().Slice(16, 8), 2, p.A.Region.SGE(8, 8)))
	done(t, &p.A, 3, cq.OpFetchAdd)
	assert.EqualValues(t, 40, result())
	assert.EqualValues(t, 42, binary.NativeEndian.Uint64(word))

	post(t, &p.A, ibv.CompareSwap(4, 0, remote.Remote().Slice(16, 8), 41, 7, p.A.Region.SGE(8, 8)))
	done(t, &p.A, 4, cq.OpCompSwap)
	assert.EqualValues(t, 42, result(), "not equal, not swapped")
	assert.EqualValues(t, 42, binary.NativeEndian.Uint64(word))

	post(t, &p.A, ibv.CompareSwap(5, fence(t), remote.Remote().Slice(16, 8), 42, 1<<63, p.A.Region.SGE(8, 8)))
	done(t, &p.A, 5, cq.OpCompSwap)
	assert.EqualValues(t, 42, result())
	assert.EqualValues(t, uint64(1)<<63, binary.NativeEndian.Uint64(word))
}

func TestDatagrams(t *testing.T) {
	p, toA, toB := rdmatest.NewDatagrams(t)
	const grh = 40
	src := p.A.Region.Bytes()
	fill(src, 1)

	postRecv(t, &p.B, ibv.Recv(1, p.B.Region.SGE(0, grh+1000)))
	post(t, &p.A, ibv.Send(2, 0, p.A.Region.SGE(0, 1000)).To(toB))
	done(t, &p.A, 2, cq.OpSend)
	wc := done(t, &p.B, 1, cq.OpRecv)
	assert.Equal(t, grh+1000, wc.ByteLen())
	assert.True(t, wc.HasGRH())
	assert.Equal(t, p.A.QP.Num(), wc.SrcQP())
	assert.True(t, bytes.Equal(src[:1000], p.B.Region.Bytes()[grh:grh+1000]))

	// And back, by an address handle made of what came.
	attr, err := wc.AHAttr(p.Ctx, p.B.Region.Bytes()[:grh], 1)
	require.NoError(t, err)
	back, err := p.PD.CreateAH(attr)
	require.NoError(t, err)
	postRecv(t, &p.A, ibv.Recv(3, p.A.Region.SGE(0, 4096)))
	post(t, &p.B, ibv.SendImm(4, 0, 77, p.B.Region.SGE(0, 8)).To(ibv.Datagram{AH: back, QPN: wc.SrcQP(), QKey: rdmatest.QKey}))
	require.ErrorIs(t, back.Close(), ibv.ErrBusy, "a send to it is in flight")
	done(t, &p.B, 4, cq.OpSend)
	require.NoError(t, back.Close())
	wc = done(t, &p.A, 3, cq.OpRecv)
	imm, ok := wc.Imm()
	assert.True(t, ok)
	assert.EqualValues(t, 77, imm)

	// An empty datagram, and an inline one.
	postRecv(t, &p.A, ibv.Recv(5, p.A.Region.SGE(0, grh)), ibv.Recv(6, p.A.Region.SGE(0, 100)))
	post(t, &p.B, ibv.Send(7, 0).To(toA), ibv.SendWR{WRID: 8, Opcode: ibv.OpSend, Inline: []byte("dgram"), Datagram: toA})
	for range 2 {
		require.NoError(t, p.B.Wait(t, 1)[0].Err())
	}
	wc = done(t, &p.A, 5, cq.OpRecv)
	assert.Equal(t, grh, wc.ByteLen())
	done(t, &p.A, 6, cq.OpRecv)
	assert.Equal(t, "dgram", string(p.A.Region.Bytes()[grh:grh+5]))
}

// A UD work request without an address handle would crash the provider.
func TestDatagramWithoutAddressIsRefused(t *testing.T) {
	p, _, _ := rdmatest.NewDatagrams(t)
	n, err := p.A.QP.PostSend([]ibv.SendWR{{Opcode: ibv.OpSend, Inline: []byte("x")}})
	require.ErrorContains(t, err, "address handle")
	assert.Zero(t, n)
	_, err = p.A.QP.Init(ibv.GIDRequest{}, 0)
	assert.ErrorContains(t, err, "no connection")
}
