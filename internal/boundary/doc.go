// Package boundary holds no code, only the tests of the rules that no single
// package can keep by itself: which package imports which, where C and unsafe
// are, what the public packages show of either, and how long a file may be.
//
// A rule's exceptions stand in the test beside it, each with its reason; an
// exception that is no longer used fails too.
package boundary
