//go:build rdma

package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/goverbs/goverbs/internal/rdmatest"
	"github.com/goverbs/goverbs/rdmacm"
)

// The test binary is also the program itself.
func TestMain(m *testing.M) {
	if os.Getenv("CONNECT_PROGRAM") != "" {
		main()
		return
	}
	_, _ = rdmacm.Devices() // which librdmacm opens, and never closes
	rdmatest.Main(m)
}

func TestTwoProcesses(t *testing.T) {
	program := func(args ...string) (*exec.Cmd, *bytes.Buffer) {
		cmd := exec.Command("/proc/self/exe", args...)
		cmd.Env = append(os.Environ(), "CONNECT_PROGRAM=1")
		out := new(bytes.Buffer)
		cmd.Stdout, cmd.Stderr = out, out
		return cmd, out
	}
	server, serverOut := program()
	require.NoError(t, server.Start())
	defer server.Process.Kill()
	address := rdmatest.Addr(t).String() + ":7471"
	for deadline := time.Now().Add(30 * time.Second); ; {
		client, out := program(address)
		if client.Run() == nil {
			assert.Equal(t, "1000 messages were answered\n", out.String())
			break
		}
		require.Contains(t, out.String(), "nobody listens there", "the server is not there yet")
		require.True(t, time.Now().Before(deadline), "no server: %s", serverOut)
	}
	require.NoError(t, server.Wait())
	assert.Empty(t, serverOut.String())
}

// Example runs both sides on the device under test, which must be the only one.
func Example() {
	ctx := context.Background()
	address := os.Getenv("RXE_ADDR") + ":7471"
	var sides errgroup.Group
	sides.Go(func() error { return server(ctx, address, new(inbox)) })
	sides.Go(func() error {
		for {
			err := client(ctx, address, new(inbox))
			if !errors.Is(err, syscall.ECONNREFUSED) { // the server is not there yet
				return err
			}
		}
	})
	if err := sides.Wait(); err != nil {
		panic(err)
	}
	// Output:
	// 1000 messages were answered
}
