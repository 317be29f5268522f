//go:build rdma

package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/rdmatest"
)

// limit is how long a failure may take to be told.
const limit = 5 * time.Second

// forEver is more round trips than a test waits for. C takes no more than 31 bits.
const forEver = "2000000000"

// fails checks that a process ends within the limit, with status 1 and one line on
// stderr that has the text.
func fails(t *testing.T, p *proc, text string) {
	t.Helper()
	assert.Equal(t, exitFailure, p.wait(limit))
	assert.Regexp(t, text, p.errorLine())
	assert.NotContains(t, p.stdout.String(), "usec/iter", "no result")
}

func TestRefused(t *testing.T) {
	l := newLab(t)
	port, err := rdmatest.Open(t).QueryPort(1)
	require.NoError(t, err)
	tooLong := strconv.FormatUint(uint64(port.MaxMsgSize)+1, 10)
	for name, c := range map[string]struct {
		args []string
		text string
	}{
		"no such device":     {[]string{"-d", "nope"}, "there is no such device; there are: .*" + l.device},
		"no such port":       {[]string{"-i", "200"}, "there is no port 200"},
		"MTU":                {[]string{"-m", "4096"}, "--mtu 4096 is more than the path MTU " + port.ActiveMTU.String() + ".*: give less, or raise the MTU of the netdev"},
		"datagram":           {[]string{"ud", "-s", "4097"}, `--size 4097 is more than a datagram, .* at most ` + port.ActiveMTU.String() + " bytes.*raise the MTU of the netdev"},
		"datagrams":          {[]string{"ud", "--sizes", "64:8K"}, `--size 8192 is more than a datagram`},
		"inline":             {[]string{"--inline", "65536"}, `MaxInlineData 65536 is above the \d+ that the device takes`},
		"memory or message":  {[]string{"-s", "4294967295", "-c"}, "--size 4294967295 (takes 8589934600 bytes of memory|is more than the largest message)"},
		"message":            {[]string{"-s", tooLong}, "--size " + tooLong + " is more than the largest message"},
		"receives":           {[]string{"-r", "2000000000"}, `--rx-depth 2000000000 is more than the \d+ receives`},
		"sends":              {[]string{"--op", "read", "--depth", "65536"}, `--depth 65536 with --signal-every 1 takes room for 65536 sends on a queue pair, and .* has room for \d+`},
		"no such GID":        {[]string{"-g", "200"}, "is not index 200"},
		"port taken":         {[]string{"-p", fakeServer(t, "")}, "address already in use"},
		"no server":          {[]string{"-p", freePort(t), l.addr}, "no server at .*: connection refused"},
		"no such host":       {[]string{"nowhere.invalid"}, "no server at nowhere.invalid:18515: "},
		"not supported here": {[]string{"-t"}, "^pingpong: -t: "},
		"no ODP":             {[]string{"-o"}, "^pingpong: -o: .* has no on-demand paging"},
		"no ODP, srq":        {[]string{"srq", "-o"}, "^pingpong: -o: .* has no on-demand paging"},
	} {
		t.Run(name, func(t *testing.T) {
			fails(t, start(t, "pingpong", append([]string{"-d", l.device}, c.args...)...), c.text)
		})
	}
}

func TestPortDown(t *testing.T) {
	down := newSoftDevice(t, false)
	fails(t, start(t, "pingpong", "-d", down.device), "port 1 of pprxe is in state PORT_DOWN: bring its link up")
	fails(t, start(t, "pingpong"), "there are several devices, name one: .*pprxe")
}

func TestPortGoesDown(t *testing.T) {
	l := newSoftDevice(t, true)
	server, port := l.server(t, "pingpong", "-n", forEver)
	client := l.client(t, "pingpong", port, "-n", forEver)
	l.underway(t)
	tool(t, "ip", "link", "set", "ppdummy", "down")
	fails(t, client, `after [1-9]\d* of `+forEver+` round trips: `)
	fails(t, server, `after [1-9]\d* of `+forEver+` round trips: `)
}

// A peer that dies or stops in the middle, on either side and of either program.
func TestPeerDies(t *testing.T) {
	l := newLab(t)
	const killed = "transport retry counter exceeded|no progress for 3s" // by whose turn it was
	for _, c := range []struct {
		peer     string
		isServer bool
		signal   os.Signal
		waits    wait // both sides
		text     string
	}{
		{cProgram(typeRC), true, syscall.SIGKILL, polling, killed},
		{"pingpong", false, syscall.SIGKILL, polling, killed},
		{"pingpong", true, syscall.SIGSTOP, polling, "no progress for 3s"},
		{cProgram(typeRC), false, syscall.SIGSTOP, polling, "no progress for 3s"},
		{"pingpong", true, syscall.SIGKILL, events, killed},
		{cProgram(typeRC), false, syscall.SIGKILL, events, killed},
		{cProgram(typeRC), true, syscall.SIGSTOP, events, "no progress for 3s"},
		{"pingpong", false, syscall.SIGSTOP, spinning, "no progress for 3s"},
	} {
		side := "client"
		if c.isServer {
			side = "server"
		}
		name := fmt.Sprintf("%s %s %v, %s", c.peer, side, c.signal, c.waits)
		t.Run(name, func(t *testing.T) {
			programs := [2]string{"pingpong", c.peer} // server and client
			if c.isServer {
				programs = [2]string{c.peer, "pingpong"}
			}
			args := []string{"-n", forEver}
			server, port := l.server(t, programs[0], c.waits.args(programs[0], args)...)
			client := l.client(t, programs[1], port, c.waits.args(programs[1], args)...)
			l.underway(t)
			dies, survives := client, server
			if c.isServer {
				dies, survives = server, client
			}
			require.NoError(t, dies.cmd.Process.Signal(c.signal))
			fails(t, survives, `after [1-9]\d* of `+forEver+` round trips: .*(`+c.text+")")
		})
	}
}

