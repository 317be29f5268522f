// Benchratio reads the output of several runs of the benchmarks in internal/bench, takes
// the median of each, and prints the ratios that matter. Machines are noisy, ratios of
// one run less so.
//
//	go test -bench . ./internal/bench | go run ./internal/cmd/benchratio
package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"golang.org/x/perf/benchfmt"
)

func main() {
	if err := report(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "benchratio:", err)
		os.Exit(1)
	}
}

// ratio is one line of the report: how a compares with b, by unit.
type ratio struct {
	what string
	a, b string // benchmarks
	unit string
	want float64 // 0 for what is only to compare with
	// atLeast says that the ratio is to be at least what is wanted, not at most.
	atLeast bool
}

// Units as benchfmt has them: it turns nanoseconds into seconds.
const perOp, perWR, allocs = "sec/op", "sec/WR", "allocs/op"

var ratios = []ratio{
	{what: "PostSend of 1 WR / a bare call into C", a: "PostSend/wrs=1/sges=1", b: "BareCall", unit: perOp, want: 2},
	{what: "Poll that returns 1 / a bare call", a: "Poll/wcs=1", b: "BareCall", unit: perOp, want: 2},
	{what: "empty Poll / a bare call", a: "Poll/wcs=0", b: "BareCall", unit: perOp, want: 1.4},
	{what: "post and poll by 32, per WR / the loop in C", a: "PostAndPoll/wrs=32/sges=1", b: "C/wrs=32/sges=1", unit: perWR, want: 1.25},
	{what: "the same with 4 SGEs", a: "PostAndPoll/wrs=32/sges=4", b: "C/wrs=32/sges=4", unit: perWR, want: 1.25},
	{what: "throughput of two goroutines / of one", a: "TwoGoroutines/goroutines=1", b: "TwoGoroutines/goroutines=2", unit: perWR, want: 1.7, atLeast: true},
	{what: "throughput of two loops in C / of one: what two processors are here", a: "TwoLoops/threads=1", b: "TwoLoops/threads=2", unit: perWR, atLeast: true},
	{what: "the plain binding, per WR by 32 / this", a: "Plain/wrs=32/sges=1", b: "PostAndPoll/wrs=32/sges=1", unit: perWR, want: 5, atLeast: true},
	{what: "the plain binding, 1 WR / this", a: "Plain/wrs=1/sges=1", b: "PostAndPoll/wrs=1/sges=1", unit: perWR, want: 1, atLeast: true},
}

// report reads benchmark results and writes the table.
func report(in io.Reader, out io.Writer) error {
	values := map[string]map[string][]float64{} // by benchmark and unit
	results := benchfmt.NewReader(in, "stdin")
	for results.Scan() {
		r, ok := results.Result().(*benchfmt.Result)
		if !ok {
			continue
		}
		name := r.Name.String()
		name, _, _ = strings.Cut(name, "-") // GOMAXPROCS
		if values[name] == nil {
			values[name] = map[string][]float64{}
		}
		for _, v := range r.Values {
			values[name][v.Unit] = append(values[name][v.Unit], v.Value)
		}
	}
	if err := results.Err(); err != nil {
		return err
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "ratio\twanted\truns\t")
	for _, r := range ratios {
		a, b := values[r.a][r.unit], values[r.b][r.unit]
		if len(a) == 0 || len(b) == 0 {
			return fmt.Errorf("no result for %s or %s", r.a, r.b)
		}
		got, want, verdict := median(a)/median(b), fmt.Sprintf("<= %g", r.want), ""
		switch {
		case r.want == 0:
			want = ""
		case r.atLeast:
			want = fmt.Sprintf(">= %g", r.want)
		}
		if got > r.want != r.atLeast {
			verdict = "  not reached"
		}
		fmt.Fprintf(w, "%.2f\t%s\t%d\t%s%s\n", got, want, len(a), r.what, verdict)
	}
	most, name := 0.0, ""
	for n, units := range values {
		if v := units[allocs]; len(v) > 0 && !strings.HasPrefix(n, "Plain/") && median(v) > most {
			most, name = median(v), " (of "+n+")"
		}
	}
	fmt.Fprintf(w, "%g\t<= 0\t\tallocations of an operation%s\n", most, name)
	return w.Flush()
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	n := len(v)
	return (v[(n-1)/2] + v[n/2]) / 2
}
