//go:build rdma

package ibv_test

import (
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/cq"
	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/rdmatest"
)

// until waits for a condition of which nothing tells when it holds.
func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !holds(); runtime.Gosched() {
		require.True(t, time.Now().Before(deadline), "after twenty seconds: not %s", what)
	}
}

func toState(t *testing.T, qp *ibv.QP, state ibv.QPState) {
	t.Helper()
	require.NoError(t, qp.Modify(ibv.QPAttr{State: state}, ibv.AttrState))
}

func requireFlushed(t *testing.T, wc cq.WC) {
	t.Helper()
	var e *cq.Error
	require.ErrorAs(t, wc.Err(), &e, "WR %d", wc.WRID)
	require.Equal(t, cq.ClassFlushed, e.Class(), "%v", e)
	require.False(t, e.Unexplained, "the program wanted it: %v", e)
}

// requireEmpty says that a poll finds nothing.
func requireEmpty(t *testing.T, q *cq.CQ) {
	t.Helper()
	var wcs [8]cq.WC
	n, err := q.Poll(wcs[:])
	require.NoError(t, err)
	require.Empty(t, wcs[:n])
}

// wrIDs returns the WRIDs of the sends, or of the receives, of a QP in wcs.
func wrIDs(wcs []cq.WC, qp *ibv.QP, recvs bool) []uint64 {
	var ids []uint64
	for i := range wcs {
		if wcs[i].QPNum == qp.Num() && wcs[i].IsRecv() == recvs {
			ids = append(ids, wcs[i].WRID)
		}
	}
	return ids
}

// numbers returns n numbers from first.
func numbers(first, n int) []uint64 {
	ids := make([]uint64, n)
	for i := range ids {
		ids[i] = uint64(first + i)
	}
	return ids
}

// recvsFrom and sendsFrom make n work requests with the numbers from first, each with
// 64 bytes of the side's region.
func recvsFrom(s *rdmatest.Side, first, n int) []ibv.RecvWR {
	wrs := make([]ibv.RecvWR, n)
	for i := range wrs {
		wrs[i] = ibv.Recv(uint64(first+i), s.Region.SGE(i*64, 64))
	}
	return wrs
}

func sendsFrom(s *rdmatest.Side, first, n int, flags ibv.SendFlags) []ibv.SendWR {
	wrs := make([]ibv.SendWR, n)
	for i := range wrs {
		wrs[i] = ibv.Send(uint64(first+i), flags, s.Region.SGE(i*64, 64))
	}
	return wrs
}
