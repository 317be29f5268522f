package main

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/ibv"
)

func someParams() params {
	return params{Type: "rc", Op: opSend, Sizes: []uint32{4096}, Iters: 1000, Depth: 1, SignalEvery: 1, NumQP: 1, MTU: 1024}
}

func TestMismatchNamesWhatDiffers(t *testing.T) {
	require.NoError(t, someParams().mismatch(someParams(), "client"))
	for want, change := range map[string]func(*params){
		"--type is rc here and uc at the client":                  func(p *params) { p.Type = "uc" },
		"--op is send here and read at the client":                func(p *params) { p.Op = opRead },
		"--size is 4096 here and 1:8 at the client":               func(p *params) { p.Sizes = []uint32{1, 2, 4, 8} },
		"--size is 4096 here and none at the client":              func(p *params) { p.Sizes = nil },
		"--iters is 1000 here and 1 at the client":                func(p *params) { p.Iters = 1 },
		"--duration is 0s here and 1s at the client":              func(p *params) { p.Duration = time.Second },
		"--warmup is 0 here and 1 at the client":                  func(p *params) { p.Warmup = 1 },
		"--depth is 1 here and 2 at the client":                   func(p *params) { p.Depth = 2 },
		"--signal-every is 1 here and 2 at the client":            func(p *params) { p.SignalEvery = 2 },
		"--bidirectional is false here and true at the client":    func(p *params) { p.Bidirectional = true },
		"--chk is false here and true at the client":              func(p *params) { p.Check = true },
		"--num-qp is 1 here and 3 at the client":                  func(p *params) { p.NumQP = 3 },
		"--mtu is 1024 here and 512 at the client":                func(p *params) { p.MTU = 512 },
		"--depth is 1 here and 2 at the client, --mtu is 1024 he": func(p *params) { p.Depth, p.MTU = 2, 512 },
	} {
		peer := someParams()
		change(&peer)
		err := someParams().mismatch(peer, "client")
		require.ErrorContains(t, err, want)
		assert.True(t, strings.HasSuffix(err.Error(), ": give both sides the same"))
	}
	own, peer := someParams(), someParams()
	own.Type, peer.Type, peer.MTU = "ud", "ud", 4096
	assert.NoError(t, own.mismatch(peer, "client"), "a port's MTU is its own")
}

// side is a session without a device, for what only looks at flags.
func side(t *testing.T, server string) *session {
	t.Helper()
	o := defaults()
	o.server, o.own = server, []string{"--depth"}
	return &session{options: o, mtu: ibv.MTU1024}
}

// TestStranger has a peer without the flags meet one with them. C's client would take a hello
// for an address, and wait for ever: what it gets ends it, and a pingpong knows it.
func TestStranger(t *testing.T) {
	for server, c := range map[string]struct{ says, text string }{
		"":       {wire, "the client speaks as C's programs do, and --depth needs pingpong on both sides"},
		"server": {"", "after 0 of 19 bytes: look at what it says, and whether it is of the same type; --depth needs pingpong on both sides"},
	} {
		s := side(t, server)
		s.lanes = []*lane{{}}
		us, peer := connected(t)
		_, err := io.WriteString(peer, c.says)
		require.NoError(t, err)
		require.NoError(t, peer.(*net.TCPConn).CloseWrite())
		_, _, err = s.negotiate(us, []ibv.Endpoint{endpoint})
		require.ErrorContains(t, err, c.text)
		require.NoError(t, us.(*net.TCPConn).CloseWrite())
		said, err := io.ReadAll(peer)
		require.NoError(t, err)
		if !s.isClient() {
			assert.Equal(t, greeting+"\n", string(said))
			assert.Less(t, len(said), addressLen)
		}
	}
}

func TestReceiveHello(t *testing.T) {
	for name, c := range map[string]struct{ says, text string }{
		"half a line":  {greeting + "{", "hung up"},
		"no JSON":      {greeting + "hello\n", "in a form that this version does not know"},
		"bad endpoint": {greeting + `{"endpoints":["nobody"]}` + "\n", "in a form that this version does not know"},
		"too much":     {greeting + strings.Repeat("x", maxHello), "in more than 65536 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := side(t, "").receiveHello(bufio.NewReaderSize(strings.NewReader(c.says), maxHello))
			assert.ErrorContains(t, err, c.text)
		})
	}
}

func TestHello(t *testing.T) {
	s := side(t, "server")
	own := hello{Params: s.agreed(), Endpoints: []ibv.Endpoint{endpoint}, GIDType: "RoCE v2", Memory: ibv.RemoteRange{Addr: 1, Length: 8, RKey: 3}}
	client, server := connected(t)
	require.NoError(t, sendHello(client, own))
	got, err := s.receiveHello(bufio.NewReaderSize(server, maxHello))
	require.NoError(t, err)
	assert.Equal(t, own, got)
	require.NoError(t, s.accord(own, got))

	s.portAt.LinkLayer = ibv.LinkLayerEthernet
	for text, change := range map[string]func(*hello){
		"--mtu is 1024 here and 256 at the server":       func(h *hello) { h.Params.MTU, h.Error = 256, "it differs" },
		"the server refused: no route":                   func(h *hello) { h.Error = "no route" },
		"the server refused: too busy":                   func(h *hello) { *h = hello{Error: "too busy"} },
		"type RoCE v2 and that of the server of type IB": func(h *hello) { h.GIDType, h.Error = "IB", "they differ" },
		"the server sent 0 addresses and not 1":          func(h *hello) { h.Endpoints = nil },
		"offers 7 bytes of memory":                       func(h *hello) { h.Memory.Length = 7 },
	} {
		peer := own
		change(&peer)
		assert.ErrorContains(t, s.accord(own, peer), text)
	}
}

