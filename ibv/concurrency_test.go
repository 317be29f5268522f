//go:build cgo && linux && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package ibv_test

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
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

// crowd is queue pairs that share completion queues, a shared receive queue, regions and
// an address handle, with goroutines that do everything at the same time.
type crowd struct {
	*fakedevtest.Bench
	t          *testing.T
	send, recv *cq.CQ
	qps        []*fakedevtest.QP
	srq        *ibv.SRQ
	sges       [3]atomic.Pointer[ibv.SGE] // of regions that come and go
	ah         atomic.Pointer[ibv.AH]     // that comes and goes
	stop       chan struct{}              // closed when the posting is over
	deadline   time.Time
	arrival    sync.Mutex // of a message, for which the QP must not be in RESET
	posted     atomic.Int64
	last       atomic.Int64 // completions of the last send of a QP
}

const lastSend = 999

func newCrowd(t *testing.T, config fakedev.Config, sameCQ bool) *crowd {
	config.Complete = true
	c := &crowd{Bench: fakedevtest.New(t, config), t: t, stop: make(chan struct{}), deadline: time.Now().Add(time.Duration(rdmatest.Rounds(30, 600)) * time.Second)}
	newCQ := func() *cq.CQ {
		q, err := cq.Create(c.Ctx, cq.InitAttr{Entries: 1 << 14}) // late completions too
		require.NoError(t, err)
		c.Keep(q)
		return q
	}
	c.send = newCQ()
	if c.recv = c.send; !sameCQ {
		c.recv = newCQ()
	}
	c.srq = c.NewSRQ(t)
	for i := range 6 {
		c.qps = append(c.qps, c.NewQP(t, func(init *ibv.QPInitAttr, q *ibv.QPQueues) {
			q.Send, q.Recv = c.send, c.recv
			init.SignalAll = i == 0
			switch {
			case i == 5:
				init.Type = ibv.QPTypeUD
			case i%2 == 1:
				q.SRQ = c.srq
			}
		}))
	}
	return c
}

// until runs f again and again until the posting is over.
func (c *crowd) until(wg *sync.WaitGroup, f func()) {
	wg.Go(func() {
		for time.Now().Before(c.deadline) {
			select {
			case <-c.stop:
				return
			default:
				f()
				runtime.Gosched()
			}
		}
	})
}

// fine says whether a post ended as posts here may.
func (c *crowd) fine(n int, err error) {
	c.posted.Add(int64(n))
	var pe *ibv.PostError
	if err != nil && assert.ErrorAs(c.t, err, &pe) {
		// Full, of a region or handle that was closed, or of a QP that is not in RTS.
		assert.Contains(c.t, []error{ibv.ErrQueueFull, ibv.ErrClosed, nil}, pe.Kind, "%v", err)
		assert.Equal(c.t, n, pe.Accepted)
	}
}

// churnRegion replaces region i, which work requests use all the time.
func (c *crowd) churnRegion(i int) {
	r, err := mr.AllocRegion(c.PD, 4096, ibv.AccessLocalWrite)
	require.NoError(c.t, err)
	c.sges[i].Store(new(r.SGE(0, 64)))
	ctx, cancel := context.WithDeadline(c.t.Context(), c.deadline)
	defer cancel()
	for seen, stopped := 0, false; seen < 100 && !stopped; { // in use
		seen += min(1, r.InFlight())
		runtime.Gosched()
		select {
		case <-c.stop:
			stopped = true
		default:
		}
	}
	assert.NoError(c.t, r.CloseWhenIdle(ctx))
	assert.Zero(c.t, r.InFlight())
}

func (c *crowd) churnAH() {
	old := c.ah.Swap(c.NewAH(c.t))
	for old != nil && time.Now().Before(c.deadline) {
		err := old.Close()
		if err == nil {
			return
		}
		assert.ErrorIs(c.t, err, ibv.ErrBusy)
	}
}

// post posts to both queues of a QP, in batches of several sizes.
func (c *crowd) post(qp *fakedevtest.QP, round int) {
	n := 1 + round%40
	sends, recvs := make([]ibv.SendWR, n), make([]ibv.RecvWR, n)
	for i := range n {
		a, b := *c.sges[i%3].Load(), *c.sges[(i+1)%3].Load()
		sends[i] = ibv.Send(uint64(i), ibv.SendFlags((i+1)%2)*ibv.SendSignaled, a, b)
		if qp.Type() == ibv.QPTypeUD {
			sends[i] = sends[i].To(ibv.Datagram{AH: c.ah.Load(), QPN: 1})
		}
		if recvs[i] = ibv.Recv(uint64(i), c.Region.SGE(0, 64)); round%8 == 0 {
			recvs[i].SGEs[0] = a // which is in use for long, and most posts are refused
		}
	}
	c.fine(qp.PostSend(sends))
	if qp.Cap().MaxRecvWR == 0 {
		c.fine(c.srq.PostRecv(recvs))
	} else {
		c.fine(qp.PostRecv(recvs))
	}
}

