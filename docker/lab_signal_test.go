//go:build lab

package docker_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestSignalDecidesNothingByItself(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	cmd := l.start("started\n", "sh", "-c", `trap 'exit 7' TERM; echo started; while :; do sleep 1; done`)
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	assert.Equal(t, 7, exitStatus(t, cmd.Wait()))
	l.requireNoProcesses()
}

func TestSignalThatIsIgnored(t *testing.T) {
	t.Parallel()
	const ignoring = `trap '' TERM INT; echo started; while :; do sleep 1; done`
	t.Run("once", func(t *testing.T) {
		t.Parallel()
		l := newLab(t)
		cmd := l.start("started\n", "sh", "-c", ignoring)
		sent := time.Now()
		require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
		assert.Equal(t, 128+15, exitStatus(t, cmd.Wait()))
		assert.InDelta(t, 5, time.Since(sent).Seconds(), 3)
		l.requireNoProcesses()
	})
	t.Run("twice", func(t *testing.T) {
		t.Parallel()
		l := newLab(t)
		cmd := l.start("started\n", "sh", "-c", ignoring)
		sent := time.Now()
		require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
		require.NoError(t, cmd.Process.Signal(syscall.SIGINT))
		assert.Contains(t, []int{128 + 2, 128 + 15}, exitStatus(t, cmd.Wait()))
		assert.Less(t, time.Since(sent), 4*time.Second)
		l.requireNoProcesses()
	})
}

func TestInterruptFromTerminal(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	cmd := l.command("sh", "-c", "echo started; sleep 1000")
	terminal := startOnTerminal(t, cmd)
	text := make(chan string, 1)
	interrupted := false
	go func() {
		var seen []byte
		buf := make([]byte, 1024)
		for {
			n, err := terminal.Read(buf)
			seen = append(seen, buf[:n]...)
			if err != nil {
				text <- string(seen)
				return
			}
			if !interrupted && bytes.Contains(seen, []byte("started")) {
				interrupted = true
				_, _ = terminal.Write([]byte{3}) // Ctrl-C
			}
		}
	}()
	assert.Equal(t, 128+2, exitStatus(t, cmd.Wait()))
	assert.Contains(t, <-text, "started")
	l.requireNoProcesses()
}

func TestKilled(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	cmd := l.start("started\n", "sh", "-c", "echo started; sleep 1000")
	require.NotEmpty(t, l.processes())
	require.NoError(t, cmd.Process.Kill())
	l.requireNoProcesses()
	_ = cmd.Wait()
}

func TestSignalWhileBooting(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	started := filepath.Join(l.cache, "started")
	l.stub("qemu-system-x86_64", "touch "+started+"; "+hang)
	cmd := l.command("true")
	require.NoError(t, cmd.Start())
	require.Eventually(t, func() bool { return slices.Contains(names(l.cache), "started") }, limit, 20*time.Millisecond)
	sent := time.Now()
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	assert.Equal(t, 128+15, exitStatus(t, cmd.Wait()))
	assert.Less(t, time.Since(sent), 4*time.Second)
	l.requireNoProcesses()
}

func names(dir string) (names []string) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// startOnTerminal starts the command with a terminal of its own, and returns
// the terminal's other side.
func startOnTerminal(t *testing.T, cmd *exec.Cmd) *os.File {
	t.Helper()
	ptmx, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	require.NoError(t, err)
	t.Cleanup(func() { ptmx.Close() })
	number, err := unix.IoctlGetInt(int(ptmx.Fd()), unix.TIOCGPTN)
	require.NoError(t, err)
	require.NoError(t, unix.IoctlSetPointerInt(int(ptmx.Fd()), unix.TIOCSPTLCK, 0))
	tty, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR, 0)
	require.NoError(t, err)
	defer tty.Close()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, tty, tty
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	require.NoError(t, cmd.Start())
	return ptmx
}
