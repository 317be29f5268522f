//go:build rdma

package main

import (
	"bytes"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/internal/rdmatest"
	"github.com/goverbs/goverbs/internal/sysfs"
)

// onHost runs the command on this host and returns its output and exit status.
func onHost(args ...string) (stdout, stderr string, status int) {
	var out, notes bytes.Buffer
	status = run(args, &out, &notes, sysfs.Host)
	return out.String(), notes.String(), status
}

func TestSameAsDevinfo(t *testing.T) {
	dev := rdmatest.Device(t)
	for _, args := range [][]string{
		{"-v"},
		{"-v", "-d", dev},
		{"-v", "-d", dev, "-i", "1"},
	} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			want, err := exec.Command("ibv_devinfo", args...).Output()
			require.NoError(t, err)
			require.Contains(t, string(want), "hca_id:\t"+dev)
			stdout, stderr, status := onHost(args...)
			assert.Zero(t, status)
			assert.Empty(t, stderr)
			assert.Equal(t, strings.Split(string(want), "\n"), strings.Split(stdout, "\n"))
		})
	}
}

func TestListing(t *testing.T) {
	dev := rdmatest.Device(t)
	stdout, stderr, status := onHost("-d", dev)
	assert.Zero(t, status)
	assert.Empty(t, stderr)
	assert.Regexp(t, `(?m)^`+dev+` .* yes$`, stdout)
	assert.Regexp(t, `(?m)^`+dev+` +1 +ACTIVE +LinkUp +Ethernet +RoCE v`, stdout)
	assert.Regexp(t, `(?m)^\d+ +RoCE v2 .* `+rdmatest.Addr(t).String()+`$`, stdout)
	assert.NotContains(t, stdout, "Could not be read")

	names, _, status := onHost("-l")
	assert.Zero(t, status)
	assert.Contains(t, strings.Split(names, "\n"), dev)
}

// Without its node the device is as visible as before, and the listing says that it cannot be used.
func TestNodeMissing(t *testing.T) {
	dev := rdmatest.Device(t)
	host := sysfs.Host
	host.Dev = t.TempDir()
	var stdout, stderr bytes.Buffer
	assert.Zero(t, run([]string{"-d", dev}, &stdout, &stderr, host))
	assert.Regexp(t, `(?m)^`+dev+` .* NO$`, stdout.String())
	assert.Contains(t, stdout.String(), "Visible but not usable from here:\n  "+dev+": stat "+host.Dev+"/infiniband/uverbs")
}

func TestNoSuchPort(t *testing.T) {
	dev := rdmatest.Device(t)
	stdout, stderr, status := onHost("-v", "-d", dev, "-i", "7")
	assert.Equal(t, 1, status)
	assert.Empty(t, stdout)
	assert.Equal(t, "ibvinfo: no port 7 here; there is "+dev+" port 1\n", stderr)
}
