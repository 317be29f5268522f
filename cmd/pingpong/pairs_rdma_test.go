//go:build rdma

package main

import (
	"bytes"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/rdmatest"
)

// pairs are who plays with whom: client and server.
var pairs = [][2]string{{ours, ours}, {ours, "C"}, {"C", ours}}

func TestPairs(t *testing.T) {
	l := newLab(t)
	for _, c := range []struct {
		typ         string
		size, iters int
		waits       [2]wait   // of client and server
		depths      [2]string // of both
		more        []string
	}{
		{typeRC, 4096, rdmatest.Rounds(1000, 5000), [2]wait{polling, polling}, [2]string{"500", "500"}, nil},
		{typeRC, 4096, 1000, [2]wait{polling, polling}, [2]string{"7", "3"}, []string{"-c"}},
		{typeRC, 1, 30, [2]wait{polling, polling}, [2]string{"1", "2"}, []string{"-c", "-m", "256", "-l", "1"}},
		{typeRC, 1<<20 + 1, 3, [2]wait{polling, polling}, [2]string{"3", "1"}, []string{"-m", "512", "--chk"}},
		{typeRC, 4096, rdmatest.Rounds(1000, 5000), [2]wait{events, events}, [2]string{"500", "500"}, nil},
		{typeRC, 4096, 500, [2]wait{events, polling}, [2]string{"500", "500"}, []string{"-c"}},
		{typeRC, 4096, 500, [2]wait{polling, events}, [2]string{"500", "500"}, []string{"-c"}},
		{typeRC, 4096, 500, [2]wait{events, spinning}, [2]string{"500", "500"}, []string{"-c"}},

		{typeUC, 4096, rdmatest.Rounds(500, 5000), [2]wait{polling, polling}, [2]string{"500", "500"}, nil},
		{typeUC, 4097, 300, [2]wait{events, events}, [2]string{"7", "3"}, []string{"-c", "-m", "256", "-l", "1"}},
		{typeUC, 1, 300, [2]wait{spinning, polling}, [2]string{"1", "2"}, []string{"--chk", "--mtu=1024"}},

		{typeUD, 1024, rdmatest.Rounds(500, 5000), [2]wait{polling, polling}, [2]string{"500", "500"}, nil},
		{typeUD, 1023, 300, [2]wait{events, events}, [2]string{"7", "3"}, []string{"-c", "-l", "1"}},
		{typeUD, 1, 300, [2]wait{spinning, polling}, [2]string{"1", "2"}, []string{"--chk", "--sl=1"}},

		{typeSRQ, 4096, rdmatest.Rounds(500, 5000), [2]wait{polling, polling}, [2]string{"500", "500"}, nil},
		{typeSRQ, 4096, 300, [2]wait{events, events}, [2]string{"17", "33"}, []string{"-c", "-m", "512", "-l", "1"}},
		{typeSRQ, 1, 300, [2]wait{spinning, polling}, [2]string{"3", "4"}, []string{"--chk", "-q", "3"}},
		{typeSRQ, 4096, 30, [2]wait{polling, events}, [2]string{"255", "300"}, []string{"--num-qp=255"}},
	} {
		for _, pair := range pairs {
			name := fmt.Sprintf("%s, %s to %s, %s and %s, %d of %d bytes %v", c.typ, pair[0], pair[1],
				c.waits[0], c.waits[1], c.iters, c.size, c.more)
			t.Run(name, func(t *testing.T) {
				args := append([]string{"-s", strconv.Itoa(c.size), "-n", strconv.Itoa(c.iters)}, c.more...)
				server, port := l.server(t, program(pair[1], c.typ), c.waits[1].args(pair[1], typed(pair[1], c.typ, args), "-r", c.depths[1])...)
				client := l.client(t, program(pair[0], c.typ), port, c.waits[0].args(pair[0], typed(pair[0], c.typ, args), "-r", c.depths[0])...)
				for _, p := range []*proc{client, server} {
					assert.Zero(t, p.wait(patience))
					checkResult(t, p.stdout.String(), c.size, c.iters)
				}
				assert.Equal(t, addresses(client, "local"), addresses(server, "remote"))
				assert.Equal(t, addresses(server, "local"), addresses(client, "remote"))
			})
		}
	}
}

// program names what plays a side: ours, or C's for the type.
func program(who, typ string) string {
	if who == ours {
		return ours
	}
	return cProgram(typ)
}

// typed adds the type for a program that must be told.
func typed(who, typ string, args []string) []string {
	if who != ours {
		return args
	}
	return append([]string{"--type", typ}, args...)
}

// wait is how a side waits for completions.
type wait string

const (
	polling  wait = "polling"
	events   wait = "events"
	spinning wait = "spinning" // for some time before each event; C waits for events
)

// args returns the arguments with those that have the program wait so.
func (w wait) args(program string, args []string, more ...string) []string {
	args = slices.Concat(args, more)
	if w != polling {
		args = append(args, "-e")
	}
	if w == spinning && program == ours {
		args = append(args, "--spin", "100us")
	}
	return args
}

