package rdmatest

import (
	"encoding/json"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
)

// Resources returns what the kernel counts for the device under test: by kind, as in
// "rdma resource show".
func Resources(t testing.TB) map[string]int {
	t.Helper()
	out, err := exec.Command("rdma", "-j", "resource", "show").Output()
	require.NoError(t, err)
	var devices []map[string]any
	require.NoError(t, json.Unmarshal(out, &devices))
	counts := map[string]int{}
	for _, d := range devices {
		if d["ifname"] != Device(t) {
			continue
		}
		for kind, n := range d {
			if n, ok := n.(float64); ok && kind != "ifindex" {
				counts[kind] = int(n)
			}
		}
	}
	require.Contains(t, counts, "qp", "no counts in %s", out)
	return counts
}

// OpenFDs returns how many file descriptors are open.
func OpenFDs(testing.TB) int { return len(openFDs()) }
