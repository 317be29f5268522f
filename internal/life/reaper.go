package life

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Guard ties a public handle to its object: when the collector finds that nothing
// holds the handle any more, n is dropped, unless it is closed by then. n must not
// reach the handle. Call Guard after Ready.
//
// A dropped node is closed by the reaper once nothing is open below it, no call is
// in progress and Reap's function says so; and it is reported, once, to the logger.
//
// The collector takes a handle for unused from the last place that mentions it, also
// in the middle of its methods. So a method must end with runtime.KeepAlive of the
// handle, Close before all: else the object can be taken away before the call on it.
func Guard[T any](handle *T, n *Node) { runtime.AddCleanup(handle, (*Node).drop, n) }

// When is the time at which a dropped node may be closed.
type When uint8

const (
	Now      When = iota
	WhenTold      // ask again after Reconsider
	Later         // ask again after a while: 1 ms, and twice as long each time, up to 100 ms
	Never         // keep it open until somebody closes it, as CloseAll of a parent does
)

// Verdict is an object's answer to the reaper. Reason completes "kept:" or
// "waiting:"; with Now it is not used.
type Verdict struct {
	When   When
	Reason string
}

// Reap sets what the reaper asks before it closes n, which is dropped then and has no
// children and no calls in progress; without it, the answer is Now. may is called
// without any lock, from one goroutine at a time, and not again once it said Never.
// Call Reap between Init and Ready.
func (n *Node) Reap(may func() Verdict) { n.may = may }

// Reconsider makes the reaper ask again if n is dropped. It must come after what
// changes the answer; then it is never lost, even while the reaper asks. It waits
// for nothing, and costs one atomic load while n is not dropped.
func (n *Node) Reconsider() {
	if n.dropped.Load() {
		look(n)
	}
}

// Dropped reports whether the program has dropped the handle without Close.
func (n *Node) Dropped() bool { return n.dropped.Load() }

// fate is what becomes of a dropped node. The lock of the graph covers it, but for
// queued.
type fate struct {
	queued   bool // in due.nodes, under due's lock
	kept     bool // for good: the reaper is through with it
	reported bool // the log has it, or needs it not
	tries    int  // of destroy, that failed
	delay    time.Duration
	why      string // it is still open
}

const (
	firstDelay = time.Millisecond
	lastDelay  = 100 * time.Millisecond
	// maxTries of a destroy take a third of a second.
	maxTries = 10
)

// due holds the nodes that the reaper is to look at. Whatever can make a dropped
// node ready to be closed calls look; only the reaper decides whether it is. Its lock
// is the last of all, and held for a moment only, since a poll may wait for it.
var due struct {
	mu      sync.Mutex
	nodes   []*Node
	reaping bool // the goroutine exists
	timers  map[*Node]*time.Timer
	quiet   chan struct{} // closed when nothing is left, for Quiesce; or nil
}

// look makes the reaper look at n soon.
func look(n *Node) {
	due.mu.Lock()
	defer due.mu.Unlock()
	if t := due.timers[n]; t != nil {
		t.Stop() // too late is harmless: one more look
		delete(due.timers, n)
	}
	if n.fate.queued {
		return
	}
	n.fate.queued = true
	due.nodes = append(due.nodes, n)
	if !due.reaping {
		due.reaping = true
		go reap()
	}
}

// lookLater is look after the node's delay, which grows.
func lookLater(n *Node) {
	n.fate.delay = min(max(2*n.fate.delay, firstDelay), lastDelay)
	due.mu.Lock()
	defer due.mu.Unlock()
	if n.fate.queued {
		return
	}
	if due.timers == nil {
		due.timers = map[*Node]*time.Timer{}
	}
	due.timers[n] = time.AfterFunc(n.fate.delay, func() { look(n) })
}

// reap is the reaper's goroutine. It ends when it finds nothing to look at; a timer
// starts it again.
func reap() {
	for n := next(); n != nil; n = next() {
		n.reap()
	}
}

func next() *Node {
	due.mu.Lock()
	defer due.mu.Unlock()
	if len(due.nodes) == 0 {
		due.nodes, due.reaping = nil, false
		if len(due.timers) == 0 && due.quiet != nil {
			close(due.quiet)
			due.quiet = nil
		}
		return nil
	}
	n := due.nodes[0]
	due.nodes[0], due.nodes = nil, due.nodes[1:]
	n.fate.queued = false
	return n
}

