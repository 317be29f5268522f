package rdmatest

import (
	"fmt"
	"runtime/debug"
	"testing"
	"time"
)

// Watchdog ends the process, with the stacks of all goroutines, if the test is not over
// within limit. What was registered with Cleanup later is a part of it: so call Watchdog
// first. It is for tests in which something may hang, long before the test binary's own
// limit and with the name of the test.
func Watchdog(t testing.TB, limit time.Duration) {
	t.Helper()
	name := t.Name()
	timer := time.AfterFunc(limit, func() {
		debug.SetTraceback("all")
		panic(fmt.Sprintf("%s hangs: it is not over after %v", name, limit))
	})
	t.Cleanup(func() { timer.Stop() })
}
