//go:build rdma

package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/rdmacm"
)

const (
	cRPing = "rping"
	addr6  = "2001:db8::1" // of the lab's device
)

// librdmacm opens all devices at first use, and never closes them: so that is before what
// a process leaves behind is looked for.
func init() { _, _ = rdmacm.Devices() }

// cmServer starts a server of the program with rping's protocol at the address, and returns
// when it listens.
func cmServer(t *testing.T, program, addr string, args ...string) (p *proc, port string) {
	t.Helper()
	if program == ours {
		p = start(t, ours, append([]string{"--cm", "-p", "0"}, args...)...)
		return p, p.printed(`waiting for a client on port (\d+)`)[1]
	}
	port = freePort(t)
	p = start(t, cRPing, append([]string{"-s", "-a", addr, "-p", port}, args...)...)
	until(t, func() bool { return listeningCM(port) }, "rping listens")
	return p, port
}

// listeningCM reports whether somebody listens on the port with the connection manager.
func listeningCM(port string) bool {
	out, _ := exec.Command("rdma", "resource", "show", "cm_id").Output()
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, "state LISTEN") && strings.Contains(line, ":"+port+" ") {
			return true
		}
	}
	return false
}

func cmClient(t *testing.T, program, addr, port string, args ...string) *proc {
	t.Helper()
	if program == ours {
		return start(t, ours, append([]string{"--cm", "-p", port, addr}, args...)...)
	}
	return start(t, cRPing, append([]string{"-c", "-a", addr, "-p", port}, args...)...)
}

// pingArgs are the arguments of either program for the same: data is checked and printed.
// C's server needs the size, and takes no count.
func pingArgs(program string, size, iters int, waits wait) []string {
	if program == cRPing {
		return []string{"-v", "-V", "-S", strconv.Itoa(size), "-C", strconv.Itoa(iters)}
	}
	return waits.args(program, []string{"-v", "-c", "-s", strconv.Itoa(size), "-n", strconv.Itoa(iters)})
}

func TestRPing(t *testing.T) {
	l := newLab(t)
	for _, pair := range []struct{ client, server string }{{ours, ours}, {ours, cRPing}, {cRPing, ours}} {
		for _, c := range []struct {
			size, iters int
			addr        string
			waits       wait
		}{
			{64, 100, l.addr, polling},
			{minPing, 20, addr6, events},
			{4097, 20, addr6, polling},
			{maxPing, 20, l.addr, events},
		} {
			t.Run(fmt.Sprintf("%s to %s at %s, %s, %d of %d bytes", pair.client, pair.server, c.addr, c.waits, c.iters, c.size), func(t *testing.T) {
				server, port := cmServer(t, pair.server, c.addr, pingArgs(pair.server, c.size, c.iters, c.waits)...)
				client := cmClient(t, pair.client, c.addr, port, pingArgs(pair.client, c.size, c.iters, c.waits)...)
				for _, p := range []*proc{client, server} {
					assert.Zero(t, p.wait(patience))
				}
				assert.Equal(t, pings(t, client, "ping data: "), pings(t, server, "server ping data: "))
				assert.Len(t, pings(t, client, "ping data: "), c.iters)
				if pair.client == ours {
					checkPings(t, client, c.size, c.iters)
				}
				if pair.server == ours {
					checkPings(t, server, c.size, c.iters)
				}
			})
		}
	}
}

// pings returns the data that a process has printed, which must be rping's.
func pings(t *testing.T, p *proc, label string) (all []string) {
	t.Helper()
	for line := range strings.Lines(p.stdout.String()) {
		if text, ok := strings.CutPrefix(line, label); ok {
			require.Regexp(t, fmt.Sprintf("^rdma-ping-%d: ", len(all)), text)
			all = append(all, text)
		}
	}
	return all
}

// checkPings looks at what ours prints that went well.
func checkPings(t *testing.T, p *proc, size, iters int) {
	t.Helper()
	assert.Regexp(t, `\nmeasured: iterations of rping over RC: the server reads `, "\n"+p.stdout.String())
	assert.Contains(t, p.stdout.String(), "\nsoftware device (rxe): not a measure of RDMA hardware\n")
	assert.Regexp(t, fmt.Sprintf(`\n%d bytes in \d+\.\d\d seconds = \d+\.\d\d Mbit/sec\n`+
		`%d iters in \d+\.\d\d seconds = \d+\.\d\d usec/iter\n$`, 2*size*iters, iters), p.stdout.String())
}

