//go:build cgo && linux && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package ibv_test

import (
	"errors"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/fakedev"
	"github.com/goverbs/goverbs/internal/fakedev/fakedevtest"
)

// TestErrnosOfPosts has what a program branches on, and what it reads in the log.
func TestErrnosOfPosts(t *testing.T) {
	b := fakedevtest.New(t, fakedev.Config{MemoryWindows: true})
	for _, kind := range []string{"send", "receive", "SRQ"} {
		r := newRig(t, b, kind)
		for _, c := range []struct {
			errno       syscall.Errno
			full, never bool
			says        string
		}{
			{syscall.ENOMEM, true, false, "the device has no room for it (cannot allocate memory) (0 accepted)"},
			{syscall.ENOSPC, true, false, "the device has no room for it (no space left on device)"},
			{syscall.EAGAIN, true, false, "the device has no room for it (resource temporarily unavailable)"},
			{syscall.EINVAL, false, false, ": invalid argument (0 accepted)"},
			{syscall.EOPNOTSUPP, false, true, ": operation not supported"},
			{syscall.EIO, false, false, ": input/output error"},
		} {
			r.queue().FailPost(fakedev.Refusal{RC: int(c.errno), Errno: fakedev.KeepErrno})
			n, err := r.post(b.Region, 1)
			assert.Zero(t, n)
			assert.ErrorIs(t, err, c.errno)
			assert.Equal(t, c.full, errors.Is(err, ibv.ErrQueueFull), "%v", err)
			assert.Equal(t, c.never, errors.Is(err, ibv.ErrNotSupported), "%v", err)
			assert.ErrorContains(t, err, verbOf[kind]+" on "+r.name())
			assert.ErrorContains(t, err, c.says)
		}
	}
}

func (r *rig) name() string {
	if r.srq != nil {
		return r.srq.String()
	}
	return r.qp.String()
}

// TestErrnosOfBindMW has the same for the bind that is a verb of its own.
func TestErrnosOfBindMW(t *testing.T) {
	b := fakedevtest.New(t, fakedev.Config{MemoryWindows: true})
	region := b.NewRegion(t, ibv.AccessMWBind)
	mw := b.NewMW(t, ibv.MWType1)
	qp := b.NewQP(t)
	before := mw.Remote()
	for _, errno := range []syscall.Errno{syscall.ENOMEM, syscall.EINVAL, syscall.EOPNOTSUPP} {
		b.Fail("ibv_bind_mw", errno, 1)
		err := qp.BindMW(1, ibv.SendSignaled, region.MWBind(mw, 0, 64, ibv.AccessRemoteRead))
		var pe *ibv.PostError
		require.ErrorAs(t, err, &pe)
		assert.Equal(t, "ibv_bind_mw", pe.Op)
		assert.Zero(t, pe.Accepted)
		assert.ErrorIs(t, err, errno)
		assert.Equal(t, errno == syscall.ENOMEM, errors.Is(err, ibv.ErrQueueFull), "%v", err)
		assert.Equal(t, errno == syscall.EOPNOTSUPP, errors.Is(err, ibv.ErrNotSupported), "%v", err)
		assert.Equal(t, before, mw.Remote())
		assert.Zero(t, region.InFlight())
	}
	require.NoError(t, region.Close())
	require.NoError(t, mw.Close())
}

