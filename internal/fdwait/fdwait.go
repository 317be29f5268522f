// Package fdwait waits for the events that a C library tells through a file descriptor,
// without holding a thread, or for a short time only. Many goroutines can wait on one
// descriptor, each for the events of its own key; each wait ends with its context.
//
// The runtime's poller admits one goroutine to a descriptor. So one of the waiting
// goroutines leads: it waits in the poller, takes what events there are and hands them to
// those that they are for. When its own wait ends it passes the lead on. No goroutine is
// started for a wait, but a short one where its context ends (context.AfterFunc).
package fdwait

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

var queues atomic.Uint64 // that there were

// ErrWoken says that Wake has ended the wait.
var ErrWoken = errors.New("woken")

// Queue holds the events of a descriptor. Its methods may be called from several
// goroutines.
type Queue[K comparable, E any] struct {
	take   func() (Event[K, E], error)
	sleep  func(fd int, d time.Duration)
	number uint64         // the order to lock two in
	asleep sync.WaitGroup // a leader that holds its thread

	mu          sync.Mutex // held while take runs
	file        *os.File   // the descriptor
	conn        syscall.RawConn
	polled      bool // the runtime's poller has it
	fd          int  // the descriptor, where file is nil
	closed      bool
	leader      *waiter[K, E]
	holding     bool      // the leader sleeps in the kernel, holding its thread
	yielded     time.Time // when one that does last made way
	parked      bool      // the leader is in the poller, or about to be
	interrupted bool      // the descriptor's deadline is set
	waiters     []*waiter[K, E]
	spare       *waiter[K, E] // for the next wait
	pending     []Event[K, E] // that nobody has waited for yet
}

// Event is an event and what it is for.
type Event[K comparable, E any] struct {
	Key  K
	What E
}

type waiter[K comparable, E any] struct {
	key   K
	any   bool
	ended bool          // with event or err
	told  chan struct{} // closed when it has ended, or is to lead
	done  <-chan struct{}
	event Event[K, E]
	err   error
}

// New returns a queue for the descriptor fd, which it duplicates and makes non-blocking:
// that holds for fd too, also where New fails. take takes one event without waiting;
// without one it fails with EAGAIN. It is never called by two goroutines at once, and must
// not call the queue.
func New[K comparable, E any](fd int, take func() (Event[K, E], error)) (*Queue[K, E], error) {
	dup, err := duplicate(fd)
	if err != nil {
		return nil, fmt.Errorf("duplicating file descriptor %d: %w", fd, err)
	}
	if err := unix.SetNonblock(dup, true); err != nil {
		_ = unix.Close(dup) // the first error is the one to tell
		return nil, fmt.Errorf("making file descriptor %d non-blocking: %w", fd, err)
	}
	q := &Queue[K, E]{take: take, sleep: sleep, number: queues.Add(1), fd: dup}
	// What the poller does not take would hold a thread for each wait.
	if err := q.enterPoller(); err != nil {
		q.closeFD()
		return nil, fmt.Errorf("the runtime cannot poll file descriptor %d: %w", fd, err)
	}
	return q, nil
}

// enterPoller gives the descriptor to the runtime's poller, if it is not there, and takes its
// deadline back.
func (q *Queue[K, E]) enterPoller() error {
	if q.file != nil && !q.polled { // it was refused
		if err := q.leavePoller(); err != nil {
			return err
		}
	}
	if q.file == nil {
		q.file = os.NewFile(uintptr(q.fd), "events") // which owns it now
		conn, err := q.file.SyscallConn()
		if err != nil {
			return err
		}
		q.conn = conn
	}
	err := q.file.SetReadDeadline(time.Time{})
	q.polled = err == nil
	return err
}

// leavePoller takes the descriptor out again. It fails without one to spare for the moment.
func (q *Queue[K, E]) leavePoller() error {
	var fd int
	var err error
	_ = q.conn.Control(func(own uintptr) { fd, err = unix.FcntlInt(own, unix.F_DUPFD_CLOEXEC, 0) }) // which is open
	if err != nil {
		return err
	}
	_ = q.file.Close() // nobody is in it, and there is nothing to write
	q.file, q.conn, q.polled, q.fd = nil, nil, false, fd
	return nil
}

