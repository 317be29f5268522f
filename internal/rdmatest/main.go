// Package rdmatest is what tests on a device share: which device is under test, a
// connected pair of queue pairs, and a check that nothing is left behind.
//
// Tests that need a device are in files with the build tag rdma and run in the lab,
// which names the device in RXE_DEV. There a missing device is a failure, never a
// skip.
package rdmatest

import (
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
func Main(m *testing.M) {
	life.Trace(true)
	fds, goroutines := openFDs(), runtime.NumGoroutine()
	code := m.Run()
	if left := leaks(fds, goroutines); code == 0 && left != "" {
		fmt.Printf("FAIL: left behind by the tests of this package:\n%s\n", left)
		code = 1
	}
	os.Exit(code)
}

func leaks(fds []string, goroutines int) string {
	var left []string
	for _, o := range life.Report() {
		left = append(left, "open: "+o)
	}
	deadline := time.Now().Add(5 * time.Second)
	for runtime.NumGoroutine() > goroutines && time.Now().Before(deadline) {
		runtime.Gosched()
	}
	if runtime.NumGoroutine() > goroutines {
		buf := make([]byte, 1<<20)
		left = append(left, "goroutines:\n"+string(buf[:runtime.Stack(buf, true)]))
	}
	for _, fd := range openFDs() {
		if !slices.Contains(fds, fd) {
			left = append(left, "file descriptor: "+fd)
		}
	}
	return strings.Join(left, "\n")
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
