// Genstub writes stub_nocgo.go beside the cgo files of a package: what the
// package exports, with the same signatures, for builds in which those files
// are left out (cgo off, another operating system, 32 bits).
//
// Usage, as a go:generate line in the package or with its folder:
//
//	genstub [DIR]
//
// The cgo files are those whose go:build line is false without cgo; they must
// all have the same line, and the stub gets its negation. In the stub
//
//   - a function or method does nothing: its results are zero values, but a last
//     result of type error is ErrNoCgo, which the package declares in a file
//     that is always built;
//   - a type keeps its fields, with *struct{} for a pointer to a C type, so
//     that a handle has no value but its zero value;
//   - an unexported function is kept only where a file that is always built
//     names it, an unexported type only where what is kept names it.
//
// A C type anywhere else in what is kept, and a constant or variable
// that needs C for its value, are refused: the stub could not say the same.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

const stubName = "stub_nocgo.go"

func main() {
	dir := "."
	if len(os.Args) > 1 {
		dir = os.Args[1]
	}
	if err := run(dir, false); err != nil {
		fmt.Fprintln(os.Stderr, "genstub:", err)
		os.Exit(1)
	}
}

// run writes the stub of the package in dir or, to check, fails if it is not up to date.
func run(dir string, check bool) error {
	want, err := generate(dir)
	if err != nil {
		return err
	}
	name := filepath.Join(dir, stubName)
	if !check {
		return os.WriteFile(name, want, 0o644)
	}
	have, err := os.ReadFile(name)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if !bytes.Equal(have, want) {
		return fmt.Errorf("%s is not up to date: run go generate in its folder", name)
	}
	return nil
}
