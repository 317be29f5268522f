package main

import (
	"fmt"
	"os"
	"strings"
	"time"
)

// tally is a suite added up.
type tally struct {
	suite    string
	packages int // that have tests
	passed   int
	failures []failure
	skips    []skip // those on the list
	took     time.Duration

	list skipList
	seen map[string]outcome // by "package/TestName"
}

// failure is one thing that is wrong, and what the test printed about it.
type failure struct{ what, output string }

func (t *tally) fail(output, format string, args ...any) {
	t.failures = append(t.failures, failure{what: fmt.Sprintf(format, args...), output: output})
}

// sumSuite reads and adds up one suite. What cannot be read is a failure of it.
func sumSuite(name, resultsFile, skipsFile, module string) *tally {
	t := &tally{suite: name, seen: map[string]outcome{}}
	var err error
	if t.list, err = readSkips(skipsFile); err != nil {
		t.fail("", "skip list: %v", err)
	}
	f, err := os.Open(resultsFile)
	if err != nil {
		t.fail("", "no results: %v", err)
		return t
	}
	defer f.Close()
	res, err := readResults(f)
	if err != nil {
		t.fail("", "%s: %v", resultsFile, err)
	}
	t.took = res.last.Sub(res.first)

	for _, p := range res.packages {
		path := strings.TrimPrefix(p.path, module+"/")
		testsFailed := t.addTests(path, p.tests)
		switch {
		case p.failedBuild != "":
			t.fail(res.build(p.failedBuild).String()+p.output.String(), "%s did not build", path)
		case p.outcome == unfinished:
			t.fail(p.output.String(), "%s ended without a result", path)
		case p.outcome == failed && !testsFailed:
			t.fail(p.output.String(), "%s failed outside its tests", path)
		}
	}
	if len(t.seen) == 0 {
		t.fail("", "no test ran")
	}
	t.checkList()
	return t
}

// addTests adds a package's tests and says whether any of them failed.
func (t *tally) addTests(path string, tests []*testResult) (anyFailed bool) {
	parents, failedBelow := map[string]bool{}, map[string]bool{}
	for _, test := range tests {
		for i, c := range test.name {
			if c == '/' {
				parents[test.name[:i]] = true
				failedBelow[test.name[:i]] = failedBelow[test.name[:i]] || test.outcome.bad()
			}
		}
	}
	if len(tests) > 0 {
		t.packages++
	}
	for _, test := range tests {
		name := path + "/" + test.name
		t.seen[name] = test.outcome
		anyFailed = anyFailed || test.outcome.bad()
		switch {
		case test.outcome == passed && !parents[test.name]:
			t.passed++
		case test.outcome == skipped:
			t.addSkip(name, test.output.String())
		case test.outcome == failed && !failedBelow[test.name]:
			t.fail(test.output.String(), "%s failed", name)
		case test.outcome == unfinished && !failedBelow[test.name]:
			t.fail(test.output.String(), "%s began and did not end", name)
		}
	}
	return anyFailed
}

func (t *tally) addSkip(name, output string) {
	for _, s := range t.list.skips {
		if s.test == name {
			t.skips = append(t.skips, s)
			return
		}
	}
	if t.list.file == "" {
		t.fail(output, "%s was skipped, and this suite may skip nothing", name)
		return
	}
	t.fail(output, "%s was skipped, and %s does not list it", name, t.list.file)
}

// checkList fails the lines of the skip list that are no longer true. The line
// of a test that failed is left alone: what the test found comes first.
func (t *tally) checkList() {
	for _, s := range t.list.skips {
		switch o, ran := t.seen[s.test]; {
		case !ran:
			t.fail("", "%s:%d: there was no %s to skip: remove the line", t.list.file, s.line, s.test)
		case o == passed:
			t.fail("", "%s:%d: %s passed: remove the line", t.list.file, s.line, s.test)
		}
	}
}

// skipList is a checked-in list of the skips that are right for a suite.
type skipList struct {
	file  string
	skips []skip
}

// skip is a line of a skip list.
type skip struct {
	test, reason string // test is "package/TestName"
	line         int
}

// readSkips reads a skip list; the empty name is the empty list.
func readSkips(name string) (skipList, error) {
	list := skipList{file: name}
	if name == "" {
		return list, nil
	}
	text, err := os.ReadFile(name)
	if err != nil {
		return list, err
	}
	for i, line := range strings.Split(string(text), "\n") {
		if strings.TrimSpace(line) == "" || strings.HasPrefix(line, "#") {
			continue
		}
		test, reason, _ := strings.Cut(line, "\t")
		if !strings.Contains(test, "/") || strings.TrimSpace(reason) == "" {
			return list, fmt.Errorf("%s:%d: %q is not of the form package/TestName<TAB>reason", name, i+1, line)
		}
		list.skips = append(list.skips, skip{test: test, reason: strings.TrimSpace(reason), line: i + 1})
	}
	return list, nil
}