// A peer whose flags are others. One of C does not say so.
func TestPeerDisagrees(t *testing.T) {
	l := newLab(t)
	rc, uc := cProgram(typeRC), cProgram(typeUC)
	const noType = "after 0 of 1000 round trips: no progress for 3s .*; 0 of 1000 messages have come from the peer.*; do both sides have the same --type and --size"
	const fewer = "after 10 of 20 round trips: (.*transport retry counter exceeded.*|" +
		`no progress for 3s .*; 10 of 20 messages have come from the peer, and its device has acknowledged \d+ of 1[01]); do both sides have the same --iters`
	for name, c := range map[string]struct {
		clientProgram, serverProgram string
		clientArgs, serverArgs       []string
		client, server               string
	}{
		"several": {ours, ours, []string{"-s", "5000", "-n", "20"}, []string{"-n", "10"},
			"^pingpong: --size is 5000 here and 4096 at the server, --iters is 20 here and 10 at the server: give both sides the same",
			"^pingpong: --size is 4096 here and 5000 at the client, --iters is 10 here and 20 at the client: give both sides the same"},
		"type":  {ours, ours, []string{"uc"}, nil, "--type is uc here and rc at the server: give", "--type is rc here and uc at the client: give"},
		"types": {ours, ours, []string{"srq"}, nil, "the peer hung up in the exchange of addresses, .* whether it is of the same type", "the client sends more addresses than one: is it of type srq, and this server not"},
		// Of the GIDs the first is the link-local one.
		"GID":      {ours, ours, []string{"-g", "0"}, nil, "the peer hung up in the exchange of addresses, .*: look at what it says", `own GID 1 of port 1 \(::ffff:.*\) to peer GID fe80::.*; if that is the cause: both must be of the same type`},
		"no --chk": {ours, ours, nil, []string{"--chk"}, "", "round trip 1 of 4096 bytes: byte 0 is 0x7b, not 0x00: .*the peer runs without --chk"},

		"C's is longer":   {rc, ours, []string{"-s", "5000"}, nil, "", "do both sides have the same --size"},
		"C's is shorter":  {rc, ours, []string{"-s", "3000"}, nil, "", "the peer sent 3000 bytes, not 4096: give both sides the same --size"},
		"C's is uc":       {uc, ours, nil, nil, "", noType},
		"C's server is":   {ours, uc, nil, nil, "transport retry counter exceeded.*; do both sides have the same --type and --mtu|" + noType, ""},
		"C's wants fewer": {rc, ours, []string{"-n", "10"}, []string{"-n", "20"}, "", fewer},
		"C's server does": {ours, rc, []string{"-n", "20"}, []string{"-n", "10"}, fewer, ""},
	} {
		t.Run(name, func(t *testing.T) {
			server, port := l.server(t, c.serverProgram, c.serverArgs...)
			client := l.client(t, c.clientProgram, port, c.clientArgs...)
			for p, text := range map[*proc]string{client: c.client, server: c.server} {
				if text != "" {
					p.wait(patience) // for the device's retries or the timeout, behind the start of both
					fails(t, p, text)
				}
			}
		})
	}
}

// A peer that speaks TCP but not to the point, or that does and has no queue pair.
func TestStrangePeer(t *testing.T) {
	l := newLab(t)
	wire := func(qpn uint32, gid ibv.GID) string {
		return string(formatAddress(ibv.Endpoint{QPN: qpn, PSN: 1, GID: gid}))
	}
	gid := ibv.GIDFromAddr(rdmatest.Addr(t))
	nobody := wire(0xfffffe, gid)
	for name, c := range map[string]struct {
		says               string
		asServer, asClient string // what ours says as the peer of such a server or client
		idle               bool   // ours sleeps, so that several can at a time
	}{
		"silent":   {"", "the peer sent 0 of 52 bytes", "the peer sent 0 of 52 bytes", true},
		"half":     {nobody[:20], "the peer sent 20 of 52 bytes", "the peer sent 20 of 52 bytes", true},
		"rubbish":  {"SSH-2.0-OpenSSH_9.2p1\r\n" + strings.Repeat("x", 52), "SSH-2.0", "SSH-2.0", false},
		"no GID":   {wire(0x11, ibv.GID{}), "the peer sent no GID", "the peer sent no GID", false},
		"zero QPN": {wire(0, gid), "DestQPN is not set", "DestQPN is not set", false},
		"nobody":   {nobody + done, "transport retry counter exceeded", "after 0 of 1000 round trips: no progress for 3s", false},
	} {
		t.Run(name+" server", func(t *testing.T) {
			if c.idle {
				t.Parallel()
			}
			client := l.client(t, "pingpong", fakeServer(t, c.says))
			client.printed("local address")
			fails(t, client, c.asServer)
		})
		t.Run(name+" client", func(t *testing.T) {
			if c.idle {
				t.Parallel()
			}
			server, port := l.server(t, "pingpong")
			fakeClient(t, l.addr, port, c.says)
			fails(t, server, c.asClient)
		})
	}
}
