package inflight

import (
	"context"
	"math"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// poster is the posting side that rings and pools share.
type poster interface {
	Begin(want int) int
	Start(wrID uint64, signaled bool) Token
	Use(u *Used) bool
	Effect(e Effect)
	Keep()
	Commit() int
	Refused(took int)
	InFlight() int
}

func (q *Queue) poster(k Kind) poster {
	switch k {
	case Send:
		return &q.Send
	case Recv:
		return &q.Recv
	}
	return &q.Shared
}

// post posts one work request and returns what the device would see.
func post(q *Queue, k Kind, wrID uint64, signaled bool, uses ...*Used) uint64 {
	p := q.poster(k)
	if p.Begin(1) != 1 {
		panic("no room")
	}
	tok := p.Start(wrID, signaled)
	for _, u := range uses {
		p.Use(u)
	}
	p.Keep()
	p.Commit()
	return uint64(tok)
}

// complete completes with success and gives back at once.
func complete(table *Table, tok uint64) (user uint64, k Kind, o Outcome) {
	return settle(table, tok, true)
}

// settle completes as a poll does: in a row if it can be.
func settle(table *Table, tok uint64, success bool) (user uint64, k Kind, o Outcome) {
	s := table.Settler()
	return settleBy(&s, tok, success)
}

func settleBy(s *Settler, tok uint64, success bool) (user uint64, k Kind, o Outcome) {
	defer s.Flush()
	if success {
		row := s.Begin(tok)
		if user, ok := row.Take(0, tok); ok {
			s.End(1)
			return user, row.Kind(), Ours
		}
	}
	return s.Complete(tok, success)
}

func free(r *Ring) int { return r.Begin(MaxDepth) }

func entered(t *testing.T) *Used {
	t.Helper()
	u := new(Used)
	require.NoError(t, u.Enter())
	t.Cleanup(u.Leave)
	return u
}

func TestTokenFieldsKeepTheirWidth(t *testing.T) {
	for _, k := range []Kind{Send, Recv, Shared} {
		for _, id := range []uint32{0, 1, MaxQueues - 1} {
			for _, gen := range []uint32{0, 1, genMask} {
				for _, pos := range []uint32{0, 1, posMask} {
					tok := makeToken(k, id, gen, pos)
					assert.Equal(t, k, tok.kind())
					assert.Equal(t, id, tok.queue())
					assert.Equal(t, gen, tok.gen())
					assert.Equal(t, pos, tok.pos())
				}
			}
		}
	}
	assert.Equal(t, 64, kindBits+queueBits+genBits+posBits)
}

func TestCompletionReleasesItselfAndAllBefore(t *testing.T) {
	var table Table
	q, err := table.New(4, 2)
	require.NoError(t, err)
	post(q, Send, 10, false)
	post(q, Send, 11, false)
	third := post(q, Send, 12, true)
	post(q, Send, 13, false)
	assert.Zero(t, free(&q.Send))

	user, k, o := complete(&table, third)
	assert.Equal(t, Ours, o)
	assert.Equal(t, Send, k)
	assert.EqualValues(t, 12, user)
	assert.Equal(t, 1, q.Send.InFlight())
	assert.False(t, q.Send.Signaled(), "only the unsignaled fourth is left")

	_, _, o = complete(&table, third)
	assert.Equal(t, Unknown, o, "a second completion of the same work request is not ours")
	assert.Equal(t, 1, q.Send.InFlight())
}

func TestSendAndReceiveAreToldApart(t *testing.T) {
	var table Table
	q, err := table.New(1, 1)
	require.NoError(t, err)
	s, r := post(q, Send, 7, true), post(q, Recv, 7, true)
	_, k, _ := complete(&table, r)
	assert.Equal(t, Recv, k)
	_, k, _ = complete(&table, s)
	assert.Equal(t, Send, k)
}

func TestForeignWRIDsPassThrough(t *testing.T) {
	var table Table
	q, err := table.New(8, 8)
	require.NoError(t, err)
	for _, id := range []uint64{0, 1, 500, 0x7fff_ffff_f000, math.MaxUint64,
		uint64(makeToken(Send, q.id, 0, 0)),   // never posted
		uint64(makeToken(Send, q.id, 1, 0)),   // a generation never given out
		uint64(makeToken(Recv, q.id+1, 0, 0)), // an id never given out
		uint64(makeToken(Recv, MaxQueues-1, 0, 0)),
	} {
		user, k, o := complete(&table, id)
		assert.Equal(t, Unknown, o, "%#x", id)
		assert.Equal(t, Foreign, k, "%#x", id)
		assert.Equal(t, id, user)
	}
}

func TestLateCompletionsAreDropped(t *testing.T) {
	var table Table
	q, err := table.New(2, 2)
	require.NoError(t, err)
	old := post(q, Send, 1, true)
	q.Reset()
	assert.Equal(t, 2, free(&q.Send), "a reset gives all slots back")
	_, _, o := complete(&table, old)
	assert.Equal(t, Late, o)

	beforeRetire := post(q, Send, 2, true)
	table.Retire(q)
	_, _, o = complete(&table, beforeRetire)
	assert.Equal(t, Late, o)

	// The id comes back in time, and its late completion is still not the newer queue's.
	for n := 0; ; n++ {
		require.Less(t, n, 3*resting, "the id never came back")
		next, err := table.New(2, 2)
		require.NoError(t, err)
		if next.id == q.id {
			newer := post(next, Send, 3, true)
			_, _, o = complete(&table, beforeRetire)
			assert.Equal(t, Late, o)
			user, _, o := complete(&table, newer)
			assert.Equal(t, Ours, o)
			assert.EqualValues(t, 3, user)
			return
		}
		table.Retire(next)
	}
}

func TestPositionsWrapAround(t *testing.T) {
	for _, start := range []uint32{posMask - 2, math.MaxUint32 - 2} {
		var table Table
		q, err := table.New(3, 0)
		require.NoError(t, err)
		q.Send.head.Store(start)
		q.Send.tail.Store(start)
		for i := range uint64(20) {
			tok := post(q, Send, i, true)
			user, _, o := complete(&table, tok)
			require.Equal(t, Ours, o, "from %#x, step %d", start, i)
			require.Equal(t, i, user)
		}
	}
}

func TestDepthLimits(t *testing.T) {
	var table Table
	_, err := table.New(MaxDepth+1, 0)
	require.ErrorContains(t, err, "deeper than the 1048576")
	q, err := table.New(MaxDepth, 0)
	require.NoError(t, err)
	assert.Equal(t, MaxDepth, free(&q.Send))
	assert.Zero(t, free(&q.Recv))
}

func TestPosterAndPollerShareNoLock(t *testing.T) {
	var table Table
	q, err := table.New(8, 0)
	require.NoError(t, err)
	const total = 20_000
	device := make(chan uint64, 8)
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := uint64(0); i < total; {
			if free(&q.Send) > 0 {
				device <- post(q, Send, i, true)
				i++
			}
		}
		close(device)
	})
	next := uint64(0)
	for tok := range device {
		user, _, o := complete(&table, tok)
		require.Equal(t, Ours, o)
		require.Equal(t, next, user)
		next++
	}
	wg.Wait()
	assert.EqualValues(t, total, next)
	assert.Zero(t, q.Send.InFlight())
}

