package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/ibv"
)

const wire = "0000:000011:e80834:00000000000000000000ffffc0000201\x00"

var endpoint = ibv.Endpoint{
	QPN: 0x11, PSN: 0xe80834,
	GID: ibv.GID{10: 0xff, 11: 0xff, 12: 192, 13: 0, 14: 2, 15: 1},
}

func TestAddress(t *testing.T) {
	largest := ibv.Endpoint{QPN: 0xffffff, PSN: 0xffffff, LID: 0xffff, GID: ibv.GID(bytes.Repeat([]byte{0xff}, 16))}
	for _, c := range []struct {
		text string
		e    ibv.Endpoint
	}{
		{wire, endpoint},
		{"0001:00002a:000000:fe800000000000000002c903004fb06f\x00", ibv.Endpoint{LID: 1, QPN: 42,
			GID: ibv.GID{0: 0xfe, 1: 0x80, 9: 0x02, 10: 0xc9, 11: 0x03, 13: 0x4f, 14: 0xb0, 15: 0x6f}}},
		{"0000:000000:000000:00000000000000000000000000000000\x00", ibv.Endpoint{}},
		{"ffff:ffffff:ffffff:ffffffffffffffffffffffffffffffff\x00", largest},
	} {
		assert.Equal(t, c.text, string(formatAddress(c.e)))
		e, err := parseAddress([]byte(c.text))
		require.NoError(t, err)
		assert.Equal(t, c.e, e)
	}
	assert.Len(t, wire, addressLen)
}

func TestNotAnAddress(t *testing.T) {
	for _, text := range []string{
		"",
		wire[:len(wire)-1],
		wire[:len(wire)-1] + "0",
		"x" + wire[1:],
		"+000" + wire[4:],
		"000:0000011" + wire[11:],
		"00000:00011" + wire[11:],
		strings.Replace(wire, ":", ";", 1),
		strings.Replace(wire, "ffff", "fff\x00", 1),
		strings.Replace(wire, "ffff", "ff:f", 1),
		strings.Replace(wire, "000011", "0x0011", 1),
		strings.Repeat("\x00", addressLen),
		strings.Repeat("\xff", addressLen),
	} {
		_, err := parseAddress([]byte(text))
		if assert.ErrorContains(t, err, "the peer sent", "%q", text) {
			assert.NotContains(t, err.Error(), "\n")
			assert.Less(t, len(err.Error()), 350, "it quotes what came, but no more than a line")
		}
	}
}

func FuzzParseAddress(f *testing.F) {
	f.Add([]byte(wire))
	f.Add([]byte(strings.ToUpper(wire)))
	f.Add([]byte("::::\x00"))
	f.Fuzz(func(t *testing.T, msg []byte) {
		e, err := parseAddress(msg)
		if err != nil {
			assert.Zero(t, e)
			return
		}
		assert.Equal(t, strings.ToLower(string(msg)), string(formatAddress(e)))
	})
}

// connected returns the two ends of a TCP connection, which last for a second.
func connected(t *testing.T) (client, server net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	client, err = net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	server, err = l.Accept()
	require.NoError(t, err)
	for _, c := range []net.Conn{client, server} {
		require.NoError(t, c.SetDeadline(time.Now().Add(time.Second)))
		t.Cleanup(func() { c.Close() })
	}
	return client, server
}

func TestExchange(t *testing.T) {
	own := ibv.Endpoint{LID: 7, QPN: 8, PSN: 9}
	for _, n := range []int{1, maxQPs} {
		client, server := connected(t)
		var passed []ibv.Endpoint
		served := make(chan error, 1)
		go func() {
			remote, err := exchangeAsServer(server, slices.Repeat([]ibv.Endpoint{own}, n), func(remote []ibv.Endpoint) error {
				passed = remote
				return nil
			})
			served <- errors.Join(err, server.Close())
			assert.Equal(t, slices.Repeat([]ibv.Endpoint{endpoint}, n), remote)
		}()
		remote, err := exchangeAsClient(client, slices.Repeat([]ibv.Endpoint{endpoint}, n))
		require.NoError(t, err)
		require.NoError(t, <-served)
		assert.Equal(t, slices.Repeat([]ibv.Endpoint{own}, n), remote)
		assert.Equal(t, slices.Repeat([]ibv.Endpoint{endpoint}, n), passed)
	}
}

