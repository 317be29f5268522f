//go:build linux

package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
)

// initramfs returns an archive with this program as init and the kernel's
// modules, in the cpio format that Linux unpacks ("newc").
func initramfs(kernel string) ([]byte, error) {
	modules, err := filepath.Glob(filepath.Join(kernel, "*.ko"))
	if err != nil {
		return nil, err
	}
	files := map[string]string{guestInit: "/proc/self/exe"}
	for _, m := range modules {
		files["/modules/"+filepath.Base(m)] = m
	}
	var b bytes.Buffer
	addEntry(&b, "modules", 0o040755, nil)
	for name, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		addEntry(&b, name[1:], 0o100755, data)
	}
	addEntry(&b, "TRAILER!!!", 0, nil)
	return b.Bytes(), nil
}

// addEntry adds a file or folder, each part of which begins at a multiple of 4.
func addEntry(b *bytes.Buffer, name string, mode int, data []byte) {
	align := func() { b.Write(make([]byte, -b.Len()&3)) }
	const inode, uid, gid, links, mtime, device, check = 0, 0, 0, 1, 0, 0, 0
	fmt.Fprintf(b, "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%s\x00",
		inode, mode, uid, gid, links, mtime, len(data), device, device, device, device, len(name)+1, check, name)
	align()
	b.Write(data)
	align()
}
