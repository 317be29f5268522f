//go:build rdma

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/rdmatest"
)

const ours = "pingpong"

// cProgram returns C's program for a type.
func cProgram(typ string) string { return "ibv_" + typ + "_pingpong" }

// patience is for what takes long only on a slow machine.
const patience = 30 * time.Second

// output collects what a process prints while it runs.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// proc is a process of ours or C's, which does not outlive its test.
type proc struct {
	t              *testing.T
	cmd            *exec.Cmd
	stdout, stderr output
	ended          chan struct{}
}

func start(t *testing.T, name string, args ...string) *proc {
	t.Helper()
	p := &proc{t: t, cmd: exec.Command(name, args...), ended: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = &p.stdout, &p.stderr
	require.NoError(t, p.cmd.Start())
	go func() {
		_ = p.cmd.Wait() // ProcessState says how it ended
		close(p.ended)
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.ended
		if t.Failed() {
			t.Logf("%s\n%v\nstdout:\n%vstderr:\n%v", p.cmd, p.cmd.ProcessState, &p.stdout, &p.stderr)
		}
	})
	return p
}

// wait returns the exit status, and fails the test if that takes longer than limit.
func (p *proc) wait(limit time.Duration) int {
	p.t.Helper()
	select {
	case <-p.ended:
	case <-time.After(limit):
		require.FailNow(p.t, "still running", "%s after %v", p.cmd, limit)
	}
	return p.cmd.ProcessState.ExitCode()
}

// printed waits until the process has printed what matches, and returns the match
// and its groups.
func (p *proc) printed(expr string) []string {
	p.t.Helper()
	re := regexp.MustCompile(expr)
	var match []string
	until(p.t, func() bool {
		match = re.FindStringSubmatch(p.stdout.String() + p.stderr.String())
		return match != nil
	}, "%s prints %s", p.cmd, expr)
	return match
}

// errorLine returns the one line on stderr that is not a note.
func (p *proc) errorLine() string {
	p.t.Helper()
	var errs []string
	for line := range strings.Lines(p.stderr.String()) {
		if !regexp.MustCompile(`^pingpong: (waiting for a client|for TCP from|no GID)|^  (local|remote) address: `).MatchString(line) {
			errs = append(errs, line)
		}
	}
	require.Len(p.t, errs, 1, "one line tells the error")
	return errs[0]
}

func until(t *testing.T, condition func() bool, format string, args ...any) {
	t.Helper()
	require.Eventually(t, condition, patience, 5*time.Millisecond, "%s", fmt.Sprintf(format, args...))
}

// lab is the device under test and what both sides need to find each other on it.
type lab struct {
	device, addr string
	gid          string // index, which C needs to be told
}

func newLab(t *testing.T) lab {
	t.Helper()
	choice, err := rdmatest.Open(t).ChooseGID(ibv.GIDRequest{Local: rdmatest.Addr(t)})
	require.NoError(t, err)
	return lab{
		device: rdmatest.Device(t),
		addr:   rdmatest.Addr(t).String(),
		gid:    strconv.FormatUint(uint64(choice.Entry.Index), 10),
	}
}

// server starts a server of the program, and returns when it listens.
func (l lab) server(t *testing.T, program string, args ...string) (p *proc, port string) {
	t.Helper()
	args = append([]string{"-d", l.device}, args...)
	if program == ours {
		p = start(t, program, append(args, "-p", "0")...)
		return p, p.printed(`waiting for a client on port (\d+)`)[1]
	}
	port = freePort(t)
	p = start(t, program, append(args, "-g", l.gid, "-p", port)...)
	until(t, func() bool { return listening(t, port) }, "%s listens", program)
	return p, port
}

// client starts a client of the program.
func (l lab) client(t *testing.T, program, port string, args ...string) *proc {
	t.Helper()
	args = append([]string{"-d", l.device, "-p", port}, args...)
	if program != ours {
		args = append(args, "-g", l.gid)
	}
	return start(t, program, append(args, l.addr)...)
}

func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", ":0")
	require.NoError(t, err)
	defer l.Close()
	return strconv.Itoa(int(addrPort(l.Addr()).Port()))
}

// listening reports whether a socket listens on the port, without connecting to it.
func listening(t *testing.T, port string) bool {
	n, err := strconv.Atoi(port)
	require.NoError(t, err)
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		text, err := os.ReadFile(table)
		require.NoError(t, err)
		for line := range strings.Lines(string(text)) {
			f := strings.Fields(line)
			if strings.HasSuffix(f[1], fmt.Sprintf(":%04X", n)) && f[3] == "0A" {
				return true
			}
		}
	}
	return false
}

// underway waits until the device has sent a good number of packets more.
func (l lab) underway(t *testing.T) {
	t.Helper()
	from := l.sentPackets(t)
	until(t, func() bool { return l.sentPackets(t) > from+100 }, "packets go over %s", l.device)
}

func (l lab) sentPackets(t *testing.T) int {
	text, err := os.ReadFile("/sys/class/infiniband/" + l.device + "/ports/1/hw_counters/sent_pkts")
	require.NoError(t, err)
	n, err := strconv.Atoi(strings.TrimSpace(string(text)))
	require.NoError(t, err)
	return n
}

// newSoftDevice makes another soft device until the test ends, so that the one under
// test need not be harmed.
func newSoftDevice(t *testing.T, up bool) lab {
	t.Helper()
	const netdev, device, addr = "ppdummy", "pprxe", "198.51.100.1"
	tool(t, "ip", "link", "add", netdev, "type", "dummy")
	t.Cleanup(func() { tool(t, "ip", "link", "delete", netdev) })
	tool(t, "ip", "address", "add", addr+"/24", "dev", netdev)
	if up {
		tool(t, "ip", "link", "set", netdev, "up")
	}
	tool(t, "rdma", "link", "add", device, "type", "rxe", "netdev", netdev)
	t.Cleanup(func() { tool(t, "rdma", "link", "delete", device) })
	return lab{device: device, addr: addr}
}

func tool(t *testing.T, name string, args ...string) {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	require.NoError(t, err, "%s %v: %s", name, args, out)
}

// listen takes one client, whose connection lasts until the test ends.
func listen(t *testing.T) (client <-chan net.Conn, port string) {
	t.Helper()
	l, err := net.Listen("tcp", ":0")
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	accepted := make(chan net.Conn, 1)
	go func() {
		if conn, err := l.Accept(); err == nil {
			t.Cleanup(func() { conn.Close() })
			accepted <- conn
		}
	}()
	return accepted, strconv.Itoa(int(addrPort(l.Addr()).Port()))
}

// say says something to a peer, and hangs up behind the end of an exchange.
func say(conn net.Conn, text string) error {
	_, err := io.WriteString(conn, text)
	if strings.HasSuffix(text, done) {
		err = errors.Join(err, conn.(*net.TCPConn).CloseWrite())
	}
	return err
}

// fakeServer takes one client, says something to it and stays until the test ends.
func fakeServer(t *testing.T, says string) (port string) {
	t.Helper()
	client, port := listen(t)
	go func() {
		select {
		case conn := <-client:
			_ = say(conn, says)
		case <-t.Context().Done():
		}
	}()
	return port
}

// fakeClient does the same to a server.
func fakeClient(t *testing.T, addr, port, says string) {
	t.Helper()
	conn, err := net.Dial("tcp", net.JoinHostPort(addr, port))
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	require.NoError(t, say(conn, says))
}
