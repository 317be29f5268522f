package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/goverbs/goverbs/cq"
	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/mr"
	"github.com/goverbs/goverbs/rdmacm"
)

// The protocol of C's rping. Over a connection of the connection manager the client says
// where its data is; the server reads it and tells; the client says where it wants the data
// back; the server writes it there and tells. That is an iteration. Who has enough disconnects.
//
// Each message has 16 bytes, all big endian: address, rkey, size. Those of the server say
// nothing but that they come.
const (
	pingMessage = 16
	minPing     = 23         // of rping: the text that the data begins with, and a NUL
	maxPing     = 64<<10 - 1 // of rping
)

// putRange writes a message that names memory, of at most 4 GiB.
func putRange(msg []byte, r ibv.RemoteRange) {
	binary.BigEndian.PutUint64(msg, r.Addr)
	binary.BigEndian.PutUint32(msg[8:], r.RKey)
	binary.BigEndian.PutUint32(msg[12:], uint32(r.Length))
}

func parseRange(msg []byte) ibv.RemoteRange {
	return ibv.RemoteRange{
		Addr:   binary.BigEndian.Uint64(msg),
		RKey:   binary.BigEndian.Uint32(msg[8:]),
		Length: uint64(binary.BigEndian.Uint32(msg[12:])),
	}
}

// fillPing makes the data of an iteration: its number, the letters from 'A' to 'z' again and
// again, which begin one further each time, and a NUL.
func fillPing(data []byte, iteration uint64) {
	const first, letters = 'A', 'z' - 'A' + 1
	head := append(data[:0], "rdma-ping-"...)
	head = strconv.AppendUint(head, iteration, 10)
	head = append(head, ": "...)
	for i := len(head); i < len(data); i++ {
		data[i] = byte(first + (iteration+uint64(i-len(head)))%letters)
	}
	data[len(data)-1] = 0
}

// verifyPing compares all bytes of an iteration's data.
func verifyPing(got, want []byte, iteration uint64) error {
	for at := range want {
		if got[at] != want[at] {
			return fmt.Errorf("data mismatch in iteration %d: byte %d of %d is %#02x, not %#02x", iteration+1, at, len(want), got[at], want[at])
		}
	}
	return nil
}

// pinger is one side of the conversation.
type pinger struct {
	options
	conn   *rdmacm.Conn
	stdout io.Writer

	messages *mr.Region // where they arrive, and behind that are sent from
	data     *mr.Region // the client's, for the server to read; the server's copy of it
	sink     *mr.Region // the client's, for the server to write to
	want     []byte     // for a server that checks

	recv             []ibv.RecvWR
	say, fetch, give []ibv.SendWR

	wcs         [2]cq.WC
	listens     bool          // the receive is posted
	sent, came  int           // completions of sends and receives that nobody has waited for
	moves       atomic.Uint64 // iterations, for those who watch
	times       *hdrhistogram.Histogram
	start       time.Time
	done        uint64        // iterations
	transferred uint64        // bytes, both ways together
	elapsed     time.Duration // from the connection to the end of the last iteration
	yields      yields
}

func newPinger(opts options, stdout io.Writer) *pinger {
	return &pinger{options: opts, stdout: stdout, times: hdrhistogram.New(1, maxLatency, 3)}
}

// Capacities: the most at a time are the server's write and the word that it is done.
const pingSends, pingRecvs = 2, 1

