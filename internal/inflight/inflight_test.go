package inflight

import (
	"math"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// post puts one work request on a ring and returns what the device would see.
func post(q *Queue, k Kind, wrID uint64, signaled bool) uint64 {
	r := &q.Send
	if k == Recv {
		r = &q.Recv
	}
	pos := r.Head()
	r.Set(pos, wrID, signaled)
	r.Publish(pos + 1)
	return uint64(q.Token(k, pos))
}

func free(r *Ring) int {
	n, _ := r.Room()
	return n
}

func signaled(r *Ring) bool {
	_, ok := r.Room()
	return ok
}

func TestTokenFieldsKeepTheirWidth(t *testing.T) {
	for _, k := range []Kind{Send, Recv} {
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

	user, k, o := table.Complete(third)
	assert.Equal(t, Ours, o)
	assert.Equal(t, Send, k)
	assert.EqualValues(t, 12, user)
	assert.Equal(t, 1, q.Send.InFlight())
	assert.False(t, signaled(&q.Send), "only the unsignaled fourth is left")

	_, _, o = table.Complete(third)
	assert.Equal(t, Unknown, o, "a second completion of the same work request is not ours")
	assert.Equal(t, 1, q.Send.InFlight())
}

func TestSendAndReceiveAreToldApart(t *testing.T) {
	var table Table
	q, err := table.New(1, 1)
	require.NoError(t, err)
	s, r := post(q, Send, 7, true), post(q, Recv, 7, true)
	_, k, _ := table.Complete(r)
	assert.Equal(t, Recv, k)
	_, k, _ = table.Complete(s)
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
		user, k, o := table.Complete(id)
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
	_, _, o := table.Complete(old)
	assert.Equal(t, Late, o)

	beforeRetire := post(q, Send, 2, true)
	table.Retire(q)
	_, _, o = table.Complete(beforeRetire)
	assert.Equal(t, Late, o)

	// The id comes back in time, and its late completion is still not the newer queue's.
	for n := 0; ; n++ {
		require.Less(t, n, 3*resting, "the id never came back")
		next, err := table.New(2, 2)
		require.NoError(t, err)
		if next.id == q.id {
			newer := post(next, Send, 3, true)
			_, _, o = table.Complete(beforeRetire)
			assert.Equal(t, Late, o)
			user, _, o := table.Complete(newer)
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
			user, _, o := table.Complete(tok)
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

// FuzzAgainstModel runs programs of posts, completions, refusals, resets and
// retirements against a list per queue.
func FuzzAgainstModel(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 4, 5, 0, 0, 0, 0, 0, 0, 2, 5, 2, 0})
	f.Add([]byte{0, 0, 0, 3, 0, 2, 4, 2, 0, 2, 1, 1, 5, 1, 2})
	f.Fuzz(func(t *testing.T, program []byte) {
		const depth = 5
		var table Table
		type issued struct {
			token, wrID uint64
			signaled    bool
		}
		var owned [2][]issued // by kind, oldest first
		var dead []uint64
		q, err := table.New(depth, depth)
		require.NoError(t, err)
		rings := func() [2]*Ring { return [2]*Ring{&q.Send, &q.Recv} }
		bury := func() {
			for i := range owned {
				for _, w := range owned[i] {
					dead = append(dead, w.token)
				}
				owned[i] = nil
			}
		}
		for step, op := range program {
			i := int(op>>3) & 1
			k := []Kind{Send, Recv}[i]
			arg := int(op >> 4)
			switch op & 7 {
			case 0, 1: // post
				if free(rings()[i]) > 0 {
					w := issued{wrID: uint64(step), signaled: op&1 == 0}
					w.token = post(q, k, w.wrID, w.signaled)
					owned[i] = append(owned[i], w)
				}
			case 2: // complete one, and with it all before
				if n := len(owned[i]); n > 0 {
					at := arg % n
					user, kind, o := table.Complete(owned[i][at].token)
					require.Equal(t, Ours, o)
					require.Equal(t, k, kind)
					require.Equal(t, owned[i][at].wrID, user)
					for _, w := range owned[i][:at+1] {
						_, _, o := table.Complete(w.token)
						require.Equal(t, Unknown, o, "a released slot completes no more")
					}
					owned[i] = owned[i][at+1:]
				}
			case 3: // post and be refused by the device
				r := rings()[i]
				if free(r) > 0 {
					r.Set(r.Head(), 999, true)
					r.Publish(r.Head() + 1)
					r.Publish(r.Head() - 1)
				}
			case 4:
				q.Reset()
				bury()
			case 5:
				table.Retire(q)
				bury()
				q, err = table.New(depth, depth)
				require.NoError(t, err)
			}
			for i, r := range rings() {
				require.Equal(t, len(owned[i]), r.InFlight())
				expect := false
				for _, w := range owned[i] {
					expect = expect || w.signaled
				}
				require.Equal(t, expect, signaled(r))
			}
			for _, tok := range dead {
				_, _, o := table.Complete(tok)
				require.Equal(t, Late, o)
			}
		}
	})
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
		user, _, o := table.Complete(tok)
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
	for b.Loop() {
		table.Complete(post(q, Send, 1, true))
	}
}

func TestHeadNeverFallsBehindTail(t *testing.T) {
	var table Table
	q, err := table.New(4, 0)
	require.NoError(t, err)
	head := q.Send.Head()
	tok := post(q, Send, 1, true)
	_, _, o := table.Complete(tok)
	require.Equal(t, Ours, o)
	q.Send.Publish(head) // and now the provider says that it refused what it completed
	assert.Zero(t, q.Send.InFlight())
	assert.Equal(t, 4, free(&q.Send))
}
