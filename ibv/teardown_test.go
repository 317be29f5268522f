//go:build cgo && linux && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package ibv_test

import (
	"context"
	"errors"
	"maps"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/cq"
	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/fakedev"
	"github.com/goverbs/goverbs/internal/fakedev/fakedevtest"
	"github.com/goverbs/goverbs/internal/rdmatest"
	"github.com/goverbs/goverbs/mr"
)

// world has objects of all types, that goroutines use while others close them.
type world struct {
	*fakedevtest.Bench
	channel                   *cq.Channel
	cq                        *cq.CQ
	rc, shared, ud            *fakedevtest.QP
	drained                   *fakedevtest.QP
	srq                       *ibv.SRQ
	ah                        *ibv.AH
	mw1, mw2                  *ibv.MW
	buf, otherBuf             *mr.Buffer
	other                     *ibv.PD
	onBuffer, window, changes *mr.Region
	past                      context.Context // that has ended
}

func newWorld(t *testing.T, keep bool) *world {
	b := fakedevtest.New(t, fakedev.Config{MemoryWindows: true, Complete: true, KeepCompletions: keep, Rereg: true, ResizeCQ: true, ModerateCQ: true})
	w := &world{Bench: b, srq: b.NewSRQ(t), ah: b.NewAH(t), mw1: b.NewMW(t, ibv.MWType1), mw2: b.NewMW(t, ibv.MWType2)}
	b.Keep(w)
	w.window, w.changes = b.NewRegion(t, ibv.AccessMWBind), b.NewRegion(t)
	past, end := context.WithCancel(t.Context())
	end()
	w.past = past
	var err error
	w.other, err = b.Ctx.AllocPD()
	require.NoError(t, err)
	w.otherBuf, err = mr.Alloc(1 << 20)
	require.NoError(t, err)
	clear(w.otherBuf.Bytes()) // so that it takes time to unmap
	w.channel, err = cq.NewChannel(b.Ctx)
	require.NoError(t, err)
	w.cq, err = cq.Create(b.Ctx, cq.InitAttr{Entries: 1024, Channel: w.channel})
	require.NoError(t, err)
	w.buf, err = mr.Alloc(4096)
	require.NoError(t, err)
	w.onBuffer, err = mr.Register(b.PD, w.buf, ibv.AccessLocalWrite)
	require.NoError(t, err)
	newQP := func(change func(*ibv.QPInitAttr, *ibv.QPQueues)) *fakedevtest.QP {
		return b.NewQP(t, func(i *ibv.QPInitAttr, q *ibv.QPQueues) {
			q.Send = w.cq
			change(i, q)
		})
	}
	same := func(*ibv.QPInitAttr, *ibv.QPQueues) {}
	w.rc, w.drained = newQP(same), newQP(same)
	w.shared = newQP(func(_ *ibv.QPInitAttr, q *ibv.QPQueues) { q.SRQ = w.srq })
	w.ud = newQP(func(i *ibv.QPInitAttr, _ *ibv.QPQueues) { i.Type = ibv.QPTypeUD })
	return w
}

// use is a call that a goroutine makes again and again. Its error may be ErrClosed, one
// of fine, or nil; once everything is closed it is ErrClosed.
type use struct {
	call func() error
	fine []error
}

// silent is a call that has no error, and that nothing makes fail.
func silent(f func()) use { return use{func() error { f(); return ibv.ErrClosed }, nil} }

// making is a call that makes an object, which it closes again.
func making[T interface{ Close() error }](f func() (T, error)) use {
	return use{call: func() error {
		made, err := f()
		if err != nil {
			return err
		}
		if err := made.Close(); err != nil {
			return errors.Join(errors.New("closing what was made"), err)
		}
		return nil
	}}
}