// TestPlainPeerIsTold has a side without the flags refuse one with them, which learns why.
func TestPlainPeerIsTold(t *testing.T) {
	client, server := connected(t)
	s := side(t, "server")
	require.NoError(t, sendHello(client, hello{Params: s.agreed()}))
	_, err := exchangeAsServer(server, []ibv.Endpoint{endpoint}, nil)
	require.ErrorContains(t, err, "give this side the same ones")
	server.Close()
	got, err := s.receiveHello(bufio.NewReaderSize(client, maxHello))
	require.NoError(t, err)
	assert.ErrorContains(t, s.accord(hello{Params: s.agreed()}, got), "the server refused: it runs without the flags")
}

// TestPlainClientIsTold has a server with the flags refuse a client without them.
func TestPlainClientIsTold(t *testing.T) {
	client, server := connected(t)
	s := side(t, "")
	s.lanes = []*lane{{}}
	refused := make(chan error, 1)
	go func() {
		_, _, err := s.negotiate(server, nil)
		server.Close()
		refused <- err
	}()
	_, err := exchangeAsClient(client, []ibv.Endpoint{endpoint})
	require.ErrorContains(t, err, "give this side the same ones")
	require.ErrorContains(t, <-refused, "speaks as C's programs do")
}

// TestCompare has two plain pingpongs, whose peer might be C's program.
func TestCompare(t *testing.T) {
	for name, c := range map[string]struct {
		change         func(*session) // of the client
		client, server string
	}{
		"alike":           {func(*session) {}, "", ""},
		"what may differ": {func(s *session) { s.check, s.mtu = true, ibv.MTU256 }, "", ""},
		"type":            {func(s *session) { s.typ = typeUC }, "--type is uc here and rc at the server: give", "--type is rc here and uc at the client: give"},
		"size and iters": {func(s *session) { s.sizes, s.iters = []uint32{8}, 9 },
			"--size is 8 here and 4096 at the server, --iters is 9 here and 1000 at the server: give",
			"--size is 4096 here and 8 at the client, --iters is 1000 here and 9 at the client: give"},
	} {
		t.Run(name, func(t *testing.T) {
			client, server := side(t, "server"), side(t, "")
			client.lanes, server.lanes = []*lane{{}}, []*lane{{}}
			c.change(client)
			a, b := connected(t)
			served := make(chan error, 1)
			go func() { served <- server.compare(b) }()
			for s, got := range map[*session]struct {
				err  error
				want string
			}{client: {client.compare(a), c.client}, server: {<-served, c.server}} {
				assert.Equal(t, got.want == "", s.alike)
				if got.want == "" {
					assert.NoError(t, got.err)
				} else {
					assert.ErrorContains(t, got.err, got.want)
				}
			}
		})
	}
}

// TestCompareWithC has a peer that says no hello.
func TestCompareWithC(t *testing.T) {
	for name, peer := range map[string]func(net.Conn){
		"hangs up": func(c net.Conn) { c.Close() },
		"resets the connection": func(c net.Conn) {
			_ = c.(*net.TCPConn).SetLinger(0)
			c.Close()
		},
		"stays":                func(net.Conn) {},
		"says something short": func(c net.Conn) { _, _ = io.WriteString(c, done) },
		"says something long":  func(c net.Conn) { _, _ = io.WriteString(c, wire) },
	} {
		t.Run(name, func(t *testing.T) {
			for _, server := range []string{"", "server"} {
				s := side(t, server)
				s.lanes, s.timeout = []*lane{{}}, time.Second/10
				us, them := connected(t)
				peer(them)
				assert.NoError(t, s.compare(us))
				assert.False(t, s.alike)
				if server != "" && name == "stays" {
					require.NoError(t, us.Close())
					said, err := io.ReadAll(them)
					require.NoError(t, err)
					assert.Empty(t, said, "a C server could take it for its client's last word")
				}
			}
		})
	}
}

func controls(t *testing.T) (client, server *control) {
	t.Helper()
	a, b := connected(t)
	client, server = newControl(a, a, "server"), newControl(b, b, "client")
	t.Cleanup(func() {
		client.close()
		server.close()
	})
	return client, server
}

func TestWords(t *testing.T) {
	client, server := controls(t)
	w := word{Iterations: 5, Lost: 2, Elapsed: time.Second, CPU: time.Minute}
	require.NoError(t, client.send(w))
	got, err := server.receive(t.Context())
	require.NoError(t, err)
	assert.Equal(t, w, got)

	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("Ctrl-C"))
	_, err = server.receive(ctx)
	assert.ErrorContains(t, err, "Ctrl-C")

	// The last word is heard though the connection has ended.
	require.NoError(t, client.send(w))
	client.close()
	<-server.gone
	got, err = server.receive(t.Context())
	require.NoError(t, err)
	assert.Equal(t, w, got)
	_, err = server.receive(t.Context())
	assert.ErrorContains(t, err, "the client hung up")
}

func TestFailureIsTold(t *testing.T) {
	client, server := controls(t)
	server.close(nil, errors.New("no\nroute"))
	_, err := client.receive(t.Context())
	assert.ErrorContains(t, err, "the server failed: no; route")
}

func TestStrangeWords(t *testing.T) {
	for text, says := range map[string]string{
		"says more than it should":   `{}{}{}{}`,
		"the connection to the peer": `{"iterations":-1}`,
		"hung up":                    `{"itera`,
	} {
		a, b := net.Pipe()
		go func() {
			_, _ = io.WriteString(a, says)
			a.Close()
		}()
		c := newControl(b, b, "peer")
		<-c.gone
		assert.ErrorContains(t, c.err, text)
		c.close()
	}
}
