//go:build rdma

package main

import (
	"encoding/json"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/cmd/pingpong/internal/report"
)

// interrupted sends Ctrl-C and checks that the process ends as it should.
func interrupted(t *testing.T, p *proc, text string) {
	t.Helper()
	require.NoError(t, p.cmd.Process.Signal(os.Interrupt))
	assert.Equal(t, exitInterrupted, p.wait(limit))
	assert.Regexp(t, text, p.errorLine())
}

func TestCtrlC(t *testing.T) {
	l := newLab(t)
	const soFar = `\n[1-9]\d* iters in \d+\.\d\d seconds = \d+\.\d\d usec/iter\n$`
	t.Run("waiting for a client", func(t *testing.T) {
		server, _ := l.server(t, ours)
		interrupted(t, server, "^pingpong: interrupt")
	})
	t.Run("in the exchange", func(t *testing.T) {
		client := l.client(t, ours, fakeServer(t, ""), "--timeout", "1h")
		client.printed("local address")
		interrupted(t, client, "^pingpong: interrupt")
	})
	for _, w := range []wait{polling, events, spinning} {
		t.Run("in the middle, "+string(w), func(t *testing.T) {
			args := w.args(ours, []string{"-n", forEver})
			_, port := l.server(t, ours, args...)
			client := l.client(t, ours, port, args...)
			l.underway(t)
			interrupted(t, client, `^pingpong: after [1-9]\d* of `+forEver+` round trips: interrupt`)
			assert.Regexp(t, soFar, client.stdout.String(), "what was measured until then")
		})
	}
	t.Run("asleep", func(t *testing.T) {
		args := []string{"-e", "-n", forEver, "--timeout", "0"}
		server, port := l.server(t, ours, args...)
		client := l.client(t, ours, port, args...)
		l.underway(t)
		require.NoError(t, server.cmd.Process.Signal(syscall.SIGSTOP))
		interrupted(t, client, `^pingpong: after [1-9]\d* of `+forEver+` round trips: interrupt`)
	})
	t.Run("of a peer that is a pingpong too", func(t *testing.T) {
		args := []string{"-e", "--op", "read", "--duration", "1h"}
		server, port := l.server(t, ours, args...)
		client := l.client(t, ours, port, args...)
		l.underway(t)
		interrupted(t, client, `^pingpong: after [1-9]\d* operations of a round of 1h0m0s: interrupt`)
		assert.Regexp(t, soFar, client.stdout.String())
		fails(t, server, `^pingpong: after \d+ operations of a round of 1h0m0s: the client failed: after .*: interrupt`)
	})
}

// document returns the JSON that a process printed, which must be all of its output.
func document(t *testing.T, p *proc) (r report.Report) {
	t.Helper()
	require.NoError(t, json.Unmarshal([]byte(p.stdout.String()), &r), "%s", &p.stdout)
	assert.Equal(t, "pingpong", r.Program)
	assert.Equal(t, 1, r.Format)
	return r
}

func TestJSON(t *testing.T) {
	l := newLab(t)
	t.Run("result", func(t *testing.T) {
		server, port := l.server(t, ours, "--json", "-e", "--op", "write", "--sizes", "1:4", "-n", "50")
		client := l.client(t, ours, port, "--json", "-e", "--op", "write", "--sizes", "1:4", "-n", "50")
		require.Zero(t, client.wait(patience))
		require.Zero(t, server.wait(patience))
		for _, p := range []*proc{client, server} {
			r := document(t, p)
			assert.Nil(t, r.Error)
			assert.False(t, r.Interrupted)
			assert.Contains(t, r.Boundary, "not a measure of RDMA hardware")
			assert.Equal(t, l.device, r.Setup.Device)
			require.Len(t, r.Results, 3)
			for i, one := range r.Results {
				assert.EqualValues(t, 1<<i, one.Size)
				assert.EqualValues(t, 50, one.Iterations)
				assert.True(t, one.Complete)
				assert.Positive(t, one.Seconds)
				assert.NotNil(t, one.PeerCPU)
				assert.Equal(t, p == client, one.Latency != nil, "the passive side takes no times")
			}
		}
	})
	t.Run("failure", func(t *testing.T) {
		p := start(t, ours, "--json", "-d", l.device, "-p", freePort(t), l.addr)
		assert.Equal(t, exitFailure, p.wait(limit))
		r := document(t, p)
		require.NotNil(t, r.Error)
		assert.Contains(t, *r.Error, "connection refused")
		assert.Equal(t, "client", r.Setup.Side)
		assert.Empty(t, r.Results)
	})
	t.Run("Ctrl-C", func(t *testing.T) {
		_, port := l.server(t, ours, "-e", "-n", forEver)
		client := l.client(t, ours, port, "-e", "-n", forEver, "--json")
		l.underway(t)
		interrupted(t, client, "interrupt")
		r := document(t, client)
		assert.True(t, r.Interrupted)
		assert.Contains(t, *r.Error, "interrupt")
		require.Len(t, r.Results, 1)
		assert.False(t, r.Results[0].Complete)
		assert.Positive(t, r.Results[0].Iterations)
		assert.Positive(t, r.Results[0].Latency.P50)
	})
}
