//go:build cgo && linux && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package window

import (
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/cq"
	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/examples/exampletest"
	"github.com/goverbs/goverbs/internal/fakedev"
	"github.com/goverbs/goverbs/internal/rdmatest"
	"github.com/goverbs/goverbs/mr"
)

func TestMain(m *testing.M) { rdmatest.Main(m) }

const (
	records = 10_000
	size    = 64
)

func TestWriteIsShort(t *testing.T) {
	body := exampletest.Between(t, exampletest.Read(t, "window.go"), "func Write(", "\n}\n")
	lines := exampletest.Lines(body)
	t.Logf("%d lines of code", lines)
	assert.LessOrEqual(t, lines, 25)
}

// fake is a queue pair of a fake device, and the region to write.
type fake struct {
	device *fakedev.Device
	qp     *ibv.QP
	cq     *cq.CQ
	region *mr.Region
}

func newFake(t *testing.T, config fakedev.Config, depth uint32, size int) *fake {
	t.Helper()
	f := &fake{device: fakedev.New(t, config)}
	ctx, err := ibv.Open(f.device.Name())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, ctx.CloseAll()) })
	pd, err := ctx.AllocPD()
	require.NoError(t, err)
	f.cq, err = cq.Create(ctx, cq.InitAttr{Entries: int(depth)})
	require.NoError(t, err)
	f.region, err = mr.AllocRegion(pd, size, ibv.AccessLocalWrite)
	require.NoError(t, err)
	init := ibv.QPInitAttr{Type: ibv.QPTypeRC, Cap: ibv.QPCap{MaxSendWR: depth, MaxSendSGE: 1}}
	f.qp, err = pd.CreateQP(init, ibv.QPQueues{Send: f.cq, Recv: f.cq})
	require.NoError(t, err)
	local, err := f.qp.Init(ibv.GIDRequest{}, 0)
	require.NoError(t, err)
	require.NoError(t, f.qp.Connect(local, local.Endpoint))
	return f
}

// write starts Write, and returns what waits for it to end.
func (f *fake) write(t *testing.T, to ibv.RemoteRange) (wait func() error) {
	t.Helper()
	result := make(chan error, 1)
	go func() { result <- Write(f.qp, f.cq, f.region, to, size) }()
	wait = sync.OnceValue(func() error {
		select {
		case err := <-result:
			return err
		case <-time.After(30 * time.Second):
			t.Error("Write does not end")
			return nil
		}
	})
	t.Cleanup(func() {
		assert.NoError(t, f.qp.Close()) // which ends it, if the test has failed
		_ = wait()
	})
	return wait
}

// TestWindow has a device complete one batch at a time, and only when Write has posted all
// that it may.
func TestWindow(t *testing.T) {
	for _, tt := range []struct {
		name        string
		depth       uint32
		outstanding int
	}{
		{"deep queue", 1024, window},
		{"full queue", 100, 100},
	} {
		t.Run(tt.name, func(t *testing.T) {
			const count = 2000
			f := newFake(t, fakedev.Config{}, tt.depth, count*size)
			require.Equal(t, tt.depth, f.qp.Cap().MaxSendWR)
			sq := f.device.Send(f.qp.Num())
			to := ibv.RemoteRange{Addr: 1 << 40, Length: count * size, RKey: 7}
			wait := f.write(t, to)

			deadline := time.Now().Add(30 * time.Second)
			for done := 0; done < count; {
				posted := sq.Posted()
				require.LessOrEqual(t, len(posted), tt.outstanding)
				require.True(t, time.Now().Before(deadline), "%d of %d done, and %d posted", done, count, len(posted))
				if len(posted) < min(tt.outstanding, count-done) {
					runtime.Gosched()
					continue
				}
				assert.GreaterOrEqual(t, f.region.InFlight(), len(posted))
				batch := min(every, count-done)
				for i, wr := range posted[:batch] {
					require.Equal(t, i == batch-1, wr.Signaled, "record %d", done+i)
					require.Equal(t, to.Addr+uint64((done+i)*size), wr.RemoteAddr)
					require.Equal(t, f.region.SGE((done+i)*size, size).Addr, wr.SGEs[0].Addr)
				}
				sq.Complete(fakedev.Completion{Index: batch - 1})
				done += batch
			}
			require.NoError(t, wait())
			assert.Zero(t, f.region.InFlight())
		})
	}
}

// besides is how often goroutines besides the test's may allocate meanwhile, such as the
// reader of a device's events: far below once a batch.
const besides = 20

func TestLoopAllocatesNothing(t *testing.T) {
	f := newFake(t, fakedev.Config{Null: true}, 1024, records*size)
	to := ibv.RemoteRange{Addr: 1 << 40, Length: records * size, RKey: 7}
	allocs := func(size int) float64 {
		return testing.AllocsPerRun(3, func() { require.NoError(t, Write(f.qp, f.cq, f.region, to, size)) })
	}
	few := allocs(records * size) // one record
	assert.InDelta(t, few, allocs(size), besides, "one record and 10,000")
	assert.LessOrEqual(t, few, 8.0, "the arrays of Write itself")
}

func TestFailure(t *testing.T) {
	f := newFake(t, fakedev.Config{}, 256, 256*size)
	sq := f.device.Send(f.qp.Num())
	to := ibv.RemoteRange{Addr: 1 << 40, Length: 256 * size, RKey: 7}
	wait := f.write(t, to)
	for deadline := time.Now().Add(30 * time.Second); len(sq.Posted()) < 256; runtime.Gosched() {
		require.True(t, time.Now().Before(deadline))
	}
	sq.Complete(fakedev.Completion{Index: 3, Status: int(cq.StatusRemAccessErr)}) // unsignaled
	var failed *cq.Error
	require.ErrorAs(t, wait(), &failed)
	assert.EqualValues(t, 3, failed.WRID)
	assert.Equal(t, cq.ClassRemote, failed.Class())
	assert.ErrorIs(t, f.region.Close(), ibv.ErrBusy, "the rest is in flight")
}

func TestShallowQueue(t *testing.T) {
	f := newFake(t, fakedev.Config{}, every-1, size)
	err := Write(f.qp, f.cq, f.region, ibv.RemoteRange{Length: size}, size)
	assert.ErrorContains(t, err, "takes 31 work requests")
}
