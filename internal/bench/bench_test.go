//go:build cgo && linux && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package bench

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/cq"
	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/fakedev"
	"github.com/goverbs/goverbs/internal/rdmatest"
	"github.com/goverbs/goverbs/mr"
)

func TestMain(m *testing.M) { rdmatest.Main(m) }

// bed is a device on which everything completes at once.
type bed struct {
	dev    *fakedev.Device
	pd     *ibv.PD
	region *mr.Region
}

func newBed(b testing.TB) *bed {
	t := &bed{dev: fakedev.New(b, fakedev.Config{Null: true})}
	ctx, err := ibv.Open(t.dev.Name())
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, ctx.CloseAll()) })
	t.pd, err = ctx.AllocPD()
	require.NoError(b, err)
	t.region, err = mr.AllocRegion(t.pd, 4096, ibv.AccessLocalWrite)
	require.NoError(b, err)
	b.Cleanup(func() { runtime.KeepAlive(t.region) })
	return t
}

// depth is that of a queue pair in use; deep that of one to post to for long without a poll.
const depth, deep = 256, 4096

// lane is a queue pair and its completion queue.
type lane struct {
	qp  *ibv.QP
	cq  *cq.CQ
	wrs []ibv.SendWR
	wcs []cq.WC
}

// newLane makes a queue pair in RTS, and a batch of n sends with k SGEs each.
func (t *bed) newLane(b testing.TB, depth, n, k int) *lane {
	q, err := cq.Create(t.pd.Context(), cq.InitAttr{Entries: depth})
	require.NoError(b, err)
	qp, err := t.pd.CreateQP(ibv.QPInitAttr{Type: ibv.QPTypeRC, Cap: ibv.QPCap{
		MaxSendWR: uint32(depth), MaxSendSGE: 4,
	}}, ibv.QPQueues{Send: q, Recv: q})
	require.NoError(b, err)
	local, err := qp.Init(ibv.GIDRequest{}, 0)
	require.NoError(b, err)
	require.NoError(b, qp.Connect(local, local.Endpoint))
	l := &lane{qp: qp, cq: q, wcs: make([]cq.WC, max(n, 64))}
	b.Cleanup(func() { runtime.KeepAlive(l) }) // some benchmarks use only what is behind the handles
	for i := range n {
		wr := ibv.Send(uint64(i), ibv.SendSignaled)
		for range k {
			wr.SGEs = append(wr.SGEs, t.region.SGE(64*i, 64))
		}
		l.wrs = append(l.wrs, wr)
	}
	return l
}

func (l *lane) post(b testing.TB) {
	if _, err := l.qp.PostSend(l.wrs); err != nil {
		b.Fatal(err)
	}
}

// poll takes n completions.
func (l *lane) poll(b testing.TB, n int) {
	for got := 0; got < n; {
		k, err := l.cq.Poll(l.wcs[:min(n-got, len(l.wcs))])
		if err != nil || k == 0 {
			b.Fatalf("%d completions, then %v", got, err)
		}
		for i := range l.wcs[:k] {
			if err := l.wcs[i].Err(); err != nil {
				b.Fatal(err)
			}
		}
		got += k
	}
}

// perWR adds the time of one work request to that of a batch.
func perWR(b *testing.B, n int) {
	b.ReportAllocs()
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/WR")
}

func BenchmarkBareCall(b *testing.B) {
	for b.Loop() {
		fakedev.BareCall(1, 2, 3)
	}
}

func BenchmarkPostSend(b *testing.B) {
	for _, n := range []int{1, 8, 32} {
		for _, k := range []int{1, 4} {
			b.Run(fmt.Sprintf("wrs=%d/sges=%d", n, k), func(b *testing.B) {
				l := newBed(b).newLane(b, deep, n, k)
				room := deep
				for b.Loop() {
					if room < n {
						b.StopTimer()
						l.poll(b, deep-room)
						room = deep
						b.StartTimer()
					}
					l.post(b)
					room -= n
				}
				perWR(b, n)
			})
		}
	}
}

func BenchmarkPoll(b *testing.B) {
	b.Run("wcs=0", func(b *testing.B) {
		l := newBed(b).newLane(b, deep, 1, 1)
		for b.Loop() {
			if n, err := l.cq.Poll(l.wcs); n != 0 || err != nil {
				b.Fatal(n, err)
			}
		}
		b.ReportAllocs()
	})
	for _, n := range []int{1, 16, 64} {
		b.Run(fmt.Sprintf("wcs=%d", n), func(b *testing.B) {
			l := newBed(b).newLane(b, deep, 64, 1)
			left := 0
			for b.Loop() {
				if left < n {
					b.StopTimer()
					for left < deep-64 {
						l.post(b)
						left += 64
					}
					b.StartTimer()
				}
				l.poll(b, n)
				left -= n
			}
			perWR(b, n)
		})
	}
}

