package main

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The program is what the API is judged by: a page of code with every error handled.
func TestProgramIsShort(t *testing.T) {
	src, err := os.ReadFile("main.go")
	require.NoError(t, err)
	_, body, ok := strings.Cut(string(src), "\n)\n") // after the imports
	require.True(t, ok)
	thin := regexp.MustCompile(`^[\s{}()\[\],;]*$|^\s*//`)
	lines := 0
	for line := range strings.Lines(body) {
		if !thin.MatchString(line) {
			lines++
		}
	}
	t.Logf("%d lines of code", lines)
	assert.LessOrEqual(t, lines, 60)
}
