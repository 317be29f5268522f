//go:build lab

package docker_test

import (
	"regexp"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Connections of the connection manager between two hosts: every byte is checked, the server
// learns that the client disconnects, and both close at once.
func TestConnections(t *testing.T) {
	for _, series := range []string{"6.1", "6.12"} {
		t.Run(series, func(t *testing.T) {
			l := newTwoHosts(t, "RXE_KERNEL="+series)
			parley := l.programs("./internal/cmd/parley") + "/parley"
			out, errs, status := l.run(parley, "--", parley, "10.77.0.1")
			require.Zero(t, status, "%s%s", out, errs)
			assert.Regexp(t, `(?m)^100 messages answered; then: .*; the connection: .*disconnected by the peer`, of("server", out))
			assert.Contains(t, of("client", out), "100 messages were answered\n")
			for _, host := range []string{"server", "client"} {
				assert.Less(t, closing(t, of(host, out), "busy"), 5.0, "what both agree on needs no patience")
			}
		})
	}
}

// TestConnectionsWithLoss has all of it happen where packets are lost, those of the connection
// manager too.
func TestConnectionsWithLoss(t *testing.T) {
	l := newTwoHosts(t)
	parley := l.programs("./internal/cmd/parley") + "/parley"
	out, errs, status := l.run("--loss", "2", parley, "--", parley, "10.77.0.1")
	require.Zero(t, status, "%s%s", out, errs)
	assert.Contains(t, of("server", out), "100 messages answered; then: ")
	assert.Contains(t, of("client", out), "100 messages were answered\n")
}

// TestDisconnectLost has the message that ends a connection be lost: Close waits until the kernel
// has sent it again, so that the server learns of it.
func TestDisconnectLost(t *testing.T) {
	const client = `
		PATH=$PATH:/usr/sbin:/sbin
		cd "$(mktemp -d)"
		mkfifo more
		"$1" -linger 10.77.0.1 <more >said &
		exec 3>more
		until grep -q 'were answered' said; do kill -0 $! && sleep 0.1 || exit; done
		tc qdisc add dev eth0 root netem loss 100%
		sent=/sys/class/infiniband/$RXE_DEV/ports/1/hw_counters/sent_pkts
		before=$(cat $sent)
		exec 3>&-
		until [ "$(cat $sent)" -gt "$before" ]; do kill -0 $! && sleep 0.1 || exit; done
		tc qdisc del dev eth0 root
		wait $!; status=$?
		cat said; exit $status`
	for _, series := range []string{"6.1", "6.12"} {
		t.Run(series, func(t *testing.T) {
			l := newTwoHosts(t, "RXE_KERNEL="+series)
			parley := l.programs("./internal/cmd/parley") + "/parley"
			out, errs, status := l.run(parley, "--", "sh", "-c", client, "sh", parley)
			require.Zero(t, status, "%s%s", out, errs)
			assert.Contains(t, of("server", out), "disconnected by the peer")
			assert.Greater(t, closing(t, of("client", out), "busy"), 2.0, "it was lost")
		})
	}
}

// TestPeerHostDies has the client's kernel crash in the middle of a transfer. The server, which
// answers all the time, gets an error after the retries; where it only waits it gets nothing
// but its own deadline. Both connections close within their patience.
func TestPeerHostDies(t *testing.T) {
	l := newTwoHosts(t, "RXE_KERNEL=6.12")
	parley := l.programs("./internal/cmd/parley") + "/parley"
	// A host that is dead says nothing: its command is given up when the other has failed.
	out, errs, status := l.run("sh", "-c", parley+" -idle 5s; exit $(($? + 3))", "--", "sh", "-c", `
		`+parley+` -n 1000000 -idle 1h 10.77.0.1 &
		until [ "$(cat /sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts)" -gt 500 ]; do kill -0 $! && sleep 0.1 || exit; done
		echo 0 >/proc/sys/kernel/panic
		echo c >/proc/sysrq-trigger`)
	lines := of("server", out)
	require.Equal(t, 3, status, "%s%s", out, errs)
	assert.Regexp(t, `(?m)^\d+ messages answered; then: .*transport retry counter exceeded`, lines)
	assert.Regexp(t, `(?m)^idle: .*deadline exceeded; the connection: <nil>$`, lines)
	for _, name := range []string{"busy", "idle"} {
		assert.Less(t, closing(t, lines, name), 15.0)
	}
}

// TestMulticastBetweenHosts has two hosts hear each other in a group: those of newer kernels do
// not within one host.
func TestMulticastBetweenHosts(t *testing.T) {
	l := newTwoHosts(t, "RXE_KERNEL=6.12")
	parley := l.programs("./internal/cmd/parley") + "/parley"
	out, errs, status := l.run(parley, "-group", "239.1.2.3", "10.77.0.1", "--",
		parley, "-group", "239.1.2.3", "-ask", "10.77.0.2")
	require.Zero(t, status, "%s%s", out, errs)
	assert.Contains(t, of("server", out), "the group asks: who is there?\n")
	assert.Contains(t, of("client", out), "the group says: I am\n")
}

// closing is how long the closing of a connection took, in seconds.
func closing(t *testing.T, lines, name string) float64 {
	t.Helper()
	m := regexp.MustCompile(`(?m)^` + name + `: closed in (\S+) s$`).FindStringSubmatch(lines)
	require.NotNil(t, m, lines)
	s, err := strconv.ParseFloat(m[1], 64)
	require.NoError(t, err)
	return s
}
