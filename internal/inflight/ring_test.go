package inflight

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// fill posts n work requests in one batch.
func fill(t *testing.T, r *Ring, n int, signaled bool) {
	t.Helper()
	require.Equal(t, n, r.Begin(n), "room")
	for range n {
		r.Start(0, signaled)
		r.Keep()
	}
	require.Equal(t, n, r.Commit())
}

// In a ring of a power of two the slot before the head is also the last one that a batch
// can have. What a batch left there that came to nothing says nothing of what is in flight.
func TestSignaledOutlivesWhatCameToNothing(t *testing.T) {
	for _, depth := range []int{1, 2, 3, 4} {
		for _, kept := range []bool{false, true} {
			for _, before := range []bool{false, true} {
				for _, left := range []bool{false, true} {
					var table Table
					q, err := table.New(depth, 0)
					require.NoError(t, err)
					r := &q.Send
					if before { // a signaled one, which has completed
						_, _, o := complete(&table, post(q, Send, 1, true))
						require.Equal(t, Ours, o)
					}
					if kept { // posted, and refused by the device
						fill(t, r, depth, left)
						r.Refused(0)
					} else { // refused by the caller
						require.Equal(t, depth, r.Begin(depth))
						for i := range depth {
							r.Start(0, left)
							if i < depth-1 {
								r.Keep()
							}
						}
					}
					require.False(t, r.Signaled())
					require.False(t, r.NeedsMarker())

					fill(t, r, depth, false)
					assert.False(t, r.Signaled(), "depth %d, kept %v, before %v, left %v", depth, kept, before, left)
					assert.True(t, r.NeedsMarker(), "depth %d, kept %v, before %v, left %v", depth, kept, before, left)
				}
			}
		}
	}
}

// What the device took of a batch counts, what it refused does not.
func TestSignaledAfterAPartOfABatch(t *testing.T) {
	for took := range 5 {
		var table Table
		q, err := table.New(4, 0)
		require.NoError(t, err)
		r := &q.Send
		require.Equal(t, 4, r.Begin(4))
		for i := range 4 {
			r.Start(0, i == 1)
			r.Keep()
		}
		require.Equal(t, 4, r.Commit())
		r.Refused(took)
		assert.Equal(t, took > 1, r.Signaled(), "took %d", took)
		assert.Equal(t, took == 1 || took > 2, r.NeedsMarker(), "took %d", took)
		if took < 4 {
			fill(t, r, 4-took, false)
			assert.Equal(t, took > 1, r.Signaled(), "took %d, and the rest unsignaled", took)
			assert.True(t, r.NeedsMarker(), "took %d, and the rest unsignaled", took)
		}
	}
}

// InFlight takes no lock, and so it may be late; but it is never out of range.
func TestInFlightStaysInRange(t *testing.T) {
	const depth = 8
	var table Table
	q, err := table.New(depth, 0)
	require.NoError(t, err)
	var stop atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		s := table.Settler()
		for !stop.Load() {
			s.Complete(post(q, Send, 1, true), true)
			s.Flush()
		}
	}()
	defer func() { stop.Store(true); <-done }()
	for end := time.Now().Add(time.Second); time.Now().Before(end); {
		for range 1000 {
			n := q.Send.InFlight()
			require.GreaterOrEqual(t, n, 0)
			require.LessOrEqual(t, n, depth)
		}
	}
}

