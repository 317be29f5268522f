//go:build rdma

package ibv_test

import (
	"bytes"
	"log/slog"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/cq"
	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/life"
	"github.com/goverbs/goverbs/internal/rdmatest"
	"github.com/goverbs/goverbs/mr"
)

// abandon makes everything that sends to b and receives, and drops it with the sends in
// flight.
func abandon(t *testing.T, ctx *ibv.Context, b rdmatest.Side, sends int) (dropped []string) {
	t.Helper()
	pd, err := ctx.AllocPD()
	require.NoError(t, err)
	q, err := cq.Create(ctx, cq.InitAttr{Entries: 64})
	require.NoError(t, err)
	buf, err := mr.Alloc(12345)
	require.NoError(t, err)
	recvs, err := mr.Register(pd, buf, ibv.AccessLocalWrite)
	require.NoError(t, err)
	source, err := mr.AllocRegion(pd, 1<<16, ibv.AccessLocalWrite)
	require.NoError(t, err)
	fill(source.Bytes(), 9)
	qp, err := pd.CreateQP(rdmatest.DefaultInit(), ibv.QPQueues{Send: q, Recv: q})
	require.NoError(t, err)
	p := &rdmatest.Pair{Ctx: ctx, PD: pd, B: b, A: rdmatest.Side{QP: qp, CQ: q}}
	p.Connect(t)
	for i := range sends {
		postRecv(t, &p.A, ibv.Recv(1, recvs.SGE(i*64, 64)))
		post(t, &p.A, ibv.Send(uint64(i), 0, source.SGE(i*4096, 4096)))
	}
	return []string{qp.String(), recvs.String(), source.String(), "buffer of 12345 bytes"}
}

func TestEverythingDroppedInFlight(t *testing.T) {
	rdmatest.Watchdog(t, 10*time.Minute)
	defer debug.SetGCPercent(debug.SetGCPercent(1))
	var log syncBuffer
	logOf(t, &log)
	b := rdmatest.NewPair(t, rdmatest.DefaultInit()).B
	for range rdmatest.Rounds(5, 200) {
		const sends = 8
		toState(t, b.QP, ibv.QPStateReset)
		ctx, err := ibv.Open(rdmatest.Device(t))
		require.NoError(t, err)
		dropped := abandon(t, ctx, b, sends)
		collectUntil(t, "found", func() bool { return strings.Contains(openObject(dropped[0]), "8 sends") })
		for _, name := range dropped {
			require.NotEmpty(t, openObject(name), "its sends are in flight")
		}
		want := make([]byte, 1<<16)
		fill(want, 9)
		clear(b.Region.Bytes())
		for i := range sends {
			runtime.GC()
			postRecv(t, &b, ibv.Recv(uint64(i), b.Region.SGE(i*4096, 4096)))
			done(t, &b, uint64(i), cq.OpRecv)
		}
		require.True(t, bytes.Equal(want[:sends*4096], b.Region.Bytes()[:sends*4096]))
		collectUntil(t, "all closed", func() bool {
			for _, name := range dropped {
				if openObject(name) != "" {
					return false
				}
			}
			return true
		})
		require.NoError(t, ctx.Close(), "nothing is left below it")
	}
	require.NotContains(t, log.String(), "kept")
}