// setup makes memory and work requests, and posts the receive.
func (p *pinger) setup(c *rdmacm.Conn) (err error) {
	if p.messages, err = mr.AllocRegion(c.PD(), 2*pingMessage, ibv.AccessLocalWrite); err != nil {
		return err
	}
	access := ibv.AccessLocalWrite // an RDMA READ writes there
	if p.isClient() {
		access = ibv.AccessRemoteRead
		if p.sink, err = mr.AllocRegion(c.PD(), int(p.maxSize()), ibv.AccessLocalWrite|ibv.AccessRemoteWrite); err != nil {
			return err
		}
	} else if p.check {
		p.want = make([]byte, p.maxSize())
	}
	if p.data, err = mr.AllocRegion(c.PD(), int(p.maxSize()), access); err != nil {
		return err
	}
	word := ibv.Send(0, ibv.SendSignaled, p.messages.SGE(pingMessage, pingMessage))
	p.say = []ibv.SendWR{word}
	p.fetch = []ibv.SendWR{ibv.Read(0, ibv.SendSignaled, ibv.RemoteRange{}, p.data.SGE(0, 0))}
	p.give = []ibv.SendWR{ibv.Write(0, 0, ibv.RemoteRange{}, p.data.SGE(0, 0)), word}
	p.recv = []ibv.RecvWR{ibv.Recv(0, p.messages.SGE(0, pingMessage))}
	return p.postRecv(c)
}

// play goes through the iterations.
func (p *pinger) play(ctx context.Context) error {
	ctx, stop := watched(ctx, p.timeout, &p.moves, func() {})
	defer stop()
	side := p.serve
	if p.isClient() {
		side = p.ask
	}
	p.start = time.Now()
	err := side(ctx)
	switch {
	case err == nil, !p.isClient() && errors.Is(err, rdmacm.ErrDisconnected) && p.done >= uint64(max(p.iters, 1)):
		return nil // the client has enough, in whatever place
	case p.iters > 0:
		return fmt.Errorf("after %d of %d iterations: %w", p.done, p.iters, err)
	}
	return fmt.Errorf("after %d iterations: %w", p.done, err)
}

// ask is the client's side.
func (p *pinger) ask(ctx context.Context) error {
	data, sink := p.data.Bytes(), p.sink.Bytes()
	for p.done < uint64(p.iters) {
		began := time.Since(p.start)
		fillPing(data, p.done)
		if err := p.offer(p.data.Remote()); err != nil {
			return err
		}
		if err := p.await(ctx, 1, 1); err != nil {
			return fmt.Errorf("waiting for the server to read: %w", err)
		}
		if err := p.offer(p.sink.Remote()); err != nil {
			return err
		}
		if err := p.await(ctx, 1, 1); err != nil {
			return fmt.Errorf("waiting for the server to write: %w", err)
		}
		if p.check {
			if err := verifyPing(sink, data, p.done); err != nil {
				return fmt.Errorf("what the server has written: %w", err)
			}
			clear(sink) // so that the next must arrive to be there
		}
		p.finished(len(data))
		record(p.times, p.elapsed-began)
		if err := p.show("ping data", data); err != nil {
			return err
		}
	}
	return nil
}

// serve is the server's side. It goes on until it fails, as it does when the client disconnects,
// which may overtake the completion of the last word to it.
func (p *pinger) serve(ctx context.Context) error {
	for sends := 0; ; sends = 1 {
		if err := p.await(ctx, sends, 1); err != nil {
			return fmt.Errorf("waiting for the client to offer data: %w", err)
		}
		data, err := p.read(ctx)
		if err != nil {
			return err
		}
		if p.check {
			fillPing(p.want[:len(data)], p.done)
			if err := verifyPing(data, p.want[:len(data)], p.done); err != nil {
				return fmt.Errorf("what was read of the client: %w", err)
			}
		}
		if err := p.show("server ping data", data); err != nil {
			return err
		}
		if err := p.post(p.say); err != nil {
			return err
		}
		if err := p.await(ctx, 1, 1); err != nil {
			return fmt.Errorf("waiting for the client to ask for the data back: %w", err)
		}
		if err := p.giveBack(len(data)); err != nil {
			return err
		}
		p.finished(len(data))
	}
}

