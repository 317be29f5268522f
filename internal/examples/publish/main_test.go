package main

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/goverbs/goverbs/internal/examples/exampletest"
)

// What the client does once it is connected is what the API is judged by; the server sleeps.
func TestProgramIsShort(t *testing.T) {
	src := exampletest.Read(t, "main.go")
	lines := exampletest.Lines(exampletest.Between(t, src, "func use(", ""))
	t.Logf("%d lines of code", lines)
	assert.LessOrEqual(t, lines, 15)
}
