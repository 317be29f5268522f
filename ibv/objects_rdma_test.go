//go:build rdma

package ibv_test

import (
	"errors"
	"regexp"
	"strconv"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/cq"
	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/rdmatest"
	"github.com/goverbs/goverbs/mr"
)

// graph is one of everything.
type graph struct {
	ctx    *ibv.Context
	pd     *ibv.PD
	send   *cq.CQ
	recv   *cq.CQ
	buf    *mr.Buffer
	region *mr.Region
	slice  *mr.Region
	qp     *ibv.QP
}

func open(t *testing.T) *graph {
	t.Helper()
	var g graph
	var err error
	g.ctx, err = ibv.Open(rdmatest.Device(t))
	require.NoError(t, err)
	g.pd, err = g.ctx.AllocPD()
	require.NoError(t, err)
	g.send, err = cq.Create(g.ctx, cq.InitAttr{Entries: 16})
	require.NoError(t, err)
	g.recv, err = cq.Create(g.ctx, cq.InitAttr{Entries: 16})
	require.NoError(t, err)
	g.buf, err = mr.Alloc(5000)
	require.NoError(t, err)
	g.region, err = mr.Register(g.pd, g.buf, ibv.AccessLocalWrite)
	require.NoError(t, err)
	g.slice, err = mr.RegisterSlice(g.pd, make([]byte, 5000), ibv.AccessLocalWrite)
	require.NoError(t, err)
	g.qp, err = g.pd.CreateQP(rdmatest.DefaultInit(), ibv.QPQueues{Send: g.send, Recv: g.recv})
	require.NoError(t, err)
	return &g
}

func TestClosingInEveryWrongOrderNamesTheChildren(t *testing.T) {
	g := open(t)
	refused := func(close func() error, op string, children ...string) {
		t.Helper()
		err := close()
		var e *ibv.OpError
		require.ErrorAs(t, err, &e)
		assert.Equal(t, op, e.Op)
		require.ErrorIs(t, err, ibv.ErrBusy)
		require.ErrorIs(t, err, syscall.EBUSY)
		for _, child := range children {
			assert.ErrorContains(t, err, child)
		}
	}
	refused(g.ctx.Close, "ibv_close_device", g.send.String(), g.recv.String(), "PD ")
	refused(g.pd.Close, "ibv_dealloc_pd", g.qp.String(), g.region.String(), g.slice.String())
	refused(g.send.Close, "ibv_destroy_cq", g.qp.String())
	refused(g.recv.Close, "ibv_destroy_cq", g.qp.String())
	refused(g.buf.Close, "munmap", g.region.String())

	// Nothing has changed by that: the QP still works, and closing in order does too.
	_, err := g.qp.State()
	require.NoError(t, err)
	for _, close := range []func() error{
		g.qp.Close, g.send.Close, g.recv.Close, g.region.Close, g.slice.Close, g.buf.Close, g.pd.Close, g.ctx.Close,
	} {
		require.NoError(t, close())
		require.NoError(t, close(), "closing again")
	}
}

func TestCloseAllClosesEverything(t *testing.T) {
	g := open(t)
	require.NoError(t, g.ctx.CloseAll())
	require.NoError(t, g.ctx.CloseAll(), "closing again")
	require.NoError(t, g.buf.Close(), "the buffer is not the device's")
	for _, close := range []func() error{g.qp.Close, g.send.Close, g.region.Close, g.pd.Close, g.ctx.Close} {
		require.NoError(t, close())
	}

	var wc [1]cq.WC
	for name, call := range map[string]func() error{
		"AllocPD":   func() error { _, err := g.ctx.AllocPD(); return err },
		"QueryPort": func() error { _, err := g.ctx.QueryPort(1); return err },
		"GIDTable":  func() error { _, err := g.ctx.GIDTable(); return err },
		"cq.Create": func() error { _, err := cq.Create(g.ctx, cq.InitAttr{Entries: 1}); return err },
		"AllocRegion": func() error {
			_, err := mr.AllocRegion(g.pd, 1, 0)
			return err
		},
		"CreateQP": func() error {
			_, err := g.pd.CreateQP(rdmatest.DefaultInit(), ibv.QPQueues{Send: g.send, Recv: g.recv})
			return err
		},
		"Poll":     func() error { _, err := g.send.Poll(wc[:]); return err },
		"PostSend": func() error { _, err := g.qp.PostSend([]ibv.SendWR{{Opcode: ibv.OpSend}}); return err },
		"PostRecv": func() error { _, err := g.qp.PostRecv([]ibv.RecvWR{{}}); return err },
		"Modify":   func() error { return g.qp.Modify(ibv.QPAttr{State: ibv.QPStateErr}, ibv.AttrState) },
		"Query":    func() error { _, err := g.qp.Query(ibv.AttrState); return err },
	} {
		require.ErrorIs(t, call(), ibv.ErrClosed, name)
	}
}