// read fetches what the client has offered.
func (p *pinger) read(ctx context.Context) ([]byte, error) {
	from := parseRange(p.messages.Bytes())
	if from.Length < minPing || from.Length > uint64(p.maxSize()) {
		return nil, fmt.Errorf("the client offers %d bytes, and this side takes from %d to %d: see --size", from.Length, minPing, p.maxSize())
	}
	n := int(from.Length)
	p.fetch[0].Remote = from
	p.fetch[0].SGEs[0] = p.data.SGE(0, n)
	if err := p.post(p.fetch); err != nil {
		return nil, err
	}
	if err := p.await(ctx, 1, 0); err != nil {
		return nil, fmt.Errorf("reading %d bytes of the client: %w", n, err)
	}
	return p.data.Bytes()[:n], nil
}

// giveBack gives the client its data back, and behind it word of that.
func (p *pinger) giveBack(n int) error {
	to := parseRange(p.messages.Bytes())
	if to.Length < uint64(n) {
		return fmt.Errorf("the client wants its %d bytes back and has room for %d", n, to.Length)
	}
	p.give[0].Remote = to
	p.give[0].SGEs[0] = p.data.SGE(0, n)
	return p.post(p.give)
}

// offer has the server know memory.
func (p *pinger) offer(r ibv.RemoteRange) error {
	putRange(p.messages.Bytes()[pingMessage:], r)
	return p.post(p.say)
}

// post posts the receive of the answer, and then what brings that.
func (p *pinger) post(wrs []ibv.SendWR) error {
	if !p.listens {
		if err := p.postRecv(p.conn); err != nil {
			return p.why(err)
		}
	}
	_, err := p.conn.QP().PostSend(wrs)
	return p.why(err)
}

func (p *pinger) postRecv(c *rdmacm.Conn) error {
	_, err := c.QP().PostRecv(p.recv)
	p.listens = err == nil
	return err
}

// await waits for so many completions of sends and receives.
func (p *pinger) await(ctx context.Context, sends, recvs int) error {
	for p.sent < sends || p.came < recvs {
		n, err := p.next(ctx)
		if err != nil {
			return err
		}
		for i := range p.wcs[:n] {
			if err := p.complete(&p.wcs[i]); err != nil {
				return err
			}
		}
	}
	p.sent -= sends
	p.came -= recvs
	return nil
}

// next polls or waits until there are completions.
func (p *pinger) next(ctx context.Context) (n int, err error) {
	if p.events {
		n, err = p.conn.CQ().Wait(ctx, p.wcs[:])
	}
	for n == 0 && err == nil && ctx.Err() == nil {
		n, err = p.conn.CQ().Poll(p.wcs[:])
	}
	if n == 0 && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return n, err
}

func (p *pinger) complete(wc *cq.WC) error {
	err := wc.Err()
	switch {
	case wc.Status == cq.StatusWRFlushErr:
		return p.why(err)
	case err != nil && wc.IsRecv():
		return fmt.Errorf("the peer's message is none of rping's, of %d bytes: %w", pingMessage, err)
	case err != nil:
		return err // which may be what made the peer leave
	case !wc.IsRecv():
		p.sent++
	case wc.ByteLen() != pingMessage:
		return fmt.Errorf("the peer sent %d bytes, and a message of rping has %d", wc.ByteLen(), pingMessage)
	default:
		p.came++
		p.listens = false
	}
	return nil
}

// why returns the end of the connection, where that is behind an error.
func (p *pinger) why(err error) error {
	end := p.conn.Err()
	switch {
	case err == nil || end == nil:
		return err
	case !errors.Is(end, rdmacm.ErrDisconnected):
		return end
	case p.isClient():
		return fmt.Errorf("the server disconnected: %w", end)
	}
	return fmt.Errorf("the client disconnected: %w", end)
}

// finished counts an iteration, in which n bytes have gone each way.
func (p *pinger) finished(n int) {
	p.done++
	p.moves.Store(p.done)
	p.transferred += 2 * uint64(n)
	p.elapsed = time.Since(p.start)
	p.yields.at(p.elapsed)
}

// show prints the text of the data with --verbose.
func (p *pinger) show(label string, data []byte) error {
	if !p.verbose {
		return nil
	}
	_, err := fmt.Fprintf(p.stdout, "%s: %s\n", label, data[:len(data)-1])
	return err
}
