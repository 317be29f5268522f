package main

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The quick start that people copy is the program that the device tests run.
func TestReadmeShowsThisProgram(t *testing.T) {
	readme, err := os.ReadFile("../../../README.md")
	require.NoError(t, err)
	src, err := os.ReadFile("main.go")
	require.NoError(t, err)
	_, program, ok := strings.Cut(string(src), "package main\n")
	require.True(t, ok)
	assert.Contains(t, string(readme), "```go\npackage main\n"+program+"```\n")
	assert.Regexp(t, `\n\d{3,} passed, 0 failed, \d+ skipped\n`, string(readme), "the summary of make test")
}
