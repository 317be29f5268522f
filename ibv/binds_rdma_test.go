//go:build rdma

package ibv_test

import (
	"fmt"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/cq"
	"github.com/goverbs/goverbs/ibv"
)

// TestBindsThatAreRefused has both ways to bind, each of which wants its type of window.
func TestBindsThatAreRefused(t *testing.T) {
	b := newBench(t, newPairOf(t, ibv.QPTypeRC))
	all := func(mw *ibv.MW) ibv.MWBind { return b.bindable.MWBind(mw, 0, 64, ibv.AccessRemoteRead) }
	goneRegion := regionOf(t, b.PD, ibv.AccessMWBind)
	ofGone := goneRegion.MWBind(b.w2, 0, 8, ibv.AccessRemoteRead)
	require.NoError(t, goneRegion.Close())
	gone1, gone2 := windowOf(t, b.PD, ibv.MWType1), windowOf(t, b.PD, ibv.MWType2)
	require.NoError(t, gone1.Close())
	require.NoError(t, gone2.Close())

	refuses := func(mw *ibv.MW, bind ibv.MWBind, errno syscall.Errno, text string) {
		t.Helper()
		bind.MW = mw
		if mw == nil || mw.Type() == ibv.MWType2 {
			b.refuses(t, ibv.BindMW(0, 0, bind), errno, text)
			b.refusesInChain(t, ibv.BindMW(0, 0, bind), errno, text)
		}
		if mw == nil || mw.Type() == ibv.MWType1 {
			was := b.w1.Remote()
			isRefused(t, "ibv_bind_mw", b.A.QP.BindMW(0, 0, bind), 0, errno, text)
			b.nothingInFlight(t)
			assert.Equal(t, was, b.w1.Remote())
		}
	}
	refuses(nil, ibv.MWBind{}, syscall.EINVAL, "a bind needs a memory window: MWBind.MW is nil")
	for _, mw := range []*ibv.MW{b.w1, b.w2} {
		without := b.A.Region.MWBind(mw, 0, 8, ibv.AccessRemoteRead)
		refuses(mw, without, syscall.EACCES, b.A.Region.String()+" was registered without MWBind, which a window with RemoteRead needs")
		for _, right := range []ibv.AccessFlags{ibv.AccessRemoteWrite, ibv.AccessRemoteAtomic} {
			refuses(mw, b.readable.MWBind(mw, 0, 8, right), syscall.EACCES,
				fmt.Sprintf("%v was registered without LocalWrite, which a window with %v needs", b.readable, right))
		}
		refuses(mw, b.foreign.MWBind(mw, 0, 8, ibv.AccessRemoteRead), syscall.EINVAL, b.foreign.String()+" belongs to another PD")
		refuses(mw, ofGone, syscall.EINVAL, goneRegion.String()+" was closed, or is being closed")
		refuses(mw, ibv.MWBind{Addr: b.sge.Addr, Length: 8}, syscall.EINVAL, "MWBind names no region: make it with mr.Region.MWBind")
		for _, change := range []func(*ibv.MWBind){
			func(m *ibv.MWBind) { m.Addr-- },
			func(m *ibv.MWBind) { m.Addr++ },
			func(m *ibv.MWBind) { m.Length++ },
			func(m *ibv.MWBind) { m.Length = ^uint64(0) },
			func(m *ibv.MWBind) { m.Addr = ^uint64(0) },
		} {
			bind := all(mw)
			change(&bind)
			refuses(mw, bind, syscall.EINVAL, fmt.Sprintf("%d bytes from %#x are not inside %v", bind.Length, bind.Addr, b.bindable))
		}
		assert.False(t, mw.Bound())
	}
	for _, mw := range []*ibv.MW{gone1, gone2} {
		refuses(mw, all(mw), syscall.EINVAL, mw.String()+" was closed, or is being closed")
	}
	for _, mw := range []*ibv.MW{b.foreign1, b.foreign2} {
		refuses(mw, all(mw), syscall.EINVAL, mw.String()+" belongs to another PD than the QP")
	}

	// Each type by the other's way, and what goes with no bind.
	b.refuses(t, ibv.BindMW(0, 0, all(b.w1)), syscall.EINVAL, b.w1.String()+" is bound by QP.BindMW, not by a work request")
	isRefused(t, "ibv_bind_mw", b.A.QP.BindMW(0, 0, all(b.w2)), 0, syscall.EINVAL, b.w2.String()+" is bound by a work request: post BindMW")
	withSGE := ibv.BindMW(0, 0, all(b.w2))
	withSGE.SGEs = []ibv.SGE{b.sge}
	b.refuses(t, withSGE, syscall.EINVAL, "a bind has no SGEs")
	b.refuses(t, ibv.BindMW(0, ibv.SendInline, all(b.w2)), syscall.EINVAL, "BIND_MW sends no data that could be inline")
	b.refuses(t, ibv.SendWR{Opcode: ibv.OpBindMW}, syscall.EINVAL, "MWBind.MW is nil")
	isRefused(t, "ibv_bind_mw", b.A.QP.BindMW(0, ibv.SendInline, all(b.w1)), 0, syscall.EINVAL, "no flags but SendSignaled and SendFence, and not Inline")

	// Some providers read the window's rkey during the post, of which the second bind would
	// need the next one.
	n, err := b.A.QP.PostSend([]ibv.SendWR{
		ibv.BindMW(1, 0, all(b.w2)), ibv.LocalInv(2, 0, b.w2.Remote().RKey+1), ibv.BindMW(3, 0, all(b.w2)),
	})
	isRefused(t, "ibv_post_send", err, 2, syscall.EINVAL, b.w2.String()+" is bound twice in one post")
	require.Equal(t, 2, n)
	done(t, &b.A, 1, cq.OpBindMW)
	done(t, &b.A, 2, cq.OpLocalInv)
	assert.False(t, b.w2.Bound())

	// A bind before RTS.
	require.NoError(t, b.B.QP.Modify(ibv.QPAttr{State: ibv.QPStateReset}, ibv.AttrState))
	isRefused(t, "ibv_bind_mw", b.B.QP.BindMW(0, 0, all(b.w1)), 0, syscall.EINVAL, "a bind cannot be posted in state RESET")
}
