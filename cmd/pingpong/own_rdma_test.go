//go:build rdma

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/cmd/pingpong/internal/report"
	"github.com/goverbs/goverbs/cq"
	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/rdmatest"
)

// TestOperations plays what C's programs have nothing for.
func TestOperations(t *testing.T) {
	l := newLab(t)
	var all [][]string
	for _, op := range operations {
		for _, more := range [][]string{
			{"-n", "100"},
			{"-n", "100", "--depth", "8", "--signal-every", "3", "-e"},
			{"--duration", "200ms", "--depth", "4", "--bidirectional", "--warmup", "20", "-e"},
		} {
			all = append(all, append([]string{"--op", string(op), "-c"}, more...))
		}
	}
	for _, typ := range []string{typeUC, typeUD, typeSRQ} {
		all = append(all,
			[]string{typ, "-c", "-n", "200", "--depth", "4", "-e"},
			[]string{typ, "-c", "--duration", "200ms", "--bidirectional", "-e", "--signal-every", "2"})
	}
	all = append(all,
		[]string{"uc", "--op", "write", "-c", "-n", "100", "-e"},
		[]string{"uc", "--op", "write-imm", "-c", "-n", "100", "--depth", "3", "-e"},
		[]string{"--inline", "100", "-s", "100", "--warmup", "1", "-n", "50", "--tclass", "0x68", "--flow-label", "7", "-l", "1"},
		[]string{"--inline", "0", "-s", "1", "--warmup", "1", "-n", "50"},
		[]string{"ud", "--sizes", "1:1K", "-n", "20", "-e", "-c", "--tclass", "0x68", "--flow-label", "7"},
		[]string{"--sizes", "1:1M", "-n", "5", "-e", "-c", "--op", "write-imm", "--depth", "2"})
	for _, args := range all {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			server, port := l.server(t, ours, args...)
			client := l.client(t, ours, port, args...)
			for _, p := range []*proc{client, server} {
				assert.Zero(t, p.wait(patience))
				assert.Contains(t, p.stdout.String(), "\nsoftware device (rxe): not a measure of RDMA hardware\n")
				assert.Contains(t, p.stdout.String(), "peer's")
			}
			switch {
			case slices.Contains(args, "100") && slices.Contains(args, "--inline"):
				assert.Contains(t, client.stdout.String(), ", inline;")
			case slices.Contains(args, "--inline"):
				assert.Contains(t, client.stdout.String(), ", not inline;")
			}
		})
	}
}

func TestPlot(t *testing.T) {
	l := newLab(t)
	file := filepath.Join(t.TempDir(), "latency.svg")
	server, port := l.server(t, ours, "-e", "--sizes", "1:64", "-n", "20")
	client := l.client(t, ours, port, "-e", "--sizes", "1:64", "-n", "20", "--plot", file)
	require.Zero(t, client.wait(patience))
	require.Zero(t, server.wait(patience))
	svg, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.Contains(t, string(svg), "p99.9")
}

// TestMismatch has each side name what the other has otherwise.
func TestMismatch(t *testing.T) {
	l := newLab(t)
	for name, c := range map[string]struct {
		server, client     []string
		atServer, atClient string
	}{
		"size": {[]string{"--depth", "1", "-s", "1"}, []string{"--depth", "1"},
			"--size is 1 here and 4096 at the client: give both sides the same", "--size is 4096 here and 1 at the server: give both sides the same"},
		"type": {[]string{"uc", "--depth", "1"}, []string{"--depth", "1"},
			"--type is uc here and rc at the client: give", "--type is rc here and uc at the server: give"},
		"operation": {[]string{"--op", "read"}, []string{"--op", "write"},
			"--op is read here and write at the client: give", "--op is write here and read at the server: give"},
		"several": {[]string{"--depth", "2", "-n", "5"}, []string{"--depth", "3", "--warmup", "5"},
			"--iters is 5 here and 1000 at the client, --warmup is 0 here and 5 at the client, --depth is 2 here and 3 at the client",
			"--iters is 1000 here and 5 at the server, --warmup is 5 here and 0 at the server, --depth is 3 here and 2 at the server"},
		"client alone": {nil, []string{"--op", "write"},
			"the peer runs with flags that C's programs do not have: give this side the same ones",
			"the server refused: it runs without the flags for which both sides must be pingpong"},
		"server alone": {[]string{"--op", "write", "--depth", "2"}, nil,
			"the client speaks as C's programs do, and --op --depth needs pingpong on both sides with the same flags",
			"the peer runs with flags that C's programs do not have"},
	} {
		t.Run(name, func(t *testing.T) {
			server, port := l.server(t, ours, c.server...)
			client := l.client(t, ours, port, c.client...)
			fails(t, client, c.atClient)
			fails(t, server, c.atServer)
		})
	}
}

