//go:build rdma

package main

import (
	"context"
	"errors"
	"os"
	"syscall"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/goverbs/goverbs/internal/rdmatest"
	"github.com/goverbs/goverbs/rdmacm"
)

func TestMain(m *testing.M) {
	_, _ = rdmacm.Devices() // which librdmacm opens, and never closes
	rdmatest.Main(m)
}

// Example runs both sides on the device under test, which must be the only one.
func Example() {
	ctx := context.Background()
	address := os.Getenv("RXE_ADDR") + ":7473"
	var sides errgroup.Group
	sides.Go(func() error { return server(ctx, address) })
	sides.Go(func() error {
		for {
			err := client(ctx, address)
			if !errors.Is(err, syscall.ECONNREFUSED) { // the server is not there yet
				return err
			}
		}
	})
	if err := sides.Wait(); err != nil {
		panic(err)
	}
	// Unordered output:
	// the client read:
	// from the server
	// from the client
	// the server has:
	// from the server
	// from the client
}