func BenchmarkPostAndPoll(b *testing.B) {
	for _, n := range []int{1, 32} {
		for _, k := range []int{1, 4} {
			b.Run(fmt.Sprintf("wrs=%d/sges=%d", n, k), func(b *testing.B) {
				l := newBed(b).newLane(b, depth, n, k)
				for b.Loop() {
					l.post(b)
					l.poll(b, n)
				}
				perWR(b, n)
			})
		}
	}
}

// BenchmarkTwoGoroutines has each goroutine its own queue pair and completion queue, on
// one region. The time is that of all their work requests together.
func BenchmarkTwoGoroutines(b *testing.B) {
	const n = 32
	for _, goroutines := range []int{1, 2} {
		b.Run(fmt.Sprintf("goroutines=%d", goroutines), func(b *testing.B) {
			bed := newBed(b)
			mine := bed.newLane(b, depth, n, 1)
			var stop atomic.Bool
			var wg sync.WaitGroup
			others := 0
			if goroutines == 2 {
				other := bed.newLane(b, depth, n, 1)
				wg.Go(func() {
					for ; !stop.Load(); others++ {
						other.post(b)
						other.poll(b, n)
					}
				})
			}
			own := 0
			for b.Loop() {
				mine.post(b)
				mine.poll(b, n)
				own++
			}
			stop.Store(true)
			wg.Wait()
			b.ReportAllocs()
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(own+others)/n, "ns/WR")
		})
	}
}

// BenchmarkC is BenchmarkPostAndPoll as a program in C.
func BenchmarkC(b *testing.B) {
	for _, n := range []int{1, 32} {
		for _, k := range []int{1, 4} {
			b.Run(fmt.Sprintf("wrs=%d/sges=%d", n, k), func(b *testing.B) {
				const batches = 1 << 10 // in one call, which is then nothing beside them
				bed := newBed(b)
				l := bed.newLane(b, depth, n, k)
				yard := bed.dev.Yardstick(l.qp.Num())
				sge := bed.region.SGE(0, 64)
				for b.Loop() {
					if err := yard.Loop(batches*n, n, k, sge.Addr, sge.LKey); err != nil {
						b.Fatal(err)
					}
				}
				perWR(b, batches*n)
			})
		}
	}
}

// BenchmarkTwoLoops is BenchmarkTwoGoroutines as two threads in C: how much more than one
// processor two are here.
func BenchmarkTwoLoops(b *testing.B) {
	const n, batches = 32, 1 << 10
	for _, threads := range []int{1, 2} {
		b.Run(fmt.Sprintf("threads=%d", threads), func(b *testing.B) {
			bed := newBed(b)
			sge := bed.region.SGE(0, 64)
			yards := make([]fakedev.Yardstick, threads)
			for i := range yards {
				yards[i] = bed.dev.Yardstick(bed.newLane(b, depth, n, 1).qp.Num())
			}
			loop := func(y fakedev.Yardstick) {
				if err := y.Loop(batches*n, n, 1, sge.Addr, sge.LKey); err != nil {
					b.Error(err)
				}
			}
			var stop atomic.Bool
			var wg sync.WaitGroup
			own, others := 0, 0
			if threads == 2 {
				wg.Go(func() {
					for ; !stop.Load(); others++ {
						loop(yards[1])
					}
				})
			}
			for b.Loop() {
				loop(yards[0])
				own++
			}
			stop.Store(true)
			wg.Wait()
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(own+others)/batches/n, "ns/WR")
		})
	}
}

// BenchmarkPlain is BenchmarkPostAndPoll by the plain way to bind.
func BenchmarkPlain(b *testing.B) {
	for _, n := range []int{1, 32} {
		b.Run(fmt.Sprintf("wrs=%d/sges=1", n), func(b *testing.B) {
			bed := newBed(b)
			l := bed.newLane(b, depth, n, 1)
			yard := bed.dev.Yardstick(l.qp.Num())
			sge := bed.region.SGE(0, 64)
			for b.Loop() {
				for i := range n {
					wr := fakedev.PlainWR{WRID: uint64(i), Opcode: uint32(ibv.OpSend) - 1, Flags: uint32(ibv.SendSignaled),
						SGEs: []fakedev.PlainSGE{{Addr: sge.Addr, Length: sge.Length, LKey: sge.LKey}}}
					if err := yard.PlainPost(wr); err != nil {
						b.Fatal(err)
					}
				}
				for got := 0; got < n; {
					wcs, err := yard.PlainPoll(n - got)
					if err != nil || len(wcs) == 0 {
						b.Fatal(len(wcs), err)
					}
					got += len(wcs)
				}
			}
			perWR(b, n)
		})
	}
}