// uses are those of each public type.
func (w *world) uses() map[string][]use {
	sends, recvs := fakedevtest.Sends(w.Region, 1, 3), fakedevtest.Recvs(w.Region, 1, 3)
	onBuffer := []ibv.SendWR{ibv.Send(1, 0, w.onBuffer.SGE(0, 16)), ibv.Send(2, ibv.SendSignaled, w.onBuffer.SGE(16, 16))}
	datagram := []ibv.SendWR{sends[0].To(ibv.Datagram{AH: w.ah})}
	bind := []ibv.SendWR{ibv.BindMW(1, ibv.SendSignaled, w.window.MWBind(w.mw2, 0, 64, ibv.AccessRemoteRead))}
	bind1 := w.window.MWBind(w.mw1, 0, 64, ibv.AccessRemoteRead)
	heap := make([]byte, 64)
	attr := ibv.AHAttr{IsGlobal: true, Port: 1, GRH: ibv.GRH{HopLimit: 64}}
	attr.GRH.DGID[15] = 1
	post := func(post func() (int, error), fine ...error) use {
		return use{func() error { _, err := post(); return err }, append(fine, ibv.ErrQueueFull)}
	}
	poll := use{call: func() error { _, err := w.cq.Poll(make([]cq.WC, 8)); return err }}
	createQP := func(queues ibv.QPQueues) use {
		init := rdmatest.DefaultInit()
		if queues.SRQ != nil {
			init.Cap.MaxRecvWR = 0
		}
		return making(func() (*ibv.QP, error) { return w.PD.CreateQP(init, queues) })
	}
	return map[string][]use{
		"Context": {
			{call: func() error { _, err := w.Ctx.QueryPort(1); return err }},
			{call: func() error { _, err := w.Ctx.QueryPKey(1, 0); return err }},
			{call: func() error { _, err := w.Ctx.GIDTable(); return err }},
			{call: func() error { _, err := w.Ctx.ChooseGID(ibv.GIDRequest{}); return err }},
			making(w.Ctx.AllocPD),
			making(func() (*cq.CQ, error) { return cq.Create(w.Ctx, cq.InitAttr{Entries: 16}) }),
			silent(func() { _, _ = w.Ctx.Name(), w.Ctx.Software() }),
		},
		"PD": {
			createQP(ibv.QPQueues{Send: w.cq, Recv: w.cq}),
			createQP(ibv.QPQueues{Send: w.cq, Recv: w.cq, SRQ: w.srq}),
			making(func() (*ibv.SRQ, error) { return w.PD.CreateSRQ(ibv.SRQInitAttr{MaxWR: 4, MaxSGE: 1}) }),
			making(func() (*ibv.AH, error) { return w.PD.CreateAH(attr) }),
			making(func() (*ibv.MW, error) { return w.PD.AllocMW(ibv.MWType2) }),
			making(func() (*mr.Region, error) { return mr.AllocRegion(w.PD, 4096, 0) }),
			making(func() (*mr.Region, error) { return mr.RegisterSlice(w.PD, heap, 0) }),
		},
		"CQ": {
			poll, poll,
			post(func() (int, error) { return w.rc.PostSend(sends) }),
			createQP(ibv.QPQueues{Send: w.cq, Recv: w.cq}),
			silent(func() { _, _ = w.cq.Entries(), w.cq.String() }),
		},
		"Channel": {
			making(func() (*cq.Channel, error) { return cq.NewChannel(w.Ctx) }),
			making(func() (*cq.CQ, error) { return cq.Create(w.Ctx, cq.InitAttr{Entries: 16, Channel: w.channel}) }),
			post(func() (int, error) { return w.rc.PostSend(sends) }),
			{func() error { _, err := w.cq.Wait(w.past, make([]cq.WC, 1)); return err }, []error{context.Canceled}},
			{func() error { _, err := w.channel.GetEvent(w.past); return err }, []error{context.Canceled}},
			{call: func() error { return w.cq.ReqNotify(false) }},
			{call: func() error { return w.cq.Moderate(1, time.Microsecond) }},
			{func() error { return w.cq.Resize(1024) }, []error{syscall.EINVAL}},
		},
		"QP": {
			poll,
			post(func() (int, error) { return w.rc.PostSend(sends) }),
			post(func() (int, error) { return w.rc.PostRecv(recvs) }),
			post(func() (int, error) { return w.shared.PostSend(sends) }),
			{call: func() error { _, err := w.rc.State(); return err }},
			{func() error {
				return w.rc.Modify(ibv.QPAttr{MinRNRTimer: time.Millisecond}, ibv.AttrMinRNRTimer)
			}, []error{syscall.EINVAL}}, // CloseAll has it in ERR, for the binds to end
			silent(func() { w.rc.InFlight(); _, _ = w.rc.Cap(), w.rc.String() }),
		},
		// A second goroutine finds the queue pair in whatever state the first has it.
		"QP, Drain": {
			poll,
			{w.again, []error{syscall.EINVAL}},
			{call: func() error { return w.drained.Drain(context.Background()) }},
			post(func() (int, error) { return w.drained.PostSend(sends) }, syscall.EINVAL),
			post(func() (int, error) { return w.drained.PostRecv(recvs) }, syscall.EINVAL),
		},
		"SRQ": {
			post(func() (int, error) { return w.srq.PostRecv(recvs) }),
			{call: func() error { _, err := w.srq.Query(); return err }},
			{call: func() error { return w.srq.Modify(ibv.SRQAttr{Limit: 1}, ibv.SRQLimit) }},
			createQP(ibv.QPQueues{Send: w.cq, Recv: w.cq, SRQ: w.srq}),
			silent(func() { _, _, _ = w.srq.Cap(), w.srq.InFlight(), w.srq.String() }),
		},
		"AH": {
			poll,
			post(func() (int, error) { return w.ud.PostSend(datagram) }),
			post(func() (int, error) { return w.ud.PostSend(datagram) }),
			silent(func() { _ = w.ah.String() }),
		},
		"MW": {
			poll,
			post(func() (int, error) { return w.rc.PostSend(bind) }),
			post(func() (int, error) { return 0, w.shared.BindMW(1, ibv.SendSignaled, bind1) }),
			silent(func() { _, _, _, _ = w.mw1.Remote(), w.mw1.Bound(), w.mw2.Remote(), w.mw2.Bound() }),
		},
		"Region": {
			poll,
			post(func() (int, error) { return w.rc.PostSend(sends) }),
			post(func() (int, error) { return w.shared.PostSend(onBuffer) }),
			silent(func() { _, _, _ = w.Region.Remote(), w.Region.InFlight(), w.Region.String() }),
			silent(func() { _, _ = w.onBuffer.Bytes(), w.Region.Bytes() }),
		},
		"Buffer": {
			making(func() (*mr.Region, error) { return mr.Register(w.PD, w.buf, 0) }),
			making(func() (*mr.Region, error) { return mr.Register(w.PD, w.buf, ibv.AccessLocalWrite) }),
			{call: w.change},
			silent(func() { _ = w.buf.Bytes() }),
		},
	}
}

