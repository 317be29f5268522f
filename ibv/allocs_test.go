//go:build cgo && linux && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package ibv_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/cq"
	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/fakedev"
	"github.com/goverbs/goverbs/internal/fakedev/fakedevtest"
)

// allocs returns how many times f allocates; what it allocates once does not count, nor what
// goroutines of other tests do meanwhile, as those that close what was dropped.
func allocs(f func()) float64 {
	least := testing.AllocsPerRun(50, f)
	for try := 0; least > 0 && try < 5; try++ {
		least = min(least, testing.AllocsPerRun(50, f))
	}
	return least
}

// posts are batches of sends as programs post them.
func posts(b *fakedevtest.Bench, ah *ibv.AH) map[string][]ibv.SendWR {
	all := map[string][]ibv.SendWR{}
	remote := ibv.RemoteRange{Addr: 0x1000, Length: 1 << 20, RKey: 7}
	sge := func(i int) ibv.SGE { return b.Region.SGE(i*64, 64) }
	for _, n := range []int{1, 8, 32, 64} {
		var writes, inline, many []ibv.SendWR
		for i := range n {
			var flags ibv.SendFlags
			if i == n-1 {
				flags = ibv.SendSignaled
			}
			writes = append(writes, ibv.Write(uint64(i), flags, remote, sge(i)))
			inline = append(inline, ibv.SendWR{WRID: uint64(i), Opcode: ibv.OpSend, Flags: flags, Inline: []byte("0123456789abcdef")})
			many = append(many, ibv.Send(uint64(i), ibv.SendSignaled, sge(0), sge(1), sge(2), sge(3)))
		}
		all[fmt.Sprintf("%d writes", n)] = writes
		all[fmt.Sprintf("%d inline", n)] = inline
		all[fmt.Sprintf("%d of 4 SGEs", n)] = many
	}
	if ah != nil {
		for name, wrs := range all {
			delete(all, name)
			if wrs[0].Opcode == ibv.OpWrite {
				continue
			}
			for i := range wrs {
				wrs[i] = wrs[i].To(ibv.Datagram{AH: ah, QPN: 5, QKey: 6})
			}
			all["UD "+name] = wrs
		}
	}
	return all
}

func TestSendsAllocateNothing(t *testing.T) {
	for _, typ := range []ibv.QPType{ibv.QPTypeRC, ibv.QPTypeUC, ibv.QPTypeUD} {
		for _, null := range []bool{true, false} {
			b := fakedevtest.New(t, fakedev.Config{Null: null, Complete: true})
			qp := b.NewQP(t, func(i *ibv.QPInitAttr, _ *ibv.QPQueues) { i.Type = typ })
			var ah *ibv.AH
			if typ == ibv.QPTypeUD {
				ah = b.NewAH(t)
				b.Keep(ah)
			}
			for name, wrs := range posts(b, ah) {
				wcs := make([]cq.WC, 64)
				n := allocs(func() {
					accepted, err := qp.PostSend(wrs)
					if err != nil || accepted != len(wrs) {
						t.Fatal(accepted, err)
					}
					if got, err := qp.Send.Poll(wcs); err != nil || got == 0 {
						t.Fatal(got, err)
					}
				})
				assert.Zero(t, n, "%v, null %v, %s", typ, null, name)
			}
			assert.Zero(t, b.Region.InFlight())
		}
	}
}

func TestReceivesAllocateNothing(t *testing.T) {
	b := fakedevtest.New(t, fakedev.Config{Null: true})
	qp := b.NewQP(t)
	for _, k := range []int{1, 8, 32, 64} {
		wrs, wcs := fakedevtest.Recvs(b.Region, 0, k), make([]cq.WC, 64)
		n := allocs(func() {
			if accepted, err := qp.PostRecv(wrs); err != nil || accepted != k {
				t.Fatal(accepted, err)
			}
			if got, err := qp.Recv.Poll(wcs); err != nil || got != k {
				t.Fatal(got, err)
			}
		})
		assert.Zero(t, n, "%d receives", k)
	}
}

func TestSharedReceivesAllocateNothing(t *testing.T) {
	b := fakedevtest.New(t, fakedev.Config{})
	srq := b.NewSRQ(t)
	wrs := fakedevtest.Recvs(b.Region, 0, 2)
	n := allocs(func() {
		if accepted, err := srq.PostRecv(wrs); err != nil || accepted != 2 {
			t.Fatal(accepted, err)
		}
	})
	assert.Zero(t, n)
}

// TestPollsAllocateNothing has completions that take the longer ways: failed, foreign,
// late, of shared receives, and none.
func TestPollsAllocateNothing(t *testing.T) {
	b := fakedevtest.New(t, fakedev.Config{KeepCompletions: true})
	srq := b.NewSRQ(t)
	qp := b.NewQP(t, func(_ *ibv.QPInitAttr, q *ibv.QPQueues) { q.SRQ = srq })
	gone := b.NewQP(t, func(_ *ibv.QPInitAttr, q *ibv.QPQueues) { q.Send = qp.Send })
	gone.Post(t, fakedevtest.Sends(b.Region, 0, 1)...)
	late := gone.SQ.WRIDs()[0]
	require.NoError(t, gone.Close())
	handle := b.QP(qp.Num()).SendCQ
	qp.Post(t, fakedevtest.Sends(b.Region, 0, 60)...)
	for range 60 {
		b.Push(handle, fakedev.WC{WRID: late})
		b.Push(handle, fakedev.WC{WRID: 1})
		qp.SQ.Complete(fakedev.Completion{Status: int(cq.StatusWRFlushErr)})
		_, err := srq.PostRecv(fakedevtest.Recvs(b.Region, 0, 1))
		require.NoError(t, err)
		b.SRQ(b.SRQs()[0]).Complete(fakedev.Completion{QPN: qp.Num(), InvRKey: new(uint32(1))})
	}
	wcs := make([]cq.WC, 3)
	got := 0
	n := allocs(func() { // fifty and one times
		k, err := qp.Send.Poll(wcs)
		if err != nil {
			t.Fatal(err)
		}
		got += k
	})
	assert.Zero(t, n)
	assert.Equal(t, 51*3, got)
	empty := b.NewCQ(t)
	assert.Zero(t, allocs(func() { _, _ = empty.Poll(wcs) }))
}

// TestWRsInALoop: work requests of a reused slice, whose SGEs are of one too.
func TestWRsInALoop(t *testing.T) {
	b := fakedevtest.New(t, fakedev.Config{Null: true})
	wrs, sges := make([]ibv.SendWR, 32), make([]ibv.SGE, 32)
	remote := ibv.RemoteRange{Length: 1 << 20}
	n := allocs(func() {
		for i := range wrs {
			sges[i] = b.Region.SGE(i*64, 64)
			wrs[i] = ibv.Write(uint64(i), ibv.SendSignaled, remote, sges[i:i+1]...)
		}
	})
	assert.Zero(t, n)
}
