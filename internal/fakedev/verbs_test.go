//go:build cgo && linux && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package fakedev_test

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestVerbs runs a C program on the fake verbs, under the sanitizers: it also has the
// verbs that Go does not bind.
func TestVerbs(t *testing.T) {
	cc, err := exec.Command("go", "env", "CC").Output()
	require.NoError(t, err)
	sources, err := filepath.Glob("*.c")
	require.NoError(t, err)
	program := filepath.Join(t.TempDir(), "verbs")
	args := append(strings.Fields(string(cc)), "-g", "-O1", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined", "-o", program)
	args = append(append(args, sources...), "testdata/verbs.c", "-libverbs")
	output, err := exec.Command(args[0], args[1:]...).CombinedOutput()
	require.NoError(t, err, "%s", output)
	output, err = exec.Command(program).CombinedOutput()
	require.NoError(t, err, "%s", output)
	require.Empty(t, string(output), "what the sanitizers say")
	output, err = exec.Command(program, "use after destroy").CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(output), "heap-use-after-free")
}
