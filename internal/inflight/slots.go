package inflight

import "slices"

// slot is what is kept of one work request in flight.
type slot struct {
	wrID uint64
	// signaled is the position after the last signaled work request up to this one;
	// the slot's own if it is signaled.
	signaled uint32
	// uses are the indices of what it uses. Zero ends them, or more: the slot's extra
	// has the rest.
	uses [3]uint32
}

const more = 1<<32 - 1

// extra is beside the few slots that use many things or have an effect.
type extra struct {
	uses   []uint32
	effect Effect
}

// Effect is what a work request changes besides memory: it binds or invalidates a
// memory window.
type Effect interface {
	// Done is told, under the lock of a completion queue, when the work request has
	// completed, and whether with success.
	Done(ok bool)
	// Refused is told when the device did not take it, under the same lock; and when it is
	// not posted at all, since what it uses is closed by now.
	Refused()
}

// Slots is the posting side of a work queue. The work requests of one batch are built
// one after another: Start, then Use and Effect, then Keep. The caller holds the post
// lock.
type Slots struct {
	slots  []slot
	extras []extra // parallel to slots; made when first needed
	mask   uint32
	token  Token // of position 0

	// signaled is the position after the last signaled work request before the batch: the
	// slot that knew it may be one of the batch's.
	signaled uint32
	first    uint32   // position of the batch's first work request
	list     []uint32 // positions of the batch, where they do not follow one another
	n        uint32   // kept
	cur      uint32   // index in slots of the one being built

	// uses are what the work requests of the batch use, one after another; kept is how
	// many are of those that were kept. Until Commit has counted them a thing may be
	// closed, and its index be another's: so these are pointers.
	uses []use
	kept int
	sums []use // uses, added up
}

// use is the use of a thing by n work requests of the batch, of which first is the
// first.
type use struct {
	u        *Used
	n, first uint32
}

func (s *Slots) begin(first uint32, list []uint32) {
	s.first, s.list, s.n = first, list, 0
	s.uses, s.kept = s.uses[:0], 0
}

func (s *Slots) pos(i uint32) uint32 {
	if s.list != nil {
		return s.list[i]
	}
	return s.first + i
}

// lastSignaled returns the position after the last signaled work request before the
// batch's work request n.
func (s *Slots) lastSignaled(n uint32) uint32 {
	if n == 0 {
		return s.signaled
	}
	return s.slots[(s.first+n-1)&s.mask].signaled
}

// Start begins a work request, of which there must be room, and returns its wr_id
// for the device. A work request that is not kept is forgotten. Receives are all
// signaled.
func (s *Slots) Start(wrID uint64, signaled bool) Token {
	pos := s.pos(s.n)
	last := pos + 1
	if !signaled {
		last = s.lastSignaled(s.n)
	}
	s.uses = s.uses[:s.kept]
	s.cur = pos & s.mask
	s.slots[s.cur] = slot{wrID: wrID, signaled: last}
	return s.token | Token(pos&posMask)
}

// Row is the places of a ring for work requests that follow one another and use the same
// thing and nothing else. With it they are built in fewer steps than by Start, Use and
// Keep. It fits in registers.
type Row struct {
	slots []slot
	token Token // of the first
}

// Row begins a row, which EndRow ends: its places, up to where the ring begins anew; the
// position of the first; and the one after the last signaled work request before it.
func (r *Ring) Row() (w Row, pos, signaled uint32) {
	pos = r.first + r.n
	return Row{r.slots[pos&r.mask:], r.token | Token(pos&posMask)}, pos, r.lastSignaled(r.n)
}

// Len returns how many places there are.
func (w Row) Len() int { return len(w.slots) }

// Put puts a work request that uses u at place i, and returns its wr_id for the device.
// signaled is the position after the last signaled work request up to it.
func (w Row) Put(i int, wrID uint64, signaled uint32, u *Used) Token {
	sl := &w.slots[i]
	sl.wrID, sl.signaled = wrID, signaled
	sl.uses = [3]uint32{u.index}
	return w.token + Token(i)
}

// EndRow makes a row of n work requests that use u a part of the batch.
func (r *Ring) EndRow(n int, u *Used) {
	if n > 0 {
		r.uses = append(r.uses[:r.kept], use{u, uint32(n), r.n})
		r.kept++
		r.n += uint32(n)
	}
}

