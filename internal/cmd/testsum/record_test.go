package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestRecord(t *testing.T) {
	good, err := os.ReadFile("testdata/good.json")
	require.NoError(t, err)
	died, err := os.ReadFile("testdata/died.json")
	require.NoError(t, err)

	for _, tt := range []struct {
		name    string
		script  string
		status  int
		stdout  string
		results string
	}{
		{"passed", "cat testdata/good.json", 0, "ok    good  0.0s\n", string(good)},
		{"failed", "cat testdata/crash.json; exit 1", 1, "FAIL  crash  0.0s\n", ""},
		{"failed test", "cat testdata/bad.json; exit 1", 1,
			"FAIL  bad/TestSub/wrong\nFAIL  bad/TestSub\nFAIL  bad/TestParentAlone\nFAIL  bad  0.0s\n", ""},
		{"failed build", "cat testdata/broken.json; exit 1", 1,
			"# example.org/m/broken [example.org/m/broken.test]\nbroken/a_test.go:3:28: undefined: undefined\nFAIL  broken  0.0s\n", ""},
		{"status without a failure", "cat testdata/good.json; exit 3", 3,
			"ok    good  0.0s\nFAIL  sh -c cat testdata/good.json; exit 3: exit status 3\n",
			string(good) + `{"Action":"output","Output":"exit status 3\n","Package":"sh -c cat testdata/good.json; exit 3"}` + "\n"},
		{"killed", "cat testdata/died.json; kill -9 $$", 137,
			"FAIL  sh -c cat testdata/died.json; kill -9 $$: signal: killed\n",
			string(died) + `{"Action":"output","Output":"signal: killed\n","Package":"sh -c cat testdata/died.json; kill -9 $$"}` + "\n"},
		{"failure without a status", "cat testdata/crash.json", 1, "FAIL  crash  0.0s\n", ""},
		{"no event", "echo what; echo why >&2; cat testdata/good.json", 0, "what\nok    good  0.0s\n", "what\n" + string(good)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "results.json")
			var stdout, stderr bytes.Buffer
			status := run(&stdout, &stderr, "example.org/m", []string{"record", file, "sh", "-c", tt.script})
			assert.Equal(t, tt.status, status)
			assert.Equal(t, tt.stdout, stdout.String())
			results, err := os.ReadFile(file)
			require.NoError(t, err)
			if tt.results != "" {
				assert.Equal(t, tt.results, string(results))
			}
			if tt.status != 0 {
				assert.Equal(t, 1, run(&stdout, &stderr, "example.org/m", []string{"x=" + file + ",testdata/skips.txt"}),
					"what failed on the way fails in the sum")
			}
		})
	}
}

func TestRecordVerbose(t *testing.T) {
	var stdout, stderr bytes.Buffer
	file := filepath.Join(t.TempDir(), "results.json")
	assert.Equal(t, 1, run(&stdout, &stderr, "example.org/m", []string{"record", "-v", file, "cat", "testdata/crash.json"}))
	assert.Equal(t, "?   \texample.org/m/notests\t[no test files]\n--- PASS: TestBefore (0.00s)\nabout to exit\n"+
		"FAIL\texample.org/m/crash\t0.002s\nFAIL  crash  0.0s\n", stdout.String())
}

func TestRecordUsage(t *testing.T) {
	for _, tt := range []struct {
		name   string
		args   []string
		status int
		want   string
	}{
		{"nothing", nil, 2, "usage: testsum record"},
		{"no command", []string{"x.json"}, 2, "usage: testsum record"},
		{"unknown flag", []string{"-x", "x.json", "true"}, 2, "-x"},
		{"no such command", []string{filepath.Join(t.TempDir(), "x"), "testdata/none"}, 1, "testdata/none: no such file"},
		{"no such folder", []string{"testdata/none/x", "true"}, 1, "testdata/none/x: no such file"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			assert.Equal(t, tt.status, run(&stdout, &stderr, "example.org/m", append([]string{"record"}, tt.args...)))
			assert.Contains(t, stderr.String(), tt.want)
		})
	}
}
