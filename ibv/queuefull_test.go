//go:build cgo && linux && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package ibv_test

import (
	"errors"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/cq"
	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/fakedev"
)

// newTenQP makes an RC queue pair for ten sends and ten receives, connected to itself.
func newTenQP(t *testing.T, device *fakedev.Device) (qp *ibv.QP, q *cq.CQ) {
	t.Helper()
	ctx, err := ibv.Open(device.Name())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, ctx.CloseAll()) })
	pd, err := ctx.AllocPD()
	require.NoError(t, err)
	q, err = cq.Create(ctx, cq.InitAttr{Entries: 64})
	require.NoError(t, err)
	qp, err = pd.CreateQP(ibv.QPInitAttr{Type: ibv.QPTypeRC, Cap: ibv.QPCap{MaxSendWR: 10, MaxRecvWR: 10, MaxSendSGE: 1, MaxInlineData: 8}},
		ibv.QPQueues{Send: q, Recv: q})
	require.NoError(t, err)
	local, err := qp.Init(ibv.GIDRequest{}, 0)
	require.NoError(t, err)
	require.NoError(t, qp.Connect(local, local.Endpoint))
	return qp, q
}

// A full queue is ordinary: it costs no memory, and its errors stay what they were when
// others follow.
func TestFullQueueAllocatesNothing(t *testing.T) {
	qp, q := newTenQP(t, fakedev.New(t, fakedev.Config{Null: true}))
	wrs := make([]ibv.SendWR, 14)
	for i := range wrs {
		wrs[i] = ibv.SendWR{Opcode: ibv.OpSend, Flags: ibv.SendSignaled, Inline: []byte("x")}
	}
	n, some := qp.PostSend(wrs)
	require.Equal(t, 10, n)
	n, none := qp.PostSend(wrs)
	require.Zero(t, n)
	for n, err := range map[int]error{10: some, 0: none} {
		var post *ibv.PostError
		require.ErrorAs(t, err, &post)
		assert.Equal(t, n, post.Accepted)
		assert.Equal(t, n, post.Index)
		require.ErrorIs(t, err, ibv.ErrQueueFull)
		assert.ErrorContains(t, err, "all 10 places are taken; poll")
	}
	full := true
	assert.Zero(t, allocs(func() {
		_, err := qp.PostSend(wrs)
		full = full && errors.Is(err, ibv.ErrQueueFull)
	}))
	assert.True(t, full)
	var wcs [4]cq.WC
	assert.Zero(t, allocs(func() {
		n, _ = q.Poll(wcs[:])
		_, _ = qp.PostSend(wrs)
	}), "room for four at a time")
	assert.Equal(t, len(wcs), n)

	n, err := q.Poll(make([]cq.WC, 64))
	require.NoError(t, err)
	require.Equal(t, 10, n)
	for i := range wrs {
		wrs[i].Flags = 0
	}
	_, err = qp.PostSend(wrs)
	assert.ErrorContains(t, err, "by unsignaled work requests")
}

// A device may refuse what the library has room for, and its errors are made once too.
func TestDeviceWithoutRoom(t *testing.T) {
	device := fakedev.New(t, fakedev.Config{})
	qp, _ := newTenQP(t, device)
	refuse := func(errno syscall.Errno, bad fakedev.BadWR) *ibv.PostError {
		t.Helper()
		device.Recv(qp.Num()).FailPost(fakedev.Refusal{RC: int(errno), Bad: bad, Taken: fakedev.TakenNone})
		_, err := qp.PostRecv(make([]ibv.RecvWR, 1))
		var post *ibv.PostError
		require.ErrorAs(t, err, &post)
		require.ErrorIs(t, err, ibv.ErrQueueFull)
		require.ErrorIs(t, err, errno)
		require.ErrorContains(t, err, "the device has no room")
		return post
	}
	first := refuse(syscall.ENOMEM, fakedev.BadNamed)
	assert.Same(t, first, refuse(syscall.ENOMEM, fakedev.BadNamed))
	again := refuse(syscall.EAGAIN, fakedev.BadNamed)
	assert.Same(t, again, refuse(syscall.EAGAIN, fakedev.BadNamed))
	assert.ErrorIs(t, first, syscall.ENOMEM, "as it was")

	unnamed := refuse(syscall.EAGAIN, fakedev.BadUntouched)
	assert.Equal(t, -1, unnamed.Index)
	assert.Zero(t, again.Index)
}