// again takes a QP to ERR and from RESET to RTS.
func (c *crowd) again(qp *fakedevtest.QP, round int) {
	// Drain would wait for the completion of a send that was not signaled, and for the
	// device's event where receives are shared.
	if qp == c.qps[0] && round%2 == 0 {
		ctx, cancel := context.WithDeadline(c.t.Context(), c.deadline)
		defer cancel()
		assert.NoError(c.t, qp.Drain(ctx))
	}
	c.arrival.Lock()
	defer c.arrival.Unlock()
	assert.NoError(c.t, qp.Modify(ibv.QPAttr{State: ibv.QPStateReset}, ibv.AttrState))
	if qp.Type() == ibv.QPTypeUD {
		rdmatest.ReadyDatagrams(c.t, qp.QP, 1)
		return
	}
	local, err := qp.Init(ibv.GIDRequest{}, 0)
	assert.NoError(c.t, err)
	assert.NoError(c.t, qp.Connect(local, local.Endpoint))
}

func (c *crowd) poll(q *cq.CQ) {
	wcs := make([]cq.WC, 7)
	n, err := q.Poll(wcs)
	assert.NoError(c.t, err)
	for i := range wcs[:n] {
		assert.False(c.t, wcs[i].Foreign(), "%+v", wcs[i])
		if wcs[i].WRID == lastSend {
			c.last.Add(1)
		} else {
			assert.Less(c.t, wcs[i].WRID, uint64(40))
		}
	}
}

// completeShared is the device: messages arrive for one QP and another.
func (c *crowd) completeShared(round int) {
	c.arrival.Lock()
	defer c.arrival.Unlock()
	if queue := c.SRQ(c.SRQs()[0]); len(queue.WRIDs()) > 0 {
		queue.Complete(fakedev.Completion{QPN: c.qps[1+round%2*2].Num()})
	}
}

// run has all do what they do, rounds times a QP.
func (c *crowd) run(rounds int) {
	var others, posters sync.WaitGroup
	c.ah.Store(c.NewAH(c.t))
	for i := range c.sges {
		r := c.NewRegion(c.t)
		c.sges[i].Store(new(r.SGE(0, 64)))
		c.until(&others, func() { c.churnRegion(i) })
	}
	c.until(&others, c.churnAH)
	for _, q := range []*cq.CQ{c.send, c.recv} {
		c.until(&others, func() { c.poll(q) })
	}
	arrivals := 0
	c.until(&others, func() { c.completeShared(arrivals); arrivals++ })
	for _, qp := range c.qps {
		for second := range 2 {
			posters.Go(func() {
				for round := range rounds {
					c.post(qp, round)
					if second == 1 && round%10 == 9 {
						c.again(qp, round/10)
					}
				}
			})
		}
	}
	posters.Wait()
	c.finish()
	close(c.stop)
	others.Wait()
	assert.True(c.t, time.Now().Before(c.deadline), "it hangs")
}

// finish flushes all that is posted, and waits until it was polled: a signaled send at
// the end covers those that were not.
func (c *crowd) finish() {
	for _, qp := range c.qps {
		assert.NoError(c.t, qp.Modify(ibv.QPAttr{State: ibv.QPStateErr}, ibv.AttrState))
		wr := ibv.Send(lastSend, ibv.SendSignaled)
		if qp.Type() == ibv.QPTypeUD {
			wr = wr.To(ibv.Datagram{AH: c.ah.Load()})
		}
		for n := 0; n == 0 && time.Now().Before(c.deadline); { // full, or the AH is closed
			n, _ = qp.PostSend([]ibv.SendWR{wr})
			c.poll(c.send)
			wr.Datagram.AH = c.ah.Load()
		}
	}
	handles := c.CQs()
	waiting := func() bool {
		queued := 0
		for _, h := range handles {
			queued += c.Queued(h)
		}
		return queued > 0 || c.srq.InFlight() > 0 || c.last.Load() < int64(len(c.qps))
	}
	for waiting() && time.Now().Before(c.deadline) {
		c.poll(c.send)
		c.poll(c.recv)
	}
}

// TestConcurrency: whatever happens at the same time, nothing is left in flight at the
// end, and the device has not seen memory go that it was using.
func TestConcurrency(t *testing.T) {
	rdmatest.Watchdog(t, 10*time.Minute)
	for _, same := range []bool{true, false} {
		for _, keep := range []bool{true, false} {
			t.Run(fmt.Sprintf("one CQ %v, keep %v", same, keep), func(t *testing.T) {
				c := newCrowd(t, fakedev.Config{KeepCompletions: keep}, same)
				c.run(rdmatest.Rounds(100, 3000))
				t.Logf("%d work requests were posted", c.posted.Load())
				assert.Zero(t, c.Region.InFlight())
				assert.Zero(t, c.srq.InFlight())
				require.NoError(t, c.ah.Load().Close())
				for _, qp := range c.qps {
					require.NoError(t, qp.Close())
				}
				require.NoError(t, c.srq.Close())
				require.NoError(t, c.send.Close())
				require.NoError(t, c.recv.Close())
			})
		}
	}
}