func BenchmarkPostComplete(b *testing.B) {
	var table Table
	q, err := table.New(128, 0)
	require.NoError(b, err)
	u := new(Used)
	require.NoError(b, u.Enter())
	defer u.Leave()
	s := table.Settler()
	for b.Loop() {
		q.Send.Begin(1)
		tok := q.Send.Start(1, true)
		q.Send.Use(u)
		q.Send.Keep()
		q.Send.Commit()
		s.Complete(uint64(tok), true)
		s.Flush()
	}
}

func TestHeadNeverFallsBehindTail(t *testing.T) {
	var table Table
	q, err := table.New(4, 0)
	require.NoError(t, err)
	u := entered(t)
	tok := post(q, Send, 1, true, u)
	_, _, o := complete(&table, tok)
	require.Equal(t, Ours, o)
	q.Send.Refused(0) // and now the provider says that it refused what it completed
	assert.Zero(t, q.Send.InFlight())
	assert.Zero(t, u.InFlight())
	assert.Equal(t, 4, free(&q.Send))
}

// A thing that is closed between Use and Commit is gone by then, and its index may be
// another's, which the work request does not use.
func TestClosedBetweenUseAndCommit(t *testing.T) {
	var table Table
	q, err := table.New(4, 0)
	require.NoError(t, err)
	before, gone := entered(t), new(Used)
	require.NoError(t, gone.Enter())
	e := new(effect)
	r := &q.Send
	r.Begin(3)
	for _, u := range []*Used{before, gone, before} {
		r.Start(1, true)
		require.True(t, r.Use(u))
		r.Effect(e)
		r.Keep()
	}
	require.NoError(t, gone.CloseUsed(func() error { return nil }))
	var next *Used
	for next == nil || next.index != gone.index {
		next = entered(t)
	}
	assert.Equal(t, 1, r.Commit())
	assert.Equal(t, 1, before.InFlight())
	assert.Zero(t, next.InFlight())
	assert.Zero(t, gone.InFlight())
	assert.Equal(t, effect{refused: 2}, *e, "of the two that are not posted")
	fill(t, r, 3, true) // in their slots
	r.Refused(0)
	fill(t, r, 3, true)
	q.Reset()
	assert.Equal(t, effect{refused: 2, failed: 1}, *e, "each is told once")
	assert.Zero(t, before.InFlight())
}

