//go:build rdma

package window

import (
	"encoding/binary"
	"hash/crc32"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/rdmatest"
	"github.com/goverbs/goverbs/mr"
)

// fill gives each record its own number and a checksum, and a content that no other
// round has.
func fill(b []byte, round uint32) {
	for i := range records {
		r := b[i*size:][:size]
		binary.NativeEndian.PutUint32(r, uint32(i))
		for k := 4; k < size-4; k++ {
			r[k] = byte(uint32(i)*7 + uint32(k)*13 + round)
		}
		binary.NativeEndian.PutUint32(r[size-4:], crc32.ChecksumIEEE(r[:size-4])+round)
	}
}

// wrong returns how many records of b are not those of the round.
func wrong(b []byte, round uint32) (n int) {
	for i := range records {
		r := b[i*size:][:size]
		if binary.NativeEndian.Uint32(r) != uint32(i) ||
			binary.NativeEndian.Uint32(r[size-4:]) != crc32.ChecksumIEEE(r[:size-4])+round {
			n++
		}
	}
	return n
}

// highest follows how many work requests use a region, until stop is called, which
// returns the most that there were.
func highest(region *mr.Region) (stop func() int) {
	var ended atomic.Bool
	result := make(chan int)
	go func() {
		most := 0
		for !ended.Load() {
			most = max(most, region.InFlight())
			runtime.Gosched()
		}
		result <- most
	}()
	return func() int {
		ended.Store(true)
		return <-result
	}
}

func TestTenThousandWrites(t *testing.T) {
	for _, tt := range []struct {
		name  string
		depth uint32
		most  int
	}{
		{"window", 1023, window},
		{"full queue", 127, 127},
	} {
		t.Run(tt.name, func(t *testing.T) {
			init := rdmatest.DefaultInit()
			init.SignalAll = false
			init.Cap.MaxSendWR = tt.depth
			p := rdmatest.NewPair(t, init)
			require.EqualValues(t, tt.depth, p.A.QP.Cap().MaxSendWR)
			from := rdmatest.Region(t, p.PD, records*size)
			to := rdmatest.Region(t, p.PD, records*size, ibv.AccessRemoteWrite)

			write := func(size int) {
				require.NoError(t, Write(p.A.QP, p.A.CQ, from, to.Remote(), size))
			}
			for round := range uint32(2) { // the second goes over the end of the ring
				fill(from.Bytes(), round)
				stop := highest(from)
				write(size)
				most := stop()
				assert.Zero(t, wrong(to.Bytes(), round), "records that are not what was written")
				assert.LessOrEqual(t, most, tt.most)
				assert.Positive(t, most, "the count of what is in flight moves")
			}
			few := testing.AllocsPerRun(1, func() { write(records * size) })
			assert.InDelta(t, few, testing.AllocsPerRun(1, func() { write(size) }), besides, "one record and 10,000")
		})
	}
}