// Quiesce waits until the reaper has nothing to do, not even later: what is dropped
// and still open is kept, or waits for a child, a call or Reconsider. It is for tests;
// the collector may find more at any time. It fails with the cause of ctx.
func Quiesce(ctx context.Context) error {
	due.mu.Lock()
	if !due.reaping && len(due.timers) == 0 {
		due.mu.Unlock()
		return nil
	}
	if due.quiet == nil {
		due.quiet = make(chan struct{})
	}
	quiet := due.quiet
	due.mu.Unlock()
	select {
	case <-quiet:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// drop is what becomes of n when its handle is collected. It runs on a goroutine of
// the collector, which must not wait for a destroy.
func (n *Node) drop() {
	mu.Lock()
	defer mu.Unlock()
	if n.state != closed {
		n.dropped.Store(true)
		look(n)
	}
}

// dueIfDropped is called after each change that can make n ready to be closed.
func (n *Node) dueIfDropped() {
	if n.dropped.Load() {
		look(n)
	}
}

// ready says whether only the object's own say is missing. Whatever makes it true
// later calls dueIfDropped.
func (n *Node) ready() bool {
	return n.state == open && !n.fate.kept && n.users == 0 && len(n.children) == 0
}

// reap does for n what can be done now.
func (n *Node) reap() {
	mu.Lock()
	defer mu.Unlock()
	switch {
	case n.state == closed:
		n.report("closed", "")
	case len(n.children) > 0:
		n.keepWithChildren()
	case n.ready():
		n.askAndClose()
	}
}

// keepWithChildren reports a node that cannot be closed because none of its children
// ever will. It is not kept for good: someone may close them all the same.
func (n *Node) keepWithChildren() {
	for c := range n.children {
		if !c.dropped.Load() || !c.fate.reported {
			return
		}
	}
	names := labels(maps.Keys(n.children), (*Node).label)
	n.keep("still used by " + strings.Join(names, ", "))
}

// askAndClose is called with the lock held and lets it go meanwhile.
func (n *Node) askAndClose() {
	verdict := Verdict{When: Now}
	if n.may != nil {
		n.calling(func() { verdict = n.may() })
	}
	if !n.ready() {
		return // somebody came in between, and will make n due again
	}
	switch verdict.When {
	case Now:
		n.closeDropped()
	case WhenTold:
		n.fate.why, n.fate.delay = "waiting: "+verdict.Reason, 0
	case Later:
		n.fate.why = "waiting: " + verdict.Reason
		lookLater(n)
	case Never:
		n.fate.kept = true
		n.keep(verdict.Reason)
	}
}

func (n *Node) closeDropped() {
	n.state = closing
	err := n.end()
	if err == nil {
		n.report("closed", "")
		return
	}
	n.fate.tries++
	switch n.fate.tries {
	case maxTries:
		n.fate.kept = true
		n.keep(fmt.Sprintf("closing it failed %d times: %v", maxTries, err))
	case 1:
		n.fate.why = "closing it failed: " + err.Error()
		lookLater(n)
		n.log("closing failed, will be tried again", err.Error())
	default:
		lookLater(n)
	}
}

// keep reports that n stays open, and lets its parents find that they do.
func (n *Node) keep(reason string) {
	n.fate.why = "kept: " + reason
	for _, p := range n.parents {
		p.dueIfDropped()
	}
	n.report("kept open", reason)
}

// report logs once what became of n.
func (n *Node) report(what, reason string) {
	if !n.fate.reported {
		n.fate.reported = true
		n.log(what, reason)
	}
}

// log is called with the lock held and lets it go meanwhile: a handler is the
// user's code.
func (n *Node) log(what, reason string) {
	attrs := []slog.Attr{slog.String("object", n.label())}
	if reason != "" {
		attrs = append(attrs, slog.String("reason", reason))
	}
	if made := n.made(); made != "" {
		attrs = append(attrs, slog.String("made", made))
	}
	mu.Unlock()
	defer mu.Lock()
	Logger().LogAttrs(context.Background(), slog.LevelWarn, "verbs object dropped without Close: "+what, attrs...)
}

var logger atomic.Pointer[slog.Logger]

// SetLogger sets where dropped objects are reported: nil is nowhere, and the default
// is slog.Default as it is at the time of the report. It may be called at any time.
func SetLogger(l *slog.Logger) {
	if l == nil {
		l = slog.New(slog.DiscardHandler)
	}
	logger.Store(l)
}

// Logger returns the logger that SetLogger set.
func Logger() *slog.Logger {
	if l := logger.Load(); l != nil {
		return l
	}
	return slog.Default()
}
