package main

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestProgressIsForTerminals(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "log"))
	require.NoError(t, err)
	defer file.Close()
	near, far := terminal(t)
	require.NoError(t, unix.IoctlSetWinsize(int(far.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 25, Col: 20}))
	var buf bytes.Buffer
	synctest.Test(t, func(t *testing.T) {
		var moves atomic.Uint64
		for _, w := range []io.Writer{file, &buf, far} {
			stop := progress(w, "64 bytes", &moves)
			time.Sleep(time.Second)
			synctest.Wait()
			stop()
		}
	})
	assert.Empty(t, buf.String())
	info, err := file.Stat()
	require.NoError(t, err)
	assert.Zero(t, info.Size())

	const want = "\rpingpong: 64 bytes:\x1b[K\r\x1b[K"
	shown := make([]byte, len(want))
	_, err = io.ReadFull(near, shown)
	require.NoError(t, err)
	assert.Equal(t, want, string(shown))
}

func TestColumns(t *testing.T) {
	_, f := terminal(t)
	assert.Equal(t, math.MaxInt, columns(f), "it has none yet")
	for _, n := range []uint16{1, 132} {
		require.NoError(t, unix.IoctlSetWinsize(int(f.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 25, Col: n}))
		assert.EqualValues(t, n, columns(f))
	}
}

// terminal returns the two ends of a new pseudoterminal. The far one is what a program has.
func terminal(t *testing.T) (near, far *os.File) {
	t.Helper()
	near, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	require.NoError(t, err)
	t.Cleanup(func() { near.Close() })
	require.NoError(t, unix.IoctlSetPointerInt(int(near.Fd()), unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(int(near.Fd()), unix.TIOCGPTN)
	require.NoError(t, err)
	far, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	t.Cleanup(func() { far.Close() })
	return near, far
}
