//go:build cgo && linux && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package fakedev_test

import (
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/cq"
	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/fakedev"
	"github.com/goverbs/goverbs/internal/rdmatest"
	"github.com/goverbs/goverbs/mr"
)

// TestList has fake devices beside those of this host, or the host's answer alone.
func TestList(t *testing.T) {
	names := func() (names []string, err error) {
		devices, err := ibv.Devices()
		for _, d := range devices {
			names = append(names, d.Name)
		}
		return names, err
	}
	real, realErr := names()
	t.Run("with devices", func(t *testing.T) {
		a := fakedev.New(t, fakedev.Config{})
		b := fakedev.New(t, fakedev.Config{IWARP: true, NodeType: int(ibv.NodeRNIC)})
		assert.NotEqual(t, a.Name(), b.Name())
		got, err := names()
		require.NoError(t, err)
		assert.Equal(t, append(real, a.Name(), b.Name()), got)
		devices, err := ibv.Devices()
		require.NoError(t, err)
		last := devices[len(devices)-1]
		assert.Equal(t, ibv.TransportIWARP, last.Transport)
		assert.Equal(t, ibv.NodeRNIC, last.NodeType)
		assert.NotZero(t, last.GUID)
	})
	got, err := names()
	assert.Equal(t, real, got)
	assert.Equal(t, realErr, err)
}

func TestConfig(t *testing.T) {
	d := fakedev.New(t, fakedev.Config{
		Limits:   fakedev.Limits{MaxQPWR: 100, MaxSRQ: -1, MaxRdAtomic: 3, MaxMR: 1},
		CapFlags: uint32(ibv.DeviceSRQResize),
		ODP:      fakedev.ODPCaps{General: 1, RC: 3},
		Vectors:  4,
		Ports: []fakedev.Port{
			{State: int(ibv.PortDown), MTU: int(ibv.MTU1024)},
			{IB: true, LID: 5, GIDs: []fakedev.GID{{}, fakedev.RoCEv2("2001:db8::1")}},
		},
	})
	ctx, err := ibv.Open(d.Name())
	require.NoError(t, err)
	defer ctx.CloseAll()
	a, err := ctx.QueryDevice()
	require.NoError(t, err)
	assert.Equal(t, ibv.DeviceSRQResize, a.CapFlags)
	assert.Equal(t, uint32(3), a.ODPCapsRC)
	assert.Equal(t, 100, a.MaxQPWR)
	assert.Equal(t, 0, a.MaxSRQ)
	assert.Equal(t, 3, a.MaxQPInitRdAtom)
	assert.Equal(t, 4, a.NumCompVectors)
	assert.Equal(t, 2, int(a.PhysPortCount))

	p, err := ctx.QueryPort(1)
	require.NoError(t, err)
	assert.Equal(t, ibv.PortDown, p.State)
	assert.Equal(t, ibv.MTU1024, p.ActiveMTU)
	d.SetPort(1, int(ibv.PortActive))
	p, err = ctx.QueryPort(1)
	require.NoError(t, err)
	assert.Equal(t, ibv.PortActive, p.State)
	p, err = ctx.QueryPort(2)
	require.NoError(t, err)
	assert.Equal(t, uint16(5), p.LID)

	gids, err := ctx.GIDTable()
	require.NoError(t, err)
	require.Len(t, gids, 1)
	assert.Equal(t, uint32(1), gids[0].Index)
	assert.Equal(t, uint8(2), gids[0].Port)
	assert.Equal(t, ibv.GIDTypeRoCEv2, gids[0].Type)
	assert.Equal(t, "2001:db8::1", gids[0].GID.Addr().String())

	pd, err := ctx.AllocPD()
	require.NoError(t, err)
	_, err = mr.AllocRegion(pd, 100, 0)
	require.NoError(t, err)
	_, err = mr.AllocRegion(pd, 100, 0)
	assert.ErrorIs(t, err, syscall.ENOMEM, "the limit of regions")
}