// Until Commit nothing keeps what a work request uses from being closed; another may even
// have its place in the table by then.
func TestClosedWhilePosting(t *testing.T) {
	var table Table
	q, err := table.New(4, 4)
	require.NoError(t, err)
	for _, p := range []poster{&q.Send, &q.Recv, &q.Shared} {
		for _, another := range []bool{false, true} {
			first, closed := entered(t), new(Used)
			require.NoError(t, closed.Enter())
			require.Equal(t, 3, p.Begin(3))
			for _, u := range []*Used{first, closed, first} {
				p.Start(0, true)
				require.True(t, p.Use(u))
				p.Keep()
			}
			require.NoError(t, closed.CloseUsed(func() error { return nil }))
			if another {
				u := entered(t)
				require.Equal(t, closed.index, u.index, "the table gives it to the next")
				defer func() { require.Zero(t, u.InFlight()) }()
			}
			require.Equal(t, 1, p.Commit(), "the batch ends before it")
			require.Equal(t, 1, p.InFlight())
			require.Equal(t, 1, first.InFlight())
			p.Refused(0)
			require.Zero(t, p.InFlight())
			require.Zero(t, first.InFlight())
			require.Zero(t, closed.InFlight())
		}
	}
}

// A marker covers the unsignaled work requests at the end of a ring, of which nothing else
// tells; also in a ring that is full.
func TestMarker(t *testing.T) {
	for _, sends := range []int{1, 4} {
		var table Table
		q, err := table.New(4, 0)
		require.NoError(t, err)
		u, e := entered(t), new(effect)
		r := &q.Send
		assert.False(t, r.NeedsMarker(), "there is nothing")
		post(q, Send, 1, true)
		assert.False(t, r.NeedsMarker(), "the last is signaled")
		complete(&table, uint64(makeToken(Send, q.id, 0, 0)))
		r.Begin(sends)
		for range sends {
			r.Start(2, false)
			r.Use(u)
			r.Effect(e)
			r.Keep()
		}
		r.Commit()
		require.True(t, r.NeedsMarker())
		r.Mark(func(Token) bool { return false })
		require.True(t, r.NeedsMarker(), "the device had no room for it")
		var marker Token
		r.Mark(func(wrID Token) bool { marker = wrID; return true })
		assert.False(t, r.NeedsMarker(), "it is there")
		_, _, o := settle(&table, uint64(marker), false)
		assert.Equal(t, Late, o, "nobody is told")
		assert.Zero(t, r.InFlight())
		assert.Zero(t, u.InFlight())
		assert.Equal(t, effect{done: sends}, *e, "what has no completion has succeeded")
		_, _, o = settle(&table, uint64(marker), false)
		assert.Equal(t, Unknown, o, "there is one marker only")
	}
}

