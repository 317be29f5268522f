package inflight

import "sync"

// Pool holds the slots of a shared receive queue, which complete in any order. The
// provider decides when the queue is full, so a pool grows as it is asked to.
//
// The poster holds the queue's post lock. Slots are released under the lock of some
// completion queue, which need not be the same for any two of them. So the pool has
// a lock of its own, never held across a call into C.
type Pool struct {
	Slots
	held  []uint32 // the poster's free slots
	batch []uint32 // those of the batch: the first of held until Commit

	mu   sync.Mutex // what follows, and the slots while they grow
	free []uint32
	busy []bool
	used int // busy
}

const poolChunk = 256

func (p *Pool) init() { p.mask = 1<<32 - 1 }

// InFlight returns how many receives are posted and not yet completed.
func (p *Pool) InFlight() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.used
}

// Begin begins a batch and returns for how many work requests there is room, at
// most want.
func (p *Pool) Begin(want int) (room int) {
	if len(p.held) < want {
		p.refill(want)
	}
	room = min(want, len(p.held))
	p.batch = append(p.batch[:0], p.held[:room]...)
	p.begin(0, p.batch)
	return room
}

func (p *Pool) refill(want int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		n := min(want-len(p.held), len(p.free))
		rest := len(p.free) - n
		p.held = append(p.held, p.free[rest:]...)
		p.free = p.free[:rest]
		if len(p.held) == want || len(p.busy) >= MaxDepth {
			return
		}
		p.grow()
	}
}

func (p *Pool) grow() {
	first := uint32(len(p.busy))
	p.slots = append(p.slots, make([]slot, poolChunk)...)
	p.extras = append(p.extras, make([]extra, poolChunk)...)
	p.busy = append(p.busy, make([]bool, poolChunk)...)
	for i := range uint32(poolChunk) {
		p.free = append(p.free, first+i)
	}
}

// Commit is as Ring's.
func (p *Pool) Commit() int {
	p.acquire()
	n := int(p.n)
	p.held = append(p.held[:0], p.held[n:]...)
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, pos := range p.batch[:n] {
		p.busy[pos] = true
	}
	p.used += n
	return n
}

// Refused is as Ring's, but needs no lock of a completion queue.
func (p *Pool) Refused(took int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, pos := range p.batch[took:p.n] {
		p.give(pos, refused)
	}
}

// release gives back the slot at pos and returns its caller's wr_id.
func (p *Pool) release(pos uint32, ok bool) (wrID uint64, ours bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if int(pos) >= len(p.busy) || !p.busy[pos] {
		return 0, false
	}
	tell := failed
	if ok {
		tell = succeeded
	}
	p.give(pos, tell)
	return p.slots[pos].wrID, true
}

// clear releases all slots: their work requests will not complete.
func (p *Pool) clear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for pos, busy := range p.busy {
		if busy {
			p.give(uint32(pos), failed)
		}
	}
}

func (p *Pool) give(pos uint32, tell func(Effect)) {
	if !p.busy[pos] {
		return // of a provider that completes what it also refused
	}
	var rel Released
	p.Slots.give(pos, tell, &rel)
	p.busy[pos] = false
	p.free = append(p.free, pos)
	rel.Flush() // before who sees the pool empty closes what was used
	p.used--
}
