package ibv_test

import (
	"errors"
	"log"

	"github.com/goverbs/goverbs/cq"
	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/mr"
)

// header is the place of the global routing header, before the data of a receive.
const header = 40

// echo receives a datagram into a region, and sends the same back to whoever sent it.
// The function polled is in the example of Read.
func echo(qp *ibv.QP, q *cq.CQ, region *mr.Region, port uint8, qkey uint32) error {
	if _, err := qp.PostRecv([]ibv.RecvWR{ibv.Recv(1, region.SGE(0, region.Len()))}); err != nil {
		return err
	}
	wc, err := polled(q)
	if err != nil {
		return err
	}
	attr, err := wc.AHAttr(qp.PD().Context(), region.Bytes()[:header], port)
	if err != nil {
		return err
	}
	ah, err := qp.PD().CreateAH(attr) // worth keeping, if more come from there
	if err != nil {
		return err
	}
	answer := ibv.Send(2, ibv.SendSignaled, region.SGE(header, wc.ByteLen()-header))
	_, err = qp.PostSend([]ibv.SendWR{answer.To(ibv.Datagram{AH: ah, QPN: wc.SrcQP(), QKey: qkey})})
	if err == nil {
		_, err = polled(q)
	}
	return errors.Join(err, ah.Close()) // not before the send has completed
}

// A datagram and the answer to it, on a UD queue pair.
func ExampleSendWR_To() {
	var (
		qp     *ibv.QP    // of type UD, in RTS
		q      *cq.CQ     // that its sends and receives report to
		region *mr.Region // with ibv.AccessLocalWrite
	)
	if err := echo(qp, q, region, 1, 0x1234); err != nil {
		log.Fatal(err)
	}
}
