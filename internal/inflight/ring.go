package inflight

import "sync/atomic"

// Ring holds the slots of one work queue, in the order in which they were posted.
//
// It has one producer and one consumer: the caller of Reserve, Set and Shrink
// holds the queue's post lock, the caller of release the lock of the completion
// queue that the work queue reports to. Neither ever needs the other's.
type Ring struct {
	slots []slot
	mask  uint32
	depth uint32
	head  atomic.Uint32 // next position to post, moved before the device is told
	tail  atomic.Uint32 // oldest position not yet completed
}

type slot struct {
	wrID uint64
	// signaled is the position after the last signaled work request up to this one;
	// the slot's own if it is signaled.
	signaled uint32
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
func (r *Ring) InFlight() int { return int(r.head.Load() - r.tail.Load()) }

// Room returns how many more work requests fit, and whether a completion is to be
// expected of those that are there: a ring of only unsignaled work requests never
// empties by itself. The caller holds the post lock.
func (r *Ring) Room() (free int, signaled bool) {
	head, tail := r.head.Load(), r.tail.Load()
	if n := head - tail; n > 0 {
		last := r.slots[(head-1)&r.mask].signaled
		return int(r.depth - n), head-last < n
	}
	return int(r.depth), false
}

// Head returns the position that the next work request will have.
func (r *Ring) Head() uint32 { return r.head.Load() }

// Set records the work request of position pos, of which there must be room.
// Positions are set in order.
func (r *Ring) Set(pos uint32, wrID uint64, signaled bool) {
	last := r.slots[(pos-1)&r.mask].signaled
	if signaled {
		last = pos + 1
	}
	r.slots[pos&r.mask] = slot{wrID, last}
}

// Publish makes the positions below head visible to the poller. It comes before
// the call that tells the device, and again with a lower head if the device
// refused some.
func (r *Ring) Publish(head uint32) {
	// A provider that completes what it also refused must not turn the ring over.
	if tail := r.tail.Load(); int32(head-tail) < 0 {
		head = tail
	}
	r.head.Store(head)
}

// release gives back every slot up to the one that pos (the low bits of a
// position) names, and returns its caller's wr_id. A completion of a work queue
// covers all earlier work requests of that queue, signaled or not.
func (r *Ring) release(low uint32) (wrID uint64, ok bool) {
	tail := r.tail.Load()
	pos := tail + (low-tail)&posMask
	if pos-tail >= r.head.Load()-tail {
		return 0, false
	}
	wrID = r.slots[pos&r.mask].wrID
	r.tail.Store(pos + 1)
	return wrID, true
}

func (r *Ring) clear() { r.tail.Store(r.head.Load()) }
