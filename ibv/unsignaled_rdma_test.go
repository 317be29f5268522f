//go:build rdma

package ibv_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/cq"
	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/rdmatest"
	"github.com/goverbs/goverbs/mr"
)

// unsignaledPair has only those completions of sends that are asked for.
func unsignaledPair(t *testing.T, typ ibv.QPType) *rdmatest.Pair {
	init := rdmatest.DefaultInit()
	init.Type, init.SignalAll = typ, false
	return rdmatest.NewPair(t, init)
}

func TestOneSignaledSendReleasesAllBeforeIt(t *testing.T) {
	for _, typ := range []ibv.QPType{ibv.QPTypeRC, ibv.QPTypeUC} {
		t.Run(typ.String(), func(t *testing.T) {
			p := unsignaledPair(t, typ)
			depth := int(p.A.QP.Cap().MaxSendWR)
			regions := make([]*mr.Region, depth)
			for i := range regions {
				regions[i] = rdmatest.Region(t, p.PD, 64)
			}
			for round := range 5 { // more than once around the ring
				postRecv(t, &p.B, recvsFrom(&p.B, 0, 8)...)
				wrs := make([]ibv.SendWR, 8)
				for i := range wrs {
					wrs[i] = ibv.Send(uint64(i), 0, regions[i].SGE(0, 56), p.A.Region.SGE(0, 8))
					wrs[i].SGEs = wrs[i].SGEs[:1+i%2] // every second one uses two regions
				}
				wrs[7].Flags = ibv.SendSignaled
				post(t, &p.A, wrs...)
				p.B.Wait(t, 8)
				// All have arrived; nobody has polled yet what says so.
				for _, r := range regions[:8] {
					require.Equal(t, 1, r.InFlight(), "round %d", round)
					require.ErrorIs(t, r.Close(), ibv.ErrBusy)
				}
				require.Equal(t, 4, p.A.Region.InFlight())
				wc := p.A.Wait(t, 1)[0]
				require.NoError(t, wc.Err())
				require.EqualValues(t, 7, wc.WRID)
				for _, r := range append(regions[:8:8], p.A.Region) {
					require.Zero(t, r.InFlight(), "round %d", round)
				}
				requireEmpty(t, p.A.CQ)
			}
			// The whole queue is free again: as many as it holds go in, and no more.
			wrs := make([]ibv.SendWR, depth)
			for i := range wrs {
				wrs[i] = ibv.Send(uint64(100+i), ibv.SendSignaled, regions[i].SGE(0, 64))
			}
			post(t, &p.A, wrs...)
			_, err := p.A.QP.PostSend(wrs[:1])
			require.ErrorIs(t, err, ibv.ErrQueueFull)
		})
	}
}

// What to do about a full send queue depends on what is in it, and the error says so.
func TestFullSendQueueSaysWhatToDo(t *testing.T) {
	p := unsignaledPair(t, ibv.QPTypeRC)
	depth := int(p.A.QP.Cap().MaxSendWR)
	full := func(want string) {
		t.Helper()
		n, err := p.A.QP.PostSend(sendsFrom(&p.A, 99, 1, ibv.SendSignaled))
		require.ErrorIs(t, err, ibv.ErrQueueFull)
		require.ErrorContains(t, err, want)
		require.Zero(t, n)
	}
	// A signaled one in the middle: a poll will make room up to it, and no further.
	wrs := sendsFrom(&p.A, 0, depth, 0)
	wrs[depth/2].Flags = ibv.SendSignaled
	post(t, &p.A, wrs...)
	full("poll the completion queue")
	postRecv(t, &p.B, recvsFrom(&p.B, 0, depth/2+1)...)
	require.EqualValues(t, depth/2, p.A.Wait(t, 1)[0].WRID)
	require.Equal(t, depth-depth/2-1, p.A.Region.InFlight())

	// Fill up with unsignaled ones: nothing will ever be polled of what is there.
	post(t, &p.A, sendsFrom(&p.A, 200, depth/2+1, 0)...)
	full("unsignaled")
	full("ERR or RESET")
	toState(t, p.A.QP, ibv.QPStateReset)
	assert.Zero(t, p.A.Region.InFlight())
	toState(t, p.B.QP, ibv.QPStateReset)
	p.Connect(t)
	postRecv(t, &p.B, ibv.Recv(1, p.B.Region.SGE(0, 64)))
	post(t, &p.A, ibv.Send(2, ibv.SendSignaled, p.A.Region.SGE(0, 64)))
	done(t, &p.A, 2, cq.OpSend)
	done(t, &p.B, 1, cq.OpRecv)
}

// Unsignaled sends that are flushed are reported one by one, each with its own number.
func TestFlushReportsUnsignaledSends(t *testing.T) {
	p := unsignaledPair(t, ibv.QPTypeRC)
	post(t, &p.A, sendsFrom(&p.A, 10, 12, 0)...) // the peer has no receives
	require.Equal(t, 12, p.A.Region.InFlight())
	toState(t, p.A.QP, ibv.QPStateErr)
	for i := range 12 {
		wc := p.A.Wait(t, 1)[0]
		require.EqualValues(t, 10+i, wc.WRID)
		require.False(t, wc.IsRecv())
		requireFlushed(t, wc)
		require.Equal(t, 11-i, p.A.Region.InFlight())
	}
	requireEmpty(t, p.A.CQ)
}

// A send that fails covers the unsignaled ones before it as one that succeeds does, and
// those behind it come back flushed.
func TestFailedSendReleasesAllBeforeIt(t *testing.T) {
	p := unsignaledPair(t, ibv.QPTypeRC)
	postRecv(t, &p.B, recvsFrom(&p.B, 0, 8)...)
	wrs := sendsFrom(&p.A, 0, 8, 0)
	wrs[4].SGEs[0].LKey ^= 0xffff00
	post(t, &p.A, wrs...)
	require.Equal(t, 8, p.A.Region.InFlight())
	next := uint64(0) // the first that may complete
	for next < 8 {
		wc := p.A.Wait(t, 1)[0]
		require.GreaterOrEqual(t, wc.WRID, next)
		require.Error(t, wc.Err(), "an unsignaled success is not reported")
		require.False(t, wc.IsRecv())
		if wc.WRID >= 4 && next > 4 {
			require.Equal(t, next, wc.WRID, "each of those behind is reported")
		}
		next = wc.WRID + 1
		require.Equal(t, int(8-next), p.A.Region.InFlight())
	}
	requireEmpty(t, p.A.CQ)
}