// TestBindMWThatMayBeQueued: unless the errno says that the device did not take it, the
// bind keeps its place, so that its completion is not taken for that of the next.
func TestBindMWThatMayBeQueued(t *testing.T) {
	b := fakedevtest.New(t, fakedev.Config{MemoryWindows: true})
	region := b.NewRegion(t, ibv.AccessMWBind)
	mw := b.NewMW(t, ibv.MWType1)
	qp := b.NewQP(t)
	qp.SQ.FailPost(fakedev.Refusal{RC: int(syscall.EIO), Errno: fakedev.KeepErrno, Bad: fakedev.BadUntouched, Taken: fakedev.TakenAll})
	err := qp.BindMW(7, ibv.SendSignaled, region.MWBind(mw, 0, 64, ibv.AccessRemoteRead))
	require.ErrorIs(t, err, syscall.EIO)
	require.ErrorContains(t, err, "its completion may come")
	var failed *ibv.PostError
	require.ErrorAs(t, err, &failed)
	assert.Equal(t, 1, failed.Accepted)
	assert.Equal(t, -1, failed.Index)
	sends, _ := qp.InFlight()
	require.Equal(t, 1, sends)
	assert.ErrorIs(t, region.Close(), ibv.ErrBusy)
	assert.ErrorIs(t, mw.Close(), ibv.ErrBusy)

	qp.Post(t, fakedevtest.Sends(b.Region, 8, 1)...)
	tokens := qp.SQ.WRIDs()
	require.Len(t, tokens, 2)
	assert.NotEqual(t, tokens[0], tokens[1])
	qp.SQ.Complete(fakedev.Completion{})
	assert.Equal(t, []uint64{7}, fakedevtest.IDs(fakedevtest.Poll(t, qp.Send)))
	assert.True(t, mw.Bound())
	assert.Equal(t, 1, b.Region.InFlight(), "the send is with the device")
	qp.SQ.Complete(fakedev.Completion{})
	assert.Equal(t, []uint64{8}, fakedevtest.IDs(fakedevtest.Poll(t, qp.Send)))
	require.NoError(t, mw.Close())
	require.NoError(t, region.Close())
}

// TestFullQueueIsRefusedBeforeTheCall: the refusal that the device was ordered to make
// is still ordered afterwards.
func TestFullQueueIsRefusedBeforeTheCall(t *testing.T) {
	for _, kind := range []string{"send", "receive"} {
		t.Run(kind, func(t *testing.T) {
			r := newRig(t, fakedevtest.New(t, fakedev.Config{}), kind)
			n, err := r.post(r.b.Region, 64)
			require.NoError(t, err)
			require.Equal(t, 64, n)
			r.queue().FailPost(fakedev.Refusal{RC: int(syscall.EINVAL)})
			n, err = r.post(r.b.Region, 1)
			assert.Zero(t, n)
			assert.ErrorIs(t, err, ibv.ErrQueueFull)
			assert.ErrorIs(t, err, syscall.ENOMEM)
			assert.ErrorContains(t, err, "all 64 places are taken; poll the completion queue")
			assert.True(t, r.queue().Refuses(), "the device was asked")

			r.queue().Complete(fakedev.Completion{})
			require.Len(t, fakedevtest.Poll(t, r.qp.Recv), 1)
			_, err = r.post(r.b.Region, 1)
			assert.ErrorIs(t, err, syscall.EINVAL, "now it was")
			n, err = r.post(r.b.Region, 2)
			assert.Equal(t, 1, n, "one place")
			assert.ErrorIs(t, err, ibv.ErrQueueFull)
		})
	}
}

// TestFullOfUnsignaled: nothing will ever make room, which the error must say.
func TestFullOfUnsignaled(t *testing.T) {
	b := fakedevtest.New(t, fakedev.Config{})
	qp := b.NewQP(t)
	wrs := fakedevtest.Sends(b.Region, 0, 64)
	for i := range wrs {
		wrs[i].Flags = 0
	}
	qp.Post(t, wrs...)
	_, err := qp.PostSend(wrs[:1])
	assert.ErrorIs(t, err, ibv.ErrQueueFull)
	assert.ErrorContains(t, err, "taken by unsignaled work requests, so that no completion will free them")
	assert.ErrorContains(t, err, "signal at least one in 64")
	b.Flush(qp.Num())
	wcs := fakedevtest.Poll(t, qp.Send)
	require.Len(t, wcs, 64)
	assert.Zero(t, b.Region.InFlight())

	wrs[0].Flags = ibv.SendSignaled // the oldest, so that its completion frees one place
	qp.Post(t, wrs...)
	_, err = qp.PostSend(wrs[:1])
	assert.ErrorContains(t, err, "poll the completion queue")
	qp.SQ.Complete(fakedev.Completion{})
	require.Len(t, fakedevtest.Poll(t, qp.Send), 1)
	assert.Equal(t, 63, b.Region.InFlight())
	qp.Post(t, wrs[1])
	_, err = qp.PostSend(wrs[:1])
	assert.ErrorContains(t, err, "unsignaled", "the signaled one is through")
}

