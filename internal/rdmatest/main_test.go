//go:build linux

package rdmatest

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/internal/life"
)

// leaver names in the environment the program that the test binary is to be.
const leaver = "RDMATEST_LEAVER"

func TestMain(m *testing.M) {
	name := os.Getenv(leaver)
	f := fine[name]
	if f == nil && leaving[name] != nil {
		f, patience = leaving[name], time.Second // all of which it takes
	}
	if f != nil {
		os.Exit(Checked(func() int { f(); return 0 }).Run())
	}
	Main(m)
}

// leaving are programs that leave something behind.
var leaving = map[string]func(){
	"object": func() { newObject("QP") },
	"descriptor": func() {
		_, err := syscall.Open(os.Args[0], syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
		must(err)
	},
	"eventfd": func() {
		_, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
		must(err)
	},
	"goroutine":           func() { go waitForEver() },
	"200 blocked threads": func() { block(200) },
	"test that hangs": func() {
		Watchdog(&unfinished{}, limit)
		waitForEver()
	},
}

// fine are programs that leave nothing behind, or only for a while.
var fine = map[string]func(){
	"nothing": func() {},
	"object that is closed late": func() {
		pd := newObject("PD")
		time.AfterFunc(time.Second, func() { must(pd.Close()) })
	},
	"descriptor for the collector": func() {
		_, err := os.Open(os.Args[0])
		must(err)
	},
	"goroutine that ends":   func() { go time.Sleep(time.Second) },
	"a few blocked threads": func() { block(10) },
	"test that ends": func() {
		var t unfinished
		Watchdog(&t, limit)
		t.end()
		time.Sleep(2 * limit) // nothing comes
	},
}

const limit = 100 * time.Millisecond

// unfinished is a test that ends when end is called.
type unfinished struct {
	testing.TB
	end func()
}

func (t *unfinished) Helper()          {}
func (t *unfinished) Name() string     { return "TestIt" }
func (t *unfinished) Cleanup(f func()) { t.end = f }

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func newObject(kind string) *life.Node {
	n := new(life.Node)
	must(n.Init(kind, func() error { return nil }))
	n.Ready("0x11 of rxe0")
	return n
}

func waitForEver() { <-make(chan int) }

// block has n goroutines hold a thread each, as a call into C that waits does, and ends
// them.
func block(n int) {
	var fds [2]int
	must(syscall.Pipe(fds[:]))
	var readers sync.WaitGroup
	for range n {
		readers.Go(func() {
			_, err := syscall.Read(fds[0], make([]byte, 1))
			must(err)
		})
	}
	for len(entries("task")) <= n {
		runtime.Gosched()
	}
	must(syscall.Close(fds[1])) // the end of the file for all of them
	readers.Wait()
	must(syscall.Close(fds[0]))
}

// runLeaver runs a program, and returns its status and what it said.
func runLeaver(t *testing.T, name string) (status int, output string) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	// So that how many threads are too many does not depend on this machine.
	cmd.Env = append(os.Environ(), leaver+"="+name, "GOMAXPROCS=4")
	out, err := cmd.CombinedOutput()
	if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) {
		require.NoError(t, err)
	}
	return cmd.ProcessState.ExitCode(), string(out)
}

func TestLeftBehind(t *testing.T) {
	for name, says := range map[string]string{
		"object":              `^FAIL: left behind:\nopen: QP 0x11 of rxe0, made at\n\t.*rdmatest\.newObject .*main_test\.go:\d+\n`,
		"descriptor":          `^FAIL: left behind:\nfile descriptor: \d+ -> .*` + filepath.Base(os.Args[0]) + `\n$`,
		"eventfd":             `^FAIL: left behind:\nfile descriptor: \d+ -> anon_inode:\[eventfd\]\n$`,
		"goroutine":           `^FAIL: left behind:\nfound unexpected goroutines:\n(.*\n)*.*rdmatest\.waitForEver\(`,
		"200 blocked threads": `^FAIL: left behind:\nthreads: \d+ at the start and 2\d\d at the end, more than \d+: goroutines were blocked in C`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			status, output := runLeaver(t, name)
			assert.Equal(t, ExitLeftBehind, status)
			assert.Regexp(t, says, output)
		})
	}
}

func TestNothingLeftBehind(t *testing.T) {
	for name := range fine {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			status, output := runLeaver(t, name)
			assert.Zero(t, status)
			assert.Empty(t, output)
		})
	}
}

func TestWatchdog(t *testing.T) {
	status, output := runLeaver(t, "test that hangs")
	assert.Equal(t, 2, status)
	assert.Contains(t, output, "panic: TestIt hangs: it is not over after 100ms")
	assert.Contains(t, output, "rdmatest.waitForEver(", "the stack of what hangs")
}
