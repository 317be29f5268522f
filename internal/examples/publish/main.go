// Command publish has a server publish memory over the connection manager, which a client
// reads with RDMA READ and writes with RDMA WRITE while the server sleeps. Start it on one
// host, and on the other with the first one's address and port: publish 192.0.2.1:7473
package main

import (
	"bytes"
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

// What each side puts into the server's memory, one behind the other.
const (
	fromServer = "from the server\n"
	fromClient = "from the client\n"
	line       = len(fromServer) // and of fromClient
)

func main() {
	side, address := server, ":7473"
	if len(os.Args) > 1 {
		side, address = client, os.Args[1]
	}
	if err := side(context.Background(), address); err != nil {
		log.Fatal(err)
	}
}

// server publishes memory to the first client that comes, and sleeps until it has gone. What
// the client does takes no time of this process.
func server(ctx context.Context, address string) (err error) {
	dev, err := ibv.Open("") // the only device of this host
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.CloseAll()) }()
	pd, err := dev.AllocPD()
	if err != nil {
		return err
	}
	memory, err := mr.AllocRegion(pd, 2*line, ibv.AccessLocalWrite|ibv.AccessRemoteRead|ibv.AccessRemoteWrite)
	if err != nil {
		return err
	}
	copy(memory.Bytes(), fromServer)

	// Each client learns with the connection where the memory is.
	param := rdmacm.DefaultConnParam()
	if param.PrivateData, err = memory.Remote().MarshalText(); err != nil {
		return err
	}
	l, err := rdmacm.Listen(address, rdmacm.Config{PD: pd, Param: &param})
	if err != nil {
		return err
	}
	conn, err := l.Accept(ctx, nil)
	if err != nil {
		return errors.Join(err, l.Close())
	}
	<-conn.Done()
	fmt.Printf("the server has:\n%s", memory.Bytes())
	return errors.Join(conn.Close(), l.Close())
}

// client uses the server's memory.
func client(ctx context.Context, address string) error {
	var memory *mr.Region
	conn, err := rdmacm.Dial(ctx, address, rdmacm.Config{}, func(c *rdmacm.Conn) (err error) {
		memory, err = mr.AllocRegion(c.PD(), 3*line, ibv.AccessLocalWrite)
		return err
	})
	if err != nil {
		return err
	}
	theirs, err := published(conn)
	if err == nil {
		err = use(ctx, conn, memory, theirs)
	}
	return errors.Join(err, conn.Close())
}

// published is where the server's memory is, as it says.
func published(conn *rdmacm.Conn) (r ibv.RemoteRange, err error) {
	err = r.UnmarshalText(bytes.TrimRight(conn.Peer().PrivateData, "\x00"))
	if err == nil && r.Length < uint64(2*line) { // Slice panics where this is not so
		err = fmt.Errorf("the server has %d bytes, not %d", r.Length, 2*line)
	}
	return r, err
}

// use writes to the server's memory, behind what the server has there, and reads all of it.
// The read is behind the write, and returns what that has written.
func use(ctx context.Context, conn *rdmacm.Conn, memory *mr.Region, theirs ibv.RemoteRange) error {
	copy(memory.Bytes()[2*line:], fromClient)
	_, err := conn.QP().PostSend([]ibv.SendWR{
		ibv.Write(1, 0, theirs.Slice(line, line), memory.SGE(2*line, line)),
		ibv.Read(2, ibv.SendSignaled, theirs.Slice(0, 2*line), memory.SGE(0, 2*line)),
	})
	if err != nil {
		return err
	}
	var wc [1]cq.WC
	_, err = conn.CQ().Wait(ctx, wc[:])
	if err = cmp.Or(err, wc[0].Err()); err == nil {
		fmt.Printf("the client read:\n%s", memory.Bytes()[:2*line])
	}
	return err
}
