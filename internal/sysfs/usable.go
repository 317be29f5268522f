package sysfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Unusable says why a visible device cannot be opened by this process, and what to do.
//
// It comes from the device node alone, which is not opened. What only opening would show, such as a
// container's device rules or a device of another network namespace, is not known here.
type Unusable struct {
	Err    error
	Advice string
}

func (u *Unusable) Error() string { return u.Err.Error() + "; " + u.Advice }

func (u *Unusable) Unwrap() error { return u.Err }

// uverbsTable has the character devices of the kernel's ib_uverbs by RDMA device.
type uverbsTable struct {
	dir      string
	byDevice map[string]string
	err      error
}

func (f FS) uverbs() uverbsTable {
	t := uverbsTable{dir: filepath.Join(f.Sys, "class", "infiniband_verbs"), byDevice: map[string]string{}}
	entries, err := os.ReadDir(t.dir)
	t.err = err
	for _, e := range entries {
		if e.Name() == "abi_version" { // the class's own attribute
			continue
		}
		a := attrs{dir: filepath.Join(t.dir, e.Name())}
		if device, err := a.read("ibdev"); err == nil {
			t.byDevice[device] = e.Name()
		} else if t.err == nil {
			t.err = err
		}
	}
	return t
}

// lacks says why the table has no entry for a device.
func (t uverbsTable) lacks(device string) *Unusable {
	_, err := os.Stat(t.dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return &Unusable{err, "load the kernel's user interface to RDMA: modprobe ib_uverbs"}
	case t.err != nil:
		return &Unusable{t.err, "without that its device node cannot be told"}
	}
	return &Unusable{fmt.Errorf("%s has no entry for %s", t.dir, device), "its driver serves the kernel only, or is still starting"}
}

// check tells whether this process may open a device node.
func check(node string) *Unusable {
	info, err := os.Stat(node)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return &Unusable{err, "in a container, pass it in: --device=/dev/infiniband; on a host, udev makes it"}
	case err != nil:
		return &Unusable{err, "make the device node reachable"}
	}
	if err := access(node); err != nil {
		return &Unusable{err, fmt.Sprintf("its mode is %v: run as its owner, or set 0666 as rdma-core's udev rules do", info.Mode().Perm())}
	}
	if info.Mode()&fs.ModeCharDevice == 0 {
		return &Unusable{fmt.Errorf("%s is not a character device", node), "remove it and let udev make it again"}
	}
	return nil
}