func TestStates(t *testing.T) {
	s := newSide(t, fakedev.Config{})
	attr, err := s.qp.Query(ibv.AttrState)
	require.NoError(t, err)
	assert.Equal(t, ibv.QPStateRTS, attr.State)
	assert.Equal(t, s.qp.Num(), attr.DestQPN)
	assert.Equal(t, ibv.MTU4096, attr.PathMTU)
	assert.Equal(t, uint8(64), attr.AH.GRH.HopLimit)

	s.SetQPState(s.qp.Num(), int(ibv.QPStateErr))
	state, err := s.qp.State()
	require.NoError(t, err)
	assert.Equal(t, ibv.QPStateErr, state)
	info := s.QP(s.qp.Num())
	assert.Equal(t, int(ibv.QPStateErr), info.State)
	assert.Equal(t, s.CQs(), []uint32{info.SendCQ})
	assert.Equal(t, info.SendCQ, info.RecvCQ)
	assert.Zero(t, info.SRQ)
	assert.Equal(t, []uint32{s.qp.Num()}, s.QPs())

	err = s.qp.Modify(ibv.QPAttr{State: ibv.QPStateSQD}, ibv.AttrState|ibv.AttrCurState)
	assert.ErrorIs(t, err, syscall.EINVAL, "not from ERR, whatever the program claims")
	require.NoError(t, s.qp.Modify(ibv.QPAttr{State: ibv.QPStateReset}, ibv.AttrState))
	s.connect(t)
}

// TestQueuedCompletions has what providers differ in: completions that are queued when
// their QP is reset or destroyed.
func TestQueuedCompletions(t *testing.T) {
	for _, keep := range []bool{false, true} {
		for _, end := range []string{"reset", "close"} {
			t.Run(fmt.Sprintf("%s, keep %v", end, keep), func(t *testing.T) {
				s := newSide(t, fakedev.Config{KeepCompletions: keep})
				_, err := s.qp.PostSend(s.sends(3))
				require.NoError(t, err)
				s.sq.Complete(fakedev.Completion{})
				s.sq.Complete(fakedev.Completion{Index: 1})
				require.Equal(t, 2, s.Queued(s.CQs()[0]))
				num := s.qp.Num()
				s.Fail("ibv_poll_cq", 0, 1) // with which the library would take them away
				if end == "reset" {
					require.NoError(t, s.qp.Modify(ibv.QPAttr{State: ibv.QPStateReset}, ibv.AttrState))
					assert.Empty(t, s.sq.Posted())
				} else {
					require.NoError(t, s.qp.Close())
					q := rdmatest.CQ(t, s.ctx, 16)
					again, err := s.pd.CreateQP(rdmatest.DefaultInit(), ibv.QPQueues{Send: q, Recv: q})
					require.NoError(t, err)
					assert.Equal(t, num, again.Num(), "a new QP has the old one's number")
					require.NoError(t, again.Close())
				}
				want := 0
				if keep {
					want = 2
				}
				assert.Equal(t, want, s.Queued(s.CQs()[0]))
			})
		}
	}
}

func TestOverrun(t *testing.T) {
	for _, silent := range []bool{false, true} {
		t.Run(fmt.Sprintf("silent %v", silent), func(t *testing.T) {
			s := newSide(t, fakedev.Config{SilentOverrun: silent})
			small := rdmatest.CQ(t, s.ctx, 2)
			qp, err := s.pd.CreateQP(rdmatest.DefaultInit(), ibv.QPQueues{Send: small, Recv: small})
			require.NoError(t, err)
			defer qp.Close()
			handle := s.QP(qp.Num()).SendCQ
			for range 3 {
				s.Push(handle, fakedev.WC{WRID: 9, QPN: 77})
			}
			wcs := make([]cq.WC, 2)
			n, err := small.Poll(wcs)
			require.NoError(t, err)
			require.Equal(t, 2, n)
			assert.True(t, wcs[0].Foreign())
			assert.Equal(t, uint64(9), wcs[1].WRID)
			assert.Equal(t, uint32(77), wcs[1].QPNum)
			_, err = small.Poll(wcs)
			if !silent {
				require.ErrorIs(t, err, syscall.EIO, "the poll says so itself")
			}
			require.Eventually(t, func() bool {
				_, err = small.Poll(wcs)
				return err != nil
			}, 10*time.Second, time.Millisecond, "and the event in both cases")
			assert.ErrorIs(t, err, syscall.EIO)
		})
	}
}

