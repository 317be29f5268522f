//go:build cgo && linux && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package ibv_test

import (
	"context"
	"log/slog"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/cq"
	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/fakedev"
	"github.com/goverbs/goverbs/internal/fakedev/fakedevtest"
	"github.com/goverbs/goverbs/internal/life"
	"github.com/goverbs/goverbs/internal/rdmatest"
	"github.com/goverbs/goverbs/mr"
)

// reports is what the library says of dropped objects.
type reports struct {
	mu    sync.Mutex
	lines []string
}

func (r *reports) Write(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, string(b))
	return len(b), nil
}

// of returns the reports of a kind of object.
func (r *reports) of(kind string) []string { return r.with(`object="` + kind + " ") }

// with returns the reports that have a text.
func (r *reports) with(text string) (found []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range r.lines {
		if strings.Contains(l, text) {
			found = append(found, l)
		}
	}
	return found
}

func captureReports(t *testing.T) *reports {
	r := new(reports)
	ibv.SetLogger(slog.New(slog.NewTextHandler(r, nil)))
	t.Cleanup(func() { ibv.SetLogger(slog.Default()) })
	return r
}

// collectUntil runs the collector until a condition holds.
func collectUntil(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !holds(); runtime.Gosched() {
		require.True(t, time.Now().Before(deadline), "%s: not after ten seconds", what)
		runtime.GC()
	}
}

// dropped waits until the library has found that an object of a kind was dropped.
func dropped(t *testing.T, pd *ibv.PD, kind string) {
	t.Helper()
	one := regexp.MustCompile(`\b` + kind + ` (of type \d, )?[^,]*\(dropped without Close\)`)
	collectUntil(t, kind+" dropped", func() bool {
		err := pd.Close() // names what keeps it
		require.ErrorIs(t, err, ibv.ErrBusy)
		return one.MatchString(err.Error())
	})
}

// looked waits until the reaper has nothing to do.
func looked(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	require.NoError(t, life.Quiesce(ctx))
}

func isOpen(b *fakedevtest.Bench, kind string) bool {
	for _, o := range b.Open() {
		if strings.HasSuffix(o, " "+kind) {
			return true
		}
	}
	return false
}

// bare is a bench whose region is closed, so that the device has the test's alone.
func bare(t *testing.T) *fakedevtest.Bench {
	b := fakedevtest.New(t, fakedev.Config{MemoryWindows: true})
	require.NoError(t, b.Region.Close())
	return b
}

//go:noinline
func sendFromDroppedRegion(t *testing.T, b *fakedevtest.Bench, qp *fakedevtest.QP, access ibv.AccessFlags) {
	r, err := mr.AllocRegion(b.PD, 4096, access)
	require.NoError(t, err)
	qp.Post(t, ibv.Send(1, 0, r.SGE(0, 16)), ibv.Send(2, ibv.SendSignaled, r.SGE(16, 16)))
}

// TestDroppedRegion stays registered while the device may read it, also for an unsignaled
// send, and goes after that.
func TestDroppedRegion(t *testing.T) {
	for _, end := range []string{"success", "failure", "reset", "close"} {
		t.Run(end, func(t *testing.T) {
			log := captureReports(t)
			b := bare(t)
			qp := b.NewQP(t)
			sendFromDroppedRegion(t, b, qp, ibv.AccessLocalWrite)
			dropped(t, b.PD, "MR")
			looked(t)
			assert.True(t, isOpen(b, "MR"))
			assert.Empty(t, log.of("MR"), "nothing is decided yet")
			qp.SQ.Data(1) // fails the test if it is not registered

			switch end {
			case "success":
				qp.SQ.Complete(fakedev.Completion{Index: 1})
				looked(t)
				assert.True(t, isOpen(b, "MR"), "nobody has polled")
				require.Len(t, fakedevtest.Poll(t, qp.Send), 1)
			case "failure":
				b.Flush(qp.Num())
				require.Len(t, fakedevtest.Poll(t, qp.Send), 2)
			case "reset":
				qp.Reset(t)
			case "close":
				require.NoError(t, qp.Close())
			}
			collectUntil(t, "deregistered", func() bool { return !isOpen(b, "MR") })
			looked(t)
			require.Len(t, log.of("MR"), 1)
			assert.Contains(t, log.of("MR")[0], "dropped without Close: closed")
		})
	}
}

