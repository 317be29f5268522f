package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/goverbs/goverbs/cq"
)

// play makes the round trips: the client sends a message, the server sends one
// back, and so on. Of each side one send and rxDepth receives are posted at most.
// It allocates nothing once it runs.
func (s *session) play(ctx context.Context) (result, error) {
	g := &game{session: s, watch: watch{ctx: ctx, timeout: s.timeout}, posted: s.rxDepth, toRecv: true}
	used, start := cpuTime(), time.Now()
	if err := g.run(); err != nil {
		return result{}, fmt.Errorf("after %d of %d round trips: %w", min(g.sent, g.received), s.iters, err)
	}
	elapsed, cpu := time.Since(start), cpuTime()-used
	return result{
		port: s.portName(), mtu: s.mtu, size: s.size, iters: s.iters, rxDepth: s.rxDepth,
		inline: s.inline(), check: s.check, software: s.dev.Software(),
		elapsed: elapsed, cpu: cpu,
	}, nil
}

type game struct {
	*session
	watch          watch
	wcs            [2]cq.WC
	sent, received uint32
	posted         uint32 // receives
	toSend, toRecv bool   // completions to wait for before the next send
}

func (g *game) run() error {
	if g.isClient() {
		if err := g.serve(); err != nil {
			return err
		}
	}
	for g.sent < g.iters || g.received < g.iters {
		n, err := g.cq.Poll(g.wcs[:])
		if err != nil {
			return err
		}
		for i := range g.wcs[:n] {
			if err := g.complete(&g.wcs[i]); err != nil {
				return err
			}
		}
		if err := g.watch.look(n > 0); err != nil {
			return err
		}
	}
	return nil
}

// serve posts the send, and then waits for it and for what the peer sends back.
func (g *game) serve() error {
	_, err := g.qp.PostSend(g.sends)
	g.toSend, g.toRecv = true, true
	return err
}

func (g *game) complete(wc *cq.WC) error {
	if err := wc.Err(); err != nil {
		return withHint(err)
	}
	if wc.IsRecv() {
		g.toRecv = false
		g.received++
		if err := g.arrived(wc.ByteLen()); err != nil {
			return err
		}
	} else {
		g.toSend = false
		g.sent++
	}
	if g.sent < g.iters && !g.toSend && !g.toRecv {
		return g.serve()
	}
	return nil
}

// arrived checks a message, and posts receives again when they run out. The peer
// sends no other before it has an answer.
func (g *game) arrived(length int) error {
	if length != len(g.in) {
		return fmt.Errorf("the peer sent %d bytes, not %d: give both sides the same --size", length, len(g.in))
	}
	if g.check {
		if err := verify(g.in, g.out); err != nil {
			return err
		}
		wipe(g.in)
	}
	g.posted--
	if g.posted <= 1 {
		if _, err := g.qp.PostRecv(g.recvs[g.posted:]); err != nil {
			return err
		}
		g.posted = g.rxDepth
	}
	return nil
}

// withHint adds what most often is behind a failed completion of this program.
func withHint(err error) error {
	var e *cq.Error
	if errors.As(err, &e) && (e.Recv && e.Class() == cq.ClassLocal || !e.Recv && e.Class() == cq.ClassRemote) {
		return fmt.Errorf("%w; do both sides have the same --size?", err)
	}
	return err
}

// watch ends a loop that polls, when its context does or when nothing moves any
// more: of a dead peer a side that only waits for a message learns by this alone,
// for ibv_rc_pingpong hangs up its TCP connection as soon as the exchange is over.
type watch struct {
	ctx     context.Context
	timeout time.Duration // 0 for none
	polls   uint
	moved   bool
	since   time.Time // the last look at which something had moved
}

// pollsPerLook keeps the clock out of the time of a round trip.
const pollsPerLook = 1024

// look is to be called after each poll.
func (w *watch) look(moved bool) error {
	w.moved = w.moved || moved
	if w.polls++; w.polls%pollsPerLook != 0 {
		return nil
	}
	if w.ctx.Err() != nil {
		return context.Cause(w.ctx)
	}
	now := time.Now()
	if w.moved || w.since.IsZero() {
		w.moved, w.since = false, now
	}
	if w.timeout > 0 && now.Sub(w.since) > w.timeout {
		return fmt.Errorf("no progress for %v: the peer is gone, or has another --size or --iters (--timeout changes how long to wait)", w.timeout)
	}
	return nil
}

// What ibv_rc_pingpong fills its message with: with -c the client puts a zero at
// the start of every page, and the server looks at the zeros alone.
const filler = 0x7b

func fill(msg []byte, check bool) {
	for i := range msg {
		msg[i] = filler
	}
	if check {
		for i := 0; i < len(msg); i += os.Getpagesize() {
			msg[i] = 0
		}
	}
}

// verify compares all bytes of a message, where ibv_rc_pingpong looks at one in
// each page.
func verify(got, want []byte) error {
	if bytes.Equal(got, want) {
		return nil
	}
	at := 0
	for got[at] == want[at] {
		at++
	}
	return fmt.Errorf("byte %d of the message is %#02x, not %#02x: it was damaged, or the peer runs without --chk", at, got[at], want[at])
}

// wipe makes every byte one that the pattern does not have, so that the next
// message must arrive to be there.
func wipe(msg []byte) {
	for i := range msg {
		msg[i] = 0xff
	}
}
