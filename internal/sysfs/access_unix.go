//go:build unix

package sysfs

import (
	"io/fs"

	"golang.org/x/sys/unix"
)

// access asks the kernel whether this process may read and write a file, without opening it.
func access(path string) error {
	if err := unix.Access(path, unix.R_OK|unix.W_OK); err != nil {
		return &fs.PathError{Op: "access", Path: path, Err: err}
	}
	return nil
}
