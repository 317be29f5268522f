package inflight

// Settler settles the completions of one completion queue, whose lock its caller
// holds. Most completions in a row are of one ring, which it keeps at hand: what they
// give back, it gives back in Flush.
type Settler struct {
	table  *Table
	prefix uint64 // of the tokens of the ring at hand
	ring   *Ring  // or nil
	tail   uint32 // of the ring; stored in Flush
	head   uint32 // of the ring, as it was
	rel    Released
}

// Settler returns one for the queues of t.
func (t *Table) Settler() Settler { return Settler{table: t} }

// Complete takes the wr_id of a completion and whether it reports success, and returns
// the caller's own wr_id and which queue it was on. A completion of a send or receive
// queue covers all earlier work requests of that queue, signaled or not: those have
// succeeded. Flush must follow, before the lock is given up.
func (s *Settler) Complete(wrID uint64, success bool) (user uint64, k Kind, o Outcome) {
	if wrID>>posBits != s.prefix || s.ring == nil {
		if user, k, o, settled := s.turn(wrID, success); settled {
			return user, k, o
		}
	}
	r := s.ring
	pos := s.tail + (uint32(wrID)-s.tail)&posMask
	if pos-s.tail >= s.head-s.tail && !s.posted(pos) {
		if pos == s.head && r.marked.CompareAndSwap(true, false) {
			for ; s.tail != pos; s.tail++ {
				r.give(s.tail, succeeded, &s.rel)
			}
			return 0, Send, Late
		}
		return wrID, Foreign, Unknown
	}
	for ; s.tail != pos; s.tail++ {
		r.give(s.tail, succeeded, &s.rel)
	}
	sl := &r.slots[pos&r.mask]
	switch {
	case sl.uses[1] == 0 && sl.uses[0] == s.rel.index:
		s.rel.n++
	case success:
		r.give(pos, succeeded, &s.rel)
	default:
		r.give(pos, failed, &s.rel)
	}
	s.tail = pos + 1
	return sl.wrID, Kind(wrID >> (64 - kindBits)), Ours
}

// Finished is a row of completions of one ring that have succeeded, in order, whose work
// requests use the same thing and nothing else. It does what Complete does, in fewer
// steps.
type Finished struct {
	slots      []slot
	prefix     uint64
	mask       uint32
	tail, head uint32
	index, n   uint32
}

// Begin begins a row with the completion of wrID, which End ends. It may be empty.
func (s *Settler) Begin(wrID uint64) Finished {
	if (wrID>>posBits != s.prefix || s.ring == nil) && !s.turnToRing(wrID) {
		return Finished{}
	}
	r := s.ring
	if s.head == s.tail {
		if s.head = r.head.Load(); s.head == s.tail {
			return Finished{} // and the slot may be a poster's at this moment
		}
	}
	index := r.slots[s.tail&r.mask].uses[0]
	if index == more {
		return Finished{}
	}
	if index != s.rel.index {
		s.rel.Flush()
		s.rel.index = index
	}
	return Finished{slots: r.slots, prefix: s.prefix, mask: r.mask, tail: s.tail, head: s.head, index: index}
}

// Take takes the next completion of the row, and returns the caller's own wr_id. It
// takes nothing if the completion does not belong to the row.
func (f *Finished) Take(wrID uint64) (user uint64, ok bool) {
	pos := f.tail
	if wrID != f.prefix<<posBits|uint64(pos&posMask) || pos == f.head {
		return 0, false
	}
	sl := &f.slots[pos&f.mask]
	if sl.uses[0] != f.index || sl.uses[1] != 0 {
		return 0, false
	}
	f.tail++
	f.n++
	return sl.wrID, true
}

// Kind returns which queue of a queue pair the row is of.
func (f *Finished) Kind() Kind { return Kind(f.prefix >> (64 - kindBits - posBits)) }

// End ends the row.
func (s *Settler) End(f *Finished) {
	if f.n > 0 {
		s.tail = f.tail
		s.rel.n += uint64(f.n)
	}
}

// turnToRing takes the ring of a token at hand, if it has one.
func (s *Settler) turnToRing(wrID uint64) bool {
	if Token(wrID).kind() == Shared {
		return false
	}
	_, _, _, settled := s.turn(wrID, true)
	return !settled
}

// posted reports whether pos was posted since the head was looked at.
func (s *Settler) posted(pos uint32) bool {
	s.head = s.ring.head.Load()
	return pos-s.tail < s.head-s.tail
}

// turn takes the ring of a token at hand, or settles the completion if there is none.
func (s *Settler) turn(wrID uint64, success bool) (user uint64, k Kind, o Outcome, settled bool) {
	s.putBack()
	tok := Token(wrID)
	q, o := s.table.find(tok)
	switch k = tok.kind(); {
	case o == Late:
		return 0, k, Late, true
	case o == Unknown:
		return wrID, Foreign, Unknown, true
	case k == Shared:
		user, ok := q.Shared.release(tok.pos(), success, &s.rel)
		if !ok {
			return wrID, Foreign, Unknown, true
		}
		return user, k, Ours, true
	case k == Send:
		s.ring = &q.Send
	default:
		s.ring = &q.Recv
	}
	s.prefix = wrID >> posBits
	s.tail, s.head = s.ring.tail.Load(), s.ring.head.Load()
	return 0, k, o, false
}

func (s *Settler) putBack() {
	if s.ring != nil {
		s.ring.tail.Store(s.tail)
		s.ring = nil
	}
}

// Flush gives back what the completions since the last one released.
func (s *Settler) Flush() {
	s.putBack()
	s.rel.Flush()
}
