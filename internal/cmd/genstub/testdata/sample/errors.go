// Package sample is a package with cgo files, for the generator's test.
package sample

import "errors"

// ErrNoCgo is what the stub answers.
var ErrNoCgo = errors.New("built without cgo")

// Flags is always built, so the stub must not declare it.
type Flags uint32

// Describe is always built and needs a function that is not.
func Describe() string { return describe(1) }
