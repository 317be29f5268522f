// Command parley has two hosts talk over connections that the connection manager makes, for
// tests of what happens between them:
//
//	parley [-n N] [-size BYTES] [-idle TIME] [-linger] [SERVER]
//	parley -group GROUP [-ask] ADDRESS
//
// The client sends N messages whose every byte the server checks, and answers. With -idle
// both make a second connection, on which the server waits for a message that does not come,
// for that time. With -linger the client closes when its input ends. Each side says what it
// did, how each connection ended, and how long it took to close. With -group both join a
// multicast group from their own ADDRESS; who asks is answered by the other.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"os"
	"time"

	"github.com/goverbs/goverbs/cq"
	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/mr"
	"github.com/goverbs/goverbs/rdmacm"
)

const port = ":7474"

func main() {
	p := new(parley)
	flag.IntVar(&p.messages, "n", 100, "messages of the client")
	flag.IntVar(&p.size, "size", 4096, "bytes of each")
	flag.DurationVar(&p.idle, "idle", 0, "how long to wait on a second connection; a server probes the first as often")
	flag.BoolVar(&p.linger, "linger", false, "let a client close only when its input ends")
	group := flag.String("group", "", "multicast group to join")
	asks := flag.Bool("ask", false, "ask the group")
	flag.Parse()
	var err error
	switch {
	case *group != "":
		err = meet(netip.MustParseAddr(flag.Arg(0)), netip.MustParseAddr(*group), *asks)
	case flag.NArg() == 0:
		err = p.serve()
	default:
		err = p.call(flag.Arg(0) + port)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "parley:", err)
		os.Exit(1)
	}
}

type parley struct {
	messages, size int
	idle           time.Duration
	linger         bool
}

// side is one end of a connection.
type side struct {
	*rdmacm.Conn
	in, out *mr.Region
}

// setup is called before the peer can send.
func (p *parley) setup(s *side) func(*rdmacm.Conn) error {
	return func(c *rdmacm.Conn) (err error) {
		s.Conn = c
		if s.in, err = mr.AllocRegion(c.PD(), p.size, ibv.AccessLocalWrite); err != nil {
			return err
		}
		if s.out, err = mr.AllocRegion(c.PD(), p.size, ibv.AccessLocalWrite); err != nil {
			return err
		}
		return s.receive()
	}
}

func (s *side) receive() error {
	_, err := s.QP().PostRecv([]ibv.RecvWR{ibv.Recv(0, s.in.SGE(0, s.in.Len()))})
	return err
}

// send sends the first n bytes of what is to go out.
func (s *side) send(n int) error {
	_, err := s.QP().PostSend([]ibv.SendWR{ibv.Send(0, ibv.SendSignaled, s.out.SGE(0, n))})
	return err
}

// next waits for a message and returns its length.
func (s *side) next(ctx context.Context) (int, error) {
	for {
		var wc [1]cq.WC
		_, err := s.CQ().Wait(ctx, wc[:])
		if err = cmp.Or(err, wc[0].Err()); err != nil {
			return 0, err
		}
		if wc[0].IsRecv() {
			return wc[0].ByteLen(), nil
		}
	}
}

// fill makes message i.
func fill(b []byte, i int) {
	random := rand.NewChaCha8([32]byte{byte(i), byte(i >> 8), byte(i >> 16)})
	_, _ = random.Read(b) // it never fails
}

// serve answers one client.
func (p *parley) serve() error {
	ctx := context.Background()
	l, err := rdmacm.Listen(port, rdmacm.Config{})
	if err != nil {
		return err
	}
	defer l.Close()
	var busy, idle side
	if _, err := l.Accept(ctx, p.setup(&busy)); err != nil {
		return err
	}
	if p.idle > 0 {
		if _, err := l.Accept(ctx, p.setup(&idle)); err != nil {
			return errors.Join(err, closed("busy", &busy))
		}
	}
	answered, err := p.answer(ctx, &busy)
	fmt.Printf("%d messages answered; then: %v; the connection: %v\n", answered, err, busy.Err())
	err = closed("busy", &busy)
	if p.idle > 0 {
		limit, cancel := context.WithTimeout(ctx, p.idle)
		defer cancel()
		_, waited := idle.next(limit)
		fmt.Printf("idle: %v; the connection: %v\n", waited, idle.Err())
		err = errors.Join(err, closed("idle", &idle))
	}
	return err
}

// answer checks and answers messages until the connection ends.
func (p *parley) answer(ctx context.Context, s *side) (answered int, err error) {
	want := make([]byte, p.size)
	for ; ; answered++ {
		n, err := p.nextOrProbe(ctx, s)
		if err != nil {
			return answered, err
		}
		fill(want, answered)
		for i, b := range s.in.Bytes()[:n] {
			if n != p.size || b != want[i] {
				return answered, fmt.Errorf("message %d of %d bytes is wrong at byte %d", answered, n, i)
			}
		}
		if err := cmp.Or(s.receive(), s.send(8)); err != nil {
			return answered, err
		}
	}
}

// nextOrProbe is next, but where there is a second connection it asks after a while of silence
// whether the peer is still there: one that dies between its messages is not missed otherwise.
func (p *parley) nextOrProbe(ctx context.Context, s *side) (int, error) {
	for {
		limit, cancel := ctx, context.CancelFunc(func() {})
		if p.idle > 0 {
			limit, cancel = context.WithTimeout(ctx, p.idle)
		}
		n, err := s.next(limit)
		cancel()
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, err
		}
		if err := s.send(8); err != nil {
			return 0, err
		}
	}
}

// call is the client.
func (p *parley) call(server string) (err error) {
	ctx := context.Background()
	var busy, idle side
	if _, err := rdmacm.Dial(ctx, server, rdmacm.Config{}, p.setup(&busy)); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closed("busy", &busy)) }()
	if p.idle > 0 {
		if _, err := rdmacm.Dial(ctx, server, rdmacm.Config{}, p.setup(&idle)); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, closed("idle", &idle)) }()
	}
	for i := range p.messages {
		fill(busy.out.Bytes(), i)
		if err := busy.send(p.size); err != nil {
			return err
		}
		if _, err := busy.next(ctx); err != nil {
			return err
		}
		if err := busy.receive(); err != nil {
			return err
		}
	}
	fmt.Printf("%d messages were answered\n", p.messages)
	if p.linger {
		_, err = io.Copy(io.Discard, os.Stdin)
	}
	return err
}

func closed(name string, s *side) error {
	began := time.Now()
	err := s.Close()
	fmt.Printf("%s: closed in %.1f s\n", name, time.Since(began).Seconds())
	return err
}
