// Package life keeps the ownership graph of live objects: what must be closed
// before what, and what is still open.
//
// It is a graph and not a tree: a queue pair has its protection domain and its
// completion queues as parents. Every object holds a Node. A node counts as a
// child of its parents from before its C object is made until after it is
// destroyed, so a parent can never go first.
//
// An object whose handle was dropped without Close is closed by the reaper, in the
// same order: see Guard.
//
// All functions may be called from several goroutines.
package life

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
)

// ErrClosed says that the object was closed before the call. It matches os.ErrClosed.
var ErrClosed error = closedError{}

type closedError struct{}

func (closedError) Error() string        { return "already closed" }
func (closedError) Is(target error) bool { return target == os.ErrClosed }

// BusyError says which open children keep an object from being closed.
// It matches syscall.EBUSY.
type BusyError struct {
	Children []string
}

func (e *BusyError) Error() string {
	const most = 8
	names, more := e.Children, ""
	if len(names) > most {
		names, more = names[:most], fmt.Sprintf(" and %d more", len(names)-most)
	}
	return fmt.Sprintf("still used by %s%s: close that first", strings.Join(names, ", "), more)
}

func (e *BusyError) Unwrap() error { return syscall.EBUSY }

type state uint8

const (
	making state = iota
	open
	closing
	closed
)

// One lock for the whole graph: making and closing objects is rare and each
// costs a system call, and no lock order has to be kept between nodes. Nothing of an
// object is called with it held, so that it may be taken under an object's locks.
var (
	mu       sync.Mutex
	changed  = sync.NewCond(&mu)
	live     = map[*Node]struct{}{}
	sequence uint64
	traced   atomic.Bool
)

// Node is the place of one object in the graph. It is embedded in the object's
// inner state, which the graph thereby keeps reachable until it is closed.
type Node struct {
	kind, name string
	seq        uint64
	destroy    func() error
	parents    []*Node
	children   map[*Node]int // how often each is one
	state      state
	users      int
	endings    int // calls of CloseAll that have come to n: it takes no children and calls
	quiet      func()
	stack      []uintptr
	failure    error       // of FailAll, or nil
	dropped    atomic.Bool // set under the lock
	may        func() Verdict
	fate       fate
}

// Init enters n into the graph below its parents; destroy is what Close will run.
// It fails with an error that matches ErrClosed, naming the parent, if one of them is
// closed or CloseAll has come to it, and with what FailAll was given. Then comes Ready, or
// Discard if the object could not be made; a Close from elsewhere waits for either.
func (n *Node) Init(kind string, destroy func() error, parents ...*Node) error {
	mu.Lock()
	defer mu.Unlock()
	for _, p := range parents {
		if err := p.mayAdopt(); err != nil {
			return err
		}
		if p.failure != nil {
			return p.failure
		}
	}
	sequence++
	n.kind, n.seq, n.destroy, n.parents = kind, sequence, destroy, slices.Clone(parents)
	for _, p := range parents {
		p.adopt(n)
	}
	if traced.Load() {
		pcs := make([]uintptr, 32)
		n.stack = pcs[:runtime.Callers(2, pcs)]
	}
	live[n] = struct{}{}
	return nil
}

// Attach makes n a child of one more parent, until Detach or until n is closed. It
// counts: a child that was attached twice, or that Init made a child and Attach
// again, stays one until as many calls of Detach. It fails with an error that
// matches ErrClosed, naming the node, if n is closed, or the parent is closed, is being
// closed or CloseAll has come to it.
func (n *Node) Attach(parent *Node) error {
	mu.Lock()
	defer mu.Unlock()
	if err := parent.mayAdopt(); err != nil {
		return err
	}
	return n.attach(parent)
}

// AttachInUse is Attach to a parent that may be on its way to be closed, also by CloseAll,
// but whose destroy will not end it: that asks Busy when nothing can make it a parent any
// more. It may be called under a lock that a destroy takes.
func (n *Node) AttachInUse(parent *Node) error {
	mu.Lock()
	defer mu.Unlock()
	if parent.state != closing && parent.state != open {
		return parent.errClosed()
	}
	return n.attach(parent)
}

func (n *Node) attach(parent *Node) error {
	if n.state == closed {
		return n.errClosed()
	}
	n.parents = append(n.parents, parent)
	parent.adopt(n)
	return nil
}

// Detach undoes one Attach. It does nothing if n is no child of the parent, as when n
// was closed meanwhile. It may be called under a lock that a destroy takes.
func (n *Node) Detach(parent *Node) {
	mu.Lock()
	defer mu.Unlock()
	if i := slices.Index(n.parents, parent); i >= 0 {
		n.parents = slices.Delete(n.parents, i, i+1)
		parent.release(n)
	}
}