// TestRepeatedCompletion gives a wr_id that was completed before, and a garbled one.
func TestRepeatedCompletion(t *testing.T) {
	s := newSide(t, fakedev.Config{})
	_, err := s.qp.PostSend(s.sends(2))
	require.NoError(t, err)
	token := s.sq.WRIDs()[0]
	s.sq.Complete(fakedev.Completion{})
	s.sq.Complete(fakedev.Completion{WRID: &token})
	wcs := s.poll(t)
	require.Len(t, wcs, 2)
	assert.False(t, wcs[0].Foreign())
	assert.True(t, wcs[1].Foreign(), "its WR is not in flight any more")
}

func TestFailedCompletion(t *testing.T) {
	s := newSide(t, fakedev.Config{})
	_, err := s.qp.PostSend(s.sends(1))
	require.NoError(t, err)
	s.sq.Complete(fakedev.Completion{Status: int(cq.StatusRemAccessErr), VendorErr: 0x88})
	wcs := s.poll(t)
	require.Len(t, wcs, 1)
	assert.Equal(t, cq.StatusRemAccessErr, wcs[0].Status)
	assert.Equal(t, uint32(0x88), wcs[0].VendorErr)
	assert.Zero(t, wcs[0].Opcode(), "the library shows none of the garbage")
	assert.Zero(t, wcs[0].ByteLen())
}

func TestOrderedFailures(t *testing.T) {
	s := newSide(t, fakedev.Config{})
	s.Fail("ibv_alloc_pd", syscall.EAGAIN, 2)
	for range 2 {
		_, err := s.ctx.AllocPD()
		assert.ErrorIs(t, err, syscall.EAGAIN)
	}
	rdmatest.PD(t, s.ctx)

	s.Fail("ibv_reg_mr", syscall.EFAULT, 1)
	_, err := mr.AllocRegion(s.pd, 100, 0)
	assert.ErrorIs(t, err, syscall.EFAULT)
	s.Fail("ibv_query_gid_table", syscall.EPERM, 1)
	_, err = s.ctx.GIDTable()
	assert.ErrorIs(t, err, syscall.EPERM)
	s.Fail("ibv_query_pkey", syscall.EACCES, 1)
	_, err = s.ctx.QueryPKey(1, 0)
	assert.ErrorIs(t, err, syscall.EACCES)
	s.Fail("ibv_poll_cq", 0, 1)
	_, err = s.cq.Poll(make([]cq.WC, 1))
	assert.Error(t, err)
	s.Fail("ibv_create_qp", syscall.EPERM, 2) // the library tries again, to find why
	other := rdmatest.CQ(t, s.ctx, 16)        // s.cq has failed
	_, err = s.pd.CreateQP(rdmatest.DefaultInit(), ibv.QPQueues{Send: other, Recv: other})
	assert.ErrorIs(t, err, syscall.EPERM)
	s.FailRaw("ibv_query_qp", -int(syscall.EBADF), 0, 1)
	_, err = s.qp.State()
	assert.ErrorIs(t, err, syscall.EBADF)
	s.FailRaw("ibv_query_qp", -1, syscall.EBADMSG, 1)
	_, err = s.qp.State()
	assert.ErrorIs(t, err, syscall.EBADMSG)
}