// Regions are dropped as soon as they are posted, with the collector at work all the time
// and memory that is free taken and poisoned at once. Both sides verify every byte.
func TestRegionsDroppedRightAfterThePost(t *testing.T) {
	alwaysCollecting(t)
	p := rdmatest.NewPair(t, rdmatest.DefaultInit())
	p.B.Region = rdmatest.Region(t, p.PD, 16*4096)
	before := len(life.Report())

	var hoard [256][]byte // what free memory was given out again
	taken := 0
	poison := func(size int) {
		b := make([]byte, size)
		for i := range b {
			b[i] = 0xa5
		}
		hoard[taken%len(hoard)] = b
		taken++
	}

	const window = 8
	total := rdmatest.Rounds(500, 10_000)
	size := func(i int) int { return 512 + i*37%3500 }
	mine := make([][]byte, window) // what A receives into; the region is dropped
	posted, arrived, answered := 0, 0, 0
	want := make([]byte, 4096)
	checkAndPoison := func(b []byte, seed int) {
		fill(want[:len(b)], seed)
		require.True(t, bytes.Equal(want[:len(b)], b), "message %d", seed)
		for i := range b {
			b[i] = 0xa5
		}
	}
	register := func(b []byte) *mr.Region {
		r, err := mr.RegisterSlice(p.PD, b, ibv.AccessLocalWrite)
		require.NoError(t, err)
		return r
	}
	poll := func(s *rdmatest.Side, took func(wc *cq.WC)) {
		var wcs [16]cq.WC
		n, err := s.CQ.Poll(wcs[:])
		require.NoError(t, err)
		for i := range wcs[:n] {
			require.NoError(t, wcs[i].Err())
			took(&wcs[i])
		}
	}
	acked, answers := 0, 0 // sends of A and of B that have completed
	step := func() (progress int) {
		for posted-arrived < window && posted-answered < window && posted-acked < window && posted < total {
			i, n := posted, size(posted)
			into := make([]byte, n)
			mine[i%window] = into
			postRecv(t, &p.A, ibv.Recv(uint64(i), register(into).SGE(0, n)))
			postRecv(t, &p.B, ibv.Recv(uint64(i), p.B.Region.SGE(i%16*4096, n)))
			from := make([]byte, n)
			fill(from, i)
			post(t, &p.A, ibv.Send(uint64(i), 0, register(from).SGE(0, n)))
			posted++
			poison(n)
		}
		poll(&p.B, func(wc *cq.WC) {
			if !wc.IsRecv() {
				answers++
				return
			}
			i := int(wc.WRID)
			require.Equal(t, arrived, i)
			checkAndPoison(p.B.Region.Bytes()[i%16*4096:][:size(i)], i)
			arrived++
			// The answer is from the same kind of memory.
			from := make([]byte, size(i))
			fill(from, i+1)
			post(t, &p.B, ibv.Send(uint64(i), 0, register(from).SGE(0, len(from))))
		})
		poll(&p.A, func(wc *cq.WC) {
			if !wc.IsRecv() {
				acked++
				return
			}
			i := int(wc.WRID)
			require.Equal(t, answered, i)
			checkAndPoison(mine[i%window], i+1)
			hoard[taken%len(hoard)] = mine[i%window]
			taken++
			answered++
		})
		poison(size(taken))
		return posted + arrived + answered + acked
	}
	for progress := 0; progress < 4*total; progress = step() {
		until(t, "going on", func() bool { return step() > progress })
	}
	for _, b := range hoard {
		require.True(t, bytes.Equal(bytes.Repeat([]byte{0xa5}, len(b)), b), "memory of another owner was written")
	}
	until(t, "the answers' completions polled", func() bool {
		poll(&p.B, func(wc *cq.WC) { require.False(t, wc.IsRecv()); answers++ })
		return answers == total
	})
	require.Zero(t, p.B.Region.InFlight())
	collectAll(t, before)
}

// sendBy sends a datagram by an address handle that nothing has afterwards.
func sendBy(t *testing.T, p *rdmatest.Pair, to ibv.Datagram) {
	t.Helper()
	choice, err := p.Ctx.ChooseGID(ibv.GIDRequest{Local: rdmatest.Addr(t)})
	require.NoError(t, err)
	to.AH, err = p.PD.CreateAH(ibv.AHAttr{
		IsGlobal: true,
		Port:     choice.Entry.Port,
		GRH:      ibv.GRH{DGID: choice.Entry.GID, SGIDIndex: uint8(choice.Entry.Index), HopLimit: 64},
	})
	require.NoError(t, err)
	post(t, &p.A, ibv.Send(1, 0, p.A.Region.SGE(0, 1000)).To(to))
}

