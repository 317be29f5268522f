package inflight

import (
	"fmt"
	"sync"
	"sync/atomic"
)

// Queue is what one queue pair, or one shared receive queue, has in flight.
type Queue struct {
	id  uint32
	gen atomic.Uint32

	Send, Recv Ring
	Shared     Pool // of a shared receive queue

	// explained says that the reason why work requests come back flushed is known:
	// the program wanted it, or another completion has it.
	explained atomic.Bool
}

// Reset forgets all that is in flight and starts a new generation, so that
// completions that were posted before it are dropped. The caller has stopped
// posting and holds the locks of the queue's completion queues.
func (q *Queue) Reset() {
	q.setGen((q.gen.Load() + 1) & genMask)
	q.Send.clear()
	q.Recv.clear()
	q.Shared.clear()
	q.explained.Store(false)
}

func (q *Queue) setGen(gen uint32) {
	q.gen.Store(gen)
	q.Send.token = makeToken(Send, q.id, gen, 0)
	q.Recv.token = makeToken(Recv, q.id, gen, 0)
	q.Shared.token = makeToken(Shared, q.id, gen, 0)
}

// Explain says that work requests will come back flushed because the program took
// the queue pair to ERR. If it could not be, undo takes that back.
func (q *Queue) Explain() (undo func()) {
	was := q.explained.Swap(true)
	return func() { q.explained.Store(was) }
}

const chunkBits = 10

// resting is how many ids wait before the oldest is used again, so that
// generations turn over slowly.
const resting = 1 << 12

type chunk [1 << chunkBits]entry

type entry struct {
	queue atomic.Pointer[Queue]
	used  atomic.Bool   // an id that was never given out cannot have completions
	gen   atomic.Uint32 // where the next queue with this id goes on
}

// Table finds queues by id. Lookups take no lock; it grows by chunks, which never
// move.
type Table struct {
	chunks [MaxQueues >> chunkBits]atomic.Pointer[chunk]

	mu   sync.Mutex
	next uint32   // ids never given out
	free []uint32 // ids given back, oldest first
}

// Queues is the table of this process: a completion queue may be shared by queue
// pairs of the same device, and ids stay unique across devices.
var Queues Table

// New makes a queue with rings of the given depths and gives it an id.
func (t *Table) New(sendDepth, recvDepth int) (*Queue, error) {
	for _, d := range []int{sendDepth, recvDepth} {
		if d < 0 || d > MaxDepth {
			return nil, fmt.Errorf("a queue of %d work requests is deeper than the %d that can be tracked", d, MaxDepth)
		}
	}
	q := new(Queue)
	q.Send.init(uint32(sendDepth))
	q.Recv.init(uint32(recvDepth))
	q.Shared.init()

	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case len(t.free) > resting || t.next == MaxQueues && len(t.free) > 0:
		q.id = t.free[0]
		t.free = t.free[1:]
	case t.next < MaxQueues:
		q.id = t.next
		t.next++
	default:
		return nil, ErrTooMany
	}
	c := &t.chunks[q.id>>chunkBits]
	if c.Load() == nil {
		c.Store(new(chunk))
	}
	e := t.entry(q.id)
	q.setGen(e.gen.Load())
	e.used.Store(true)
	e.queue.Store(q)
	return q, nil
}

// Retire takes q out: its late completions will be dropped. The caller has
// destroyed the queue pair and holds the locks of its completion queues, or has
// destroyed the shared receive queue.
func (t *Table) Retire(q *Queue) {
	q.Reset()
	q.Send.slots, q.Recv.slots = nil, nil // a Settler may have a ring at hand for long
	e := t.entry(q.id)
	e.gen.Store(q.gen.Load())
	e.queue.Store(nil)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.free = append(t.free, q.id)
}

func (t *Table) entry(id uint32) *entry {
	c := t.chunks[id>>chunkBits].Load()
	if c == nil {
		return nil
	}
	return &c[id&(1<<chunkBits-1)]
}

// Outcome is what became of a completion's wr_id.
type Outcome uint8

const (
	// Ours: it was in flight; its slot and those that it covers are released.
	Ours Outcome = iota
	// Late: it belongs to a queue that was destroyed or reset, and is dropped.
	Late
	// Unknown: it was not posted through this table, and passes through as it is.
	Unknown
)

// find returns the queue that a wr_id belongs to, if it is alive.
func (t *Table) find(tok Token) (*Queue, Outcome) {
	if tok.kind() == Foreign {
		return nil, Unknown
	}
	e := t.entry(tok.queue())
	if e == nil || !e.used.Load() {
		return nil, Unknown
	}
	q := e.queue.Load()
	if q == nil {
		return nil, Late
	}
	// Generations are compared as a circle: the half behind the current one is
	// the past, the half before it was never given out.
	switch age := (q.gen.Load() - tok.gen()) & genMask; {
	case age > genMask/2:
		return nil, Unknown
	case age > 0:
		return nil, Late
	}
	return q, Ours
}

// Dead reports whether a wr_id belongs to a queue that was destroyed or reset.
func (t *Table) Dead(wrID uint64) bool {
	_, o := t.find(Token(wrID))
	return o == Late
}

// Owns reports whether a wr_id belongs to q, as it is now.
func (t *Table) Owns(q *Queue, wrID uint64) bool {
	found, o := t.find(Token(wrID))
	return o == Ours && found == q
}

// Explained notes a failed completion and reports whether the program can know why
// it failed: always, but for a flush on a queue that the program did not take to ERR
// and of which no other completion has told a reason.
func (t *Table) Explained(wrID uint64, flushed bool) bool {
	q, o := t.find(Token(wrID))
	if o != Ours || Token(wrID).kind() == Shared {
		return true // nothing is known of the queue pair
	}
	if !flushed {
		q.explained.Store(true)
	}
	return q.explained.Load()
}
