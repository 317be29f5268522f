package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// run is the output of one run in which every benchmark takes its number of
// nanoseconds.
func run(bare, post, poll, empty float64) string {
	var b strings.Builder
	line := func(name string, ns float64) {
		fmt.Fprintf(&b, "Benchmark%s-2 \t 1000\t %g ns/op\t %g ns/WR\t 0 B/op\t 0 allocs/op\n", name, ns, ns)
	}
	line("BareCall", bare)
	line("PostSend/wrs=1/sges=1", post)
	line("Poll/wcs=1", poll)
	line("Poll/wcs=0", empty)
	for _, k := range []string{"1", "4"} {
		line("PostAndPoll/wrs=32/sges="+k, 12)
		line("C/wrs=32/sges="+k, 10)
	}
	line("PostAndPoll/wrs=1/sges=1", 50)
	line("Plain/wrs=1/sges=1", 500)
	line("Plain/wrs=32/sges=1", 480)
	line("TwoGoroutines/goroutines=1", 10)
	line("TwoGoroutines/goroutines=2", 5)
	line("TwoLoops/threads=1", 10)
	line("TwoLoops/threads=2", 6)
	return b.String()
}

func TestReport(t *testing.T) {
	var out strings.Builder
	// The median of three is 50 for the post and 30 for the bare call.
	in := "goos: linux\n" + run(30, 50, 90, 33) + run(10, 500, 90, 33) + run(31, 40, 90, 33)
	require.NoError(t, report(strings.NewReader(in), &out))
	assert.Equal(t, []string{
		"ratio  wanted   runs  ",
		"1.67   <= 2     3     PostSend of 1 WR / a bare call into C",
		"3.00   <= 2     3     Poll that returns 1 / a bare call  not reached",
		"1.10   <= 1.4   3     empty Poll / a bare call",
		"1.20   <= 1.25  3     post and poll by 32, per WR / the loop in C",
		"1.20   <= 1.25  3     the same with 4 SGEs",
		"2.00   >= 1.7   3     throughput of two goroutines / of one",
		"1.67            3     throughput of two loops in C / of one: what two processors are here",
		"40.00  >= 5     3     the plain binding, per WR by 32 / this",
		"10.00  >= 1     3     the plain binding, 1 WR / this",
		"0      <= 0           allocations of an operation",
	}, strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n"))
}

func TestReportNeedsAllBenchmarks(t *testing.T) {
	assert.EqualError(t, report(strings.NewReader("BenchmarkBareCall 1 1 ns/op\n"), new(strings.Builder)),
		"no result for PostSend/wrs=1/sges=1 or BareCall")
}
