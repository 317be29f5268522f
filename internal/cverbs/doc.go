// Package cverbs is the only importer of "C" for libibverbs: shims, handles and
// the layout of the structs that cross on the data path.
//
// It keeps no state and checks nothing: callers pass live handles. Control calls
// take and return plain Go values and an error that is a syscall.Errno. Data path
// calls take addresses of C memory as uintptr, so that no Go pointer crosses and
// cgo has nothing to check.
//
// Where cgo is off, or the system is not a 64-bit Linux, a generated stub with the
// same functions stands in and every call that can fail returns ErrNoCgo.
package cverbs

import "errors"

//go:generate go run ../cmd/genstub

// ErrNoCgo says that this build has no verbs.
var ErrNoCgo = errors.New("built without RDMA verbs: they need Linux on a 64-bit machine and CGO_ENABLED=1")
