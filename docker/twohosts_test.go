//go:build lab

package docker_test

import (
	"fmt"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Tests that keep two VMs busy do not run beside others: each VM wants a CPU.

func newTwoHosts(t *testing.T, env ...string) *lab {
	l := newLab(t, env...)
	l.script = "docker/two-hosts"
	return l
}

// programs builds commands of ours where the hosts see them, and returns the folder.
func (l *lab) programs(pkgs ...string) string {
	l.t.Helper()
	dir := l.buildDir()
	cmd := exec.Command("go", append([]string{"build", "-o", dir + "/"}, pkgs...)...)
	cmd.Dir = l.root
	out, err := cmd.CombinedOutput()
	require.NoError(l.t, err, "%s", out)
	return dir
}

// of returns the lines of one host, without the host.
func of(host, out string) string {
	var lines strings.Builder
	for line := range strings.Lines(out) {
		if text, ok := strings.CutPrefix(line, host+": "); ok {
			lines.WriteString(text)
		}
	}
	return lines.String()
}

// TestTwoHosts has C's and our pingpong play with each other, and the connection
// manager work, on both kernels.
func TestTwoHosts(t *testing.T) {
	// A server takes one client; so what fails between them fails for the server too.
	// The first one fails if its client starts too early, or only when its time to wait
	// has run out.
	const server = `
		echo "$RXE_DEV $RXE_ADDR $RXE_PEER $RXE_VIA $RXE_KERNEL"
		set -e
		sleep 1
		timeout 7 rping -s -C 3 -v
		ibv_rc_pingpong -e -g 1 -n 50
		"$1"/pingpong --timeout 20s -n 50
		ibv_rc_pingpong -g 1 -n 50`
	const client = `
		echo "$RXE_DEV $RXE_ADDR $RXE_PEER $RXE_VIA $RXE_KERNEL"
		retry() {
			for n in $(seq 100); do
				if "$@" 2>&1; then return; fi
				sleep 0.1
			done
			exit 1
		}
		set -e
		rping -c -C 3 -v -a "$RXE_PEER"
		retry ibv_rc_pingpong -e -g 1 -n 50 "$RXE_PEER"
		retry ibv_rc_pingpong -g 1 -n 50 "$RXE_PEER"
		retry "$1"/pingpong --timeout 20s -n 50 "$RXE_PEER"`
	for _, series := range []string{"6.1", "6.12"} {
		t.Run(series, func(t *testing.T) {
			l := newTwoHosts(t, "RXE_KERNEL="+series)
			dir := l.programs("./cmd/pingpong")
			out, errs, status := l.run("sh", "-c", server, "sh", dir, "--", "sh", "-c", client, "sh", dir)
			assert.Zero(t, status, "%s%s", out, errs)
			assert.Regexp(t, `\Atwo-hosts: device rxe0 from each of two VMs \(TCG, kernel `+series+`\.\S+\)\n`, errs)
			for host, addrs := range map[string]string{"server": "10.77.0.1 10.77.0.2", "client": "10.77.0.2 10.77.0.1"} {
				lines := of(host, out)
				assert.Regexp(t, `\Arxe0 `+addrs+` tcg `+series+`\n`, lines)
				assert.Equal(t, 3, strings.Count(lines, "ping data: rdma-ping-"), lines)
				assert.Len(t, regexp.MustCompile(`(?m)^50 iters in `).FindAllString(lines, -1), 3, lines)
			}
		})
	}
}

// TestLoss has RC get through where packets are lost, on both ways.
func TestLoss(t *testing.T) {
	const dropped = `; status=$?; PATH=$PATH:/usr/sbin:/sbin; tc -s qdisc show dev eth0; exit $status`
	l := newTwoHosts(t)
	out, errs, status := l.run("--loss", "2",
		"sh", "-c", "ibv_rc_pingpong -e -g 1 -n 100"+dropped, "--",
		"sh", "-c", "for n in 1 2 3; do ibv_rc_pingpong -e -g 1 -n 100 $RXE_PEER && break; done"+dropped)
	assert.Zero(t, status, "%s%s", out, errs)
	for _, host := range []string{"server", "client"} {
		lines := of(host, out)
		assert.Contains(t, lines, "\n100 iters in ")
		assert.Contains(t, lines, "qdisc netem ")
		assert.Regexp(t, `\(dropped [1-9]`, lines)
	}
}

// TestPingOverCM has our pingpong serve C's rping.
func TestPingOverCM(t *testing.T) {
	l := newTwoHosts(t)
	server := l.programs("./cmd/pingpong") + "/pingpong"
	out, errs, status := l.run(server, "--cm", "-e", "-c", "-n", "100", "--timeout", "20s", "--",
		"rping", "-c", "-V", "-C", "100", "-a", "10.77.0.1")
	assert.Zero(t, status, "%s%s", out, errs)
	assert.Regexp(t, `(?m)^100 iters in `, of("server", out))
}

// TestTwoHostsOutput also has arguments that a shell would take apart. Its server does
// not listen; so the client starts when it has ended.
func TestTwoHostsOutput(t *testing.T) {
	const script = `i=0; while [ $i -lt 3000 ]; do i=$((i+1)); echo out $i; echo err $i >&2; done; printf '[%s]' "$@"; cat`
	l := newTwoHosts(t)
	out, errs, status := l.run("sh", "-c", script, "sh", "a b", "", `"$HOME'`, "--", "sh", "-c", script, "sh", "--", "*")
	assert.Zero(t, status)
	var wantOut, wantErr strings.Builder
	for i := range 3000 {
		fmt.Fprintf(&wantOut, "out %d\n", i+1)
		fmt.Fprintf(&wantErr, "err %d\n", i+1)
	}
	_, errs, _ = strings.Cut(errs, "\n")
	for host, args := range map[string]string{"server": `[a b][]["$HOME']`, "client": "[--][*]"} {
		assert.Equal(t, wantOut.String()+args+"\n", of(host, out))
		assert.Equal(t, wantErr.String(), of(host, errs))
	}
	assert.Less(t, strings.LastIndex(out, "server: "), strings.Index(out, "client: "))
}

// TestTwoHostsFailure kills one host's command. The other finds out by itself.
func TestTwoHostsFailure(t *testing.T) {
	const forEver = "2000000000"
	l := newTwoHosts(t)
	dir := l.programs("./cmd/pingpong")
	out, errs, status := l.run("sh", "-c", `
		"$1" -n `+forEver+` &
		until [ "$(cat /sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts)" -gt 100 ]; do sleep 0.1; done
		kill -9 $!
		wait $!`, "sh", dir+"/pingpong", "--",
		dir+"/pingpong", "-n", forEver, "10.77.0.1")
	assert.Equal(t, 128+9, status, "%s%s", out, errs)
	assert.Regexp(t, `(?s)\ntwo-hosts: server: exit status 137\n.*client: pingpong: .*two-hosts: client: exit status 1\n\z`, errs)
	assert.NotContains(t, errs, "still runs")
}

// TestTwoHostsOneFailsAlone has a client that does not notice that its server has failed.
func TestTwoHostsOneFailsAlone(t *testing.T) {
	t.Parallel() // it waits most of the time
	l := newTwoHosts(t)
	dir := l.programs("./cmd/pingpong")
	start := time.Now()
	// Here too a client that does not start when the server listens makes it fail otherwise.
	_, errs, status := l.run("sh", "-c", `sleep 1; timeout 7 "$1"/pingpong`, "sh", dir, "--", "bash", "-c", `
		trap 'exit 5' TERM
		echo GET / >/dev/tcp/$RXE_PEER/18515
		sleep 1000 & wait`)
	assert.Equal(t, 1, status)
	assert.Regexp(t, `(?s)\ntwo-hosts: server: exit status 1
two-hosts: the other command still runs after 10s: ending it
two-hosts: client: exit status 5\n\z`, errs)
	assert.Greater(t, time.Since(start), 10*time.Second)
}

// TestTwoHostsServerFailsAtOnce has no client start.
func TestTwoHostsServerFailsAtOnce(t *testing.T) {
	out, errs, status := newTwoHosts(t).run("no such program", "--", "echo", "started")
	assert.Equal(t, 127, status)
	assert.Empty(t, out)
	_, errs, _ = strings.Cut(errs, "\n")
	assert.Equal(t, "server: two-hosts: no such program: command not found\ntwo-hosts: server: exit status 127\n", errs)
}

// startBoth starts two commands that wait for SIGTERM, and returns when both have begun.
func (l *lab) startBoth() *exec.Cmd {
	const script = `trap 'exit 7' TERM; "$@" >/dev/null 2>&1 & echo started; wait`
	return l.start("server: started\nclient: started\n",
		"sh", "-c", script, "sh", l.programs("./cmd/pingpong")+"/pingpong", "--", "sh", "-c", script, "sh", "sleep", "1000")
}

func TestTwoHostsSignal(t *testing.T) {
	l := newTwoHosts(t)
	cmd := l.startBoth()
	sent := time.Now()
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	assert.Equal(t, 7, exitStatus(t, cmd.Wait()))
	assert.Less(t, time.Since(sent), 4*time.Second)
	l.requireNoProcesses()
}

func TestTwoHostsKilled(t *testing.T) {
	l := newTwoHosts(t)
	cmd := l.startBoth()
	require.Len(t, l.processes(), 2)
	require.NoError(t, cmd.Process.Kill())
	l.requireNoProcesses()
	_ = cmd.Wait()
}

func TestTwoHostsRefuses(t *testing.T) {
	const usage = `usage: docker/two-hosts \[--loss PERCENT\] \[--capture FILE\] SERVER-CMD .*`
	for _, c := range []struct {
		name string
		env  []string
		args string
		want string
	}{
		{name: "nothing", want: usage},
		{name: "no client", args: "true", want: usage},
		{name: "empty client", args: "true --", want: usage},
		{name: "no server", args: "-- true", want: usage},
		{name: "loss", args: "--loss 101 true -- true", want: `invalid value "101" for flag -loss: want per cent, from 0 to 100: ` + usage},
		{name: "flag", args: "--lossy true -- true", want: `flag provided but not defined: -lossy: ` + usage},
		{name: "host", env: []string{"RXE_VIA=host"}, args: "true -- true", want: `RXE_VIA=host: two hosts are two VMs: want kvm or tcg`},
		{name: "icount", env: []string{"RXE_ICOUNT=1"}, args: "true -- true", want: `RXE_ICOUNT=1 .*`},
		{name: "capture", args: "--capture /nowhere/file true -- true", want: `cannot write the capture: open /nowhere/file: .*`},
		{name: "qemu", args: "true -- true", want: `the (server|client)'s VM ended by itself: see /\S+/console-(server|client)\.log`},
		{name: "boot", env: []string{"RXE_BOOT_TIMEOUT=1", "HANG=1"}, args: "true -- true",
			want: `the server's VM did not boot within 1s: see /\S+/console-server\.log, or .*`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			l := newTwoHosts(t, c.env...)
			l.stub("qemu-system-x86_64", `if [ "$HANG" ]; then `+hang+`; fi; exit 1`)
			out, errs, status := l.run(strings.Fields(c.args)...)
			assert.Equal(t, 125, status)
			assert.Empty(t, out)
			assert.Regexp(t, `\Atwo-hosts: `+c.want+`\n\z`, errs)
			l.requireNoProcesses()
		})
	}
}

func TestHelp(t *testing.T) {
	t.Parallel()
	for script, begins := range map[string]string{
		"two-hosts":   `two-hosts \[--loss PERCENT\].*\n\nRuns two commands`,
		"with-rxe":    `with-rxe CMD \[ARG\.\.\.\]: runs CMD `,
		"test-device": `test-device \[-run REGEX\] \[-v\] \[PKG\.\.\.\]: runs `,
	} {
		out, err := exec.Command("./"+script, "-h").Output()
		require.NoError(t, err)
		assert.Regexp(t, `\A`+begins, string(out))
		assert.NotContains(t, string(out), "set -eu")
	}
}
