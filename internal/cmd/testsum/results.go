package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"
)

// event is a TestEvent of "go doc test2json", or a BuildEvent of "go help
// buildjson": the latter have ImportPath in place of Package.
type event struct {
	Time        time.Time
	Action      string
	Package     string
	Test        string
	Output      string
	ImportPath  string
	FailedBuild string
	Elapsed     float64 // seconds
}

// results is what the events of one file say.
type results struct {
	packages    []*packageResult            // in the order of their first event
	builds      map[string]*strings.Builder // the compiler's output, by import path
	first, last time.Time
}

type packageResult struct {
	path        string
	tests       []*testResult // in the order in which they began
	output      strings.Builder
	outcome     outcome
	failedBuild string
}

type testResult struct {
	name    string
	output  strings.Builder
	outcome outcome
}

// outcome is the last action of a test or package, one of the constants.
type outcome string

const (
	unfinished outcome = "" // the zero value: it began and nothing more was heard
	passed     outcome = "pass"
	failed     outcome = "fail"
	skipped    outcome = "skip"
)

func (o outcome) bad() bool { return o == failed || o == unfinished }

// then returns the outcome of a test or package that ran again: one failure
// among the runs is a failure.
func (o outcome) then(next outcome) outcome {
	if o == failed {
		return failed
	}
	return next
}

func (r *results) build(importPath string) *strings.Builder {
	if r.builds[importPath] == nil {
		r.builds[importPath] = &strings.Builder{}
	}
	return r.builds[importPath]
}

// readResults reads events up to the end of r. With an error, what was read
// before it is still returned.
func readResults(r io.Reader) (*results, error) {
	res := &results{builds: map[string]*strings.Builder{}}
	packages := map[string]*packageResult{}
	tests := map[[2]string]*testResult{}

	lines := bufio.NewReader(r)
	for number := 1; ; number++ {
		line, err := lines.ReadBytes('\n')
		if err == io.EOF && len(line) == 0 {
			return res, nil
		}
		if err != nil && err != io.EOF {
			return res, fmt.Errorf("line %d: %w", number, err)
		}
		var e event
		if err := json.Unmarshal(line, &e); err != nil {
			return res, fmt.Errorf("line %d is no test event: %q", number, bytes.TrimSpace(line))
		}
		if !e.Time.IsZero() {
			if res.first.IsZero() {
				res.first = e.Time
			}
			res.last = e.Time
		}
		if e.Package == "" {
			res.build(e.ImportPath).WriteString(e.Output)
			continue
		}

		p := packages[e.Package]
		if p == nil {
			p = &packageResult{path: e.Package}
			packages[e.Package] = p
			res.packages = append(res.packages, p)
		}
		if e.Test == "" {
			p.add(e)
			continue
		}
		key := [2]string{e.Package, e.Test}
		if tests[key] == nil {
			tests[key] = &testResult{name: e.Test}
			p.tests = append(p.tests, tests[key])
		}
		tests[key].add(e)
	}
}

func (p *packageResult) add(e event) {
	switch e.Action {
	case "start":
		p.outcome = p.outcome.then(unfinished)
	case "output":
		p.output.WriteString(e.Output)
	case "pass", "fail", "skip":
		p.outcome = p.outcome.then(outcome(e.Action))
		p.failedBuild = e.FailedBuild
	}
}

func (t *testResult) add(e event) {
	switch e.Action {
	case "run":
		t.outcome = t.outcome.then(unfinished)
	case "output":
		t.output.WriteString(e.Output)
	case "pass", "fail", "skip":
		t.outcome = t.outcome.then(outcome(e.Action))
	}
}
