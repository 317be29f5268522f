// Command exchange passes 1,000 messages each way between two processes, over an RC
// queue pair whose parameters they exchange over TCP. Start it on one host, and on
// the other with the first one's address and port: exchange 192.0.2.1:7471
package main

import (
	"errors"
	"fmt"
	"log"
	"net"
	"net/netip"
	"os"

	"github.com/goverbs/goverbs/cq"
	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/mr"
)

func main() {
	conn, err := connect(os.Args[1:])
	if err == nil {
		err = exchange(conn, 1000)
	}
	if err != nil {
		log.Fatal(err)
	}
}

func connect(args []string) (net.Conn, error) {
	if len(args) > 0 {
		return net.Dial("tcp", args[0])
	}
	l, err := net.Listen("tcp", ":7471")
	if err != nil {
		return nil, err
	}
	return l.Accept()
}

// exchange is one side of the conversation; the other runs the same.
func exchange(conn net.Conn, messages int) (err error) {
	ctx, err := ibv.Open("") // the only device of this host
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ctx.CloseAll()) }()
	pd, err := ctx.AllocPD()
	if err != nil {
		return err
	}
	q, err := cq.Create(ctx, cq.InitAttr{Entries: 4})
	if err != nil {
		return err
	}
	region, err := mr.AllocRegion(pd, 2*64, ibv.AccessLocalWrite)
	if err != nil {
		return err
	}
	caps := ibv.QPCap{MaxSendWR: 2, MaxRecvWR: 2, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInlineData: 64}
	qp, err := pd.CreateQP(ibv.QPInitAttr{Type: ibv.QPTypeRC, Cap: caps, SignalAll: true}, ibv.QPQueues{Send: q, Recv: q})
	if err != nil {
		return err
	}

	local, err := qp.Init(ibv.GIDRequest{Peer: netip.MustParseAddrPort(conn.RemoteAddr().String()).Addr()}, 0)
	if err != nil {
		return err
	}
	log.Print("using ", local.Choice)
	// Receives go before the peer can send. It may be one message ahead, so that two
	// are posted at a time, each with its own 64 bytes.
	receive := func(i int) []ibv.RecvWR { return []ibv.RecvWR{{SGEs: []ibv.SGE{region.SGE(i%2*64, 64)}}} }
	if _, err := qp.PostRecv(receive(0)); err != nil {
		return err
	}
	remote, err := local.Exchange(conn)
	if err != nil {
		return err
	}
	if err := qp.Connect(local, remote); err != nil {
		return err
	}
	for i := range messages {
		if _, err := qp.PostRecv(receive(i + 1)); err != nil {
			return err
		}
		if _, err := qp.PostSend([]ibv.SendWR{{Opcode: ibv.OpSend, Inline: fmt.Appendf(nil, "message %d", i)}}); err != nil {
			return err
		}
		for range 2 { // one message sent and one received: the two sides stay in step
			if err := await(q); err != nil {
				return err
			}
		}
	}
	fmt.Printf("%d messages each way\n", messages)
	_, err = local.Exchange(conn) // the peer may still need what only a live QP sends
	return err
}

// await polls until one work request is done, and returns its error.
func await(q *cq.CQ) error {
	var wc [1]cq.WC
	for {
		if n, err := q.Poll(wc[:]); n > 0 || err != nil {
			return errors.Join(err, wc[0].Err())
		}
	}
}