// TestRPingSizes has a server that takes what the client has, and one that cannot.
func TestRPingSizes(t *testing.T) {
	l := newLab(t)
	for _, program := range []string{ours, cRPing} {
		size, count := "-s", "-n"
		if program == cRPing {
			size, count = "-S", "-C"
		}
		t.Run(program+" with less", func(t *testing.T) {
			server, port := cmServer(t, ours, l.addr, "-c")
			client := cmClient(t, program, l.addr, port, size, "1000", count, "9")
			assert.Zero(t, client.wait(patience))
			assert.Zero(t, server.wait(patience))
			checkPings(t, server, 1000, 9)
		})
		t.Run(program+" with more", func(t *testing.T) {
			server, port := cmServer(t, ours, l.addr, "-s", "999")
			client := cmClient(t, program, l.addr, port, size, "1000", count, "9")
			fails(t, server, "after 0 iterations: the client offers 1000 bytes, and this side takes from 23 to 999: see --size")
			client.wait(patience)
			if program == ours {
				assert.Regexp(t, "after 0 of 9 iterations: waiting for the server to read: the server disconnected", client.errorLine())
			}
		})
	}
	t.Run("more than C's server takes", func(t *testing.T) {
		_, port := cmServer(t, cRPing, l.addr, "-S", "100")
		client := cmClient(t, ours, l.addr, port, "-s", "101", "-n", "9")
		fails(t, client, "after 0 of 9 iterations: waiting for the server to read: the server disconnected")
	})
}

// TestRPingLeaves has a peer that ends too early.
func TestRPingLeaves(t *testing.T) {
	l := newLab(t)
	const gone = "waiting for the client to offer data: the client disconnected"
	for _, program := range []string{ours, cRPing} {
		t.Run(program+" server", func(t *testing.T) {
			server, port := cmServer(t, program, l.addr)
			client := cmClient(t, ours, l.addr, port, "-n", forEver)
			l.underway(t)
			require.NoError(t, server.cmd.Process.Signal(syscall.SIGKILL))
			// Its memory can go before its queue pair and the word of its end.
			fails(t, client, `after [1-9]\d* of `+forEver+` iterations: .*: (the server disconnected|remote operation error .* it has just ended)`)
		})
		count := map[string]string{ours: "-n", cRPing: "-C"}[program]
		t.Run(program+" client, of those that the server wants", func(t *testing.T) {
			server, port := cmServer(t, ours, l.addr, "-n", "9")
			client := cmClient(t, program, l.addr, port, count, "8")
			assert.Zero(t, client.wait(patience))
			fails(t, server, "after 8 of 9 iterations: "+gone)
		})
		t.Run(program+" client that stands still", func(t *testing.T) {
			server, port := cmServer(t, ours, l.addr, "-e")
			client := cmClient(t, program, l.addr, port, count, "2000000000")
			l.underway(t)
			require.NoError(t, client.cmd.Process.Signal(syscall.SIGSTOP))
			assert.Equal(t, exitFailure, server.wait(patience), "also the wait for an answer to the disconnect has an end")
			assert.Regexp(t, `after [1-9]\d* iterations: waiting for .*: no progress for 3s`, server.errorLine())
		})
	}
	t.Run("before the first", func(t *testing.T) {
		server, port := cmServer(t, ours, l.addr)
		c, err := rdmacm.Dial(t.Context(), net.JoinHostPort(l.addr, port), rdmacm.Config{}, nil)
		require.NoError(t, err)
		require.NoError(t, c.Close())
		fails(t, server, "after 0 iterations: "+gone)
	})
}

func TestRPingNobodyThere(t *testing.T) {
	l := newLab(t)
	for name, c := range map[string]struct {
		addr, text string
	}{
		"no server":   {l.addr, "nobody listens there"},
		"no device":   {"127.0.0.1", "no RDMA device"},
		"no such one": {"nowhere.invalid", "nowhere.invalid"},
	} {
		t.Run(name, func(t *testing.T) { fails(t, cmClient(t, ours, c.addr, freePort(t)), c.text) })
	}
	t.Run("rejected", func(t *testing.T) {
		listener, err := rdmacm.Listen(net.JoinHostPort(l.addr, "0"), rdmacm.Config{})
		require.NoError(t, err)
		rejecting := make(chan error, 1)
		go func() {
			_, err := listener.Accept(t.Context(), func(*rdmacm.Conn) error { return new(rdmacm.RejectError) })
			rejecting <- err
		}()
		client := cmClient(t, ours, l.addr, strconv.Itoa(int(listener.Addr().Port())))
		fails(t, client, "the peer's program has rejected the connection")
		require.NoError(t, listener.Close())
		require.ErrorIs(t, <-rejecting, ibv.ErrClosed)
	})
	t.Run("port taken", func(t *testing.T) {
		_, port := cmServer(t, ours, l.addr)
		fails(t, start(t, ours, "--cm", "-p", port), "another id has port "+port)
	})
}