// TestOtherGIDType has a peer whose GID the device under test cannot reach.
func TestOtherGIDType(t *testing.T) {
	l := newLab(t)
	opts := defaults()
	opts.own = []string{"--depth"}
	s := session{options: opts, mtu: ibv.MTU1024}
	h := hello{Params: s.agreed(), Endpoints: []ibv.Endpoint{{QPN: 5, GID: ibv.GIDFromAddr(rdmatest.Addr(t))}}, GIDType: "RoCE v1"}
	text, err := json.Marshal(h)
	require.NoError(t, err)
	client := l.client(t, ours, fakeServer(t, greeting+string(text)+"\n"), "--depth", "1")
	fails(t, client, "the GID of this side is of type RoCE v2 and that of the server of type RoCE v1, which do not reach each other")
}

// TestOwnPeerDies has the connection tell, where otherwise only time would.
func TestOwnPeerDies(t *testing.T) {
	l := newLab(t)
	for _, args := range [][]string{
		{"--op", "read", "--duration", "1h", "-e"},
		{"ud", "--duration", "1h", "-e"},
	} {
		t.Run(args[1], func(t *testing.T) {
			server, port := l.server(t, ours, args...)
			client := l.client(t, ours, port, args...)
			l.underway(t)
			require.NoError(t, client.cmd.Process.Signal(syscall.SIGKILL))
			assert.Equal(t, exitFailure, server.wait(limit))
			assert.Contains(t, server.stderr.String(), "the client hung up")
		})
	}
}

// TestNoReceives has a peer that is connected and has posted no receive.
func TestNoReceives(t *testing.T) {
	l := newLab(t)
	opts := defaults()
	opts.device = l.device
	peer, err := open(opts)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, peer.close()) })
	require.NoError(t, peer.initQP(peer.lanes[0], ibv.GIDRequest{Local: rdmatest.Addr(t)}))
	conn, port := listen(t)
	client := l.client(t, ours, port)
	with := <-conn
	_, err = exchangeAsServer(with, []ibv.Endpoint{peer.lanes[0].local.Endpoint}, peer.connectQPs)
	require.NoError(t, errors.Join(err, with.Close()))
	// That of Linux 6.1 takes the wait for a receive for silence.
	fails(t, client, "(RNR|transport) retry counter exceeded.*the peer had no receive posted")
}

// TestLoss has a server that loses some messages of the client, and some answers.
func TestLoss(t *testing.T) {
	for _, w := range []wait{polling, events} {
		t.Run(string(w), func(t *testing.T) {
			opts := defaults()
			opts.typ, opts.sizes, opts.iters, opts.events = typeUD, []uint32{64}, 20, w == events
			opts.timeout = patience / 10
			client, server := connectedSessions(t, opts)
			anew := make(chan []int, 1)
			go func() {
				anew <- answerSome(t, server, func(n int) bool { return n != 5 && n != 11 }, 20)
			}()
			results, err := client.play(t.Context(), nil, io.Discard)
			require.NoError(t, err)
			assert.Equal(t, []int{6, 12}, <-anew, "it says what it sends without an answer")
			require.Len(t, results, 1)
			assert.EqualValues(t, 2, results[0].Lost)
			assert.EqualValues(t, 18, results[0].Iterations)
			assert.EqualValues(t, 18, results[0].Latency.Samples)
			assert.True(t, results[0].Complete)
		})
	}
}