// checkResult looks at what a program prints that went well: the lines of C, its
// result last.
func checkResult(t *testing.T, stdout string, size, iters int) {
	t.Helper()
	assert.Regexp(t, fmt.Sprintf(`\n%d bytes in \d+\.\d\d seconds = \d+\.\d\d Mbit/sec\n`+
		`%d iters in \d+\.\d\d seconds = \d+\.\d\d usec/iter\n$`, 2*size*iters, iters), stdout)
	assert.Regexp(t, `(?m)^  local address:  LID 0x[0-9a-f]{4}, QPN 0x[0-9a-f]{6}, PSN 0x[0-9a-f]{6}[,:] GID \S+$`, stdout)
	if strings.Contains(stdout, "measured:") {
		assert.Contains(t, stdout, "\nsoftware device (rxe): not a measure of RDMA hardware\n")
	}
}

// addresses returns what a process says of one side's, in the order of its queue pairs.
func addresses(p *proc, whose string) (all []string) {
	for line := range strings.Lines(p.stdout.String()) {
		if rest, ok := strings.CutPrefix(line, "  "+whose+" address:"); ok {
			all = append(all, strings.ReplaceAll(strings.TrimSpace(rest), ": GID", ", GID")) // C's ud has a colon in one
		}
	}
	return all
}

func TestChoosesGID(t *testing.T) {
	l := newLab(t)
	server, port := l.server(t, "pingpong", "-n", "1")
	client := l.client(t, "pingpong", port, "-n", "1", "-g", l.gid)
	require.Zero(t, client.wait(patience))
	require.Zero(t, server.wait(patience))
	assert.Regexp(t, `\npingpong: for TCP from \S+ to \S+: GID `+l.gid+` of port 1 \(.*\): RoCE v2, and its address is the local address`,
		server.stderr.String())
	assert.Empty(t, client.stderr.String(), "with -g there is nothing to tell")

	// Over loopback the connection's own address is no GID's.
	server, port = l.server(t, "pingpong", "-n", "1")
	l.addr = "127.0.0.1"
	client = l.client(t, "pingpong", port, "-n", "1")
	require.Zero(t, client.wait(patience))
	require.Zero(t, server.wait(patience))
	assert.Contains(t, client.stderr.String(), "127.0.0.1 is this host")
}

// connectedSessions returns a client and a server in this process.
func connectedSessions(t *testing.T, opts options) (client, server *session) {
	t.Helper()
	l := newLab(t)
	opts.device = l.device
	port := freePort(t)
	n, err := strconv.ParseUint(port, 10, 16)
	require.NoError(t, err)
	opts.port = uint16(n)
	made := make([]*session, 2)
	for i := range made {
		made[i], err = open(opts)
		require.NoError(t, err)
		t.Cleanup(func() { assert.NoError(t, made[i].close()) })
	}
	client, server = made[0], made[1]
	client.server = l.addr
	both(t,
		func() error { _, err := server.connect(t.Context(), io.Discard, io.Discard); return err },
		func() error {
			until(t, func() bool { return listening(t, port) }, "the server listens")
			_, err := client.connect(t.Context(), io.Discard, io.Discard)
			return err
		})
	return client, server
}

func both(t *testing.T, onServer, onClient func() error) {
	t.Helper()
	served := make(chan error, 1)
	go func() { served <- onServer() }()
	assert.NoError(t, onClient())
	require.NoError(t, <-served)
}

func TestAttributes(t *testing.T) {
	opts := defaults()
	opts.mtu, opts.rxDepth = ibv.MTU512, 9
	client, server := connectedSessions(t, opts)
	for _, s := range []*session{client, server} {
		attr, err := s.lanes[0].qp.Query(ibv.AttrState | ibv.AttrPathMTU | ibv.AttrRNRRetry | ibv.AttrRetryCount)
		require.NoError(t, err)
		assert.Equal(t, ibv.QPStateRTS, attr.State)
		assert.Equal(t, ibv.MTU512, attr.PathMTU)
		assert.EqualValues(t, 6, attr.RNRRetry)
		assert.EqualValues(t, 6, attr.RetryCount)
		assert.GreaterOrEqual(t, s.lanes[0].qp.Cap().MaxRecvWR, uint32(9))
	}
}

func TestLoopAllocatesNothing(t *testing.T) {
	opts := defaults()
	opts.iters, opts.rxDepth, opts.check = 200, 3, true
	client, server := connectedSessions(t, opts)
	play := func(s *session) func() error {
		return func() error { _, err := s.play(t.Context(), nil, io.Discard); return err }
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	both(t, play(server), play(client))
	runtime.ReadMemStats(&after)
	assert.Less(t, after.Mallocs-before.Mallocs, uint64(opts.iters/2), "allocations in %d round trips of two sides", opts.iters)

	// Nothing of a message that was checked is left for the next check to find.
	for _, s := range []*session{client, server} {
		in := s.place(0, s.maxSize())
		assert.Equal(t, len(in), bytes.Count(in, []byte{0xff}))
	}
}
