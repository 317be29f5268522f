// Connect is the quick start: a client sends messages to a server, which answers each.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log"
	"os"

	"github.com/goverbs/goverbs/cq"
	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/mr"
	"github.com/goverbs/goverbs/rdmacm"
)

func main() {
	side, address := server, ":7471"
	if len(os.Args) > 1 {
		side, address = client, os.Args[1]
	}
	if err := side(context.Background(), address, new(inbox)); err != nil {
		log.Fatal(err)
	}
}

func client(ctx context.Context, address string, in *inbox) error {
	conn, err := rdmacm.Dial(ctx, address, rdmacm.Config{SignalAll: true}, in.setup)
	if err != nil {
		return err
	}
	for i := 0; i < 1000 && err == nil; i++ {
		if _, err = conn.QP().PostSend(message("message %d", i)); err == nil {
			_, err = in.next(ctx, conn)
		}
	}
	if err == nil {
		fmt.Println("1000 messages were answered")
	}
	return errors.Join(err, conn.Close())
}

// server serves one client, until that disconnects.
func server(ctx context.Context, address string, in *inbox) error {
	l, err := rdmacm.Listen(address, rdmacm.Config{SignalAll: true})
	if err != nil {
		return err
	}
	conn, err := l.Accept(ctx, in.setup)
	if err != nil {
		return errors.Join(err, l.Close())
	}
	for err == nil {
		var text string
		if text, err = in.next(ctx, conn); err == nil {
			_, err = conn.QP().PostSend(message("answer to %s", text))
		}
	}
	if errors.Is(conn.Err(), rdmacm.ErrDisconnected) {
		err = nil // the client has what it wanted
	}
	return errors.Join(err, conn.Close(), l.Close())
}

// inbox has room for one message.
type inbox struct{ *mr.Region }

// setup is called before the peer can send.
func (in *inbox) setup(c *rdmacm.Conn) (err error) {
	if in.Region, err = mr.AllocRegion(c.PD(), 64, ibv.AccessLocalWrite); err != nil {
		return err
	}
	return in.receive(c)
}

func (in *inbox) receive(c *rdmacm.Conn) error {
	_, err := c.QP().PostRecv([]ibv.RecvWR{{SGEs: []ibv.SGE{in.SGE(0, 64)}}})
	return err
}

// next waits for a message, past what completes of the sends, and makes room for another.
func (in *inbox) next(ctx context.Context, c *rdmacm.Conn) (string, error) {
	var wc [1]cq.WC
	for !wc[0].IsRecv() {
		_, err := c.CQ().Wait(ctx, wc[:])
		if err = cmp.Or(err, wc[0].Err()); err != nil {
			return "", err
		}
	}
	text := string(in.Bytes()[:wc[0].ByteLen()])
	return text, in.receive(c)
}

func message(format string, a ...any) []ibv.SendWR {
	return []ibv.SendWR{{Opcode: ibv.OpSend, Inline: fmt.Appendf(nil, format, a...)}}
}
