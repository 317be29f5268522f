package main

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/goverbs/goverbs/internal/examples/exampletest"
)

// What each side does once it is connected is what the API is judged by.
func TestProgramIsShort(t *testing.T) {
	src := exampletest.Read(t, "main.go")
	server := exampletest.Lines(exampletest.Between(t, src, "func serve(", "\n}\n"))
	client := exampletest.Lines(exampletest.Between(t, src, "func use(", "\n}\n") +
		exampletest.Between(t, src, "func (s *side) do(", "\n}\n"))
	t.Logf("%d lines of code of the server and %d of the client", server, client)
	assert.LessOrEqual(t, server, 15)
	assert.LessOrEqual(t, client, 15)
}

func TestReadmeShowsThisProgram(t *testing.T) {
	exampletest.ReadmeShows(t, exampletest.Between(t, exampletest.Read(t, "main.go"), "// serve ", "\n// side "))
}
