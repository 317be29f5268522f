package ibv_test

import (
	"log"

	"github.com/goverbs/goverbs/cq"
	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/mr"
)

// shared is a server's side of many clients: their messages, of up to size bytes, take
// the receives of one queue.
type shared struct {
	srq    *ibv.SRQ
	q      *cq.CQ
	region *mr.Region // a receive's memory is the piece with its number
	size   int
}

// post posts receive i, whose memory holds no message that is still needed.
func (s *shared) post(i uint64) error {
	_, err := s.srq.PostRecv([]ibv.RecvWR{ibv.Recv(i, s.region.SGE(int(i)*s.size, s.size))})
	return err
}

// newClient makes the queue pair of a client, to be connected.
func (s *shared) newClient() (*ibv.QP, error) {
	init := ibv.QPInitAttr{Type: ibv.QPTypeRC, Cap: ibv.QPCap{MaxSendWR: 16, MaxSendSGE: 1}}
	return s.srq.PD().CreateQP(init, ibv.QPQueues{Send: s.q, Recv: s.q, SRQ: s.srq})
}

// serve hands one message on, with the number of the queue pair that got it. The
// function polled is in the example of Read.
func (s *shared) serve(handle func(qpn uint32, message []byte)) error {
	wc, err := polled(s.q)
	if err != nil || !wc.IsRecv() {
		return err
	}
	i := wc.WRID
	handle(wc.QPNum, s.region.Bytes()[int(i)*s.size:][:wc.ByteLen()])
	return s.post(i)
}

// A shared receive queue for a hundred clients.
func ExampleSRQ() {
	var (
		pd *ibv.PD
		q  *cq.CQ // for all their sends, and the receives
	)
	const receives, size = 1000, 4096
	srq, err := pd.CreateSRQ(ibv.SRQInitAttr{MaxWR: receives, MaxSGE: 1})
	if err != nil {
		log.Fatal(err)
	}
	region, err := mr.AllocRegion(pd, receives*size, ibv.AccessLocalWrite)
	if err != nil {
		log.Fatal(err)
	}
	s := &shared{srq, q, region, size}
	for i := range uint64(receives) {
		if err := s.post(i); err != nil {
			log.Fatal(err)
		}
	}
	for range 100 {
		qp, err := s.newClient()
		if err != nil {
			log.Fatal(err)
		}
		log.Print("to be connected: ", qp)
	}
	for {
		err := s.serve(func(qpn uint32, message []byte) { log.Printf("from QP %#x: %q", qpn, message) })
		if err != nil {
			log.Fatal(err)
		}
	}
}