// TestSRQFullIsTheDevicesWord: only the provider knows, and the library passes it on.
func TestSRQFullIsTheDevicesWord(t *testing.T) {
	r := newRig(t, fakedevtest.New(t, fakedev.Config{}), "SRQ")
	for range 2 {
		n, err := r.post(r.b.Region, 64)
		require.NoError(t, err)
		require.Equal(t, 64, n)
	}
	n, err := r.post(r.b.Region, 3)
	assert.Zero(t, n)
	assert.ErrorIs(t, err, ibv.ErrQueueFull)
	assert.Equal(t, 128, r.srq.InFlight())
	assert.Equal(t, 128, r.b.Region.InFlight())
	assert.ErrorContains(t, err, "the device has no room for it")
}

// TestRefusedByTheLibrary has what never reaches the device, beside accepted WRs.
func TestRefusedByTheLibrary(t *testing.T) {
	b := fakedevtest.New(t, fakedev.Config{})
	qp := b.NewQP(t)
	closed := b.NewRegion(t)
	sge := closed.SGE(0, 16)
	require.NoError(t, closed.Close())
	for _, c := range []struct {
		wr   ibv.SendWR
		want error
		says string
	}{
		{ibv.Send(0, 0, sge), ibv.ErrClosed, "was closed, or is being closed"},
		{ibv.SendWR{}, syscall.EINVAL, "is not an operation"},
		{ibv.Send(0, 1<<9), syscall.EINVAL, "unknown bits 0x200"},
		{ibv.Send(0, 0, make([]ibv.SGE, 5)...), syscall.EINVAL, "5 SGEs are more than the MaxSendSGE 4"},
		{ibv.Send(0, 1<<31, b.Region.SGE(0, 16)), syscall.EINVAL, "unknown bits 0x80000000"},
		{ibv.SendWR{Opcode: ibv.OpLocalInv, SGEs: []ibv.SGE{b.Region.SGE(0, 16)}}, syscall.EINVAL, "an invalidation has no SGEs"},
		{ibv.Write(0, 0, ibv.RemoteRange{Length: 15}, b.Region.SGE(0, 16)), syscall.EINVAL, "16 bytes together, and SendWR.Remote only 15"},
		{ibv.SendWR{Opcode: ibv.OpSend, Inline: make([]byte, 65)}, syscall.EINVAL, "65 bytes inline"},
	} {
		wrs := fakedevtest.Sends(b.Region, 0, 34)
		wrs = append(wrs, c.wr)
		n, err := qp.PostSend(wrs)
		assert.Equal(t, 34, n)
		var pe *ibv.PostError
		require.ErrorAs(t, err, &pe)
		assert.Equal(t, 34, pe.Index)
		assert.ErrorIs(t, err, c.want)
		assert.ErrorContains(t, err, c.says)
		require.Len(t, qp.SQ.WRIDs(), 34)
		assert.Equal(t, 34, b.Region.InFlight())
		b.Flush(qp.Num())
		require.Len(t, fakedevtest.Poll(t, qp.Send), 34)
	}
}

func TestInFlight(t *testing.T) {
	b := fakedevtest.New(t, fakedev.Config{})
	qp := b.NewQP(t)
	wrs := fakedevtest.Sends(b.Region, 1, 3)
	wrs[0].Flags = 0 // unsignaled: the next completion covers it
	qp.Post(t, wrs...)
	_, err := qp.PostRecv(fakedevtest.Recvs(b.Region, 1, 2))
	require.NoError(t, err)
	sends, receives := qp.InFlight()
	assert.Equal(t, []int{3, 2}, []int{sends, receives})
	qp.SQ.Complete(fakedev.Completion{Index: 1})
	sends, _ = qp.InFlight()
	assert.Equal(t, 3, sends, "not polled yet")
	require.Len(t, fakedevtest.Poll(t, qp.Send), 1)
	sends, receives = qp.InFlight()
	assert.Equal(t, []int{1, 2}, []int{sends, receives})
	require.NoError(t, qp.Close())
}
