// Testsum adds up the results of several test runs and closes with one line:
//
//	412 passed, 0 failed, 3 skipped
//
// Usage:
//
//	testsum NAME=RESULTS[,SKIPS]...
//	testsum record [-v] RESULTS CMD [ARG...]
//
// # Adding up
//
// Each argument is a suite: its name, the file with its results as written by
// "go test -json" or "go tool test2json", and the list of the skips that are
// right for it. A suite without a list may skip nothing.
//
// A test that has subtests is counted by its subtests alone, so that a table of
// ten rows counts ten, not eleven. It counts itself where it failed and none of
// its subtests did, or where it skipped.
//
// These count as one failure each, beside failed tests: a package that did not
// build, that failed outside its tests or ended without a result; a suite
// without tests or with unreadable results; a skip that is not on the list; and
// a line of the list whose test did not skip, so that the list cannot rot.
//
// The exit status is 0 if nothing failed, 1 if something did, 2 for wrong use.
//
// A list has lines of the form "package/TestName<TAB>reason", with the package
// relative to the module. Empty lines and lines that start with # are comments.
//
// # Recording
//
// Record runs a command that prints results, writes them to a file and says on
// the way which packages have ended and which tests have failed; with -v it
// prints all that the tests print. A command that fails with no failure in its
// results, as one that was killed, gets one there. The exit status is the
// command's, or 1 where that is 0 and the results have a failure.
package main

import (
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strings"
)

func main() {
	module := ""
	if info, ok := debug.ReadBuildInfo(); ok {
		module = info.Main.Path
	}
	os.Exit(run(os.Stdout, os.Stderr, module, os.Args[1:]))
}

func run(stdout, stderr io.Writer, module string, args []string) int {
	if len(args) == 0 {
		fmt.Fprint(stderr, "usage: testsum NAME=RESULTS[,SKIPS]...\n       testsum record [-v] RESULTS CMD [ARG...]\n")
		return 2
	}
	if args[0] == "record" {
		return runRecord(stdout, stderr, module, args[1:])
	}
	var tallies []*tally
	for _, arg := range args {
		name, files, ok := strings.Cut(arg, "=")
		results, skips, _ := strings.Cut(files, ",")
		if !ok || name == "" || results == "" {
			fmt.Fprintf(stderr, "testsum: %q is not of the form NAME=RESULTS[,SKIPS]\n", arg)
			return 2
		}
		tallies = append(tallies, sumSuite(name, results, skips, module))
	}
	if report(stdout, tallies) > 0 {
		return 1
	}
	return 0
}
