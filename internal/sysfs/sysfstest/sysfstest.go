// Package sysfstest builds trees with the form of /sys and /dev, for tests of what reads them.
//
// The trees are the files trees/*.txtar, modelled after real machines. Beside files, whose content is
// what the kernel prints, an archive may hold
//
//	-- sys/class/infiniband/rxe0 -> ../../devices/virtual/infiniband/rxe0 --
//	-- sys/class/infiniband/ --
//
// a symbolic link and an empty directory. A directory or a dangling link in the place of a file is a file
// that cannot be read, by root either.
package sysfstest

import (
	"embed"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/rogpeppe/go-internal/txtar"

	"github.com/goverbs/goverbs/internal/sysfs"
)

//go:embed trees/*.txtar
var trees embed.FS

// Build writes the tree trees/NAME.txtar below dir and returns its roots.
func Build(dir, name string) (sysfs.FS, error) {
	archive, err := trees.ReadFile("trees/" + name + ".txtar")
	if err != nil {
		return sysfs.FS{}, err
	}
	for _, file := range txtar.Parse(archive).Files {
		if err := write(dir, file); err != nil {
			return sysfs.FS{}, fmt.Errorf("tree %s: %w", name, err)
		}
	}
	return sysfs.FS{Sys: filepath.Join(dir, "sys"), Dev: filepath.Join(dir, "dev")}, nil
}

func write(root string, file txtar.File) error {
	name, target, isLink := strings.Cut(file.Name, " -> ")
	path := filepath.Join(root, filepath.FromSlash(name))
	if strings.HasSuffix(name, "/") {
		return os.MkdirAll(path, 0o755)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if isLink {
		return os.Symlink(target, path)
	}
	mode := os.FileMode(0o444)
	if strings.HasPrefix(name, "dev/") {
		mode = 0o666 // as udev makes device nodes
	}
	return os.WriteFile(path, file.Data, mode)
}
