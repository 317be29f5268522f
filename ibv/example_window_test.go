package ibv_test

import (
	"errors"
	"log"

	"github.com/goverbs/goverbs/cq"
	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/mr"
)

// lend lets the peer write to n bytes of a region, but only until use returns. The
// function polled is in the example of Read.
func lend(qp *ibv.QP, q *cq.CQ, region *mr.Region, off, n int, use func(ibv.RemoteRange) error) error {
	mw, err := qp.PD().AllocMW(ibv.MWType2)
	if err != nil {
		return err
	}
	do := func(wr ibv.SendWR) error {
		if _, err := qp.PostSend([]ibv.SendWR{wr}); err != nil {
			return err
		}
		_, err := polled(q)
		return err
	}
	err = do(ibv.BindMW(1, ibv.SendSignaled, region.MWBind(mw, off, n, ibv.AccessRemoteWrite)))
	if err == nil {
		err = use(mw.Remote())
		// From the completion on the peer's writes are refused.
		err = errors.Join(err, do(ibv.LocalInv(2, ibv.SendSignaled, mw.Remote().RKey)))
	}
	return errors.Join(err, mw.Close())
}

// A memory window, which gives a part of a region to a peer, and takes it back.
func ExampleMW() {
	var (
		qp     *ibv.QP    // an RC queue pair, connected to the peer
		q      *cq.CQ     // that its sends report to
		region *mr.Region // with ibv.AccessLocalWrite and ibv.AccessMWBind
	)
	err := lend(qp, q, region, 4096, 64, func(r ibv.RemoteRange) error {
		log.Printf("for the peer: %v", r) // and wait until it says that it has written
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
}
