package main

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write the golden file anew")

// program writes a command whose help is the given text, with one subcommand.
func program(t *testing.T, help, sub string) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "help"), []byte(help), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "sub"), []byte(sub), 0o600))
	script := "#!/bin/sh\ncase \"$*\" in\n--help) cat '" + dir + "/help' ;;\n'list --help') cat '" + dir + "/sub' ;;\n*) echo \"no $*\" >&2; exit 2 ;;\nesac\n"
	name := filepath.Join(dir, "sample")
	require.NoError(t, os.WriteFile(name, []byte(script), 0o700))
	return name
}

func TestPage(t *testing.T) {
	help, err := os.ReadFile("testdata/help.txt")
	require.NoError(t, err)
	sub, err := os.ReadFile("testdata/list.txt")
	require.NoError(t, err)
	var out bytes.Buffer
	require.NoError(t, run([]string{program(t, string(help), string(sub))}, &out))
	if *update {
		require.NoError(t, os.WriteFile("testdata/sample.golden", out.Bytes(), 0o600))
	}
	want, err := os.ReadFile("testdata/sample.golden")
	require.NoError(t, err)
	assert.Equal(t, string(want), out.String())
}

func TestFailures(t *testing.T) {
	for _, tt := range []struct{ help, says string }{
		{"", "sample --help: it does not begin with what the command does"},
		{"Do it.\n", `sample --help: it has no line that begins with "Usage:"`},
		{"Do it.\n\nUsage: sample\n\nCommands:\n  other   another\n", "sample other --help]: exit status 2"},
		{"Do it.\n\nUsage: sample\n\nCommands:\n  list   another\n", "sample list --help: it does not begin"},
	} {
		var out bytes.Buffer
		err := run([]string{program(t, tt.help, "")}, &out)
		assert.ErrorContains(t, err, tt.says)
		assert.Empty(t, out.String())
	}
	assert.ErrorContains(t, run(nil, nil), "usage: manpage COMMAND")
}
