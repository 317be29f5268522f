//go:build cgo && linux && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package ibv_test

import (
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/fakedev"
	"github.com/goverbs/goverbs/internal/fakedev/fakedevtest"
	"github.com/goverbs/goverbs/internal/rdmatest"
	"github.com/goverbs/goverbs/mr"
)

// all is one object of each kind, with work requests in flight that use them.
type all struct {
	*fakedevtest.Bench
	qp, ud *fakedevtest.QP
	srq    *ibv.SRQ
	ah     *ibv.AH
	mw     *ibv.MW
	region *mr.Region
}

func newAll(t *testing.T) *all {
	b := fakedevtest.New(t, fakedev.Config{MemoryWindows: true})
	a := &all{Bench: b, srq: b.NewSRQ(t), ah: b.NewAH(t), mw: b.NewMW(t, ibv.MWType2), region: b.NewRegion(t, ibv.AccessMWBind)}
	b.Keep(a)
	a.qp = b.NewQP(t, func(_ *ibv.QPInitAttr, q *ibv.QPQueues) { q.SRQ = a.srq })
	a.ud = b.NewQP(t, func(i *ibv.QPInitAttr, _ *ibv.QPQueues) { i.Type = ibv.QPTypeUD })
	a.qp.Post(t, ibv.BindMW(1, 0, a.region.MWBind(a.mw, 0, 16, 0)))
	a.ud.Post(t, ibv.Send(2, 0, a.region.SGE(0, 16)).To(ibv.Datagram{AH: a.ah}))
	_, err := a.srq.PostRecv([]ibv.RecvWR{ibv.Recv(3, a.region.SGE(0, 16))})
	require.NoError(t, err)
	return a
}

// closers are the Close methods in an order that works.
func (a *all) closers() []func() error {
	return []func() error{
		a.qp.Close, a.ud.Close, a.srq.Close, a.ah.Close, a.mw.Close, a.region.Close,
		a.Region.Close, a.qp.Send.Close, a.ud.Send.Close, a.PD.Close, a.Ctx.Close,
	}
}

// TestGoneDevice: destroy calls fail with EIO when the device is gone, which is not the
// program's concern: each object closes, once, and nothing waits.
func TestGoneDevice(t *testing.T) {
	rdmatest.Watchdog(t, time.Minute)
	a := newAll(t)
	a.Unplug()
	_, err := a.PD.AllocMW(ibv.MWType2)
	require.ErrorIs(t, err, syscall.EIO)
	require.ErrorIs(t, a.region.Close(), ibv.ErrBusy, "the order is the same")
	for i, closer := range a.closers() {
		require.NoError(t, closer(), "closer %d", i)
		require.NoError(t, closer(), "closer %d again", i)
	}
	assert.Empty(t, a.Open())
	_, err = a.qp.PostSend(fakedevtest.Sends(a.Region, 0, 0))
	assert.ErrorIs(t, err, ibv.ErrClosed)
}

func TestGoneDeviceCloseAll(t *testing.T) {
	rdmatest.Watchdog(t, time.Minute)
	a := newAll(t)
	a.Unplug()
	require.NoError(t, a.Ctx.CloseAll())
	assert.Empty(t, a.Open())
}

// TestEIOOfADeviceThatIsThere is a failure as any other: the object stays, works, and can
// be closed later.
func TestEIOOfADeviceThatIsThere(t *testing.T) {
	rdmatest.Watchdog(t, time.Minute)
	a := newAll(t)
	verbs := []string{
		"ibv_destroy_qp", "ibv_destroy_qp", "ibv_destroy_srq", "ibv_destroy_ah", "ibv_dealloc_mw", "ibv_dereg_mr",
		"ibv_dereg_mr", "ibv_destroy_cq", "ibv_destroy_cq", "ibv_dealloc_pd", "ibv_close_device",
	}
	for i, closer := range a.closers() {
		a.Fail(verbs[i], syscall.EIO, 1)
		err := closer()
		require.ErrorIs(t, err, syscall.EIO)
		require.ErrorContains(t, err, verbs[i])
		if i == 0 {
			_, err := a.qp.State()
			require.NoError(t, err)
			_, err = a.qp.PostSend([]ibv.SendWR{ibv.Send(9, 0, a.region.SGE(0, 16))})
			require.ErrorIs(t, err, ibv.ErrClosed, "behind its bind there is a marker")
		}
		if i == 3 {
			// A close that failed lets the handle be used again.
			ud := a.NewQP(t, func(i *ibv.QPInitAttr, _ *ibv.QPQueues) { i.Type = ibv.QPTypeUD })
			ud.Post(t, ibv.Send(2, 0, a.region.SGE(0, 16)).To(ibv.Datagram{AH: a.ah}))
			require.NoError(t, ud.Close())
			require.NoError(t, ud.Send.Close())
		}
		require.NoError(t, closer(), verbs[i])
	}
}
