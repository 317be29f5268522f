//go:build rdma

package main

import (
	"bytes"
	"net"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/rdmatest"
)

// The test binary is also the program itself.
func TestMain(m *testing.M) {
	if os.Getenv("REMOTE_PROGRAM") != "" {
		main()
		return
	}
	rdmatest.Main(m)
}

const (
	clientSays = "the client read:\nfrom the server\nfrom the client\n"
	serverSays = "the client is done; the server has:\nfrom the server\nfrom the client\n"
)

func TestTwoProcesses(t *testing.T) {
	program := func(args ...string) (cmd *exec.Cmd, out, log *bytes.Buffer) {
		cmd = exec.Command("/proc/self/exe", args...)
		cmd.Env = append(os.Environ(), "REMOTE_PROGRAM=1")
		out, log = new(bytes.Buffer), new(bytes.Buffer)
		cmd.Stdout, cmd.Stderr = out, log
		return cmd, out, log
	}
	server, serverOut, serverLog := program()
	require.NoError(t, server.Start())
	defer server.Process.Kill()
	for deadline := time.Now().Add(30 * time.Second); ; {
		client, out, log := program("127.0.0.1:7472")
		if client.Run() == nil {
			assert.Equal(t, clientSays, out.String())
			break
		}
		require.Contains(t, log.String(), "connection refused", "the server is not there yet")
		require.True(t, time.Now().Before(deadline), "no server: %s", serverLog)
	}
	require.NoError(t, server.Wait(), "%s", serverLog)
	assert.Equal(t, serverSays, serverOut.String())
}

// connected returns both ends of a TCP connection.
func connected() (server, client net.Conn, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	defer l.Close()
	if client, err = net.Dial("tcp", l.Addr().String()); err != nil {
		return nil, nil, err
	}
	server, err = l.Accept()
	return server, client, err
}

// What the client could not reach is an error on its side, and no word reaches the
// server, which then does not take the memory for written.
func TestNotPublished(t *testing.T) {
	server, client, err := connected()
	require.NoError(t, err)
	var sides errgroup.Group
	sides.Go(func() error {
		err := run(server, ibv.AccessLocalWrite, fromServer, serve)
		assert.Error(t, err, "no word, and a queue pair that the client has broken")
		return nil
	})
	sides.Go(func() error {
		err := run(client, ibv.AccessLocalWrite, "", use)
		assert.ErrorContains(t, err, "WR 1 on QP")
		return nil
	})
	require.NoError(t, sides.Wait())
}

// Example runs both sides on the device under test, which must be the only one.
func Example() {
	server, client, err := connected()
	if err != nil {
		panic(err)
	}
	var sides errgroup.Group
	sides.Go(func() error { return run(server, published, fromServer, serve) })
	sides.Go(func() error { return run(client, ibv.AccessLocalWrite, "", use) })
	if err := sides.Wait(); err != nil {
		panic(err)
	}
	// Output:
	// the client read:
	// from the server
	// from the client
	// the client is done; the server has:
	// from the server
	// from the client
}
