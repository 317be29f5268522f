package inflight

import "sync/atomic"

// Ring holds the slots of a send or receive queue, in the order in which they were
// posted.
//
// It has one producer and one consumer: the poster holds the queue's post lock,
// whoever releases slots the lock of the completion queue that the work queue
// reports to.
type Ring struct {
	Slots
	depth  uint32
	before uint32        // signaled, as it was before the last Commit
	head   atomic.Uint32 // next position to post, moved before the device is told
	tail   atomic.Uint32 // oldest position not yet completed
	// marked says that a marker was posted behind the last work request.
	marked atomic.Bool
}

func (r *Ring) init(depth uint32) {
	size := uint32(1)
	for size < depth {
		size <<= 1
	}
	r.slots = make([]slot, size)
	r.mask, r.depth = size-1, depth
}

// Depth returns how many work requests the ring holds.
func (r *Ring) Depth() int { return int(r.depth) }

// InFlight returns how many work requests are posted and not yet completed.
func (r *Ring) InFlight() int {
	tail := r.tail.Load() // first: it is never beyond the head
	return min(int(r.head.Load()-tail), r.Depth())
}

// Begin begins a batch and returns for how many work requests there is room, at
// most want.
func (r *Ring) Begin(want int) (room int) {
	head := r.head.Load()
	r.begin(head, nil)
	return min(want, int(r.depth-(head-r.tail.Load())))
}

// Signaled reports whether a completion is to be expected of the work requests in
// flight: a ring of only unsignaled ones never empties by itself. The caller holds
// the post lock.
func (r *Ring) Signaled() bool {
	head := r.head.Load()
	n := head - r.tail.Load()
	return n > 0 && head-r.signaled < n
}

// NeedsMarker reports whether the last work request in flight is unsignaled, so that
// nothing will tell that it has succeeded. The caller holds the post lock.
func (r *Ring) NeedsMarker() bool {
	head := r.head.Load()
	return head != r.tail.Load() && r.signaled != head && !r.marked.Load()
}

// Marked reports whether a marker was posted of whose completion nobody has been told yet.
func (r *Ring) Marked() bool { return r.marked.Load() }

// Mark has post post a marker: a signaled work request without a slot, behind all others,
// whose completion covers them and is not told. Nothing may be posted after it while the
// ring is Marked. The caller holds the post lock.
func (r *Ring) Mark(post func(wrID Token) (ok bool)) {
	r.marked.Store(true)
	if !post(r.token | Token(r.head.Load()&posMask)) {
		r.marked.Store(false)
	}
}

// Commit makes the batch's slots visible to Complete and returns how many there
// are: fewer than were kept if something that they use was closed meanwhile. The
// device is told after it.
func (r *Ring) Commit() int {
	r.acquire()
	r.before, r.signaled = r.signaled, r.lastSignaled(r.n)
	r.head.Store(r.first + r.n)
	return int(r.n)
}

// Refused takes back the batch from its work request took on, which the device
// refused. The caller holds the lock of the completion queue too.
func (r *Ring) Refused(took int) {
	from, end := r.first+uint32(took), r.first+r.n
	// A provider that completes what it also refused must not turn the ring over.
	if tail := r.tail.Load(); int32(from-tail) < 0 {
		from = tail
	}
	r.signaled = r.before
	if from != r.first {
		r.signaled = r.slots[(from-1)&r.mask].signaled
	}
	var rel Released
	for pos := from; pos != end; pos++ {
		r.give(pos, refused, &rel)
	}
	rel.Flush()
	r.head.Store(from)
}

// clear releases all slots: their work requests will not complete.
func (r *Ring) clear() {
	head := r.head.Load()
	var rel Released
	for p := r.tail.Load(); p != head; p++ {
		r.give(p, failed, &rel)
	}
	rel.Flush()
	r.tail.Store(head)
	r.marked.Store(false)
}