// TestServerTimesNoLoss has a client that gives one answer up: what the server sees of that is no
// latency.
func TestServerTimesNoLoss(t *testing.T) {
	for _, typ := range []string{typeUC, typeUD} {
		t.Run(typ, func(t *testing.T) {
			opts := defaults()
			opts.typ, opts.sizes, opts.iters, opts.timeout = typ, []uint32{64}, 5, patience
			client, server := connectedSessions(t, opts)
			served := make(chan []report.Result, 1)
			go func() {
				results, err := server.play(t.Context(), nil, io.Discard)
				assert.NoError(t, err)
				served <- results
			}()
			send := ibv.Send(0, ibv.SendSignaled, client.region.SGE(int(client.out), 64))
			send.Datagram = client.lanes[0].to
			for n := range 5 {
				message := send
				if n == 2 {
					markAnew(&message)
				}
				_, err := client.lanes[0].qp.PostSend([]ibv.SendWR{message})
				require.NoError(t, err)
				var wc [1]cq.WC
				for came := 0; came < 2; { // that it is sent, and the answer
					got, err := client.cq.Poll(wc[:])
					require.NoError(t, err)
					if got > 0 {
						require.NoError(t, wc[0].Err())
						came++
					}
				}
			}
			results := <-served
			require.Len(t, results, 1)
			assert.EqualValues(t, 5, results[0].Iterations)
			assert.EqualValues(t, 3, results[0].Latency.Samples, "neither the first message is an answer, nor that")
		})
	}
}

// answerSome takes so many messages and answers those that it should. It returns which of them
// answered none.
func answerSome(t *testing.T, s *session, answers func(n int) bool, messages int) (anew []int) {
	l := s.lanes[0]
	send := ibv.Send(0, 0, s.region.SGE(int(s.out), 64)).To(l.to)
	send.Flags = ibv.SendSignaled
	var wcs [1]cq.WC
	owed, sending := 0, false // one send at a time, whose completion may come after the next message
	for n := 0; n < messages || sending; {
		got, err := s.cq.Poll(wcs[:])
		if !assert.NoError(t, err) || got > 0 && !assert.NoError(t, wcs[0].Err()) {
			return anew
		}
		switch {
		case got == 0:
		case !wcs[0].IsRecv():
			sending = false
		default:
			if n++; answers(n) {
				owed++
			}
			if isAnew(&wcs[0]) {
				anew = append(anew, n)
			}
		}
		if owed > 0 && !sending {
			if _, err := l.qp.PostSend([]ibv.SendWR{send}); !assert.NoError(t, err) {
				return anew
			}
			owed, sending = owed-1, true
		}
	}
	return anew
}

// TestPeerIsSilent has UD give up where nothing comes any more, and say how much was lost. A
// server that waits for a message has nothing of its own under way.
func TestPeerIsSilent(t *testing.T) {
	l := newLab(t)
	c := cProgram(typeUD)
	server, port := l.server(t, ours, "ud", "-n", "10")
	client := l.client(t, c, port, "-n", "8")
	assert.Zero(t, client.wait(patience))
	assert.Equal(t, exitFailure, server.wait(limit))
	assert.Contains(t, server.stderr.String(), "after 8 of 10 round trips: no progress for 3s (--timeout changes how long to wait); 8 of 10 messages have come from the peer; do both sides have the same --iters?\n")
	assert.Contains(t, server.stdout.String(), "lost:     0 of 8 round trips had no answer")

	server, port = l.server(t, c, "-n", "8")
	client = l.client(t, ours, port, "ud", "-n", "10")
	assert.Zero(t, server.wait(patience))
	assert.Zero(t, client.wait(patience))
	assert.Contains(t, client.stdout.String(), "lost:     2 of 10 round trips had no answer")
}

// TestMemlock runs without the right to lock as much as one likes.
func TestMemlock(t *testing.T) {
	l := newLab(t)
	if _, err := exec.LookPath("setpriv"); err != nil {
		require.NoError(t, err)
	}
	p := start(t, "sh", "-c", fmt.Sprintf("ulimit -l 64; exec setpriv --bounding-set=-ipc_lock pingpong -d %s -s 1000000", l.device))
	fails(t, p, "memlock|ulimit -l")
}
