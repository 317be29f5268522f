package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/goverbs/goverbs/cmd/pingpong/internal/report"
	"github.com/goverbs/goverbs/cq"
)

// play measures each size in turn and returns what was measured, with an error what there
// was until then. c is nil where the peer need not be a pingpong.
func (s *session) play(ctx context.Context, c *control, stderr io.Writer) (results []report.Result, err error) {
	for _, size := range s.sizes {
		if s.warmup > 0 {
			if _, err := s.measure(ctx, c, round{size: size, iters: uint64(s.warmup)}, stderr); err != nil {
				return results, fmt.Errorf("warming up: %w", err)
			}
		}
		r := round{size: size, iters: uint64(s.iters), duration: s.duration}
		if r.duration > 0 {
			r.iters = math.MaxUint64
		}
		counted, err := s.measure(ctx, c, r, stderr)
		if counted.Iterations > 0 || err == nil {
			results = append(results, counted.Result())
		}
		if err != nil {
			return results, err
		}
	}
	return results, nil
}

// round is one measurement: so many iterations, or as many as a time allows.
type round struct {
	size     uint32
	iters    uint64
	duration time.Duration
}

// errEnded ends a server's part when its client has said that it is done.
var errEnded = errors.New("the client is done")

// measure plays one round and returns its counts. Where both sides are pingpong, they
// are the client's, but for the times.
func (s *session) measure(ctx context.Context, c *control, r round, stderr io.Writer) (report.Count, error) {
	g := &game{
		session: s, round: r, own: c != nil, begins: s.isClient() || s.bidirectional, limit: r.iters,
		times: hdrhistogram.New(1, maxLatency, 3),
		wcs:   make([]cq.WC, min(64, 2*int(s.numQP*s.depth))),
	}
	if g.own && !s.isClient() && s.op.bounces() {
		g.limit = math.MaxUint64 // the client decides
	}
	stop := progress(stderr, fmt.Sprintf("%d bytes", r.size), &g.moves)
	said, err := g.playWith(ctx, c)
	counted := report.Count{
		Size: r.size, Iterations: g.iterations(), Lost: g.lost, Complete: err == nil, Inline: s.sendsInline(r.size), Ways: 1,
		Elapsed: g.took, CPU: g.used, Times: g.times,
	}
	stop()
	if s.op.bounces() {
		counted.Ways = 2
	}
	if said != nil {
		counted.PeerCPU = &said.CPU
		if !g.begins || s.op.bounces() && !s.isClient() {
			counted.Iterations, counted.Lost, counted.Elapsed = said.Iterations, said.Lost, said.Elapsed
		}
	}
	if err != nil {
		err = fmt.Errorf("after %s: %w", g.soFar(), err)
	}
	if errors.As(err, new(errNoProgress)) {
		err = fmt.Errorf("%w; %s", err, g.seen())
		if g.isLossy() && !g.own {
			begun := min(g.iters, g.posted)
			counted.Lost = begun - min(begun, counted.Iterations) // or the peer is gone
		}
	}
	return counted, err
}

// playWith plays the round, and where the peer is a pingpong exchanges word of its
// beginning and end. It returns the peer's.
func (g *game) playWith(ctx context.Context, c *control) (*word, error) {
	if c == nil {
		g.startClock()
		defer g.stopClock()
		return nil, g.run(ctx)
	}
	if err := g.shake(ctx, c); err != nil {
		return nil, err
	}
	g.startClock()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	peer := make(chan word, 1)
	go func() {
		w, err := c.receive(ctx)
		switch {
		case err != nil:
			cancel(err)
		case !g.isClient() && g.op.bounces():
			cancel(errEnded)
		}
		peer <- w
	}()
	var err error
	plays := g.begins || g.op.bounces()
	if plays {
		err = g.run(ctx)
		g.stopClock()
	}
	if err != nil && !errors.Is(err, errEnded) {
		return nil, err
	}
	if g.isClient() {
		if err := c.send(g.word()); err != nil {
			return nil, err
		}
		if g.op.bounces() || !g.bidirectional {
			defer g.expect(cancel).Stop()
		}
	}
	said := <-peer
	if err := context.Cause(ctx); err != nil && !errors.Is(err, errEnded) {
		return nil, err
	}
	if !plays {
		g.stopClock()
	}
	if err := g.checkWritten(); err != nil {
		return nil, err
	}
	if !g.isClient() {
		return &said, c.send(g.word())
	}
	return &said, nil
}

func (g *game) startClock() { g.cpu, g.start = cpuTime(), time.Now() }
func (g *game) stopClock()  { g.took, g.used = time.Since(g.start), cpuTime()-g.cpu }

// word is what this side tells its peer of the round.
func (g *game) word() word {
	return word{Iterations: g.iterations(), Lost: g.lost, Elapsed: g.took, CPU: g.used}
}

// shake has the server begin only when the client is there.
func (g *game) shake(ctx context.Context, c *control) error {
	if g.isClient() {
		return c.send(word{})
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer g.expect(cancel).Stop()
	if _, err := c.receive(ctx); err != nil {
		return fmt.Errorf("waiting for the client to begin: %w", err)
	}
	return nil
}

// expect ends a wait for word of the peer that takes too long.
func (g *game) expect(cancel context.CancelCauseFunc) *time.Timer {
	timeout := g.timeout
	if timeout == 0 {
		timeout = math.MaxInt64
	}
	return time.AfterFunc(timeout, func() { cancel(errNoProgress{timeout}) })
}

// soFar says how much of the round is done.
func (g *game) soFar() string {
	what := "operations"
	if g.op.bounces() {
		what = "round trips"
	}
	if g.duration > 0 {
		return fmt.Sprintf("%d %s of a round of %v", g.iterations(), what, g.duration)
	}
	return fmt.Sprintf("%d of %d %s", g.iterations(), g.iters, what)
}

// seen says what has been seen, and of a peer that does not tell by itself what may be behind it.
func (g *game) seen() string {
	if g.own {
		var out uint64
		for _, l := range g.lanes {
			out += l.posted - l.done
		}
		return fmt.Sprintf("of this side's sends %d are not known to be done", out)
	}
	text := fmt.Sprintf("%d of %d messages have come from the peer", g.received, g.iters)
	if !g.isLossy() {
		text += fmt.Sprintf(", and its device has acknowledged %d of %d", g.done, g.posted)
	}
	switch {
	case g.alike:
	case g.received == 0:
		text += "; do both sides have the same --type and --size?"
	case g.received < g.iters:
		text += "; do both sides have the same --iters?"
	}
	return text
}

// iterations are those of this side that are done.
func (g *game) iterations() uint64 {
	if !g.op.bounces() {
		return g.done
	}
	if g.own || g.isLossy() {
		return g.received - min(g.received, g.surplus())
	}
	return min(g.done, g.received, g.iters)
}
