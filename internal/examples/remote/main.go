// Command remote has a server publish memory, which a client reads with RDMA READ and
// writes with RDMA WRITE while the server sleeps. Start it on one host, and on the
// other with the first one's address and port: remote 192.0.2.1:7472
package main

import (
	"encoding/json"
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

// What each side puts into the server's memory, one behind the other.
const (
	fromServer = "from the server\n"
	fromClient = "from the client\n"
	line       = len(fromServer) // and of fromClient
)

// published lets the peer read and write, which is refused unless it is asked for.
const published = ibv.AccessLocalWrite | ibv.AccessRemoteRead | ibv.AccessRemoteWrite

func main() {
	if err := start(os.Args[1:]); err != nil {
		log.Fatal(err)
	}
}

func start(args []string) error {
	if len(args) > 0 {
		conn, err := net.Dial("tcp", args[0])
		if err != nil {
			return err
		}
		return run(conn, ibv.AccessLocalWrite, "", use)
	}
	l, err := net.Listen("tcp", ":7472")
	if err != nil {
		return err
	}
	conn, err := l.Accept()
	if err != nil {
		return err
	}
	return run(conn, published, fromServer, serve)
}

// serve sleeps until the client has sent word. What the client does takes no time of
// this process.
func serve(s *side) error {
	var word string
	if err := s.in.Decode(&word); err != nil {
		return err
	}
	fmt.Printf("%s; the server has:\n%s", word, s.memory.Bytes()[:2*line])
	return nil
}

// use writes to the server's memory, behind what the server has there, and reads all of
// it. The read is behind the write and returns what that has written: so it is there
// when the server gets word.
func use(s *side) error {
	copy(s.memory.Bytes()[2*line:], fromClient)
	if err := s.do(ibv.Write(1, 0, s.peer.Memory.Slice(line, line), s.memory.SGE(2*line, line))); err != nil {
		return err
	}
	if err := s.do(ibv.Read(2, 0, s.peer.Memory.Slice(0, 2*line), s.memory.SGE(0, 2*line))); err != nil {
		return err
	}
	fmt.Printf("the client read:\n%s", s.memory.Bytes()[:2*line])
	return s.out.Encode("the client is done")
}

// do carries out one work request.
func (s *side) do(wr ibv.SendWR) error {
	_, err := s.qp.PostSend([]ibv.SendWR{wr})
	var wc [1]cq.WC
	for n := 0; n == 0 && err == nil; {
		n, err = s.q.Poll(wc[:])
	}
	return errors.Join(err, wc[0].Err())
}

// side is one side when it is connected.
type side struct {
	q      *cq.CQ
	qp     *ibv.QP
	memory *mr.Region
	peer   hello
	in     *json.Decoder // from the peer, over TCP
	out    *json.Encoder
}

// hello is what each side tells the other before they connect; both fields are text.
type hello struct {
	Endpoint ibv.Endpoint
	Memory   ibv.RemoteRange
}

// run makes memory with that content, connects to the peer, and does then.
func run(conn net.Conn, access ibv.AccessFlags, content string, then func(*side) error) (err error) {
	defer conn.Close()
	ctx, err := ibv.Open("") // the only device of this host
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ctx.CloseAll()) }()
	pd, err := ctx.AllocPD()
	if err != nil {
		return err
	}
	s := &side{in: json.NewDecoder(conn), out: json.NewEncoder(conn)}
	if s.memory, err = mr.AllocRegion(pd, 3*line, access); err != nil {
		return err
	}
	copy(s.memory.Bytes(), content)
	if s.q, err = cq.Create(ctx, cq.InitAttr{Entries: 1}); err != nil {
		return err
	}
	caps := ibv.QPCap{MaxSendWR: 1, MaxSendSGE: 1}
	s.qp, err = pd.CreateQP(ibv.QPInitAttr{Type: ibv.QPTypeRC, Cap: caps, SignalAll: true}, ibv.QPQueues{Send: s.q, Recv: s.q})
	if err != nil {
		return err
	}
	local, err := s.qp.Init(ibv.GIDRequest{Peer: netip.MustParseAddrPort(conn.RemoteAddr().String()).Addr()}, access)
	if err != nil {
		return err
	}
	if err := s.out.Encode(hello{local.Endpoint, s.memory.Remote()}); err != nil {
		return err
	}
	if err := s.in.Decode(&s.peer); err != nil {
		return err
	}
	if s.peer.Memory.Length < uint64(2*line) { // Slice panics where this is not so
		return fmt.Errorf("the peer has %d bytes, not %d", s.peer.Memory.Length, 2*line)
	}
	if err := s.qp.Connect(local, s.peer.Endpoint); err != nil {
		return err
	}
	return then(s)
}