// TestUnplug has a device that is gone: every call fails with EIO, and closing works
// all the same, since the kernel has freed everything.
func TestUnplug(t *testing.T) {
	s := newSide(t, fakedev.Config{})
	_, err := s.qp.PostSend(s.sends(2))
	require.NoError(t, err)
	s.sq.Complete(fakedev.Completion{})
	s.Fail("ibv_destroy_qp", syscall.EIO, 1)
	require.ErrorIs(t, s.qp.Close(), syscall.EIO, "the device still answers")
	s.Unplug()
	_, err = s.ctx.AllocPD()
	require.ErrorIs(t, err, syscall.EIO)
	require.NoError(t, s.qp.Close())
	require.NoError(t, s.region.Close())
	require.NoError(t, s.cq.Close())
	require.NoError(t, s.pd.Close())
	assert.Equal(t, []string{"1 context", "1 PD", "1 MR", "1 CQ", "1 QP"}, s.Open(), "memory that libibverbs cannot free")
	require.NoError(t, s.ctx.Close())
	assert.Empty(t, s.Open())
}

func TestComplete(t *testing.T) {
	s := newSide(t, fakedev.Config{Complete: true})
	wrs := s.sends(3)
	wrs[1].Flags = 0
	_, err := s.qp.PostSend(wrs)
	require.NoError(t, err)
	wcs := s.poll(t)
	require.Len(t, wcs, 2)
	assert.Equal(t, uint64(2), wcs[1].WRID)
	_, err = s.qp.PostRecv(s.recvs(1))
	require.NoError(t, err)
	assert.Empty(t, s.poll(t))
	require.NoError(t, s.qp.Modify(ibv.QPAttr{State: ibv.QPStateErr}, ibv.AttrState))
	_, err = s.qp.PostSend(wrs)
	require.NoError(t, err)
	wcs = s.poll(t)
	require.Len(t, wcs, 4)
	for i := range wcs {
		assert.Equal(t, cq.StatusWRFlushErr, wcs[i].Status)
	}
	s.SetComplete(false)
	_, err = s.qp.PostSend(wrs)
	require.NoError(t, err)
	assert.Empty(t, s.poll(t))
}

func TestNull(t *testing.T) {
	s := newSide(t, fakedev.Config{Null: true})
	for round := range 100 {
		wrs := s.sends(6)
		wrs[3].Flags = 0
		n, err := s.qp.PostSend(wrs)
		require.NoError(t, err)
		require.Equal(t, 6, n)
		_, err = s.qp.PostRecv(s.recvs(2))
		require.NoError(t, err)
		wcs := s.poll(t)
		require.Len(t, wcs, 7, "round %d", round)
		var ids []uint64
		for i := range wcs {
			require.NoError(t, wcs[i].Err())
			assert.Equal(t, s.qp.Num(), wcs[i].QPNum)
			ids = append(ids, wcs[i].WRID)
		}
		assert.Equal(t, []uint64{0, 1, 2, 4, 5, 0, 1}, ids)
		assert.Equal(t, cq.OpSend, wcs[0].Opcode())
		assert.Equal(t, cq.OpRecv, wcs[6].Opcode())
	}
	assert.Empty(t, s.sq.Posted(), "nothing is recorded")
}

// TestConcurrency posts, polls and completes at the same time.
func TestConcurrency(t *testing.T) {
	s := newSide(t, fakedev.Config{})
	const n = 500
	var wg sync.WaitGroup
	deadline := time.Now().Add(30 * time.Second)
	wg.Go(func() {
		for posted := 0; posted < n && time.Now().Before(deadline); {
			k, _ := s.qp.PostSend(s.sends(min(4, n-posted)))
			posted += k
		}
	})
	wg.Go(func() {
		for done := 0; done < n && time.Now().Before(deadline); {
			if len(s.sq.Posted()) > 0 {
				s.sq.Complete(fakedev.Completion{})
				done++
			}
		}
	})
	got := 0
	for got < n && time.Now().Before(deadline) {
		got += len(s.poll(t))
	}
	wg.Wait()
	assert.Equal(t, n, got)
}
