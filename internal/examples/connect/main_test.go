package main

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/goverbs/goverbs/internal/examples/exampletest"
)

// Each side is what the API is judged by, with all that it needs but main, which is of both.
func TestSidesAreShort(t *testing.T) {
	text := exampletest.Read(t, "main.go")
	both := exampletest.Lines(exampletest.Between(t, text, "// inbox has", ""))
	client := exampletest.Lines(exampletest.Between(t, text, "func client", "// server serves"))
	server := exampletest.Lines(exampletest.Between(t, text, "// server serves", "// inbox has"))
	t.Logf("%d lines for both sides, %d of the client, %d of the server", both, client, server)
	assert.LessOrEqual(t, both+client, 35)
	assert.LessOrEqual(t, both+server, 35)
}