// again makes the drained queue pair ready once more.
func (w *world) again() error {
	qp := w.drained
	if err := qp.Modify(ibv.QPAttr{State: ibv.QPStateReset}, ibv.AttrState); err != nil {
		return err
	}
	local, err := qp.Init(ibv.GIDRequest{}, 0)
	if err != nil {
		return err
	}
	return qp.Connect(local, local.Endpoint)
}

// change makes a region of other memory and of another protection domain, and back.
func (w *world) change() error {
	err := w.changes.Rereg(mr.ReregAttr{Buffer: w.buf, PD: w.other}, mr.ReregTranslation|mr.ReregPD)
	if err == nil {
		err = w.changes.Rereg(mr.ReregAttr{Buffer: w.otherBuf, PD: w.PD}, mr.ReregTranslation|mr.ReregPD)
	}
	return err
}

// running are goroutines that use objects.
type running struct {
	t      *testing.T
	wg     sync.WaitGroup
	calls  []*atomic.Int64
	closed atomic.Bool // everything
}

func (r *running) start(u use) {
	calls := new(atomic.Int64)
	r.calls = append(r.calls, calls)
	r.wg.Go(func() {
		for last := false; !last; {
			last = r.closed.Load()
			err := u.call()
			calls.Add(1)
			switch {
			case last:
				assert.ErrorIs(r.t, err, ibv.ErrClosed)
			case err == nil || errors.Is(err, ibv.ErrClosed):
			case !slices.ContainsFunc(u.fine, func(fine error) bool { return errors.Is(err, fine) }):
				assert.NoError(r.t, err)
				return
			}
			runtime.Gosched()
		}
	})
}

// underWay waits until each goroutine has made some calls.
func (r *running) underWay(calls int) {
	slow := func(c *atomic.Int64) bool { return c.Load() < int64(calls) }
	for slices.ContainsFunc(r.calls, slow) && !r.t.Failed() {
		runtime.Gosched()
	}
}

// closeAll is one way to close everything: several goroutines do the same.
func (w *world) closeAll(t *testing.T) {
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() { assert.NoError(t, w.Ctx.CloseAll()) })
		wg.Go(func() { closeUntilClosed(t, w.buf.Close) })
		wg.Go(func() { closeUntilClosed(t, w.otherBuf.Close) })
	}
	wg.Wait()
}

// closeEach is the other way: all objects at once, each as soon as it can be.
func (w *world) closeEach(t *testing.T) {
	var wg sync.WaitGroup
	for _, c := range []func() error{
		w.rc.Close, w.shared.Close, w.ud.Close, w.drained.Close, w.srq.Close, w.ah.Close, w.mw1.Close, w.mw2.Close,
		w.onBuffer.Close, w.window.Close, w.changes.Close, w.Region.Close, w.buf.Close, w.cq.Close, w.channel.Close, w.PD.Close, w.Ctx.Close,
		w.otherBuf.Close, w.other.Close,
		func() error { return w.Region.CloseWhenIdle(t.Context()) },
	} {
		for range 2 {
			wg.Go(func() { closeUntilClosed(t, c) })
		}
	}
	wg.Wait()
}

func closeUntilClosed(t *testing.T, c func() error) {
	for err := c(); err != nil; err = c() {
		if !assert.ErrorIs(t, err, ibv.ErrBusy) {
			return
		}
		runtime.Gosched()
	}
}

