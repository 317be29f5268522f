package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/goverbs/goverbs/cq"
)

// play makes the round trips: the client sends a message, the server sends one
// back, and so on. Of each side one send and rxDepth receives are posted at most.
func (s *session) play(ctx context.Context) (result, error) {
	g := &game{session: s, posted: s.rxDepth, toRecv: true}
	ctx, stop := watched(ctx, s.timeout, &g.moves)
	defer stop()
	used, start := cpuTime(), time.Now()
	if err := g.run(ctx); err != nil {
		return result{}, fmt.Errorf("after %d of %d round trips: %w", min(g.sent, g.received), s.iters, err)
	}
	elapsed, cpu := time.Since(start), cpuTime()-used
	return result{
		port: s.portName(), mtu: s.mtu, size: s.size, iters: s.iters, rxDepth: s.rxDepth,
		inline: s.inline(), events: s.events, spin: s.spin, check: s.check, software: s.dev.Software(),
		elapsed: elapsed, cpu: cpu,
	}, nil
}

type game struct {
	*session
	moves          atomic.Uint64 // polls or waits that found something
	wcs            [2]cq.WC
	sent, received uint32
	posted         uint32 // receives
	toSend, toRecv bool   // completions to wait for before the next send
}

func (g *game) run(ctx context.Context) error {
	if g.isClient() {
		if err := g.serve(); err != nil {
			return err
		}
	}
	for g.sent < g.iters || g.received < g.iters {
		n, err := g.next(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return err
		}
		for i := range g.wcs[:n] {
			if err := g.complete(&g.wcs[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

// next polls or waits until there are completions.
func (g *game) next(ctx context.Context) (n int, err error) {
	if g.events {
		n, err = g.cq.Wait(ctx, g.wcs[:])
	} else {
		for n == 0 && err == nil {
			if n, err = g.cq.Poll(g.wcs[:]); n == 0 && err == nil {
				err = ctx.Err()
			}
		}
	}
	if n > 0 {
		g.moves.Add(1)
	}
	return n, err
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

// looksPerTimeout is how often watched looks in the time that is allowed.
const looksPerTimeout = 4

// watched returns a context that ends with ctx, or when moves has not changed for the
// timeout, unless that is 0: of a dead peer a side that only waits for a message learns
// by this alone, for ibv_rc_pingpong hangs up its TCP connection as soon as the exchange
// is over. So nobody who waits needs a clock of his own.
func watched(ctx context.Context, timeout time.Duration, moves *atomic.Uint64) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		watch(ctx, timeout, moves, cancel)
	}()
	return ctx, func() {
		cancel(nil)
		<-ended
	}
}

func watch(ctx context.Context, timeout time.Duration, moves *atomic.Uint64, cancel context.CancelCauseFunc) {
	if timeout <= 0 {
		return
	}
	ticker := time.NewTicker(max(timeout/looksPerTimeout, 1))
	defer ticker.Stop()
	seen := moves.Load()
	for idle := 0; idle < looksPerTimeout; idle++ {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if n := moves.Load(); n != seen {
			seen, idle = n, -1
		}
	}
	cancel(fmt.Errorf("no progress for %v: the peer is gone, or has another --size or --iters (--timeout changes how long to wait)", timeout))
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