func (q *Queue[K, E]) closeFD() {
	if q.file != nil {
		_ = q.file.Close() // which waits for the leader to be out, and has nothing to write
		return
	}
	_ = unix.Close(q.fd)
}

// duplicate fails also where no room for two more descriptors is left: the runtime makes
// its poller of two when it first needs it, and ends the process if it cannot.
func duplicate(fd int) (int, error) {
	var dups [3]int
	for i := range dups {
		dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			closeAll(dups[:i])
			return -1, err
		}
		dups[i] = dup
	}
	closeAll(dups[1:])
	return dups[0], nil
}

func closeAll(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}

// Wait returns the next event of key. It fails with what stop, unless nil, returns when
// the wait begins: what stop looks at is to be changed before Wake is called. Otherwise
// it fails with Cause(ctx), with ErrWoken, with os.ErrClosed, with an error of take, or
// with what the poller says of the descriptor. An event that came before ctx ended is
// returned all the same; one that no wait has returned is kept for the next. stop must not
// call the queue.
//
// hold is for how long, in milliseconds begun, the wait holds its thread, if no other leads when
// it begins: asleep in the kernel, which takes less time than the runtime's poller. What ends it
// but an event that it takes itself, Close too, does so up to hold later: also an event that
// another wait takes just before its context ends it.
func (q *Queue[K, E]) Wait(ctx context.Context, key K, hold time.Duration, stop func() error) (E, error) {
	done := ctx.Done() // before anything is changed: ctx may be nil
	q.mu.Lock()
	defer q.mu.Unlock()
	w := q.spare
	if q.spare = nil; w == nil {
		w = new(waiter[K, E])
	}
	*w = waiter[K, E]{key: key, done: done}
	err := q.wait(ctx, w, hold, stop)
	what := w.event.What
	*w = waiter[K, E]{}
	q.spare = w
	return what, err
}

// Next is Wait for the next event that no other goroutine waits for by its key.
func (q *Queue[K, E]) Next(ctx context.Context) (Event[K, E], error) {
	w := &waiter[K, E]{any: true, done: ctx.Done()}
	q.mu.Lock()
	defer q.mu.Unlock()
	err := q.wait(ctx, w, 0, nil)
	return w.event, err
}

// Wake ends the waits for key with ErrWoken, those of Next aside.
func (q *Queue[K, E]) Wake(key K) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.wake(key)
}

func (q *Queue[K, E]) wake(key K) {
	for _, w := range slices.Clone(q.waiters) {
		if !w.any && w.key == key {
			q.end(w, Event[K, E]{}, ErrWoken)
		}
	}
}

// Add has an event waited for that does not come from the descriptor.
func (q *Queue[K, E]) Add(e Event[K, E]) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.deliver(e)
}

// Remove runs end, during which no event is taken and no wait begins or ends. If it
// succeeds, events of key that were taken before are forgotten, and the waits for it end
// with ErrWoken. It works also after Close. end must not call the queue.
func (q *Queue[K, E]) Remove(key K, end func() error) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := end(); err != nil {
		return err
	}
	q.pending = slices.DeleteFunc(q.pending, func(e Event[K, E]) bool { return e.Key == key })
	q.wake(key)
	return nil
}

// Collect takes what events there are, for the waits that come.
func (q *Queue[K, E]) Collect() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.collect()
}

func (q *Queue[K, E]) collect() {
	for !q.closed {
		e, err := q.take()
		switch {
		case err == nil:
			q.deliver(e)
		case !errors.Is(err, syscall.EINTR):
			return // where it is a failure the next wait finds it too
		}
	}
}

