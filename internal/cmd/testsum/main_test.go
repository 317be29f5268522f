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

var update = flag.Bool("update", false, "rewrite the golden files")

func TestRun(t *testing.T) {
	for _, tt := range []struct {
		name   string
		args   []string
		status int
	}{
		{"good", []string{"native=testdata/good.json,testdata/skips.txt"}, 0},
		{"unlisted-skip", []string{"native=testdata/good.json"}, 1},
		{"empty-list", []string{"native=testdata/good.json,testdata/empty.json"}, 1},
		{"rotten-list", []string{"native=testdata/good.json,testdata/skips-rotten.txt"}, 1},
		{"failed-listed", []string{"native=testdata/bad.json,testdata/skips-rotten.txt"}, 1},
		{"malformed-list", []string{"native=testdata/good.json,testdata/skips-malformed.txt"}, 1},
		{"no-list-file", []string{"native=testdata/good.json,testdata/none.txt"}, 1},
		{"failed-tests", []string{"native=testdata/bad.json"}, 1},
		{"failed-build", []string{"native=testdata/broken.json"}, 1},
		{"crash", []string{"native=testdata/crash.json"}, 1},
		{"failed-outside", []string{"native=testdata/leak.json"}, 1},
		{"died", []string{"native=testdata/died.json"}, 1},
		{"cut", []string{"native=testdata/cut.json"}, 1},
		{"failed-then-passed", []string{"native=testdata/rerun.json"}, 1},
		{"passed-then-died", []string{"native=testdata/passed-then-died.json"}, 1},
		{"no-tests", []string{"native=testdata/empty.json"}, 1},
		{"no-results", []string{"native=testdata/none.json"}, 1},
		{"two-suites", []string{
			"native=testdata/good.json,testdata/skips.txt", "device-6.1=testdata/bad.json"}, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			status := run(&stdout, &stderr, "example.org/m", tt.args)
			assert.Equal(t, tt.status, status)
			assert.Empty(t, stderr.String())

			golden := filepath.Join("testdata", tt.name+".golden")
			if *update {
				require.NoError(t, os.WriteFile(golden, stdout.Bytes(), 0o644))
			}
			want, err := os.ReadFile(golden)
			require.NoError(t, err)
			assert.Equal(t, string(want), stdout.String())
			assert.Regexp(t, `(?m)^\d+ passed, \d+ failed, \d+ skipped\n\z`, stdout.String())
		})
	}
}

func TestRunUsage(t *testing.T) {
	for _, tt := range []struct {
		name string
		args []string
		want string
	}{
		{"nothing", nil, "usage: testsum NAME=RESULTS[,SKIPS]...\n       testsum record [-v] RESULTS CMD [ARG...]\n"},
		{"no name", []string{"=x.json"}, "testsum: \"=x.json\" is not of the form NAME=RESULTS[,SKIPS]\n"},
		{"no file", []string{"native="}, "testsum: \"native=\" is not of the form NAME=RESULTS[,SKIPS]\n"},
		{"no equals", []string{"x.json"}, "testsum: \"x.json\" is not of the form NAME=RESULTS[,SKIPS]\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			assert.Equal(t, 2, run(&stdout, &stderr, "example.org/m", tt.args))
			assert.Empty(t, stdout.String())
			assert.Equal(t, tt.want, stderr.String())
		})
	}
}
