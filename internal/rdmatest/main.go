// Package rdmatest is what tests on a device share: which device is under test, a
// connected pair of queue pairs, and a check that nothing is left behind.
//
// Tests that need a device are in files with the build tag rdma and run in the lab,
// which names the device in RXE_DEV. There a missing device is a failure, never a
// skip.
package rdmatest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/goverbs/goverbs/internal/life"
)

// Main runs the tests of a package and fails if they leave a verbs object, a file
// descriptor or a goroutine behind, or have made the process hold many threads.
func Main(m *testing.M) { os.Exit(Checked(m.Run).Run()) }

// Checked is a program whose Run returns ExitLeftBehind instead of its status if it
// leaves something behind.
type Checked func() int

// ExitLeftBehind is no status of a test binary or a command of this module.
const ExitLeftBehind = 97

// A program may have moreThreads at its end above those at its start, and morePerProcessor for
// each that the Go runtime uses. The runtime needs one more for each goroutine that is in a
// system call or in C at the same time, and keeps them all: so this bounds how many were ever
// blocked there at once. Tests that wait as they should, on the runtime's poller, were seen to
// need two, but those that call C from all processors at once, on a busy machine, four for each.
const moreThreads, morePerProcessor = 16, 6

// patience is how long what was begun may take to end. It is set in tests only.
var patience = 5 * time.Second

// Run runs the program.
func (run Checked) Run() int {
	life.Trace(true)
	before := count()
	status := run()
	if left := before.left(); left != "" {
		fmt.Fprintf(os.Stderr, "FAIL: left behind:\n%s\n", left)
		return ExitLeftBehind
	}
	return status
}

// census is what a process has at a time.
type census struct {
	fds        []string
	threads    int
	goroutines goleak.Option // which ignores them
}

func count() census {
	startPoller()
	return census{fds: openFDs(), threads: len(entries("task")), goroutines: goleak.IgnoreCurrent()}
}

// startPoller has the runtime open the descriptors that it keeps for its poller.
func startPoller() {
	if r, w, err := os.Pipe(); err == nil {
		_, _ = r.Close(), w.Close()
	}
}

// left describes what there is more than before, once nothing is or patience is over.
func (before census) left() string {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		runtime.GC()             // what was dropped is closed, as far as it can be
		_ = life.Quiesce(ctx)    // what keeps the reaper busy is reported
		left := before.compare() // which waits a little for goroutines
		if left == "" || ctx.Err() != nil {
			return left
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (before census) compare() string {
	var left []string
	for _, o := range life.Report() {
		left = append(left, "open: "+o)
	}
	if err := goleak.Find(before.goroutines); err != nil {
		left = append(left, err.Error())
	}
	for _, fd := range openFDs() {
		if !slices.Contains(before.fds, fd) {
			left = append(left, "file descriptor: "+fd)
		}
	}
	if now, most := len(entries("task")), before.threads+moreThreads+morePerProcessor*runtime.GOMAXPROCS(0); now > most {
		left = append(left, fmt.Sprintf("threads: %d at the start and %d at the end, more than %d: goroutines were blocked "+
			"in C or in system calls, or C has started threads of its own", before.threads, now, most))
	}
	return strings.Join(left, "\n")
}

// openFDs describes the open file descriptors.
func openFDs() []string {
	var fds []string
	for _, name := range entries("fd") {
		target, err := os.Readlink("/proc/self/fd/" + name)
		if err != nil || target == fmt.Sprintf("/proc/%d/fd", os.Getpid()) {
			continue // the reading of the folder itself
		}
		fds = append(fds, name+" -> "+target)
	}
	return fds
}

// entries lists a folder of /proc/self; it is empty where there is none.
func entries(folder string) (names []string) {
	all, _ := os.ReadDir(filepath.Join("/proc/self", folder))
	for _, e := range all {
		names = append(names, e.Name())
	}
	return names
}