// Move runs move, after which events of key come from the other queue's descriptor. While it
// runs no event is taken from either. If it succeeds, events of key that were taken before go
// to the other queue, and the waits for it here end with ErrWoken. move must not call a queue.
func (q *Queue[K, E]) Move(key K, to *Queue[K, E], move func() error) error {
	first, second := q, to
	if to.number < q.number {
		first, second = to, q
	}
	first.mu.Lock()
	defer first.mu.Unlock()
	second.mu.Lock()
	defer second.mu.Unlock()
	if to.closed {
		return os.ErrClosed
	}
	q.collect() // they must not be overtaken
	if err := move(); err != nil {
		return err
	}
	rest := q.pending[:0:0]
	for _, e := range q.pending {
		if e.Key == key {
			to.deliver(e)
		} else {
			rest = append(rest, e)
		}
	}
	q.pending = rest
	to.collect() // those that came with the move, of which the poller may not tell
	q.wake(key)
	return nil
}

// Close ends all waits with os.ErrClosed. When it returns, no more events are taken.
// Closing again does nothing.
func (q *Queue[K, E]) Close() {
	q.mu.Lock()
	if q.closed {
		q.mu.Unlock()
		return
	}
	q.closed = true
	for _, w := range slices.Clone(q.waiters) {
		q.end(w, Event[K, E]{}, os.ErrClosed)
	}
	q.mu.Unlock()
	q.asleep.Wait()
	q.closeFD() // no other changes it now
}

// wait waits as w says. The caller holds the lock, which it gives up while it sleeps.
func (q *Queue[K, E]) wait(ctx context.Context, w *waiter[K, E], hold time.Duration, stop func() error) error {
	if q.closed {
		return os.ErrClosed
	}
	if stop != nil {
		if err := stop(); err != nil {
			return err
		}
	}
	if i := slices.IndexFunc(q.pending, w.wants); i >= 0 {
		w.event = q.pending[i]
		q.pending = slices.Delete(q.pending, i, i+1)
		return nil
	}
	q.waiters = append(q.waiters, w)
	if q.leader == nil {
		q.leader = w
		if hold > 0 && ctx.Err() == nil {
			q.hold(hold)
		}
	}
	if !q.holding { // else the leader's event could be taken, and it would sleep on
		q.drain(w)
	}
	if q.leader != w && !w.ended {
		q.follow(ctx, w)
	}
	if q.leader == w {
		q.lead(ctx, w)
		q.passOn()
	}
	return w.err
}

func (w *waiter[K, E]) wants(e Event[K, E]) bool { return w.any || w.key == e.Key }

// end ends a wait.
func (q *Queue[K, E]) end(w *waiter[K, E], e Event[K, E], err error) {
	w.ended, w.event, w.err = true, e, err
	i := slices.Index(q.waiters, w)
	q.waiters = slices.Delete(q.waiters, i, i+1)
	w.tell()
	if q.leader == w {
		q.interrupt()
	}
}

// Cause returns why a wait that ended with ctx did: context.Cause(ctx), which where ctx
// has timed out matches os.ErrDeadlineExceeded too.
func Cause(ctx context.Context) error {
	cause := context.Cause(ctx)
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return timeout{cause}
	}
	return cause
}

type timeout struct{ error }

func (t timeout) Unwrap() error      { return t.error }
func (timeout) Is(target error) bool { return target == os.ErrDeadlineExceeded }
func (timeout) Timeout() bool        { return true }

func (w *waiter[K, E]) tell() {
	if w.told != nil {
		close(w.told)
		w.told = nil
	}
}

// follow waits until the wait of w has ended, or w is to lead.
func (q *Queue[K, E]) follow(ctx context.Context, w *waiter[K, E]) {
	told := make(chan struct{})
	w.told = told
	q.mu.Unlock()
	select {
	case <-told:
	case <-w.done:
	}
	q.mu.Lock()
	if !w.ended && q.leader != w {
		q.giveUp(ctx, w)
	}
}

// giveUp ends the wait of w with ctx, unless its event has come.
func (q *Queue[K, E]) giveUp(ctx context.Context, w *waiter[K, E]) {
	q.drain(w)
	if !w.ended {
		q.end(w, Event[K, E]{}, Cause(ctx))
	}
}

