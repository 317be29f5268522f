package ibv_test

import (
	"errors"
	"log"

	"github.com/goverbs/goverbs/cq"
	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/mr"
)

// writeWords writes a region to a peer's memory, in words of 8 bytes of which one in 16
// makes a completion.
func writeWords(qp *ibv.QP, q *cq.CQ, from *mr.Region, to ibv.RemoteRange) error {
	wrs := make([]ibv.SendWR, from.Len()/8)
	for i := range wrs {
		wrs[i] = ibv.Write(uint64(i), 0, to.Slice(i*8, 8), from.SGE(i*8, 8))
		if i%16 == 15 || i == len(wrs)-1 {
			wrs[i].Flags = ibv.SendSignaled
		}
	}
	var wcs [16]cq.WC
	for len(wrs) > 0 || from.InFlight() > 0 {
		accepted, err := qp.PostSend(wrs)
		wrs = wrs[accepted:] // also with an error: those are with the device
		if err != nil && !errors.Is(err, ibv.ErrQueueFull) {
			return err
		}
		n, err := q.Poll(wcs[:]) // makes room
		for i := range wcs[:n] {
			err = errors.Join(err, wcs[i].Err())
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Unsignaled writes, with a full queue as the sign to poll.
func ExampleQP_PostSend() {
	var (
		qp   *ibv.QP         // connected, for at least 16 sends
		q    *cq.CQ          // that its sends report to
		from *mr.Region      // that nothing else uses
		to   ibv.RemoteRange // as long as it, at least
	)
	if err := writeWords(qp, q, from, to); err != nil {
		log.Fatal(err)
	}
}