func TestCloseFromSeveralGoroutines(t *testing.T) {
	g := open(t)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() { assert.NoError(t, g.ctx.CloseAll()) })
		wg.Go(func() { assert.NoError(t, g.qp.Close()) })
	}
	wg.Wait()
	require.NoError(t, g.ctx.CloseAll())
	require.NoError(t, g.buf.Close())
}

func TestManyRoundsLeaveNothingBehind(t *testing.T) {
	before, fds := rdmatest.Resources(t), rdmatest.OpenFDs(t)
	for i := range rdmatest.Rounds(1000, 3000) {
		g := open(t)
		if i == 0 {
			during := rdmatest.Resources(t)
			for _, kind := range []string{"pd", "cq", "qp", "mr"} {
				assert.Greater(t, during[kind], before[kind], "%s are counted", kind)
			}
		}
		require.NoError(t, g.ctx.CloseAll())
		require.NoError(t, g.buf.Close())
	}
	assert.Equal(t, before, rdmatest.Resources(t))
	assert.Equal(t, fds, rdmatest.OpenFDs(t))
}

func TestGrantedIsAtLeastWhatWasAsked(t *testing.T) {
	ctx := rdmatest.Open(t)
	pd, q := rdmatest.PD(t, ctx), rdmatest.CQ(t, ctx, 100)
	assert.GreaterOrEqual(t, q.Entries(), 100)
	ask := ibv.QPCap{MaxSendWR: 37, MaxRecvWR: 13, MaxSendSGE: 3, MaxRecvSGE: 2, MaxInlineData: 100}
	qp, err := pd.CreateQP(ibv.QPInitAttr{Type: ibv.QPTypeRC, Cap: ask}, ibv.QPQueues{Send: q, Recv: q})
	require.NoError(t, err)
	defer qp.Close()
	got := qp.Cap()
	assert.GreaterOrEqual(t, got.MaxSendWR, ask.MaxSendWR)
	assert.GreaterOrEqual(t, got.MaxRecvWR, ask.MaxRecvWR)
	assert.GreaterOrEqual(t, got.MaxSendSGE, ask.MaxSendSGE)
	assert.GreaterOrEqual(t, got.MaxRecvSGE, ask.MaxRecvSGE)
	assert.GreaterOrEqual(t, got.MaxInlineData, ask.MaxInlineData)
}

