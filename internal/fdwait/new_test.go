//go:build linux

package fdwait

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/internal/alone"
)

func none() (event, error) { return event{}, unix.EAGAIN }

// What the runtime's poller does not take would hold a thread for each wait.
func TestNewRefuses(t *testing.T) {
	leavesNothing(t)
	f, err := os.Create(filepath.Join(t.TempDir(), "regular"))
	require.NoError(t, err)
	defer f.Close()
	fd := int(f.Fd())
	_, err = New(fd, none)
	require.ErrorIs(t, err, os.ErrNoDeadline)
	require.ErrorContains(t, err, fmt.Sprintf("the runtime cannot poll file descriptor %d", fd))

	_, err = New(-1, none)
	require.ErrorIs(t, err, unix.EBADF)
	require.ErrorContains(t, err, "duplicating file descriptor -1")
}

// The queue has a descriptor of its own, which no program that is run inherits, and
// Close closes that one only.
func TestOwnDescriptor(t *testing.T) {
	leavesNothing(t)
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	require.NoError(t, err)
	before := openFDs(t)
	q, err := New(fd, none)
	require.NoError(t, err)
	require.Len(t, openFDs(t), len(before)+1)
	var flags int
	require.NoError(t, q.conn.Control(func(dup uintptr) { flags, err = unix.FcntlInt(dup, unix.F_GETFD, 0) }))
	require.NoError(t, err)
	require.NotZero(t, flags&unix.FD_CLOEXEC)
	flags, err = unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	require.NoError(t, err)
	require.NotZero(t, flags&unix.O_NONBLOCK)
	q.Close()
	require.Equal(t, before, openFDs(t))
	require.NoError(t, unix.Close(fd))
}

// With few descriptors left New works or says what is missing, and leaves none behind.
// In a process that has not used the runtime's poller yet, as this one, it must not be
// New that ends it.
func TestNewWithoutDescriptors(t *testing.T) {
	if !alone.Here(t, 3*patience) {
		return
	}
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	require.NoError(t, err)
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 64, Max: 64}))
	var fill []int
	for {
		dup, err := unix.Dup(fd)
		if err != nil {
			require.ErrorIs(t, err, unix.EMFILE)
			break
		}
		fill = append(fill, dup)
	}
	free := func() (n int) {
		var dups []int
		for dup, err := unix.Dup(fd); err == nil; dup, err = unix.Dup(fd) {
			dups = append(dups, dup)
		}
		closeAll(dups)
		return len(dups)
	}
	made := false
	for left := 0; !made; left++ {
		require.Less(t, left, len(fill))
		require.Equal(t, left, free())
		q, err := New(fd, none)
		if made = err == nil; made {
			q.Close()
			assert.GreaterOrEqual(t, free(), left-2, "the poller's two aside")
			break
		}
		require.ErrorIs(t, err, unix.EMFILE)
		require.EqualError(t, err, fmt.Sprintf("duplicating file descriptor %d: too many open files", fd))
		require.Equal(t, left, free(), "nothing leaks")
		require.NoError(t, unix.Close(fill[left]))
	}
	closeAll(fill[len(fill)-3:])
	before := free()
	for range 100 {
		q, err := New(fd, none)
		require.NoError(t, err)
		q.Close()
	}
	require.Equal(t, before, free())
}