// TestTeardown closes everything while others use it: each type by itself, and all of
// them at once. It ends, each call with an error that it may have, and nothing is used
// after it is gone, which the race detector and the device would tell.
func TestTeardown(t *testing.T) {
	w := newWorld(t, false)
	types := append(slices.Sorted(maps.Keys(w.uses())), "all")
	w.closeAll(t)
	for _, way := range []struct {
		name  string
		close func(*world, *testing.T)
	}{{"CloseAll", (*world).closeAll}, {"Close", (*world).closeEach}} {
		for _, typ := range types {
			t.Run(way.name+", "+typ, func(t *testing.T) {
				rdmatest.Watchdog(t, time.Minute*time.Duration(rdmatest.Rounds(1, 10)))
				for round := range rdmatest.Rounds(5, 100) {
					w := newWorld(t, round%2 == 0)
					r := &running{t: t}
					for name, uses := range w.uses() {
						if typ == "all" || typ == name {
							for _, u := range uses {
								r.start(u)
							}
						}
					}
					r.underWay(1 + round%5)
					way.close(w, t)
					r.closed.Store(true)
					r.wg.Wait()
					require.Empty(t, w.Open())
					require.False(t, t.Failed())
				}
			})
		}
	}
}

// TestCloseAllOfOneProtectionDomain closes what is in it, also what work requests in
// flight use, and leaves the other and the completion queue of both.
func TestCloseAllOfOneProtectionDomain(t *testing.T) {
	b := fakedevtest.New(t, fakedev.Config{})
	stays := b.NewQP(t)
	home := b.PD
	defer func() { b.PD = home }()
	var err error
	b.PD, err = b.Ctx.AllocPD()
	require.NoError(t, err)
	goes := b.NewQP(t, func(_ *ibv.QPInitAttr, q *ibv.QPQueues) { q.Send, q.Recv = stays.Send, stays.Send })
	region := b.NewRegion(t)
	goes.Post(t, fakedevtest.Sends(region, 0, 4)...)

	require.NoError(t, b.PD.CloseAll())
	require.NoError(t, b.PD.CloseAll(), "closing again")
	_, err = goes.State()
	require.ErrorIs(t, err, ibv.ErrClosed)
	_, err = b.PD.AllocMW(ibv.MWType1)
	require.ErrorIs(t, err, ibv.ErrClosed)
	require.ErrorIs(t, region.Rereg(mr.ReregAttr{Access: ibv.AccessLocalWrite}, mr.ReregAccess), ibv.ErrClosed)

	stays.Post(t, fakedevtest.Sends(b.Region, 0, 1)...)
	stays.SQ.Complete(fakedev.Completion{})
	require.Len(t, fakedevtest.Poll(t, stays.Send), 1)
}

// TestCloseAllOfAWindowInUse: the window cannot be closed while its invalidation is in
// flight, and the queue pair not before the window. CloseAll gets out of that, if the
// device flushes; if not, all that it names can be closed later.
func TestCloseAllOfAWindowInUse(t *testing.T) {
	for _, flushes := range []bool{true, false} {
		rdmatest.Watchdog(t, time.Minute)
		b := fakedevtest.New(t, fakedev.Config{MemoryWindows: true})
		qp, mw := b.NewQP(t), b.NewMW(t, ibv.MWType2)
		qp.Post(t, ibv.BindMW(1, ibv.SendSignaled, b.NewRegion(t, ibv.AccessMWBind).MWBind(mw, 0, 64, ibv.AccessRemoteRead)))
		qp.SQ.Complete(fakedev.Completion{})
		require.Len(t, fakedevtest.Poll(t, qp.Send), 1)
		qp.Post(t, ibv.LocalInv(2, 0, mw.Remote().RKey))
		require.ErrorIs(t, mw.Close(), ibv.ErrBusy)
		require.ErrorIs(t, qp.Close(), ibv.ErrBusy)

		sends := fakedevtest.Sends(b.Region, 3, 1)
		b.SetComplete(flushes)
		err := b.Ctx.CloseAll()
		if !flushes {
			require.ErrorIs(t, err, ibv.ErrBusy)
			require.ErrorContains(t, err, qp.String()+": still used by "+mw.String())
			_, err = qp.PostSend(sends)
			require.ErrorContains(t, err, "CloseAll or RESET has ended its sends")
			require.ErrorIs(t, err, ibv.ErrClosed)
			_, err = qp.State()
			require.NoError(t, err, "it is open")
			qp.Reset(t)
			err = b.Ctx.CloseAll()
		}
		require.NoError(t, err)
		require.Empty(t, b.Open())
	}
}
