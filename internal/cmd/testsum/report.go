package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

// report prints all tallies, the closing line last, and returns the number of
// failures.
func report(w io.Writer, tallies []*tally) int {
	for _, t := range tallies {
		for _, f := range t.failures {
			fmt.Fprintf(w, "FAILED  %s: %s\n", t.suite, f.what)
			for line := range strings.Lines(f.output) {
				fmt.Fprintf(w, "    %s\n", strings.TrimSuffix(line, "\n"))
			}
		}
	}
	for _, t := range tallies {
		for _, s := range t.skips {
			fmt.Fprintf(w, "skipped  %s: %s: %s\n", t.suite, s.test, s.reason)
		}
	}

	var passed, failed, skipped int
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "suite\tpackages\tpassed\tfailed\tskipped\ttime\t")
	for _, t := range tallies {
		fmt.Fprintf(table, "%s\t%d\t%d\t%d\t%d\t%v\t\n", t.suite, t.packages, t.passed,
			len(t.failures), len(t.skips), t.took.Round(time.Second/10))
		passed += t.passed
		failed += len(t.failures)
		skipped += len(t.skips)
	}
	table.Flush()
	fmt.Fprintf(w, "%d passed, %d failed, %d skipped\n", passed, failed, skipped)
	return failed
}