// TestRPingAcceptFails has a server that can accept only the last of its clients.
func TestRPingAcceptFails(t *testing.T) {
	l := newLab(t)
	server := start(t, "sh", "-c", "ulimit -l 8; exec setpriv --bounding-set=-ipc_lock pingpong --cm -e -p 0")
	port := server.printed(`waiting for a client on port (\d+)`)[1]
	for range 2 {
		fails(t, cmClient(t, ours, l.addr, port, "-n", "9"), "the peer's program has rejected the connection")
	}
	const told = `(?m)^pingpong: accepting \S+: .*ulimit -l.*; waiting for another client$`
	assert.Len(t, regexp.MustCompile(told).FindAllString(server.stderr.String(), -1), 2)

	all := unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}
	require.NoError(t, unix.Prlimit(server.cmd.Process.Pid, unix.RLIMIT_MEMLOCK, &all, nil))
	client := cmClient(t, ours, l.addr, port, "-n", "9")
	assert.Zero(t, client.wait(patience))
	assert.Zero(t, server.wait(patience))
	checkPings(t, server, 64, 9)
}

// TestRPingStrangePeer has a peer that connects and says something else.
func TestRPingStrangePeer(t *testing.T) {
	l := newLab(t)
	for name, c := range map[string]struct {
		says []byte
		text string
	}{
		"short message": {make([]byte, 15), "the peer sent 15 bytes, and a message of rping has 16"},
		"long message":  {make([]byte, 17), "the peer's message is none of rping's, of 16 bytes: .*longer"},
		"too little":    {rangeMessage(ibv.RemoteRange{Length: 22}), "the client offers 22 bytes, and this side takes from 23"},
		"no such rkey":  {rangeMessage(ibv.RemoteRange{RKey: 1, Length: 64}), "reading 64 bytes of the client: .*remote access error"},
	} {
		t.Run(name, func(t *testing.T) {
			server, port := cmServer(t, ours, l.addr, "-e")
			conn, err := rdmacm.Dial(t.Context(), net.JoinHostPort(l.addr, port), rdmacm.Config{}, nil)
			require.NoError(t, err)
			defer conn.Close()
			_, err = conn.QP().PostSend([]ibv.SendWR{{Opcode: ibv.OpSend, Inline: c.says, Flags: ibv.SendSignaled}})
			require.NoError(t, err)
			fails(t, server, "after 0 iterations: (.*: )?"+c.text)
		})
	}
}

func rangeMessage(r ibv.RemoteRange) []byte {
	msg := make([]byte, pingMessage)
	putRange(msg, r)
	return msg
}

func TestRPingCtrlC(t *testing.T) {
	l := newLab(t)
	t.Run("waiting for a client", func(t *testing.T) {
		server, _ := cmServer(t, ours, l.addr)
		require.NoError(t, server.cmd.Process.Signal(os.Interrupt))
		assert.Equal(t, exitInterrupted, server.wait(limit))
		assert.Regexp(t, "^pingpong: interrupt", server.errorLine())
	})
	for _, w := range []wait{polling, events} {
		t.Run("in the middle, "+string(w), func(t *testing.T) {
			server, port := cmServer(t, ours, l.addr, w.args(ours, nil)...)
			client := cmClient(t, ours, l.addr, port, w.args(ours, []string{"-n", forEver})...)
			l.underway(t)
			require.NoError(t, client.cmd.Process.Signal(os.Interrupt))
			assert.Equal(t, exitInterrupted, client.wait(limit))
			assert.Regexp(t, `^pingpong: after [1-9]\d* of `+forEver+` iterations: waiting for the server to .*: interrupt`, client.errorLine())
			assert.Regexp(t, `\n[1-9]\d* iters in \d+\.\d\d seconds = \d+\.\d\d usec/iter\n$`, client.stdout.String())
			assert.Zero(t, server.wait(patience), "wherever its client was")
		})
	}
}

func TestRPingJSON(t *testing.T) {
	l := newLab(t)
	server, port := cmServer(t, ours, l.addr, "--json", "-v", "-e")
	client := cmClient(t, ours, l.addr, port, "--json", "-v", "-e", "-n", "20")
	for _, p := range []*proc{client, server} {
		require.Zero(t, p.wait(patience))
		r := document(t, p)
		assert.Nil(t, r.Error)
		assert.Equal(t, "rping", r.Setup.Operation)
		assert.Contains(t, r.Boundary, "the server reads 64 bytes of the client")
		require.Len(t, r.Results, 1)
		assert.EqualValues(t, 20, r.Results[0].Iterations)
		assert.Equal(t, p == client, r.Results[0].Latency != nil, "the server takes no times")
		assert.Contains(t, p.stderr.String(), "ping data: rdma-ping-19: ")
	}
}