func TestServerAnswersOnlyWhenConnected(t *testing.T) {
	client, server := connected(t)
	_, err := io.WriteString(client, wire)
	require.NoError(t, err)
	refuse := errors.New("no route")
	_, err = exchangeAsServer(server, []ibv.Endpoint{endpoint}, func([]ibv.Endpoint) error { return refuse })
	assert.ErrorIs(t, err, refuse)
	server.Close()
	answer, err := io.ReadAll(client)
	require.NoError(t, err)
	assert.Empty(t, answer)
}

// What a bad peer does: it writes something, and then hangs up or stays.
func TestBadPeer(t *testing.T) {
	asClient := func(conn net.Conn) error {
		_, err := exchangeAsClient(conn, []ibv.Endpoint{endpoint})
		return err
	}
	asServer := func(conn net.Conn) error {
		_, err := exchangeAsServer(conn, []ibv.Endpoint{endpoint}, func([]ibv.Endpoint) error { return nil })
		return err
	}
	for name, c := range map[string]struct {
		exchange func(net.Conn) error
		sends    string
		stays    bool
		text     string
	}{
		"server says nothing":           {asClient, "", true, "sent 0 of 52 bytes"},
		"client says nothing":           {asServer, "", true, "sent 0 of 52 bytes"},
		"server says half":              {asClient, wire[:26], true, "sent 26 of 52 bytes"},
		"client says half":              {asServer, wire[:26], true, "sent 26 of 52 bytes"},
		"server hangs up":               {asClient, "", false, "hung up"},
		"client hangs up":               {asServer, "", false, "hung up"},
		"server hangs up after half":    {asClient, wire[:26], false, "after 26 of 52 bytes"},
		"client hangs up after half":    {asServer, wire[:26], false, "after 26 of 52 bytes"},
		"server sends rubbish":          {asClient, "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\n\r\n", true, `"HTTP/1.1 400`},
		"client sends rubbish":          {asServer, "GET /index.html HTTP/1.1\r\nHost: somewhere.example\r\n\r\n", true, `"GET /index`},
		"client is never done":          {asServer, wire, true, "sent 0 of 5 bytes"},
		"client hangs up before done":   {asServer, wire, false, "after 0 of 5 bytes"},
		"client says something else":    {asServer, wire + "gone\x00", true, `"gone\x00"`},
		"client is of type srq":         {asServer, wire + wire[:5] + wire, true, "is it of type srq"},
		"client says half of done":      {asServer, wire + "do", false, "after 2 of 5 bytes"},
		"client sends its address late": {asServer, "\x00" + wire, true, "no address"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			peer, conn := connected(t)
			_, err := io.WriteString(peer, c.sends)
			require.NoError(t, err)
			if !c.stays {
				require.NoError(t, peer.(*net.TCPConn).CloseWrite())
			}
			err = c.exchange(conn)
			require.ErrorContains(t, err, c.text)
			assert.NotContains(t, err.Error(), "\n")
		})
	}
}

func TestDialRefused(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	l.Close()
	_, err = dial(context.Background(), l.Addr().String(), time.Second)
	assert.ErrorContains(t, err, "no server at "+l.Addr().String())
	assert.ErrorContains(t, err, "connection refused")
}

func TestAcceptEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	notes, w := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		_, err := accept(ctx, ":0", w)
		ended <- err
	}()
	line := make([]byte, 100)
	n, err := notes.Read(line)
	require.NoError(t, err)
	assert.Regexp(t, `^pingpong: waiting for a client on port [1-9]\d*\n$`, string(line[:n]))
	cancel()
	select {
	case err := <-ended:
		assert.Error(t, err)
	case <-time.After(5 * time.Second):
		t.Fatal("accept still waits")
	}
}
