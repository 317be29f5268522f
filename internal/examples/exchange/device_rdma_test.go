//go:build rdma

package main

import (
	"net"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/goverbs/goverbs/internal/rdmatest"
)

func TestMain(m *testing.M) { rdmatest.Main(m) }

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
