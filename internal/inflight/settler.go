package inflight

// Settler settles the completions of one completion queue, whose lock its caller
// holds. Most completions are of the ring of the one before, which it keeps at hand: what
// they give back, it gives back in Flush.
type Settler struct {
	table  *Table
	ring   *Ring  // at hand, or nil
	token  Token  // of the ring, as it was
	tail   uint32 // of the ring; stored in Flush
	stored uint32 // the tail as it is in the ring
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
	if !s.has(wrID) {
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

// has reports whether the ring at hand is that of a token. One that was reset or retired
// meanwhile has another token, and is to be taken at hand anew.
func (s *Settler) has(wrID uint64) bool {
	return (uint64(s.token)^wrID)>>posBits == 0 && s.ring != nil && s.ring.token == s.token
}

// Finished is the slots of a ring from the oldest on. With it completions in a row, of work
// requests that have succeeded in order and use the same thing and nothing else, are
// settled in fewer steps than by Complete. It fits in registers.
type Finished struct {
	slots []slot
	token uint64 // of the first
}

// Begin begins a row with the completion of wrID, which End ends. It may be empty.
func (s *Settler) Begin(wrID uint64) Finished {
	if !s.has(wrID) && !s.turnToRing(wrID) {
		return Finished{}
	}
	r := s.ring
	if s.head == s.tail {
		if s.head = r.head.Load(); s.head == s.tail {
			return Finished{} // and the slot may be a poster's at this moment
		}
	}
	slots := r.slots[s.tail&r.mask:]
	if slots[0].uses[0] == more || slots[0].uses[1] != 0 {
		return Finished{}
	}
	s.rel.turn(slots[0].uses[0])
	return Finished{slots[:min(len(slots), int(s.head-s.tail))], wrID&^posMask | uint64(s.tail&posMask)}
}

// Take takes completion i of the row, and returns the caller's own wr_id. It takes nothing
// if the completion does not belong to the row.
func (f Finished) Take(i int, wrID uint64) (user uint64, ok bool) {
	if i >= len(f.slots) || wrID != f.token+uint64(i) {
		return 0, false
	}
	sl := &f.slots[i]
	return sl.wrID, sl.uses[0] == f.slots[0].uses[0] && sl.uses[1] == 0
}

// Kind returns which queue of a queue pair the row is of.
func (f Finished) Kind() Kind { return Token(f.token).kind() }

// End ends a row of which n completions were taken.
func (s *Settler) End(n int) {
	s.tail += uint32(n)
	s.rel.n += uint64(n)
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
	s.Flush()
	tok := Token(wrID)
	q, o := s.table.find(tok)
	switch k = tok.kind(); {
	case o == Late:
		return 0, k, Late, true
	case o == Unknown:
		return wrID, Foreign, Unknown, true
	case k == Shared:
		user, ok := q.Shared.release(tok.pos(), success)
		if !ok {
			return wrID, Foreign, Unknown, true
		}
		return user, k, Ours, true
	case k == Send:
		s.ring = &q.Send
	default:
		s.ring = &q.Recv
	}
	s.tail, s.head = s.ring.tail.Load(), s.ring.head.Load()
	s.token, s.stored = s.ring.token, s.tail
	return 0, k, o, false
}

func (s *Settler) putBack() {
	if s.tail != s.stored {
		s.ring.tail.Store(s.tail)
		s.stored = s.tail
	}
	s.head = s.tail // by the next time it may be another, also a lower one
}

// Flush gives back what the completions since the last one released.
func (s *Settler) Flush() {
	s.rel.Flush() // before who waits for an empty ring can see it, and closes what was used
	s.putBack()
}
