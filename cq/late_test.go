//go:build cgo && linux && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package cq_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/cq"
	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/fakedev"
	"github.com/goverbs/goverbs/internal/fakedev/fakedevtest"
)

// TestLateCompletions: whether the device takes the completions of a QP back that is
// closed or reset, or leaves them, or adds some, nobody gets them; the memory is free;
// and a newer QP with the same number gets its own alone.
func TestLateCompletions(t *testing.T) {
	for _, keep := range []bool{true, false} {
		for _, end := range []string{"close", "reset"} {
			t.Run(fmt.Sprintf("%s, keep %v", end, keep), func(t *testing.T) {
				b := fakedevtest.New(t, fakedev.Config{KeepCompletions: keep})
				qp := b.NewQP(t)
				handle := b.QP(qp.Num()).SendCQ
				old := b.NewRegion(t)
				qp.Post(t, fakedevtest.Sends(old, 1, 3)...)
				postRecv(t, qp, fakedevtest.Recvs(old, 1, 2)...)
				tokens := append(qp.SQ.WRIDs(), qp.RQ.WRIDs()...)
				qp.SQ.Complete(fakedev.Completion{})
				qp.RQ.Complete(fakedev.Completion{})

				next := qp
				if end == "reset" {
					qp.Reset(t)
					qp.Ready(t)
				} else {
					require.NoError(t, qp.Close())
					next = b.NewQP(t, func(_ *ibv.QPInitAttr, q *ibv.QPQueues) { q.Send = qp.Send })
					require.Equal(t, qp.Num(), next.Num(), "the device gives the number again")
				}
				require.Zero(t, b.Queued(handle), "they take the place of no others")
				require.NoError(t, old.Close(), "its memory is free")
				next.Post(t, fakedevtest.Sends(b.Region, 50, 3)...)
				postRecv(t, next, fakedevtest.Recvs(b.Region, 50, 2)...)
				for i, token := range tokens { // that a device may add
					b.Push(handle, fakedev.WC{WRID: token, QPN: next.Num(), Status: i % 2 * int(cq.StatusWRFlushErr)})
				}
				assert.Empty(t, fakedevtest.Poll(t, qp.Send))
				assert.Equal(t, 5, b.Region.InFlight(), "they released nothing of the new one")

				for _, token := range tokens {
					b.Push(handle, fakedev.WC{WRID: token, QPN: next.Num()})
					next.SQ.Complete(fakedev.Completion{})
					if len(next.SQ.WRIDs()) == 0 {
						break
					}
				}
				assert.Equal(t, []uint64{50, 51, 52}, fakedevtest.IDs(fakedevtest.Poll(t, qp.Send)))
			})
		}
	}
}

// TestPollDoesNotStopAtLateCompletions: fewer than asked for means that the queue is
// empty, also where a whole batch was dropped.
func TestPollDoesNotStopAtLateCompletions(t *testing.T) {
	b := fakedevtest.New(t, fakedev.Config{})
	qp := b.NewQP(t)
	other := b.NewQP(t, func(_ *ibv.QPInitAttr, q *ibv.QPQueues) { q.Send = qp.Send })
	handle := b.QP(qp.Num()).SendCQ
	qp.Post(t, fakedevtest.Sends(b.Region, 0, 40)...)
	late := qp.SQ.WRIDs()
	require.NoError(t, qp.Close())
	for _, token := range late { // that the device adds all the same
		b.Push(handle, fakedev.WC{WRID: token, QPN: qp.Num()})
	}
	other.Post(t, fakedevtest.Sends(b.Region, 7, 1)...)
	other.SQ.Complete(fakedev.Completion{})
	for _, room := range []int{1, 3} {
		wcs := make([]cq.WC, room)
		n, err := other.Send.Poll(wcs)
		require.NoError(t, err)
		if room == 1 {
			require.Equal(t, 1, n)
			assert.Equal(t, uint64(7), wcs[0].WRID)
		} else {
			require.Zero(t, n)
		}
	}
}

