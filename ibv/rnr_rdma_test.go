//go:build rdma

package ibv_test

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/cq"
	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/rdmatest"
)

// rnrNAKs reads how often rdma_rxe has been told that the receiver is not ready.
func rnrNAKs(t *testing.T) int {
	t.Helper()
	read := func(name string) int {
		text, err := os.ReadFile("/sys/class/infiniband/" + rdmatest.Device(t) + "/ports/1/hw_counters/" + name)
		require.NoError(t, err)
		n, err := strconv.Atoi(strings.TrimSpace(string(text)))
		require.NoError(t, err)
		return n
	}
	// For so many milliseconds, rounded up to its ticks, the kernel tells what it told last.
	time.Sleep(time.Duration(read("lifespan"))*time.Millisecond + 8*time.Millisecond)
	return read("rcvd_rnr_err")
}

// notReady are the work requests that take a receive of the peer.
func notReady(t *testing.T, p *rdmatest.Pair) map[string]ibv.SendWR {
	sge := p.A.Region.SGE(0, 8)
	return map[string]ibv.SendWR{
		"SEND":           ibv.Send(7, 0, sge),
		"WRITE_WITH_IMM": ibv.WriteImm(7, 0, 1, published(t, p, 64).Remote(), sge),
	}
}

// TestReceiverNotReady counts the tries: MinRNRTimer, which B tells, is the pause between
// two, and RNRRetry how many follow the first.
func TestReceiverNotReady(t *testing.T) {
	const (
		pause = 40960 * time.Microsecond // one of those that the wire can name
		tick  = 8 * time.Millisecond     // rdma_rxe's timer counts in 4 ms, and rounds up
		// The VM's CPU is emulated and shared, so that anything may take long, and the timer's clock
		// may be behind when it is set, which then fires early. It is less than the 655 ms of a
		// timer with a wrong code.
		slack = 500 * time.Millisecond
	)
	for _, retries := range []int{0, 1, 3} {
		params := func(c *ibv.ConnectParams) { c.RNRRetry, c.MinRNRTimer = uint8(retries), pause }
		p := newPairOf(t, ibv.QPTypeRC)
		for name, wr := range notReady(t, p) {
			t.Run(fmt.Sprintf("%s, %d retries", name, retries), func(t *testing.T) {
				reconnectWith(t, p, rdmatest.RemoteAccess, params)
				naks := rnrNAKs(t)
				start := time.Now()
				post(t, &p.A, wr)
				wc := p.A.Wait(t, 1)[0]
				took := time.Since(start)
				requireFailed(t, &p.A, &wc, cq.Error{WRID: 7, Status: cq.StatusRNRRetryExcErr})
				assert.GreaterOrEqual(t, took, time.Duration(retries)*pause/2)
				assert.Less(t, took, time.Duration(retries)*(pause+tick)+slack)
				assert.Equal(t, 1+retries, rnrNAKs(t)-naks, "tries that B has refused")
				requireState(t, p.A.QP, ibv.QPStateErr)
				requireState(t, p.B.QP, ibv.QPStateRTS)
				assert.Zero(t, p.A.Region.InFlight())
			})
		}
	}
}

func TestReceiverThatIsReadyInTime(t *testing.T) {
	for name := range notReady(t, newPairOf(t, ibv.QPTypeRC)) {
		t.Run(name, func(t *testing.T) {
			p := rdmatest.NewPair(t, rdmatest.DefaultInit(), func(c *ibv.ConnectParams) {
				c.RNRRetry, c.MinRNRTimer = 6, 160*time.Millisecond
			})
			fill(p.A.Region.Bytes()[:8], 4)
			naks := rnrNAKs(t)
			post(t, &p.A, notReady(t, p)[name])
			for deadline := time.Now().Add(10 * time.Second); rnrNAKs(t) == naks; {
				require.True(t, time.Now().Before(deadline), "B has refused nothing")
			}
			postRecv(t, &p.B, ibv.Recv(1, p.B.Region.SGE(0, 8)))
			require.NoError(t, p.A.Wait(t, 1)[0].Err())
			wc := p.B.Wait(t, 1)[0]
			require.NoError(t, wc.Err())
			assert.EqualValues(t, 1, wc.WRID)
			assert.Equal(t, 8, wc.ByteLen())
			if name == "SEND" {
				assert.Equal(t, p.A.Region.Bytes()[:8], p.B.Region.Bytes()[:8])
			}
		})
	}
}
