package mr_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"time"

	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/mr"
)

// Memory that a peer may read, but not write.
func ExampleRegion_Remote() {
	var (
		pd   *ibv.PD
		conn net.Conn // to the peer
	)
	region, err := mr.AllocRegion(pd, 4096, ibv.AccessRemoteRead)
	if err != nil {
		log.Fatal(err)
	}
	copy(region.Bytes(), "for all to see")
	// The queue pair must allow it too: qp.Init(request, ibv.AccessRemoteRead).
	if _, err := fmt.Fprintln(conn, region.Remote().Slice(0, 64)); err != nil {
		log.Fatal(err)
	}
}

// An end that waits for the work requests in flight, which another goroutine polls.
func ExampleRegion_CloseWhenIdle() {
	var region *mr.Region
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	err := region.CloseWhenIdle(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		log.Print("as it was: ", err) // its memory still belongs to the device
	}
}
