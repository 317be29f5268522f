package inflight

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/goverbs/goverbs/internal/fdwait"
)

// Used counts the work requests in flight that use one thing. It is embedded in
// the thing's inner state. Its methods may be called from several goroutines.
type Used struct {
	word  atomic.Uint64 // refusing, watched and the count
	index uint32        // in the table, from 1

	mu    sync.Mutex
	users int           // goroutines in Wait
	shut  bool          // closed, or being closed
	zero  chan struct{} // closed when the count reaches zero; nil if nobody waits
	idle  func()
}

const (
	refusing  = 1 << 63
	watched   = 1 << 62 // somebody wants to know when the count is zero
	countMask = watched - 1
)

// ErrTooMany says that the process has more objects than can be told apart.
var ErrTooMany = errors.New("too many queue pairs, memory regions or address handles in this process")

const (
	maxUsed   = 1 << 24
	usedChunk = 1 << 10
)

// things finds a Used by its index. Slots hold indices, so that the collector has
// nothing to look for in a queue of a million work requests.
var things struct {
	chunks [maxUsed / usedChunk]atomic.Pointer[[usedChunk]atomic.Pointer[Used]]

	mu   sync.Mutex
	next uint32
	free []uint32
}

// Enter makes the thing known, so that work requests can use it.
func (u *Used) Enter() error {
	t := &things
	t.mu.Lock()
	defer t.mu.Unlock()
	switch n := len(t.free); {
	case n > 0:
		u.index = t.free[n-1]
		t.free = t.free[:n-1]
	case t.next+1 < maxUsed:
		t.next++
		u.index = t.next
	default:
		return ErrTooMany
	}
	c := &t.chunks[u.index/usedChunk]
	if c.Load() == nil {
		c.Store(new([usedChunk]atomic.Pointer[Used]))
	}
	c.Load()[u.index%usedChunk].Store(u)
	return nil
}

// BusyError says that work requests in flight use what was to be closed. It matches
// syscall.EBUSY.
type BusyError struct{ InFlight int }

func (e *BusyError) Error() string {
	return fmt.Sprintf("%d work requests in flight use it: poll their completions first", e.InFlight)
}

func (e *BusyError) Unwrap() error { return syscall.EBUSY }

// CloseUsed refuses further uses, has close end the thing, and gives the index back.
// With uses in flight, or if close fails, it changes nothing.
func (u *Used) CloseUsed(close func() error) error {
	u.mu.Lock()
	wasShut := u.shut
	u.mu.Unlock()
	if n := u.Shut(); n > 0 {
		return &BusyError{n}
	}
	if err := close(); err != nil {
		if !wasShut {
			u.Reopen()
		}
		return err
	}
	u.Leave()
	return nil
}

// Leave gives the index back. Nothing uses the thing, so no slot has it.
func (u *Used) Leave() {
	t := &things
	t.mu.Lock()
	defer t.mu.Unlock()
	t.chunks[u.index/usedChunk].Load()[u.index%usedChunk].Store(nil)
	t.free = append(t.free, u.index)
}

func usedAt(index uint32) *Used {
	return things.chunks[index/usedChunk].Load()[index%usedChunk].Load()
}

// InFlight returns how many work requests in flight use the thing.
func (u *Used) InFlight() int { return int(u.word.Load() & countMask) }

// Refusing reports whether posts that use the thing are refused.
func (u *Used) Refusing() bool { return u.word.Load()&refusing != 0 }

// Shut refuses further uses, unless some are in flight: then it changes nothing
// and returns how many.
func (u *Used) Shut() (inFlight int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for {
		word := u.word.Load()
		if n := int(word & countMask); n > 0 {
			return n
		}
		if u.word.CompareAndSwap(word, word|refusing) {
			u.shut = true
			return 0
		}
	}
}

// Reopen takes Shut back.
func (u *Used) Reopen() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.shut = false
	u.mayAllow()
}

// mayAllow lets the thing be used again if nobody keeps it from that.
func (u *Used) mayAllow() {
	if !u.shut && u.users == 0 {
		u.word.And(^uint64(refusing))
	}
}

// Wait refuses further uses and waits until none is in flight. Then they stay
// refused until allow is called; if ctx ends first they are allowed again, and Wait fails
// with fdwait.Cause(ctx).
func (u *Used) Wait(ctx context.Context) (allow func(), err error) {
	done := ctx.Done() // before anything is changed: ctx may be nil
	u.mu.Lock()
	u.users++
	u.word.Or(refusing | watched)
	u.mu.Unlock()
	allow = func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		u.users--
		u.mayAllow()
	}
	for {
		u.mu.Lock()
		if u.InFlight() == 0 {
			u.mu.Unlock()
			return allow, nil
		}
		if u.zero == nil {
			u.zero = make(chan struct{})
		}
		zero := u.zero
		u.mu.Unlock()
		select {
		case <-zero:
		case <-done:
			allow()
			return nil, fdwait.Cause(ctx)
		}
	}
}

// OnIdle has idle called, once or more often, whenever the last use in flight has
// ended from now on. It runs under the lock of a completion queue: it must not
// block.
func (u *Used) OnIdle(idle func()) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.idle = idle
	u.word.Or(watched)
}

// acquire adds n uses, unless they are refused. Then they never were in the count, where a
// Shut would take them for uses in flight.
func (u *Used) acquire(n uint64) bool {
	for {
		word := u.word.Load()
		if word&refusing != 0 {
			return false
		}
		if u.word.CompareAndSwap(word, word+n) {
			return true
		}
	}
}

func (u *Used) release(n uint64) {
	if word := u.word.Add(-n); word&countMask == 0 && word&watched != 0 {
		u.reachedZero()
	}
}

func (u *Used) reachedZero() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.zero != nil {
		close(u.zero)
		u.zero = nil
	}
	if u.idle != nil {
		u.idle()
	}
}

// Released gathers the uses that completions give back, so that a run of work
// requests on the same thing costs one atomic operation. Flush ends it.
type Released struct {
	index uint32
	n     uint64
}

func (r *Released) add(index uint32) {
	r.turn(index)
	r.n++
}

// turn has n count uses of index.
func (r *Released) turn(index uint32) {
	if index != r.index {
		r.Flush()
		r.index = index
	}
}

// Flush gives back what was gathered.
func (r *Released) Flush() {
	if r.n > 0 && r.index != 0 {
		usedAt(r.index).release(r.n)
	}
	r.n = 0
}