func (n *Node) mayAdopt() error {
	if n.state != open || n.endings > 0 {
		return n.errClosed()
	}
	return nil
}

func (n *Node) errClosed() error { return fmt.Errorf("%s: %w", n.label(), ErrClosed) }

func (n *Node) adopt(child *Node) {
	if n.children == nil {
		n.children = map[*Node]int{}
	}
	n.children[child]++
}

func (n *Node) release(child *Node) {
	if n.children[child]--; n.children[child] == 0 {
		delete(n.children, child)
		n.dueIfDropped()
	}
}

// Ready says that the object is made, and sets what tells it from others of its
// kind, such as a number.
func (n *Node) Ready(name string) {
	mu.Lock()
	defer mu.Unlock()
	n.name, n.state = name, open
	changed.Broadcast()
}

// Rename sets anew what Ready set.
func (n *Node) Rename(name string) {
	mu.Lock()
	defer mu.Unlock()
	n.name = name
}

// String returns the kind and the name: "QP 0x11".
func (n *Node) String() string {
	mu.Lock()
	defer mu.Unlock()
	return n.label()
}

func (n *Node) label() string {
	if n.name == "" {
		return n.kind
	}
	return n.kind + " " + n.name
}

// Before says whether n was made before o: an order to take locks in.
func (n *Node) Before(o *Node) bool { return n.seq < o.seq }

// Discard takes out a node whose object was never made.
func (n *Node) Discard() {
	mu.Lock()
	defer mu.Unlock()
	n.remove()
	changed.Broadcast()
}

// Use guards a call into C: the object cannot be destroyed before Done. It fails with
// ErrClosed if the object is closed, or CloseAll has come to it, and with what FailAll was
// given.
func (n *Node) Use() error {
	mu.Lock()
	defer mu.Unlock()
	switch {
	case n.state != open || n.endings > 0:
		return ErrClosed
	case n.failure != nil:
		return n.failure
	}
	n.users++
	return nil
}

// FailAll has Use of n and of everything below it fail with err from now on, and Init of
// what would be below them. They are closed as ever. The first failure of a node stays.
func (n *Node) FailAll(err error) {
	mu.Lock()
	defer mu.Unlock()
	n.fail(err)
}

func (n *Node) fail(err error) {
	if n.failure != nil {
		return // and so have all below it
	}
	n.failure = err
	for c := range n.children {
		c.fail(err)
	}
}

// Done ends what Use began.
func (n *Node) Done() {
	mu.Lock()
	defer mu.Unlock()
	n.done()
	if n.users == 0 {
		n.dueIfDropped()
	}
}

func (n *Node) done() {
	n.users--
	if n.users == 0 {
		changed.Broadcast()
	}
}

// calling calls a function of the object, which nobody closes meanwhile. It is called
// with the lock held and lets it go.
func (n *Node) calling(f func()) {
	n.users++
	mu.Unlock()
	f()
	mu.Lock()
	n.done()
}

// Close runs n's destroy once the calls in progress have ended, and takes n out of
// the graph. With open children it changes nothing and returns a *BusyError.
// If destroy fails, n stays open. Closing again, also from several goroutines
// at once, waits for the first to end and returns nil.
func (n *Node) Close() error {
	mu.Lock()
	defer mu.Unlock()
	for n.state == making || n.state == closing {
		changed.Wait()
	}
	if n.state == closed {
		return nil
	}
	if err := n.busy(); err != nil {
		return err
	}
	byHand := !n.dropped.Load() // also if the handle is dropped during the rest
	n.state = closing
	for n.users > 0 {
		changed.Wait()
	}
	err := n.end()
	if err == nil && byHand {
		n.fate.reported = true // there is nothing to tell
	}
	n.dueIfDropped()
	return err
}

// CloseUnused closes n, at once or when the last of what is below it is closed, for one who
// has lent it. Until then n can be used.
func (n *Node) CloseUnused() error {
	err := n.Close()
	if _, busy := errors.AsType[*BusyError](err); !busy {
		return err
	}
	mu.Lock()
	n.fate.reported = true // it is nobody's leak
	mu.Unlock()
	n.drop()
	return nil
}

// end runs the destroy of a node that is closing. It is called with the lock held
// and lets it go meanwhile.
func (n *Node) end() error {
	mu.Unlock()
	err := n.destroy()
	mu.Lock()
	if err != nil {
		n.state = open
	} else {
		n.remove()
	}
	changed.Broadcast()
	return err
}