// TestDroppedRegionWithRemoteRights stays for good: nobody knows what a peer does.
func TestDroppedRegionWithRemoteRights(t *testing.T) {
	for _, remote := range []ibv.AccessFlags{ibv.AccessRemoteRead, ibv.AccessRemoteWrite, ibv.AccessRemoteAtomic} {
		log := captureReports(t)
		b := bare(t)
		qp := b.NewQP(t)
		sendFromDroppedRegion(t, b, qp, ibv.AccessLocalWrite|remote)
		dropped(t, b.PD, "MR")
		looked(t)
		b.Flush(qp.Num())
		require.Len(t, fakedevtest.Poll(t, qp.Send), 2)
		collectUntil(t, "reported", func() bool { return len(log.of("MR")) > 0 })
		assert.Contains(t, log.of("MR")[0], "kept open")
		assert.Contains(t, log.of("MR")[0], "a peer may be using it")
		looked(t)
		assert.True(t, isOpen(b, "MR"))
		require.NoError(t, b.Ctx.CloseAll())
		assert.Empty(t, b.Open())
	}
}

//go:noinline
func bindDroppedWindow(t *testing.T, b *fakedevtest.Bench, qp *fakedevtest.QP, region *mr.Region) {
	mw, err := b.PD.AllocMW(ibv.MWType2)
	require.NoError(t, err)
	qp.Post(t, ibv.BindMW(1, ibv.SendSignaled, region.MWBind(mw, 0, 64, ibv.AccessRemoteRead)))
}

// TestDroppedWindow goes if its bind fails, and stays if it is bound.
func TestDroppedWindow(t *testing.T) {
	for _, status := range []cq.Status{cq.StatusSuccess, cq.StatusMWBindErr} {
		log := captureReports(t)
		b := fakedevtest.New(t, fakedev.Config{MemoryWindows: true})
		qp := b.NewQP(t)
		region := b.NewRegion(t, ibv.AccessMWBind)
		bindDroppedWindow(t, b, qp, region)
		dropped(t, b.PD, "MW")
		looked(t)
		assert.True(t, isOpen(b, "MW"))
		assert.Empty(t, log.of("MW"))
		qp.SQ.Complete(fakedev.Completion{Status: int(status)})
		require.Len(t, fakedevtest.Poll(t, qp.Send), 1)
		collectUntil(t, "reported", func() bool { return len(log.of("MW")) > 0 })
		looked(t)
		assert.Equal(t, status == cq.StatusSuccess, isOpen(b, "MW"))
		assert.Equal(t, status == cq.StatusSuccess, strings.Contains(log.of("MW")[0], "it is bound"))
		if err := region.Close(); status == cq.StatusSuccess {
			assert.ErrorContains(t, err, "(dropped without Close)")
		} else {
			assert.NoError(t, err)
		}
	}
}

//go:noinline
func sendToDroppedAH(t *testing.T, b *fakedevtest.Bench, qp *fakedevtest.QP) {
	qp.Post(t, ibv.Send(1, ibv.SendSignaled, b.Region.SGE(0, 16)).To(ibv.Datagram{AH: b.NewAH(t)}))
}

func TestDroppedAH(t *testing.T) {
	log := captureReports(t)
	b := fakedevtest.New(t, fakedev.Config{})
	qp := b.NewQP(t, func(i *ibv.QPInitAttr, _ *ibv.QPQueues) { i.Type = ibv.QPTypeUD })
	sendToDroppedAH(t, b, qp)
	dropped(t, b.PD, "AH")
	looked(t)
	assert.True(t, isOpen(b, "AH"))
	qp.SQ.Complete(fakedev.Completion{})
	require.Len(t, fakedevtest.Poll(t, qp.Send), 1)
	collectUntil(t, "destroyed", func() bool { return !isOpen(b, "AH") })
	looked(t)
	assert.Len(t, log.of("AH"), 1)
}

