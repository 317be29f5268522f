// Package alone runs a test in a process of its own: for what a process has once, and what
// other tests would have changed.
package alone

import (
	"context"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const variable = "GOVERBS_TEST_ALONE"

// Here reports whether this is the process that it has started for the test t alone, with
// more in its environment. In the other one it returns when it has seen that succeed
// within limit:
//
//	if !alone.Here(t, time.Minute, "GOMAXPROCS=4") {
//		return
//	}
func Here(t *testing.T, limit time.Duration, environment ...string) bool {
	t.Helper()
	if os.Getenv(variable) == t.Name() {
		return true
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=0")
	cmd.Env = append(append(os.Environ(), variable+"="+t.Name()), environment...)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "--- PASS: "+t.Name())
	t.Logf("%s", out)
	return false
}