func TestAskingTooMuchNamesTheLimit(t *testing.T) {
	ctx := rdmatest.Open(t)
	pd, q := rdmatest.PD(t, ctx), rdmatest.CQ(t, ctx, 16)
	dev, err := ctx.QueryDevice()
	require.NoError(t, err)
	for _, tc := range []struct {
		field string
		limit int
		set   func(*ibv.QPCap, uint32)
	}{
		{"MaxSendWR", dev.MaxQPWR, func(c *ibv.QPCap, v uint32) { c.MaxSendWR = v }},
		{"MaxRecvWR", dev.MaxQPWR, func(c *ibv.QPCap, v uint32) { c.MaxRecvWR = v }},
		{"MaxSendSGE", dev.MaxSGE, func(c *ibv.QPCap, v uint32) { c.MaxSendSGE = v }},
		{"MaxRecvSGE", dev.MaxSGE, func(c *ibv.QPCap, v uint32) { c.MaxRecvSGE = v }},
	} {
		init := rdmatest.DefaultInit()
		tc.set(&init.Cap, uint32(tc.limit)+1)
		_, err := pd.CreateQP(init, ibv.QPQueues{Send: q, Recv: q})
		require.ErrorIs(t, err, syscall.EINVAL, tc.field)
		assert.ErrorContains(t, err, tc.field)
		assert.ErrorContains(t, err, strconv.Itoa(tc.limit))
	}

	// How much inline data the device takes it does not say, so the error finds out.
	init := rdmatest.DefaultInit()
	init.Cap.MaxInlineData = 1 << 20
	_, err = pd.CreateQP(init, ibv.QPQueues{Send: q, Recv: q})
	require.Error(t, err)
	named := regexp.MustCompile(`above the (\d+) that`).FindStringSubmatch(err.Error())
	require.NotNil(t, named, "%v", err)
	limit, err := strconv.Atoi(named[1])
	require.NoError(t, err)
	require.Positive(t, limit)
	init.Cap.MaxInlineData = uint32(limit)
	qp, err := pd.CreateQP(init, ibv.QPQueues{Send: q, Recv: q})
	require.NoError(t, err, "what the error named as the limit works")
	require.NoError(t, qp.Close())

	_, err = cq.Create(ctx, cq.InitAttr{Entries: dev.MaxCQE + 1})
	require.ErrorIs(t, err, syscall.EINVAL)
	assert.ErrorContains(t, err, strconv.Itoa(dev.MaxCQE))
	for _, n := range []int{0, -1} {
		_, err = cq.Create(ctx, cq.InitAttr{Entries: n})
		require.ErrorIs(t, err, syscall.EINVAL)
	}
	_, err = cq.Create(ctx, cq.InitAttr{Entries: 1, CompVector: dev.NumCompVectors})
	assert.ErrorContains(t, err, "CompVector")
}

func TestObjectsOfAnotherContextAreRefused(t *testing.T) {
	a, b := rdmatest.Open(t), rdmatest.Open(t)
	pd, own, other := rdmatest.PD(t, a), rdmatest.CQ(t, a, 16), rdmatest.CQ(t, b, 16)
	for name, queues := range map[string]ibv.QPQueues{
		"send CQ of another context": {Send: other, Recv: own},
		"recv CQ of another context": {Send: own, Recv: other},
		"no send CQ":                 {Recv: own},
		"no recv CQ":                 {Send: own},
		"a nil *cq.CQ":               {Send: (*cq.CQ)(nil), Recv: own},
	} {
		_, err := pd.CreateQP(rdmatest.DefaultInit(), queues)
		require.ErrorIs(t, err, syscall.EINVAL, name)
	}
	var none *ibv.PD
	_, err := mr.AllocRegion(none, 1, 0)
	require.ErrorIs(t, err, syscall.EINVAL)
	_, err = cq.Create(nil, cq.InitAttr{Entries: 1})
	require.ErrorIs(t, err, syscall.EINVAL)
	_, err = pd.CreateQP(ibv.QPInitAttr{Type: ibv.QPTypeXRCSend}, ibv.QPQueues{Send: own, Recv: own})
	require.ErrorIs(t, err, ibv.ErrNotSupported)
}

func TestUseWhileClosing(t *testing.T) {
	for range rdmatest.Rounds(5, 200) {
		t.Run("", useWhileClosing)
	}
}

func useWhileClosing(t *testing.T) {
	p := rdmatest.NewPair(t, rdmatest.DefaultInit())
	var wg sync.WaitGroup
	loop := func(call func() error) {
		wg.Go(func() {
			for {
				err := call()
				if errors.Is(err, ibv.ErrClosed) {
					return
				}
				if !errors.Is(err, ibv.ErrQueueFull) && !assert.NoError(t, err) {
					return
				}
			}
		})
	}
	loop(func() error {
		_, err := p.A.QP.PostSend([]ibv.SendWR{{Opcode: ibv.OpSend, Inline: []byte("x")}})
		return err
	})
	loop(func() error {
		_, err := p.A.QP.PostRecv([]ibv.RecvWR{{SGEs: []ibv.SGE{p.A.Region.SGE(0, 64)}}})
		return err
	})
	loop(func() error { _, err := p.A.QP.State(); return err })
	loop(func() error { var wcs [8]cq.WC; _, err := p.A.CQ.Poll(wcs[:]); return err })
	require.NoError(t, p.A.QP.Close())
	require.NoError(t, p.A.CQ.Close())
	wg.Wait()
}
