//go:build linux

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// mountRoot makes the host's root ours, under an overlay in memory, with the
// shared folder in it.
func mountRoot(build string) error {
	const p9 = "trans=virtio,version=9p2000.L,msize=512000,"
	for _, m := range []struct {
		source, target, kind string
		flags                uintptr
		options              string
	}{
		{"root", "/host", "9p", unix.MS_RDONLY, p9 + "cache=loose"}, // it cannot change but from the host
		{"memory", "/memory", "tmpfs", 0, "mode=755"},
		{"root", "/root", "overlay", 0, "lowerdir=/host,upperdir=/memory/upper,workdir=/memory/work"},
		{"proc", "/root/proc", "proc", 0, ""},
		{"sys", "/root/sys", "sysfs", 0, ""},
		{"/dev", "/root/dev", "", unix.MS_MOVE, ""},
		{"pts", "/root/dev/pts", "devpts", 0, "gid=5,mode=620,ptmxmode=666"},
		{"shm", "/root/dev/shm", "tmpfs", 0, "mode=1777"},
		{"build", "/root" + build, "9p", 0, p9 + "cache=mmap"},
	} {
		if m.kind == "overlay" {
			for _, dir := range []string{"/memory/upper", "/memory/work"} {
				if err := os.Mkdir(dir, 0o755); err != nil {
					return err
				}
			}
		}
		if err := mount(m.source, m.target, m.kind, m.flags, m.options); err != nil {
			return err
		}
	}
	for name, to := range map[string]string{"fd": "", "stdin": "/0", "stdout": "/1", "stderr": "/2"} {
		if err := os.Symlink("/proc/self/fd"+to, "/root/dev/"+name); err != nil {
			return err
		}
	}
	// The first root cannot be unmounted, only covered.
	if err := os.Chdir("/root"); err != nil {
		return err
	}
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("move the root: %w", err)
	}
	if err := unix.Chroot("."); err != nil {
		return err
	}
	return os.Chdir("/")
}

// mount makes the folder if it is missing.
func mount(source, target, kind string, flags uintptr, options string) error {
	if err := os.MkdirAll(target, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(source, target, kind, flags, options); err != nil {
		return fmt.Errorf("mount %s on %s: %w", source, target, err)
	}
	return nil
}

// loadModules loads the modules of a folder in the order of their names.
func loadModules(dir string) error {
	files, _ := filepath.Glob(filepath.Join(dir, "*.ko"))
	for _, file := range files {
		params := ""
		if strings.HasSuffix(file, "-dummy.ko") {
			params = "numdummies=0" // we make dummy0 as elsewhere
		}
		f, err := os.Open(file)
		if err != nil {
			return err
		}
		err = unix.FinitModule(int(f.Fd()), params, 0)
		f.Close()
		if err != nil {
			return fmt.Errorf("load %s: %w", file, err)
		}
	}
	return nil
}