// A row that begins with a wr_id that is not posted yet is empty, and does not look at the
// slot, which a poster may be building.
func TestRowOfAnEmptyRing(t *testing.T) {
	var table Table
	q, err := table.New(4, 0)
	require.NoError(t, err)
	u := entered(t)
	tok := post(q, Send, 1, true, u)
	s := table.Settler()
	_, _, o := s.Complete(tok, true)
	require.Equal(t, Ours, o)
	building := make(chan struct{})
	go func() {
		defer close(building)
		q.Send.Begin(1)
		q.Send.Start(2, true)
		q.Send.Use(u)
		q.Send.Keep()
	}()
	row := s.Begin(tok + 1)
	assert.Zero(t, row, "it looked at a slot")
	_, ok := row.Take(0, tok+1)
	assert.False(t, ok)
	<-building
	s.Flush()
	assert.Zero(t, u.InFlight())
	assert.Equal(t, 1, q.Send.Commit())
	assert.Equal(t, 1, u.InFlight())
	user, _, o := settle(&table, tok+1, true)
	assert.Equal(t, Ours, o)
	assert.EqualValues(t, 2, user)
}

// A Settler keeps its ring at hand from poll to poll, but not over a reset, which empties it.
func TestRingAtHandIsReset(t *testing.T) {
	var table Table
	q, err := table.New(4, 0)
	require.NoError(t, err)
	u := entered(t)
	s := table.Settler()
	for gen := range 3 {
		first, lost := post(q, Send, 1, true, u), post(q, Send, 2, true, u)
		_, _, o := settleBy(&s, first, true)
		require.Equal(t, Ours, o, "generation %d", gen)
		require.Equal(t, 1, u.InFlight())
		q.Reset()
		require.Zero(t, u.InFlight())
		_, _, o = settleBy(&s, lost, true)
		require.Equal(t, Late, o)
	}
	last := post(q, Send, 3, true, u)
	q.Reset()
	again := post(q, Send, 4, true, u) // with nothing settled since
	user, _, o := settleBy(&s, again, true)
	assert.Equal(t, Ours, o)
	assert.EqualValues(t, 4, user)
	table.Retire(q)
	_, _, o = settleBy(&s, last, true)
	assert.Equal(t, Late, o)
	assert.Zero(t, u.InFlight())
	assert.Zero(t, q.Send.InFlight())
}

// Who sees the ring empty may close what was used.
func TestEmptyRingUsesNothing(t *testing.T) {
	var table Table
	q, err := table.New(1, 0)
	require.NoError(t, err)
	used := entered(t)
	tokens := make(chan uint64)
	defer close(tokens)
	go func() {
		s, success := table.Settler(), false
		for tok := range tokens {
			success = !success // by turns in a row and not
			settleBy(&s, tok, success)
		}
	}()
	for range 100_000 {
		tokens <- post(q, Send, 1, true, used)
		for q.Send.InFlight() > 0 {
			runtime.Gosched()
		}
		if !assert.Zero(t, used.InFlight()) {
			return
		}
	}
}

// Nor need he wait for the rest of the poll, of another ring, or of what was shared.
func TestEmptyRingUsesNothingInTheMiddleOfAPoll(t *testing.T) {
	var table Table
	a, err := table.New(4, 4)
	require.NoError(t, err)
	b, err := table.New(4, 0)
	require.NoError(t, err)
	used := entered(t)
	for _, kind := range []Kind{Send, Recv, Shared} {
		for _, success := range []bool{true, false} {
			first, second := post(a, kind, 1, true, used), post(b, Send, 2, true, used)
			s := table.Settler()
			_, _, o := s.Complete(first, success)
			require.Equal(t, Ours, o)
			s.Begin(second)
			require.Zero(t, a.poster(kind).InFlight())
			assert.Equal(t, 1, used.InFlight(), "%v: that of the second", kind)
			_, _, o = s.Complete(second, success)
			require.Equal(t, Ours, o)
			s.Flush()
			assert.Zero(t, used.InFlight())
		}
	}
	// Those of a shared queue are told on several completion queues.
	first, second := post(a, Shared, 1, true, used), post(a, Shared, 2, true, used)
	one, other := table.Settler(), table.Settler()
	one.Complete(first, true)
	other.Complete(second, true)
	other.Flush()
	require.Zero(t, a.Shared.InFlight())
	assert.Zero(t, used.InFlight())
	one.Flush()
}
