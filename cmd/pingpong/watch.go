package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/term"

	"github.com/goverbs/goverbs/cq"
)

// withHint adds what most often is behind a failed completion of this program, but for what both
// sides have compared.
func (g *game) withHint(err error) error {
	var e *cq.Error
	flags := ""
	switch {
	case g.own, !errors.As(err, &e):
	case e.Class() == cq.ClassRetryExceeded && g.received == 0 && g.alike:
		flags = "--mtu"
	case g.alike:
	case e.Recv && e.Class() == cq.ClassLocal, !e.Recv && e.Class() == cq.ClassRemote:
		flags = "--size"
	case e.Class() != cq.ClassRetryExceeded:
	case g.received == 0:
		flags = "--type and --mtu"
	default:
		flags = "--iters"
	}
	if flags == "" {
		return err
	}
	return fmt.Errorf("%w; do both sides have the same %s?", err, flags)
}

// looksPerTimeout is how often watched looks in the time that is allowed.
const looksPerTimeout = 4

// defaultLook is the time between two looks where there is no timeout.
const defaultLook = 750 * time.Millisecond

// errNoProgress is the end of a wait that has taken too long.
type errNoProgress struct{ after time.Duration }

func (e errNoProgress) Error() string {
	return fmt.Sprintf("no progress for %v (--timeout changes how long to wait)", e.after)
}

// watched returns a context that ends with ctx, or when moves has not changed for the
// timeout, unless that is 0: of a dead peer a side that only waits for a message learns
// by this alone, for C's programs hang up their TCP connection as soon as the exchange
// is over. So nobody who waits needs a clock of his own. Each look at which nothing has
// moved calls idle.
func watched(ctx context.Context, timeout time.Duration, moves *atomic.Uint64, idle func()) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		watch(ctx, timeout, moves, idle, cancel)
	}()
	return ctx, func() {
		cancel(nil)
		<-ended
	}
}

func watch(ctx context.Context, timeout time.Duration, moves *atomic.Uint64, idle func(), cancel context.CancelCauseFunc) {
	every := max(timeout/looksPerTimeout, 1)
	if timeout <= 0 {
		every = defaultLook
	}
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	seen := moves.Load()
	for looks := 0; timeout <= 0 || looks < looksPerTimeout; looks++ {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if n := moves.Load(); n != seen {
			seen, looks = n, -1
		} else {
			idle()
		}
	}
	cancel(errNoProgress{timeout})
}

// yields is for a loop that seldom or never sleeps, to be told the time at each turn. After
// 10 ms the scheduler's monitor takes such a goroutine for one that holds others up: it takes
// away what the goroutine runs on, and looks again every 20 us for some time, which costs a
// round trip more than all else in Go. Making way before keeps it asleep.
type yields struct{ last time.Duration }

func (y *yields) at(now time.Duration) {
	if now-y.last >= 5*time.Millisecond {
		y.last = now
		runtime.Gosched()
	}
}

// progress says on a terminal every so often how many round trips or operations there
// have been, until stop is called. Runs of less than a second say nothing.
func progress(stderr io.Writer, what string, moves *atomic.Uint64) (stop func()) {
	f, ok := stderr.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return func() {}
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		showProgress(ctx, f, func() int { return columns(f) }, what, moves)
	}()
	return func() {
		cancel()
		<-ended
	}
}

// showProgress writes a line of fewer characters than there are columns: of one that wraps only
// the last part could be written over.
func showProgress(ctx context.Context, w io.Writer, columns func() int, what string, moves *atomic.Uint64) {
	const every = time.Second
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for seconds := 1; ; seconds++ {
		select {
		case <-ctx.Done():
			if seconds > 1 {
				fmt.Fprint(w, "\r\x1b[K") // the line is gone when the result comes
			}
			return
		case <-ticker.C:
			line := fmt.Sprintf("pingpong: %s: %d in %v", what, moves.Load(), time.Duration(seconds)*every)
			fmt.Fprintf(w, "\r%s\x1b[K", line[:min(len(line), columns()-1)])
		}
	}
}

// columns returns how wide a terminal is now, at least 1.
func columns(terminal *os.File) int {
	n, _, err := term.GetSize(int(terminal.Fd()))
	if err != nil || n < 1 { // as a serial line, which does not know
		return math.MaxInt
	}
	return n
}
