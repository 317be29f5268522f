package main

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/goverbs/goverbs/internal/examples/exampletest"
)

// The quick start that people copy is the program that the device tests run.
func TestReadmeShowsThisProgram(t *testing.T) {
	exampletest.ReadmeShows(t, exampletest.Between(t, exampletest.Read(t, "main.go"), "package main\n", ""))
	assert.Regexp(t, `\n\d{3,} passed, 0 failed, \d+ skipped\n`, exampletest.Read(t, "../../../README.md"), "the summary of make test")
}
