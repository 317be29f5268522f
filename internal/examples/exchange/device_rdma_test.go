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

	"github.com/goverbs/goverbs/internal/rdmatest"
)

// The test binary is also the program itself.
func TestMain(m *testing.M) {
	if os.Getenv("EXCHANGE_PROGRAM") != "" {
		main()
		return
	}
	rdmatest.Main(m)
}

func TestTwoProcesses(t *testing.T) {
	program := func(args ...string) (*exec.Cmd, *bytes.Buffer) {
		cmd := exec.Command("/proc/self/exe", args...)
		cmd.Env = append(os.Environ(), "EXCHANGE_PROGRAM=1")
		out := new(bytes.Buffer)
		cmd.Stdout, cmd.Stderr = out, out
		return cmd, out
	}
	server, serverOut := program()
	require.NoError(t, server.Start())
	defer server.Process.Kill()
	for deadline := time.Now().Add(30 * time.Second); ; {
		client, out := program("127.0.0.1:7471")
		if client.Run() == nil {
			assert.Contains(t, out.String(), "1000 messages each way")
			break
		}
		require.Contains(t, out.String(), "connection refused", "the server is not there yet")
		require.True(t, time.Now().Before(deadline), "no server: %s", serverOut)
	}
	require.NoError(t, server.Wait())
	assert.Contains(t, serverOut.String(), "1000 messages each way")
}

// Example runs both sides on the device under test, which must be the only one.
func Example() {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	defer l.Close()
	var sides errgroup.Group
	sides.Go(func() error {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		defer conn.Close()
		return exchange(conn, 1000)
	})
	sides.Go(func() error {
		conn, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			return err
		}
		defer conn.Close()
		return exchange(conn, 1000)
	})
	if err := sides.Wait(); err != nil {
		panic(err)
	}
	// Output:
	// 1000 messages each way
	// 1000 messages each way
}
