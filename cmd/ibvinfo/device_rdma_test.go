//go:build rdma

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/rdmatest"
)

// onHost runs the command on this host and returns its output and exit status.
func onHost(args ...string) (stdout, stderr string, status int) {
	verbs, err := exec.LookPath("ibvinfo-verbs")
	if err != nil {
		return "", err.Error(), -1
	}
	var out, notes bytes.Buffer
	status = run(context.Background(), args, &out, &notes, thisHost(verbs), false)
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
	h := thisHost("")
	h.Dev = t.TempDir()
	var stdout, stderr bytes.Buffer
	assert.Zero(t, run(t.Context(), []string{"-d", dev}, &stdout, &stderr, h, false))
	assert.Regexp(t, `(?m)^`+dev+` .* NO$`, stdout.String())
	assert.Contains(t, stdout.String(), "Visible but not usable from here:\n  "+dev+": stat "+h.Dev+"/infiniband/uverbs")
}

func TestNoSuchPort(t *testing.T) {
	dev := rdmatest.Device(t)
	stdout, stderr, status := onHost("-v", "-d", dev, "-i", "7")
	assert.Equal(t, 1, status)
	assert.Empty(t, stdout)
	assert.Equal(t, "ibvinfo: no port 7 here; there is "+dev+" port 1\n", stderr)
}

// The library chooses as ibvinfo says.
func TestChoosesAsTheLibrary(t *testing.T) {
	dev, peer := rdmatest.Device(t), rdmatest.Addr(t)
	stdout, stderr, status := onHost("gids", "-d", dev, "--for", peer.String())
	require.Zero(t, status, stderr)
	choice, err := rdmatest.Open(t).ChooseGID(ibv.GIDRequest{Peer: peer})
	require.NoError(t, err)
	says := fmt.Sprintf("%s to %v: GID %d of port %d: %s\n", dev, peer, choice.Entry.Index, choice.Entry.Port, choice.Why)
	assert.Equal(t, says, stdout[:strings.Index(stdout, "\n")+1])
}

func TestCountersOfTheDevice(t *testing.T) {
	dev := rdmatest.Device(t)
	stdout, stderr, status := onHost("counters", "-d", dev)
	assert.Zero(t, status)
	assert.Empty(t, stderr)
	assert.Regexp(t, `(?m)^\d+ +sent_pkts +packets sent$`, stdout)
	assert.NotContains(t, stdout, "other", "all counters of rxe are known")

	// What is sent shows in the next interval, or in the one after.
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	pair := rdmatest.NewPair(t, rdmatest.DefaultInit())
	seen := false
	out := &onWrite{}
	out.do = func() {
		if seen = seen || strings.Contains(out.String(), "sent_pkts"); seen {
			cancel()
			return
		}
		_, err := pair.B.QP.PostRecv([]ibv.RecvWR{{SGEs: []ibv.SGE{pair.B.Region.SGE(0, 64)}}})
		assert.NoError(t, err)
		_, err = pair.A.QP.PostSend([]ibv.SendWR{ibv.Send(1, 0, pair.A.Region.SGE(0, 64))})
		assert.NoError(t, err)
		pair.A.Wait(t, 1)
		pair.B.Wait(t, 1)
	}
	assert.Zero(t, run(ctx, []string{"counters", "-d", dev, "--watch", "100ms"}, out, io.Discard, thisHost(""), false))
	assert.Regexp(t, dev+` port 1 +traffic +sent_pkts +\+\d+ +\d+\.\d`, out.String())
}
