package sysfs_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/internal/sysfs"
)

func TestUnusable(t *testing.T) {
	tests := []struct {
		name   string
		change func(t *testing.T, uverbs, node string)
		is     error
		says   string
	}{
		{"no user interface", func(t *testing.T, uverbs, _ string) {
			require.NoError(t, os.RemoveAll(filepath.Dir(uverbs)))
		}, fs.ErrNotExist, "modprobe ib_uverbs"},
		{"not in the user interface", func(t *testing.T, uverbs, _ string) {
			require.NoError(t, os.RemoveAll(uverbs))
		}, nil, "infiniband_verbs has no entry for rxe0"},
		{"user interface unreadable", func(t *testing.T, uverbs, _ string) {
			require.NoError(t, os.Remove(filepath.Join(uverbs, "ibdev")))
		}, fs.ErrNotExist, "uverbs0/ibdev"},
		{"no node", func(t *testing.T, _, node string) {
			require.NoError(t, os.Remove(node))
		}, fs.ErrNotExist, "--device=/dev/infiniband"},
		{"node unreachable", func(t *testing.T, _, node string) {
			require.NoError(t, os.Remove(node))
			require.NoError(t, os.Symlink("uverbs0", node))
		}, unix.ELOOP, "make the device node reachable"},
		{"node is no device", func(t *testing.T, _, node string) {
			require.NoError(t, os.Remove(node))
			require.NoError(t, os.WriteFile(node, nil, 0o666))
		}, nil, "uverbs0 is not a character device"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			root := build(t, "soft")
			tt.change(t, filepath.Join(root.Sys, "class/infiniband_verbs/uverbs0"), filepath.Join(root.Dev, "infiniband/uverbs0"))
			list, err := root.Devices()
			require.NoError(t, err)
			require.Len(t, list, 1)
			require.NotNil(t, list[0].Unusable)
			assert.ErrorContains(t, list[0].Unusable, tt.says)
			if tt.is != nil {
				assert.ErrorIs(t, list[0].Unusable, tt.is)
			}
			assert.Equal(t, sysfs.RoCE, list[0].Ports[0].Transport, "it is visible all the same")
		})
	}
}

func TestNoPermission(t *testing.T) {
	root := build(t, "soft")
	node := filepath.Join(root.Dev, "infiniband/uverbs0")
	require.NoError(t, os.Remove(node))
	require.NoError(t, os.WriteFile(node, nil, 0))
	for _, tt := range []struct {
		mode os.FileMode
		says string
	}{
		{0o400, "its mode is -r--------: run as its owner"},
		{0o444, "its mode is -r--r--r--: run as its owner"},
		{0o666, "not a character device"}, // it may be opened, and is no device
	} {
		require.NoError(t, os.Chmod(node, tt.mode))
		var list []sysfs.Device
		var err error
		asUser(t, func() { list, err = root.Devices() })
		require.NoError(t, err)
		require.Len(t, list, 1)
		require.NotNil(t, list[0].Unusable)
		assert.ErrorContains(t, list[0].Unusable, tt.says)
		assert.Equal(t, tt.mode != 0o666, errors.Is(list[0].Unusable, fs.ErrPermission))
	}
}

// asUser runs f without root's rights, whoever runs the test: root may access every file.
func asUser(t *testing.T, f func()) {
	if os.Getuid() != 0 {
		f()
		return
	}
	// The directory of t.TempDir is closed to others.
	require.NoError(t, os.Chmod(filepath.Dir(t.TempDir()), 0o755))
	var errno unix.Errno
	done := make(chan struct{})
	go func() {
		defer close(done)
		// The user is that of this thread alone; it ends with the goroutine that locks it.
		runtime.LockOSThread()
		const user, unchanged = 1, ^uintptr(0)
		if _, _, errno = unix.RawSyscall(unix.SYS_SETRESUID, user, unchanged, unchanged); errno == 0 {
			f()
		}
	}()
	<-done
	require.Zero(t, errno, "setresuid")
}
