//go:build cgo && linux && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package fakedev_test

import (
	"errors"
	"fmt"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/cq"
	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/fakedev"
	"github.com/goverbs/goverbs/internal/rdmatest"
	"github.com/goverbs/goverbs/mr"
)

func TestMain(m *testing.M) { rdmatest.Main(m) }

// side is a fake device with one queue pair, connected to itself.
type side struct {
	*fakedev.Device
	ctx    *ibv.Context
	pd     *ibv.PD
	cq     *cq.CQ
	qp     *ibv.QP
	region *mr.Region
	sq, rq fakedev.Queue
}

func newSide(t testing.TB, config fakedev.Config, change ...func(*ibv.QPInitAttr)) *side {
	t.Helper()
	s := &side{Device: fakedev.New(t, config)}
	var err error
	s.ctx, err = ibv.Open(s.Name())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.ctx.CloseAll()) })
	s.pd = rdmatest.PD(t, s.ctx)
	s.cq, err = cq.Create(s.ctx, cq.InitAttr{Entries: 64})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.cq.Close()) })
	s.region = rdmatest.Region(t, s.pd, 4096) // to be closed after the QP
	init := rdmatest.DefaultInit()
	init.SignalAll = false
	for _, f := range change {
		f(&init)
	}
	s.qp, err = s.pd.CreateQP(init, ibv.QPQueues{Send: s.cq, Recv: s.cq})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.qp.Close()) })
	s.sq, s.rq = s.Send(s.qp.Num()), s.Recv(s.qp.Num())
	s.connect(t)
	return s
}

func (s *side) connect(t testing.TB) {
	t.Helper()
	local, err := s.qp.Init(ibv.GIDRequest{}, 0)
	require.NoError(t, err)
	require.NoError(t, s.qp.Connect(local, local.Endpoint))
}

// sends returns n signaled sends with wr_ids from 0.
func (s *side) sends(n int) []ibv.SendWR {
	wrs := make([]ibv.SendWR, n)
	for i := range wrs {
		wrs[i] = ibv.SendWR{WRID: uint64(i), Opcode: ibv.OpSend, Flags: ibv.SendSignaled, SGEs: []ibv.SGE{s.region.SGE(i*16, 16)}}
	}
	return wrs
}

func (s *side) recvs(n int) []ibv.RecvWR {
	wrs := make([]ibv.RecvWR, n)
	for i := range wrs {
		wrs[i] = ibv.RecvWR{WRID: uint64(i), SGEs: []ibv.SGE{s.region.SGE(i*16, 16)}}
	}
	return wrs
}

// poll returns all completions that are there.
func (s *side) poll(t testing.TB) []cq.WC {
	t.Helper()
	wcs := make([]cq.WC, 64)
	n, err := s.cq.Poll(wcs)
	require.NoError(t, err)
	return wcs[:n]
}

func TestSendAndReceive(t *testing.T) {
	s := newSide(t, fakedev.Config{})
	copy(s.region.Bytes(), "hello")
	n, err := s.qp.PostRecv(s.recvs(2)[1:])
	require.NoError(t, err)
	require.Equal(t, 1, n)
	n, err = s.qp.PostSend([]ibv.SendWR{
		{WRID: 7, Opcode: ibv.OpSend, SGEs: []ibv.SGE{s.region.SGE(0, 3), s.region.SGE(3, 2)}},
		{WRID: 8, Opcode: ibv.OpSend, Flags: ibv.SendSignaled | ibv.SendSolicited, Inline: []byte("inline")},
	})
	require.NoError(t, err)
	require.Equal(t, 2, n)
	assert.Empty(t, s.poll(t), "nothing completes before the test says so")

	posted := s.sq.Posted()
	require.Len(t, posted, 2)
	assert.Equal(t, fakedev.WRSend, posted[0].Opcode)
	assert.False(t, posted[0].Signaled)
	sge := s.region.SGE(3, 2)
	assert.Equal(t, fakedev.SGE{Addr: sge.Addr, Length: sge.Length, LKey: sge.LKey}, posted[0].SGEs[1])
	assert.Equal(t, 5, posted[0].Length)
	assert.Nil(t, posted[0].Inline)
	assert.Equal(t, "hello", string(s.sq.Data(0)))
	assert.True(t, posted[1].Signaled)
	assert.Equal(t, uint32(ibv.SendSignaled|ibv.SendSolicited|ibv.SendInline), posted[1].Flags)
	assert.Equal(t, "inline", string(posted[1].Inline))

	s.rq.Write(0, 4, []byte("late"))
	s.rq.Complete(fakedev.Completion{Payload: []byte("data"), Imm: new(uint32(0x01020304))})
	s.sq.Complete(fakedev.Completion{Index: 1})
	assert.Empty(t, s.sq.Posted(), "the unsignaled send went with the signaled one after it")

	wcs := s.poll(t)
	require.Len(t, wcs, 2)
	assert.Equal(t, uint64(1), wcs[0].WRID)
	assert.Equal(t, cq.OpRecv, wcs[0].Opcode())
	assert.Equal(t, 4, wcs[0].ByteLen())
	imm, ok := wcs[0].Imm()
	assert.True(t, ok)
	assert.Equal(t, uint32(0x01020304), imm)
	assert.Equal(t, "datalate", string(s.region.Bytes()[16:24]))
	assert.Equal(t, uint64(8), wcs[1].WRID)
	assert.Equal(t, cq.OpSend, wcs[1].Opcode())
	assert.Equal(t, s.qp.Num(), wcs[1].QPNum)
}