//go:noinline
func dropQueuePair(t *testing.T, b *fakedevtest.Bench, queues ibv.QPQueues) (qpn uint32) {
	if queues.Send == nil {
		q, err := cq.Create(b.Ctx, cq.InitAttr{Entries: 16})
		require.NoError(t, err)
		queues.Send, queues.Recv = q, q
	}
	handle, err := b.PD.CreateQP(rdmatest.DefaultInit(), queues)
	require.NoError(t, err)
	qp := &fakedevtest.QP{QP: handle}
	qp.Ready(t)
	qp.Post(t, fakedevtest.Sends(b.Region, 1, 2)...)
	_, err = qp.PostRecv(fakedevtest.Recvs(b.Region, 3, 1))
	require.NoError(t, err)
	return qp.Num()
}

// TestDroppedQueuePair: what it has sent is sent, and its completion can be polled; its
// receives, where somebody can poll them.
func TestDroppedQueuePair(t *testing.T) {
	log := captureReports(t)
	b := fakedevtest.New(t, fakedev.Config{})
	q := b.NewCQ(t)
	qpn := dropQueuePair(t, b, ibv.QPQueues{Send: q, Recv: q})
	dropped(t, b.PD, "QP")
	for range 2 {
		b.Send(qpn).Data(0) // fails the test if its memory is gone
		b.Send(qpn).Complete(fakedev.Completion{})
	}
	assert.Equal(t, []uint64{1, 2}, fakedevtest.IDs(fakedevtest.Poll(t, q)))
	for range 5 {
		runtime.GC()
	}
	assert.Equal(t, []uint32{qpn}, b.QPs(), "its receive can be polled")
	assert.Empty(t, log.of("QP"))
	b.Recv(qpn).Complete(fakedev.Completion{})
	require.Equal(t, []uint64{3}, fakedevtest.IDs(fakedevtest.Poll(t, q)))
	collectUntil(t, "destroyed", func() bool { return len(b.QPs()) == 0 })
	looked(t)
	assert.Zero(t, b.Region.InFlight())
	require.NoError(t, q.Close())
}

// A queue pair that goes takes no completion of a dropped neighbour with it.
func TestDroppedBesideOneThatGoes(t *testing.T) {
	for name, end := range map[string]func(*testing.T, *fakedevtest.QP){
		"closed": func(t *testing.T, qp *fakedevtest.QP) { require.NoError(t, qp.Close()) },
		"reset":  func(t *testing.T, qp *fakedevtest.QP) { qp.Reset(t) },
	} {
		t.Run(name, func(t *testing.T) {
			captureReports(t)
			b := fakedevtest.New(t, fakedev.Config{})
			q := b.NewCQ(t)
			qpn := dropQueuePair(t, b, ibv.QPQueues{Send: q, Recv: q})
			other := b.NewQP(t, func(_ *ibv.QPInitAttr, queues *ibv.QPQueues) { queues.Send = q })
			dropped(t, b.PD, "QP")
			b.Send(qpn).Complete(fakedev.Completion{})
			b.Send(qpn).Complete(fakedev.Completion{})
			b.Recv(qpn).Complete(fakedev.Completion{})
			end(t, other)
			collectUntil(t, "looked at", func() bool {
				return slices.ContainsFunc(life.Report(), func(o string) bool { return strings.Contains(o, "its completions have not been polled") })
			})
			assert.Equal(t, []uint64{1, 2, 3}, fakedevtest.IDs(fakedevtest.Poll(t, q)))
			collectUntil(t, "destroyed", func() bool { return !slices.Contains(b.QPs(), qpn) })
			runtime.KeepAlive(other)
		})
	}
}

