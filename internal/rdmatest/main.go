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
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/goverbs/internal/life"
)

// Main runs the tests of a package and fails if they leave a verbs object, a file
// descriptor or a goroutine behind.
func Main(m *testing.M) { os.Exit(Checked(m.Run).Run()) }

// Checked is a program whose Run returns ExitLeftBehind instead of its status if it
// leaves something behind.
type Checked func() int

// ExitLeftBehind is no status of a test binary or a command of this module.
const ExitLeftBehind = 97

// Run runs the program.
func (run Checked) Run() int {
	life.Trace(true)
	fds, goroutines := openFDs(), len(stacks())
	status := run()
	runtime.GC() // what was dropped is closed, as far as it can be
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_ = life.Quiesce(ctx) // what keeps the reaper busy is reported below
	if left := leaks(fds, goroutines); left != "" {
		fmt.Fprintf(os.Stderr, "FAIL: left behind:\n%s\n", left)
		return ExitLeftBehind
	}
	return status
}

func leaks(fds []string, goroutines int) string {
	var left []string
	for _, o := range life.Report() {
		left = append(left, "open: "+o)
	}
	deadline := time.Now().Add(5 * time.Second)
	now := stacks()
	for ; len(now) > goroutines && time.Now().Before(deadline); now = stacks() {
		runtime.Gosched()
	}
	if len(now) > goroutines {
		left = append(left, "goroutines:\n"+strings.Join(now, "\n\n"))
	}
	for _, fd := range openFDs() {
		if !slices.Contains(fds, fd) {
			left = append(left, "file descriptor: "+fd)
		}
	}
	return strings.Join(left, "\n")
}

// stacks returns the stack of each goroutine, but for the one that os/signal keeps
// once it was used.
func stacks() []string {
	buf := make([]byte, 1<<20)
	all := strings.Split(string(buf[:runtime.Stack(buf, true)]), "\n\n")
	return slices.DeleteFunc(all, func(s string) bool { return strings.Contains(s, "os/signal.loop") })
}

// openFDs describes the open file descriptors, but for those of the runtime's own
// poller. It is empty where there is no /proc.
func openFDs() []string {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return nil
	}
	var fds []string
	for _, e := range entries {
		target, err := os.Readlink("/proc/self/fd/" + e.Name())
		if err != nil || strings.HasPrefix(target, "anon_inode:[event") || strings.HasSuffix(target, "/fd") {
			continue // the reading of the folder itself, epoll and its eventfd
		}
		fds = append(fds, e.Name()+" -> "+target)
	}
	return fds
}