// passOn makes the waiter that waits longest the leader.
func (q *Queue[K, E]) passOn() {
	q.leader = nil
	if len(q.waiters) > 0 {
		q.leader = q.waiters[0]
		q.leader.tell()
	}
}

// lead takes events until the wait of w has ended.
func (q *Queue[K, E]) lead(ctx context.Context, w *waiter[K, E]) {
	if w.done != nil && !w.ended {
		defer context.AfterFunc(ctx, func() {
			q.mu.Lock()
			defer q.mu.Unlock()
			q.interrupt() // perhaps another leader, which goes on
		})()
	}
	for !w.ended {
		if ctx.Err() != nil {
			q.giveUp(ctx, w)
			return
		}
		err := q.park(w)
		if err != nil && !w.ended && !errors.Is(err, os.ErrDeadlineExceeded) {
			q.end(w, Event[K, E]{}, fmt.Errorf("polling the file descriptor: %w", err))
		}
	}
}

// yieldAfter is less than the 10 ms after which the scheduler's monitor takes a goroutine that
// never parks for one that holds others up: it takes its processor away, and then looks again
// every 20 us for some time, which costs more than the sleeps.
const yieldAfter = 5 * time.Millisecond

// hold sleeps until there is an event, but no longer than d. The poller does not know the
// descriptor meanwhile: for each event it would wake a thread that looks for nothing.
func (q *Queue[K, E]) hold(d time.Duration) {
	if q.file != nil && q.leavePoller() != nil {
		return // the wait parks
	}
	yield := time.Since(q.yielded) >= yieldAfter
	if yield {
		q.yielded = time.Now()
	}
	fd := q.fd
	q.holding = true
	q.asleep.Add(1)
	q.mu.Unlock()
	if yield {
		runtime.Gosched()
	}
	q.sleep(fd, d)
	q.asleep.Done()
	q.mu.Lock()
	q.holding = false
}

func sleep(fd int, d time.Duration) {
	ms := int((d + time.Millisecond - 1) / time.Millisecond)
	_, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, ms) // what there is is looked for anyway
}

// park takes events until the wait of w has ended, or it is interrupted.
func (q *Queue[K, E]) park(w *waiter[K, E]) error {
	if !q.polled || q.interrupted {
		// Whoever interrupts changes before it what the leader has looked at by now.
		if err := q.enterPoller(); err != nil {
			return fmt.Errorf("the runtime cannot poll it: %w", err)
		}
		q.interrupted = false
	}
	q.parked = true
	conn := q.conn
	q.mu.Unlock()
	// What came before the poller began to watch is found by the first call of this.
	err := conn.Read(func(uintptr) (done bool) {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.parked = false
		q.drain(w)
		q.parked = !w.ended
		return w.ended
	})
	q.mu.Lock()
	q.parked = false
	return err
}

// interrupt gets the leader out of the poller.
func (q *Queue[K, E]) interrupt() {
	if q.parked && !q.interrupted {
		q.interrupted = true
		_ = q.file.SetReadDeadline(time.Unix(1, 0)) // as enterPoller has seen it succeed
	}
}

// drain takes events until the wait of w has ended or there are no more: the poller tells
// of new ones only. A take that fails ends w's wait alone.
func (q *Queue[K, E]) drain(w *waiter[K, E]) {
	for !w.ended {
		e, err := q.take()
		switch {
		case errors.Is(err, syscall.EAGAIN):
			return
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			q.end(w, Event[K, E]{}, err)
		default:
			q.deliver(e)
		}
	}
}

func (q *Queue[K, E]) deliver(e Event[K, E]) {
	i := slices.IndexFunc(q.waiters, func(w *waiter[K, E]) bool { return !w.any && w.key == e.Key })
	if i < 0 {
		i = slices.IndexFunc(q.waiters, func(w *waiter[K, E]) bool { return w.any })
	}
	if i < 0 {
		q.pending = append(q.pending, e)
		return
	}
	q.end(q.waiters[i], e, nil)
}

// Waiting returns how many goroutines wait.
func (q *Queue[K, E]) Waiting() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.waiters)
}