// TestDroppedQueuePairAndCQ: nobody polls, so that the library does, until all is sent.
func TestDroppedQueuePairAndCQ(t *testing.T) {
	captureReports(t)
	b := fakedevtest.New(t, fakedev.Config{})
	qpn := dropQueuePair(t, b, ibv.QPQueues{})
	dropped(t, b.PD, "QP")
	b.Send(qpn).Complete(fakedev.Completion{})
	collectUntil(t, "polled", func() bool { return b.Region.InFlight() == 2 })
	assert.Equal(t, []uint32{qpn}, b.QPs(), "a send is in flight")
	b.Send(qpn).Complete(fakedev.Completion{})
	collectUntil(t, "destroyed", func() bool { return len(b.QPs())+len(b.CQs()) == 0 })
	looked(t)
	assert.Zero(t, b.Region.InFlight())
}

//go:noinline
func dropInvalidated(t *testing.T, b *fakedevtest.Bench, mw *ibv.MW, r *mr.Region) {
	c, err := cq.Create(b.Ctx, cq.InitAttr{Entries: 16})
	require.NoError(t, err)
	handle, err := b.PD.CreateQP(rdmatest.DefaultInit(), ibv.QPQueues{Send: c, Recv: c})
	require.NoError(t, err)
	qp := &fakedevtest.QP{QP: handle}
	qp.Ready(t)
	qp.Post(t, ibv.BindMW(1, ibv.SendSignaled, r.MWBind(mw, 0, 64, ibv.AccessRemoteRead)))
	b.Send(qp.Num()).Complete(fakedev.Completion{})
	require.Len(t, fakedevtest.Poll(t, c), 1)
	require.True(t, mw.Bound())
	_, err = qp.PostRecv(fakedevtest.Recvs(b.Region, 2, 1))
	require.NoError(t, err)
	b.Recv(qp.Num()).Complete(fakedev.Completion{InvRKey: new(mw.Remote().RKey)})
}

// TestDroppedWithABoundWindow: the queue pair is kept for it.
func TestDroppedWithABoundWindow(t *testing.T) {
	captureReports(t)
	b := fakedevtest.New(t, fakedev.Config{MemoryWindows: true})
	r, mw := b.NewRegion(t, ibv.AccessMWBind), b.NewMW(t, ibv.MWType2)
	dropInvalidated(t, b, mw, r)
	dropped(t, b.PD, "QP")
	assert.Len(t, b.QPs(), 1)
	require.NoError(t, mw.Close())
	collectUntil(t, "destroyed", func() bool { return len(b.QPs())+len(b.CQs()) == 0 })
	looked(t)
	assert.NoError(t, r.Close(), "no window is bound to it")
}

//go:noinline
func dropOneEach(t *testing.T, b *fakedevtest.Bench) {
	_, err := b.Ctx.AllocPD()
	require.NoError(t, err)
	_, err = cq.Create(b.Ctx, cq.InitAttr{Entries: 16})
	require.NoError(t, err)
	_, err = mr.AllocRegion(b.PD, 4096, ibv.AccessLocalWrite)
	require.NoError(t, err)
	_, err = mr.Alloc(4096)
	require.NoError(t, err)
}

// TestTrace: the report names the line that made the object, if that is asked for.
func TestTrace(t *testing.T) {
	defer ibv.SetTrace(true) // as rdmatest wants it
	b := fakedevtest.New(t, fakedev.Config{})
	for _, on := range []bool{false, true} {
		ibv.SetTrace(on)
		log := captureReports(t)
		dropOneEach(t, b)
		for _, kind := range []string{"PD", "CQ", "MR", "buffer"} {
			collectUntil(t, kind+" reported", func() bool { return len(log.of(kind)) > 0 })
			report := log.of(kind)[0]
			assert.Equal(t, on, strings.Contains(report, " made="), report)
			assert.Equal(t, on, strings.Contains(report, "ibv_test.dropOneEach "), report)
			assert.Equal(t, on, strings.Contains(report, "/ibv/collect_test.go:"), report)
		}
	}
}