// TestRefusedPosts has every way in which providers refuse a WR, at every place of a
// chain, and what the library makes of it.
func TestRefusedPosts(t *testing.T) {
	conventions := []struct {
		name      string
		rc, errno int
		want      syscall.Errno
	}{
		{"errno", int(syscall.EINVAL), fakedev.KeepErrno, syscall.EINVAL},
		{"negative errno", -int(syscall.ENOSPC), fakedev.KeepErrno, syscall.ENOSPC},
		{"-1 and errno", -1, int(syscall.EFAULT), syscall.EFAULT},
		{"-1 and no errno", -1, 0, syscall.EPROTO},
		{"not supported", int(syscall.EOPNOTSUPP), fakedev.KeepErrno, syscall.EOPNOTSUPP},
	}
	const chain = 5
	s := newSide(t, fakedev.Config{})
	for _, send := range []bool{true, false} {
		queue, post := s.rq, func() (int, error) { return s.qp.PostRecv(s.recvs(chain)) }
		if send {
			queue, post = s.sq, func() (int, error) { return s.qp.PostSend(s.sends(chain)) }
		}
		for _, c := range conventions {
			for _, bad := range []fakedev.BadWR{fakedev.BadNamed, fakedev.BadUntouched, fakedev.BadOutside} {
				for at := range chain {
					t.Run(fmt.Sprintf("send %v/%s/bad_wr %d/WR %d", send, c.name, bad, at), func(t *testing.T) {
						// Which of them are owned must be right for the provider that queues
						// what it should; what is named decides.
						index, accepted, taken := at, at, fakedev.TakenBefore
						if bad != fakedev.BadNamed {
							index, accepted, taken = -1, 0, fakedev.TakenNone
							if send && c.want != syscall.EOPNOTSUPP {
								accepted, taken = chain, fakedev.TakenAll
							}
						}
						queue.FailPost(fakedev.Refusal{Index: at, RC: c.rc, Errno: c.errno, Bad: bad, Taken: taken})
						n, err := post()
						assert.Equal(t, accepted, n)
						var pe *ibv.PostError
						require.ErrorAs(t, err, &pe)
						assert.Equal(t, accepted, pe.Accepted)
						assert.Equal(t, index, pe.Index)
						assert.ErrorIs(t, err, c.want)
						assert.False(t, queue.Refuses())
						require.Len(t, queue.Posted(), accepted)

						s.Flush(s.qp.Num())
						wcs := s.poll(t)
						require.Len(t, wcs, accepted)
						for i := range wcs {
							assert.Equal(t, uint64(i), wcs[i].WRID)
							assert.Equal(t, cq.StatusWRFlushErr, wcs[i].Status)
							assert.Equal(t, !send, wcs[i].IsRecv())
							assert.False(t, wcs[i].Foreign())
						}
						n, err = post()
						require.NoError(t, err, "the queue is usable after it")
						require.Equal(t, chain, n)
						s.Flush(s.qp.Num())
						assert.Len(t, s.poll(t), chain)
					})
				}
			}
		}
	}
}

// TestRefusalAcrossCalls counts WRs over several calls of the verb.
func TestRefusalAcrossCalls(t *testing.T) {
	s := newSide(t, fakedev.Config{}, func(i *ibv.QPInitAttr) { i.Cap.MaxSendWR = 100 })
	s.sq.FailPost(fakedev.Refusal{Index: 70, RC: int(syscall.EINVAL), Errno: fakedev.KeepErrno})
	_, err := s.qp.PostSend(s.sends(3))
	require.NoError(t, err)
	n, err := s.qp.PostSend(s.sends(90))
	var pe *ibv.PostError
	require.True(t, errors.As(err, &pe), "%v", err)
	assert.Equal(t, 67, n)
	assert.Equal(t, 67, pe.Index)
	assert.Len(t, s.sq.Posted(), 70)
}

func TestFullQueue(t *testing.T) {
	s := newSide(t, fakedev.Config{RoundUp: true}, func(i *ibv.QPInitAttr) { i.Cap.MaxSendWR = 5 })
	require.Equal(t, uint32(8), s.qp.Cap().MaxSendWR)
	n, err := s.qp.PostSend(s.sends(9))
	assert.Equal(t, 8, n)
	assert.ErrorIs(t, err, ibv.ErrQueueFull)
	assert.Len(t, s.sq.Posted(), 8)
}
