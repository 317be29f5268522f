package main

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/goverbs/goverbs/internal/examples/exampletest"
)

// The program is what the API is judged by: a page of code with every error handled.
func TestProgramIsShort(t *testing.T) {
	body := exampletest.Between(t, exampletest.Read(t, "main.go"), "\n)\n", "") // after the imports
	lines := exampletest.Lines(body)
	t.Logf("%d lines of code", lines)
	assert.LessOrEqual(t, lines, 60)
}