// Use adds a thing that the work request uses; again has no effect. It reports
// whether the thing may be used; Commit has the last word.
func (s *Slots) Use(u *Used) bool {
	uses := &s.slots[s.cur].uses
	for i := 0; i < len(uses) && uses[i] != more; i++ {
		switch uses[i] {
		case u.index:
			return true
		case 0:
			uses[i] = u.index
			return s.use(u)
		}
	}
	e := s.extra()
	if slices.Contains(e.uses, u.index) {
		return true
	}
	e.uses = append(e.uses, u.index)
	return s.use(u)
}

func (s *Slots) use(u *Used) bool {
	s.uses = append(s.uses, use{u, 1, s.n})
	return !u.Refusing()
}

// Effect sets what the work request changes.
func (s *Slots) Effect(e Effect) { s.extra().effect = e }

// extra returns the current slot's, emptied when it is first asked for.
func (s *Slots) extra() *extra {
	e := s.extraAt(s.pos(s.n))
	uses := &s.slots[s.cur].uses
	at := slices.IndexFunc(uses[:], func(index uint32) bool { return index == 0 || index == more })
	if at < 0 {
		at = len(uses) - 1
	}
	if uses[at] != more {
		e.effect, e.uses = nil, e.uses[:0]
		if uses[at] != 0 {
			e.uses = append(e.uses, uses[at])
		}
		uses[at] = more
	}
	return e
}

func (s *Slots) extraAt(pos uint32) *extra {
	if len(s.extras) < len(s.slots) {
		s.extras = append(s.extras, make([]extra, len(s.slots)-len(s.extras))...)
	}
	return &s.extras[pos&s.mask]
}

// Keep ends a work request: it is part of the batch.
func (s *Slots) Keep() {
	s.n++
	s.kept = len(s.uses)
}

// acquire counts the uses of the batch. If a thing was closed since Use, the batch
// ends before the first work request that uses it.
func (s *Slots) acquire() {
	// The pointers go at once: what is closed later is not to be kept in memory by them.
	if s.kept == 1 && len(s.uses) == 1 {
		if use := &s.uses[0]; use.u.acquire(uint64(use.n)) {
			use.u = nil
			return
		}
	}
	for !s.tryAcquire() {
	}
	clear(s.uses)
	clear(s.sums)
}

func (s *Slots) tryAcquire() bool {
	s.sum()
	for k, sum := range s.sums {
		if sum.u.acquire(uint64(sum.n)) {
			continue
		}
		for _, u := range s.sums[:k] {
			u.u.release(uint64(u.n))
		}
		s.cut(sum.first)
		return false
	}
	return true
}

// sum adds up how often the batch uses each thing.
func (s *Slots) sum() {
	s.sums = s.sums[:0]
next:
	for _, u := range s.uses[:s.kept] {
		// Nearly always the same few things; among many a second entry does no harm.
		for k := len(s.sums) - 1; k >= 0 && k >= len(s.sums)-8; k-- {
			if s.sums[k].u == u.u {
				s.sums[k].n += u.n
				continue next
			}
		}
		s.sums = append(s.sums, u)
	}
}

// cut ends the batch before its work request at, and tells the effects of the rest.
func (s *Slots) cut(at uint32) {
	for i := at; i < s.n; i++ {
		pos := s.pos(i)
		if uses := s.slots[pos&s.mask].uses; slices.Contains(uses[:], more) {
			if e := s.extraAt(pos); e.effect != nil {
				e.effect.Refused()
				e.effect = nil
			}
		}
	}
	s.n = at
	for s.kept > 0 && s.uses[s.kept-1].first >= at {
		s.kept--
	}
	if s.kept > 0 {
		last := &s.uses[s.kept-1] // which may be of several work requests
		last.n = min(last.n, at-last.first)
	}
}

// give tells the effect of the slot at pos, and then gives back what it uses: until the
// effect is told nothing of it may be closed.
func (s *Slots) give(pos uint32, tell func(Effect), rel *Released) {
	uses := &s.slots[pos&s.mask].uses
	var e *extra
	if uses[0] == more || uses[1] == more || uses[2] == more {
		e = s.extraAt(pos)
		if e.effect != nil {
			tell(e.effect)
			e.effect = nil
		}
	}
	for _, index := range uses {
		switch index {
		case 0:
			return
		case more:
			for _, index := range e.uses {
				rel.add(index)
			}
			return
		}
		rel.add(index)
	}
}

func succeeded(e Effect) { e.Done(true) }
func failed(e Effect)    { e.Done(false) }
func refused(e Effect)   { e.Refused() }