// TestDrainKeepsCompletions: Drain polls, and the completions that it met wait for Poll,
// in order, those of other QPs too; and those of a QP that is closed meanwhile do not.
func TestDrainKeepsCompletions(t *testing.T) {
	for _, end := range []string{"", "close", "reset"} {
		t.Run(end, func(t *testing.T) {
			b := fakedevtest.New(t, fakedev.Config{})
			qp := b.NewQP(t)
			other := b.NewQP(t, func(_ *ibv.QPInitAttr, q *ibv.QPQueues) { q.Send = qp.Send })
			other.Post(t, fakedevtest.Sends(b.Region, 100, 2)...)
			other.SQ.Complete(fakedev.Completion{})
			qp.Post(t, fakedevtest.Sends(b.Region, 0, 2)...)
			postRecv(t, qp, fakedevtest.Recvs(b.Region, 10, 1)...)
			qp.SQ.Complete(fakedev.Completion{})
			b.SetComplete(true) // so that ERR flushes
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			require.NoError(t, qp.Drain(ctx))
			assert.Equal(t, 1, b.Region.InFlight(), "of the other")
			_, err := qp.PostSend(fakedevtest.Sends(b.Region, 0, 1))
			assert.ErrorIs(t, err, ibv.ErrClosed)
			assert.ErrorContains(t, err, "drained")

			want := []uint64{100, 0, 1, 10}
			switch end {
			case "close":
				require.NoError(t, qp.Close())
				want = []uint64{100}
			case "reset":
				qp.Reset(t)
				want = []uint64{100}
			}
			b.SetComplete(false)
			other.SQ.Complete(fakedev.Completion{})
			want = append(want, 101)
			var got []cq.WC
			wcs := make([]cq.WC, 1) // one at a time
			for n := 1; n > 0; {
				var err error
				n, err = qp.Send.Poll(wcs)
				require.NoError(t, err)
				got = append(got, wcs[:n]...)
			}
			assert.Equal(t, want, fakedevtest.IDs(got))
			if end == "" {
				assert.NoError(t, got[1].Err())
				assert.Equal(t, cq.OpSend, got[1].Opcode())
				assert.Equal(t, cq.StatusWRFlushErr, got[2].Status)
				assert.False(t, got[2].IsRecv())
				assert.True(t, got[3].IsRecv())
				assert.Equal(t, qp.Num(), got[3].QPNum)
			}
		})
	}
}

// TestSharedReceivesOfAClosedQP: their tokens do not say which QP took them, so that the
// completions of a QP that is closed are taken out there and then; before it, for a
// device that takes them back does not post the receives again.
func TestSharedReceivesOfAClosedQP(t *testing.T) {
	for _, keep := range []bool{true, false} {
		for _, end := range []string{"close", "reset"} {
			t.Run(fmt.Sprintf("%s, keep %v", end, keep), func(t *testing.T) {
				b := fakedevtest.New(t, fakedev.Config{KeepCompletions: keep})
				srq := b.NewSRQ(t)
				qp := b.NewQP(t, func(_ *ibv.QPInitAttr, q *ibv.QPQueues) { q.SRQ = srq })
				other := b.NewQP(t, func(_ *ibv.QPInitAttr, q *ibv.QPQueues) { q.SRQ, q.Send = srq, qp.Send })
				postRecv(t, srq, fakedevtest.Recvs(b.Region, 0, 5)...)
				queue := b.SRQ(b.SRQs()[0])
				queue.Complete(fakedev.Completion{QPN: qp.Num()})
				queue.Complete(fakedev.Completion{QPN: other.Num()})
				queue.Complete(fakedev.Completion{QPN: qp.Num()})
				if end == "close" {
					require.NoError(t, qp.Close())
					again := b.NewQP(t, func(_ *ibv.QPInitAttr, q *ibv.QPQueues) { q.SRQ, q.Send = srq, qp.Send })
					require.Equal(t, qp.Num(), again.Num())
				} else {
					qp.Reset(t)
				}
				assert.Equal(t, 2, srq.InFlight(), "what completed is not in flight any more")
				assert.Equal(t, 2, b.Region.InFlight())
				assert.Equal(t, []uint64{1}, fakedevtest.IDs(fakedevtest.Poll(t, qp.Send)))
			})
		}
	}
}

// TestManyCompletionsKept: also one at a time they come in order, and their memory goes.
func TestManyCompletionsKept(t *testing.T) {
	const total = 4096
	b := fakedevtest.New(t, fakedev.Config{Complete: true})
	c, err := cq.Create(b.Ctx, cq.InitAttr{Entries: total})
	require.NoError(t, err)
	b.Keep(c)
	qp := b.NewQP(t, func(in *ibv.QPInitAttr, q *ibv.QPQueues) { in.Cap.MaxSendWR, q.Send = total, c })
	qp.Post(t, fakedevtest.Sends(b.Region, 0, total)...)
	require.NoError(t, qp.Drain(t.Context()))
	left, _ := cq.Spilled(c)
	require.Equal(t, total, left)
	var wcs [1]cq.WC
	for want := range uint64(total) {
		n, err := c.Poll(wcs[:])
		require.NoError(t, err)
		require.Equal(t, 1, n)
		require.Equal(t, want, wcs[0].WRID)
	}
	left, room := cq.Spilled(c)
	assert.Zero(t, left)
	assert.Zero(t, room, "the memory is freed")
	assert.Empty(t, fakedevtest.Poll(t, c))
}