func TestAddressHandleDroppedRightAfterThePost(t *testing.T) {
	alwaysCollecting(t)
	p, _, toB := rdmatest.NewDatagrams(t)
	before := len(life.Report())
	for i := range rdmatest.Rounds(50, 1000) {
		fill(p.A.Region.Bytes()[:1000], i)
		postRecv(t, &p.B, ibv.Recv(2, p.B.Region.SGE(0, 1040)))
		sendBy(t, p, toB)
		runtime.GC()
		done(t, &p.B, 2, cq.OpRecv)
		require.True(t, bytes.Equal(p.A.Region.Bytes()[:1000], p.B.Region.Bytes()[40:1040]))
		done(t, &p.A, 1, cq.OpSend)
	}
	collectAll(t, before)
}

// lastPost makes a queue pair that is connected to b, and posts; nothing uses the handle
// after that, so that the collector may find it in the middle of the post.
func lastPost(t *testing.T, pd *ibv.PD, q *cq.CQ, b rdmatest.Side) {
	t.Helper()
	qp, err := pd.CreateQP(rdmatest.DefaultInit(), ibv.QPQueues{Send: q, Recv: q})
	require.NoError(t, err)
	p := &rdmatest.Pair{Ctx: pd.Context(), PD: pd, B: b, A: rdmatest.Side{QP: qp, CQ: q}}
	p.Connect(t)
	wrs := []ibv.SendWR{{WRID: 7, Opcode: ibv.OpSend, Inline: []byte("the last words")}}
	_, err = qp.PostSend(wrs)
	require.NoError(t, err)
}

func TestThePostIsTheLastUseOfTheQP(t *testing.T) {
	alwaysCollecting(t)
	p := rdmatest.NewPair(t, rdmatest.DefaultInit())
	before := len(life.Report())
	for range rdmatest.Rounds(50, 2000) {
		toState(t, p.B.QP, ibv.QPStateReset)
		clear(p.B.Region.Bytes())
		lastPost(t, p.PD, p.A.CQ, p.B)
		postRecv(t, &p.B, ibv.Recv(1, p.B.Region.SGE(0, 64)))
		done(t, &p.B, 1, cq.OpRecv)
		require.Equal(t, "the last words", string(p.B.Region.Bytes()[:14]))
		done(t, &p.A, 7, cq.OpSend)
	}
	collectAll(t, before)
}

// postForLong posts many receives in one call, which is the last use of the queue pair.
func postForLong(t *testing.T, pd *ibv.PD, recvs int) (name string, posted chan error) {
	t.Helper()
	q := rdmatest.CQ(t, pd.Context(), 16)
	qp, err := pd.CreateQP(ibv.QPInitAttr{Type: ibv.QPTypeRC, Cap: ibv.QPCap{
		MaxSendWR: 1, MaxSendSGE: 1, MaxRecvWR: uint32(recvs), MaxRecvSGE: 1,
	}}, ibv.QPQueues{Send: q, Recv: q})
	require.NoError(t, err)
	_, err = qp.Init(ibv.GIDRequest{Local: rdmatest.Addr(t)}, 0)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, pd.Context().CloseAll()) })
	wrs := make([]ibv.RecvWR, recvs)
	posted = make(chan error)
	name = qp.String()
	go func() {
		_, err := qp.PostRecv(wrs)
		posted <- err
	}()
	return name, posted
}

// A call keeps the handle that it was made on: the collector does not find it meanwhile.
func TestPostKeepsItsHandle(t *testing.T) {
	ibv.SetLogger(nil)
	defer ibv.SetLogger(slog.Default())
	pd := rdmatest.PD(t, rdmatest.Open(t))
	name, posted := postForLong(t, pd, 1<<18)
	for collections := 0; ; collections++ {
		open := openObject(name)
		select {
		case err := <-posted:
			require.NoError(t, err)
			require.Greater(t, collections, 2, "too short a post to tell")
			collectUntil(t, "dropped", func() bool { return strings.Contains(openObject(name), "dropped") })
			return
		default:
			require.NotContains(t, open, "dropped")
			runtime.GC()
		}
	}
}