// Closing reports whether n is closed, a Close waits for the calls in progress, or CloseAll
// has come to it: a call that waits must end.
func (n *Node) Closing() bool {
	mu.Lock()
	defer mu.Unlock()
	return n.state == closing || n.state == closed || n.endings > 0
}

// Closed reports whether n is closed.
func (n *Node) Closed() bool {
	mu.Lock()
	defer mu.Unlock()
	return n.state == closed
}

// Busy returns the *BusyError that Close would, if n has open children.
func (n *Node) Busy() error {
	mu.Lock()
	defer mu.Unlock()
	return n.busy()
}

func (n *Node) busy() error {
	if len(n.children) == 0 {
		return nil
	}
	return &BusyError{Children: labels(maps.Keys(n.children), (*Node).nameForOthers)}
}

// CloseAll closes n after everything below it, youngest first, and joins the errors
// of what could not be closed. What refuses is tried again after the others: memory
// that work requests use is free once their queue pair is closed.
//
// Others may go on using all of it. Until CloseAll ends, Init below what it has come to
// and Use of it fail as if it was closed: else it might find something new for ever.
func (n *Node) CloseAll() error {
	failed := map[*Node]error{}
	n.closeAll(failed)
	var errs []error
	for _, n := range byAge(maps.Keys(failed)) {
		if !n.Closed() { // the reaper may have closed it since
			errs = append(errs, fmt.Errorf("%v: %w", n, failed[n]))
		}
		n.leave()
	}
	return errors.Join(errs...)
}

// BeforeCloseAll sets what CloseAll calls when it comes to n, before it looks at what is
// below: to end what keeps n from being closed and is not a call in progress. Several
// CloseAll may call it at once, without any lock. Call BeforeCloseAll between Init and
// Ready.
func (n *Node) BeforeCloseAll(f func()) { n.quiet = f }

// come is called when CloseAll comes to n, and leave if it ends with n open.
func (n *Node) come() {
	mu.Lock()
	defer mu.Unlock()
	n.endings++
	for n.state == making || n.state == closing {
		changed.Wait()
	}
	if n.state == open && n.quiet != nil {
		n.calling(n.quiet)
		n.dueIfDropped()
	}
}

func (n *Node) leave() {
	mu.Lock()
	defer mu.Unlock()
	n.endings--
}

// closeAll notes in failed what is still open, and why.
func (n *Node) closeAll(failed map[*Node]error) (ok bool) {
	if failed[n] == nil {
		n.come()
	}
	for progress := true; progress; {
		progress = false
		mu.Lock()
		children := byAge(maps.Keys(n.children))
		mu.Unlock()
		for _, c := range slices.Backward(children) {
			progress = c.closeAll(failed) || progress
		}
	}
	err := n.Close()
	if err != nil {
		failed[n] = err
		return false
	}
	delete(failed, n)
	return true
}

func (n *Node) remove() {
	n.state = closed
	for _, p := range n.parents {
		p.release(n)
	}
	n.parents = nil
	delete(live, n)
}

// byAge returns nodes, oldest first.
func byAge(nodes iter.Seq[*Node]) []*Node {
	return slices.SortedFunc(nodes, func(a, b *Node) int { return cmp.Compare(a.seq, b.seq) })
}

func labels(nodes iter.Seq[*Node], label func(*Node) string) []string {
	var out []string
	for _, n := range byAge(nodes) {
		out = append(out, label(n))
	}
	return out
}

// Trace sets whether nodes made from now on keep the stack that made them.
func Trace(on bool) { traced.Store(on) }

// Report describes every open object, oldest first: whether it was dropped without
// Close and what the reaper waits for then, and the stack that made it where Trace
// was on.
func Report() []string {
	mu.Lock()
	defer mu.Unlock()
	return labels(maps.Keys(live), (*Node).describe)
}

func (n *Node) describe() string {
	s := n.nameForOthers()
	if n.fate.why != "" {
		s += ", " + n.fate.why
	}
	if made := n.made(); made != "" {
		s += ", made at\n\t" + strings.ReplaceAll(made, "\n", "\n\t")
	}
	return s
}

// nameForOthers says too why one looks in vain for the handle.
func (n *Node) nameForOthers() string {
	if n.dropped.Load() {
		return n.label() + " (dropped without Close)"
	}
	return n.label()
}

// made returns the stack that made n, a call a line, or "" if it was not kept.
func (n *Node) made() string {
	if len(n.stack) == 0 {
		return ""
	}
	var lines []string
	for frames := runtime.CallersFrames(n.stack); ; {
		f, more := frames.Next()
		lines = append(lines, fmt.Sprintf("%s %s:%d", f.Function, f.File, f.Line))
		if !more {
			return strings.Join(lines, "\n")
		}
	}
}
