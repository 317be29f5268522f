// Package bench holds the benchmarks of the data path. They run on a null provider,
// which does what a provider in C does besides talking to hardware, so that what is
// measured is the binding alone: in the same run also a bare call into C, the loop that
// a program in C would be, and the plain way to bind.
//
// make bench runs them interleaved and prints the ratios.
package bench
