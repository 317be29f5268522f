// Command greet connects two queue pairs with a flow label and a traffic class of the
// caller's choice, and has each side send one message of one packet, for tests that look
// at packets:
//
//	greet [-uc] [-label N] [-class N] [SERVER]
//
// Each side prints its own and its peer's endpoint.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/goverbs/goverbs/cq"
	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/mr"
)

const port = "7473"

func main() {
	typ := ibv.QPTypeRC
	uc := flag.Bool("uc", false, "UC instead of RC")
	label := flag.Uint("label", 0, "flow label of what this side sends")
	class := flag.Uint("class", 0, "traffic class of what this side sends")
	flag.Parse()
	if *uc {
		typ = ibv.QPTypeUC
	}
	conn, err := connect(flag.Arg(0))
	if err == nil {
		err = greet(conn, typ, func(p *ibv.ConnectParams) {
			p.FlowLabel, p.TrafficClass = uint32(*label), uint8(*class)
		})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "greet:", err)
		os.Exit(1)
	}
}

func connect(server string) (net.Conn, error) {
	if server != "" {
		return net.Dial("tcp", net.JoinHostPort(server, port))
	}
	l, err := net.Listen("tcp", ":"+port)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	return l.Accept()
}

// greet is what both sides do.
func greet(conn net.Conn, typ ibv.QPType, params func(*ibv.ConnectParams)) (err error) {
	ctx, err := ibv.Open("")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ctx.CloseAll()) }()
	pd, err := ctx.AllocPD()
	if err != nil {
		return err
	}
	ch, err := cq.NewChannel(ctx)
	if err != nil {
		return err
	}
	q, err := cq.Create(ctx, cq.InitAttr{Entries: 2, Channel: ch})
	if err != nil {
		return err
	}
	region, err := mr.AllocRegion(pd, 64, ibv.AccessLocalWrite)
	if err != nil {
		return err
	}
	caps := ibv.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInlineData: 16}
	qp, err := pd.CreateQP(ibv.QPInitAttr{Type: typ, Cap: caps, SignalAll: true}, ibv.QPQueues{Send: q, Recv: q})
	if err != nil {
		return err
	}
	local, err := qp.Init(ibv.GIDRequest{Peer: netip.MustParseAddrPort(conn.RemoteAddr().String()).Addr()}, 0)
	if err != nil {
		return err
	}
	if _, err := qp.PostRecv([]ibv.RecvWR{{SGEs: []ibv.SGE{region.SGE(0, 64)}}}); err != nil {
		return err
	}
	remote, err := local.Exchange(conn)
	if err != nil {
		return err
	}
	if err := qp.Connect(local, remote, params); err != nil {
		return err
	}
	fmt.Printf("%v\n%v\n", local.Endpoint, remote)
	if _, err := local.Exchange(conn); err != nil { // the peer is ready
		return err
	}
	if _, err := qp.PostSend([]ibv.SendWR{{Opcode: ibv.OpSend, Inline: []byte("hello")}}); err != nil {
		return err
	}
	limit, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for done := 0; done < 2; { // one sent and one received
		var wcs [2]cq.WC
		n, err := q.Wait(limit, wcs[:])
		if err := errors.Join(err, wcs[0].Err(), wcs[1].Err()); err != nil {
			return err
		}
		done += n
	}
	_, err = local.Exchange(conn) // the peer may still need what only a live QP sends
	return err
}
