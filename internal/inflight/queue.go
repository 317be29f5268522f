package inflight

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
)

// Queue is what one queue pair has in flight.
type Queue struct {
	id  uint32
	gen atomic.Uint32

	Send, Recv Ring
}

// Token returns the wr_id to give to the device for position pos.
func (q *Queue) Token(k Kind, pos uint32) Token {
	return makeToken(k, q.id, q.gen.Load(), pos)
}

// Reset forgets all that is in flight and starts a new generation, so that
// completions that were posted before it are dropped. The caller has stopped
// posting and holds the locks of the queue's completion queues.
func (q *Queue) Reset() {
	q.gen.Store((q.gen.Load() + 1) & genMask)
	q.Send.clear()
	q.Recv.clear()
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

var errTooMany = errors.New("too many queue pairs in this process")

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
		return nil, errTooMany
	}
	c := &t.chunks[q.id>>chunkBits]
	if c.Load() == nil {
		c.Store(new(chunk))
	}
	e := t.entry(q.id)
	q.gen.Store(e.gen.Load())
	e.used.Store(true)
	e.queue.Store(q)
	return q, nil
}

// Retire takes q out: its late completions will be dropped. The caller has
// destroyed the queue pair and holds the locks of its completion queues.
func (t *Table) Retire(q *Queue) {
	q.Reset()
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
	// Ours: it was in flight; its slot and all earlier ones are released.
	Ours Outcome = iota
	// Late: it belongs to a queue that was destroyed or reset, and is dropped.
	Late
	// Unknown: it was not posted through this table, and passes through as it is.
	Unknown
)

// Complete takes the wr_id of a completion, releases what it covers and returns
// the caller's own wr_id and which queue it was on. The caller holds the lock of
// the completion queue that it came from.
func (t *Table) Complete(wrID uint64) (user uint64, k Kind, o Outcome) {
	tok := Token(wrID)
	k = tok.kind()
	if k != Send && k != Recv {
		return wrID, Foreign, Unknown
	}
	e := t.entry(tok.queue())
	if e == nil || !e.used.Load() {
		return wrID, Foreign, Unknown
	}
	q := e.queue.Load()
	if q == nil {
		return 0, k, Late
	}
	// Generations are compared as a circle: the half behind the current one is
	// the past, the half before it was never given out.
	switch age := (q.gen.Load() - tok.gen()) & genMask; {
	case age > genMask/2:
		return wrID, Foreign, Unknown
	case age > 0:
		return 0, k, Late
	}
	ring := &q.Send
	if k == Recv {
		ring = &q.Recv
	}
	if user, ok := ring.release(tok.pos()); ok {
		return user, k, Ours
	}
	return wrID, Foreign, Unknown
}
