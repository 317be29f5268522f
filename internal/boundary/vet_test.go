package boundary

import (
	"bytes"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestVet has the module built and vetted where its tests do not run: without
// cgo, on other systems and on 32 bits; and what only runs with a device.
func TestVet(t *testing.T) {
	for _, tt := range []struct {
		name string
		env  []string
		tags string
	}{
		{"device and lab tests", nil, "rdma,lab"},
		{"linux amd64 without cgo", []string{"GOOS=linux", "GOARCH=amd64", "CGO_ENABLED=0"}, ""},
		{"linux arm64 without cgo", []string{"GOOS=linux", "GOARCH=arm64", "CGO_ENABLED=0"}, ""},
		{"linux 386 without cgo", []string{"GOOS=linux", "GOARCH=386", "CGO_ENABLED=0"}, ""},
		{"darwin arm64", []string{"GOOS=darwin", "GOARCH=arm64", "CGO_ENABLED=0"}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			vet := exec.Command("go", "vet", "-tags", tt.tags, "./...")
			vet.Dir = "../.."
			vet.Env = append(os.Environ(), tt.env...)
			output, err := vet.CombinedOutput()
			assert.NoError(t, err, "%s", output)
		})
	}
}

// TestWithoutCgo has a program that needs verbs say in one line that it has none.
func TestWithoutCgo(t *testing.T) {
	program := t.TempDir() + "/pingpong"
	build := exec.Command("go", "build", "-o", program, "./cmd/pingpong")
	build.Dir = "../.."
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	output, err := build.CombinedOutput()
	require.NoError(t, err, "%s", output)
	var stderr bytes.Buffer
	run := exec.Command(program)
	run.Stderr = &stderr
	require.Error(t, run.Run())
	assert.Equal(t, 1, run.ProcessState.ExitCode())
	assert.Regexp(t, "^pingpong: .*built without RDMA verbs.*\n$", stderr.String())
}
