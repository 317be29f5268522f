// Package exampletest is what the tests of the examples share: how long a program is,
// and what README shows of it.
package exampletest

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// thin are lines of braces only, and of comments.
var thin = regexp.MustCompile(`^[\s{}()\[\],;]*$|^\s*//`)

// Lines counts the lines of code, braces and comments aside.
func Lines(code string) int {
	n := 0
	for line := range strings.Lines(code) {
		if !thin.MatchString(line) {
			n++
		}
	}
	return n
}

// Read returns a file.
func Read(t testing.TB, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	return string(text)
}

// ReadmeShows fails the test unless README has the code, in a block of its own.
func ReadmeShows(t testing.TB, code string) {
	t.Helper()
	if !strings.Contains(Read(t, "../../../README.md"), "```go\n"+code+"```\n") {
		t.Errorf("README.md does not have this, or has it otherwise:\n%s", code)
	}
}

// Between returns what stands in src from the first occurrence of from on, and before
// the next one of to. An empty to is the end.
func Between(t testing.TB, src, from, to string) string {
	t.Helper()
	at := strings.Index(src, from)
	require.GreaterOrEqual(t, at, 0, "no %q", from)
	src = src[at:]
	if to == "" {
		return src
	}
	end := strings.Index(src[len(from):], to)
	require.GreaterOrEqual(t, end, 0, "no %q behind %q", to, from)
	return src[:len(from)+end]
}