func TestSharedSlotsAreUsedAgain(t *testing.T) {
	var table Table
	q, err := table.New(0, 0)
	require.NoError(t, err)
	for i := range uint64(10 * poolChunk) {
		user, _, o := complete(&table, post(q, Shared, i, true))
		require.Equal(t, Ours, o)
		require.Equal(t, i, user)
	}
	assert.Len(t, q.Shared.busy, poolChunk)
}

// holding is an effect that looks at what its work request uses.
type holding struct {
	uses []*Used
	held []int
}

func (h *holding) Refused() { h.Done(false) }
func (h *holding) Done(bool) {
	for _, u := range h.uses {
		h.held = append(h.held, u.InFlight())
	}
}

// Nothing that an effect is about is given back before the effect is told.
func TestEffectsAreToldBeforeTheRelease(t *testing.T) {
	for _, k := range []Kind{Send, Shared} {
		for n := 1; n <= 5; n++ {
			for _, how := range []string{"complete", "refuse", "reset"} {
				var table Table
				q, err := table.New(4, 0)
				require.NoError(t, err)
				h, want := new(holding), []int(nil)
				for range n {
					h.uses, want = append(h.uses, entered(t)), append(want, 1)
				}
				p := q.poster(k)
				p.Begin(1)
				tok := p.Start(1, true)
				for _, u := range h.uses {
					p.Use(u)
				}
				p.Effect(h)
				p.Keep()
				p.Commit()
				switch how {
				case "complete":
					complete(&table, uint64(tok))
				case "refuse":
					p.Refused(0)
				case "reset":
					q.Reset()
				}
				assert.Equal(t, want, h.held, "%v, %d uses, %s", k, n, how)
				for _, u := range h.uses {
					assert.Zero(t, u.InFlight())
				}
			}
		}
	}
}

func TestWaitOfUsedEndsWithItsContext(t *testing.T) {
	var table Table
	q, err := table.New(4, 0)
	require.NoError(t, err)
	u := entered(t)
	tok := post(q, Send, 1, true, u)

	timeout, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	_, err = u.Wait(timeout)
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	ended, end := context.WithCancelCause(t.Context())
	end(syscall.EINTR)
	_, err = u.Wait(ended)
	require.Equal(t, syscall.EINTR, err)
	require.False(t, u.Refusing(), "uses are allowed again")

	_, _, o := complete(&table, tok)
	require.Equal(t, Ours, o)
	allow, err := u.Wait(ended)
	require.NoError(t, err, "there is nothing to wait for")
	allow()
}

// What is refused is never in the count: a Shut would take it for a use in flight.
func TestRefusedUsesAreNeverCounted(t *testing.T) {
	u := entered(t)
	require.Zero(t, u.Shut())
	var stop atomic.Bool
	var wg sync.WaitGroup
	var asked atomic.Int64
	for range 2 {
		wg.Go(func() {
			for ; !stop.Load(); asked.Add(1) {
				assert.False(t, u.acquire(3))
			}
		})
	}
	for asked.Load() < 100_000 {
		if !assert.Zero(t, u.InFlight()) || !assert.Zero(t, u.Shut()) {
			break
		}
	}
	stop.Store(true)
	wg.Wait()
}
