package ibv_test

import (
	"errors"
	"fmt"
	"log"

	"github.com/goverbs/goverbs/cq"
	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/mr"
)

// readRemote fills a region from the beginning of a peer's memory.
func readRemote(qp *ibv.QP, q *cq.CQ, local *mr.Region, remote ibv.RemoteRange) error {
	n := local.Len()
	if remote.Length < uint64(n) { // it came from the peer, and Slice would panic
		return fmt.Errorf("the peer has %d bytes, not %d", remote.Length, n)
	}
	read := ibv.Read(1, ibv.SendSignaled, remote.Slice(0, n), local.SGE(0, n))
	if _, err := qp.PostSend([]ibv.SendWR{read}); err != nil {
		return err
	}
	_, err := polled(q)
	return err
}

// polled waits for the next completion. Its error is the completion's, or the queue's.
func polled(q *cq.CQ) (cq.WC, error) {
	var wc [1]cq.WC
	for {
		if n, err := q.Poll(wc[:]); n > 0 || err != nil {
			return wc[0], errors.Join(err, wc[0].Err())
		}
	}
}

// A remote read.
func ExampleRead() {
	var (
		qp     *ibv.QP    // an RC queue pair, connected to the peer
		q      *cq.CQ     // that its sends report to
		local  *mr.Region // with ibv.AccessLocalWrite
		remote ibv.RemoteRange
	)
	text := "rdma-range/1 addr=0x7f0012340000 length=0x1000 rkey=0x1a2b" // as the peer sent it
	if err := remote.UnmarshalText([]byte(text)); err != nil {
		log.Fatal(err)
	}
	if err := readRemote(qp, q, local, remote); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%q\n", local.Bytes())
}
