//go:build rdma

package ibv_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/cq"
	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/life"
	"github.com/goverbs/goverbs/internal/rdmatest"
	"github.com/goverbs/goverbs/mr"
)

// logOf has what is said of dropped objects written to w until the test ends.
func logOf(t *testing.T, w *syncBuffer) {
	ibv.SetLogger(slog.New(slog.NewTextHandler(w, nil)))
	t.Cleanup(func() { ibv.SetLogger(slog.Default()) })
}

type syncBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// openObject returns what the ownership graph says of the open object of that name, or "".
func openObject(name string) string {
	for _, o := range life.Report() {
		if strings.HasPrefix(o, name) {
			return o
		}
	}
	return ""
}

// collectDropped runs the collector until it has found that an object was dropped, and
// then until the reaper has done what it can.
func collectDropped(t *testing.T, name string) {
	t.Helper()
	collectUntil(t, name+" dropped", func() bool {
		o := openObject(name)
		return o == "" || strings.Contains(o, "dropped without Close")
	})
	require.NoError(t, life.Quiesce(t.Context()))
}

// collectAll runs the collector until no more objects are open than there were before.
func collectAll(t *testing.T, before int) {
	t.Helper()
	collectUntil(t, "all closed", func() bool { return len(life.Report()) == before })
}

// alwaysCollecting has the collector at work all the time until the test ends.
func alwaysCollecting(t *testing.T) {
	percent := debug.SetGCPercent(1)
	ibv.SetLogger(nil)
	var stop atomic.Bool
	var background sync.WaitGroup
	background.Go(func() {
		for !stop.Load() {
			runtime.GC()
		}
	})
	t.Cleanup(func() {
		stop.Store(true)
		background.Wait()
		ibv.SetLogger(slog.Default())
		debug.SetGCPercent(percent)
	})
}

// sendAndDrop sends from a region whose handle nothing has afterwards.
func sendAndDrop(t *testing.T, p *rdmatest.Pair, sends int, access ibv.AccessFlags) (name string, remote ibv.RemoteRange) {
	t.Helper()
	r, err := mr.AllocRegion(p.PD, 4096, access)
	require.NoError(t, err)
	fill(r.Bytes(), 3)
	for i := range sends {
		post(t, &p.A, ibv.Send(uint64(i), 0, r.SGE(i*512, 512)))
	}
	return r.String(), r.Remote()
}

func TestDroppedRegionLivesUntilItsLastCompletion(t *testing.T) {
	var log syncBuffer
	logOf(t, &log)
	p := rdmatest.NewPair(t, rdmatest.DefaultInit())
	name, _ := sendAndDrop(t, p, 3, ibv.AccessLocalWrite)
	want := make([]byte, 3*512)
	fill(want, 3)
	collectDropped(t, name)
	require.Contains(t, openObject(name), "3 work requests in flight use it")
	for i := range 3 { // the peer had no receives until now
		for range 3 {
			runtime.GC()
		}
		require.NoError(t, life.Quiesce(t.Context()))
		require.NotEmpty(t, openObject(name), "%d sends are in flight", 3-i)
		require.NotContains(t, log.String(), name)
		postRecv(t, &p.B, ibv.Recv(uint64(i), p.B.Region.SGE(i*512, 512)))
		done(t, &p.B, uint64(i), cq.OpRecv)
		require.NotEmpty(t, openObject(name), "the completion was not polled")
		done(t, &p.A, uint64(i), cq.OpSend)
	}
	require.NoError(t, life.Quiesce(t.Context()))
	require.Empty(t, openObject(name), "its last completion was polled")
	require.True(t, bytes.Equal(want, p.B.Region.Bytes()[:len(want)]))
	require.Contains(t, log.String(), fmt.Sprintf(`closed" object=%q`, name))
}

// A peer may be using what has remote rights: it is kept, which the log says, and ends
// with what it hangs from.
func TestDroppedRegionWithRemoteRightsIsKept(t *testing.T) {
	var log syncBuffer
	logOf(t, &log)
	ctx, err := ibv.Open(rdmatest.Device(t))
	require.NoError(t, err)
	pd, err := ctx.AllocPD()
	require.NoError(t, err)
	p := &rdmatest.Pair{Ctx: ctx, PD: pd, Access: rdmatest.RemoteAccess}
	b := rdmatest.NewPair(t, rdmatest.DefaultInit()).B
	toState(t, b.QP, ibv.QPStateReset)
	q, err := cq.Create(ctx, cq.InitAttr{Entries: 64})
	require.NoError(t, err)
	qp, err := pd.CreateQP(rdmatest.DefaultInit(), ibv.QPQueues{Send: q, Recv: q})
	require.NoError(t, err)
	p.A, p.B = rdmatest.Side{QP: qp, CQ: q}, b
	p.Connect(t)

	name, remote := sendAndDrop(t, p, 0, ibv.AccessLocalWrite|ibv.AccessRemoteWrite|ibv.AccessRemoteRead)
	collectDropped(t, name)
	require.Contains(t, openObject(name), "kept: a peer may be using it")
	require.Contains(t, log.String(), fmt.Sprintf(`kept open" object=%q`, name))
	for i := range 3 {
		runtime.GC()
		post(t, &b, ibv.Write(1, 0, remote, b.Region.SGE(i*8, 8)), ibv.Read(2, 0, remote, b.Region.SGE(64, 8)))
		for _, wc := range b.Wait(t, 2) {
			require.NoError(t, wc.Err(), "the peer still reaches it")
		}
	}
	require.ErrorContains(t, pd.Close(), name+" (dropped without Close)")
	require.NoError(t, ctx.CloseAll())
	require.Empty(t, openObject(name))
	runtime.KeepAlive(p)
}

// What can still be posted is not collected.
func TestSGEKeepsItsRegion(t *testing.T) {
	p := rdmatest.NewPair(t, rdmatest.DefaultInit())
	sge, name := func() (ibv.SGE, string) {
		r, err := mr.AllocRegion(p.PD, 4096, ibv.AccessLocalWrite)
		require.NoError(t, err)
		fill(r.Bytes(), 5)
		return r.SGE(8, 64), r.String()
	}()
	var log syncBuffer
	logOf(t, &log)
	for i := range 5 {
		for range 3 {
			runtime.GC()
		}
		require.NoError(t, life.Quiesce(t.Context()))
		require.NotContains(t, openObject(name), "dropped")
		postRecv(t, &p.B, ibv.Recv(1, p.B.Region.SGE(0, 64)))
		post(t, &p.A, ibv.Send(uint64(i), 0, sge))
		done(t, &p.A, uint64(i), cq.OpSend)
		done(t, &p.B, 1, cq.OpRecv)
	}
	require.Empty(t, log.String())
	sge = ibv.SGE{}
	collectUntil(t, "closed", func() bool { return openObject(name) == "" })
	runtime.KeepAlive(&sge)
}
