package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/goverbs/goverbs/cq"
)

// game is a round in progress, as this side plays it.
type game struct {
	*session
	round
	own    bool // the peer is a pingpong, and tells when it is done
	begins bool // this side sends first, or works on the peer's memory

	start     time.Time
	now       time.Duration   // since start, when the completions at hand were taken
	fresh     []time.Duration // latencies of the completions at hand
	yields    yields
	took      time.Duration // all of it
	cpu, used time.Duration // processor time of the process: at the start, and since then
	times     *hdrhistogram.Histogram

	moves    atomic.Uint64 // iterations, for those who watch
	stalled  atomic.Bool   // nothing has moved for a while
	wait     context.Context
	wakeWait atomic.Pointer[context.CancelFunc] // ends wait, when stalled

	wcs   []cq.WC
	limit uint64 // sends or operations of this side
	// Of all queue pairs together: sends posted and known to be done, messages received,
	// and answers that are waited for no more.
	posted, done, received, lost uint64
}

// latencies are recorded up to a minute, with three digits.
const maxLatency = int64(time.Minute)

// run plays until this side is done.
func (g *game) run(ctx context.Context) error {
	ctx, stop := watched(ctx, g.timeout, &g.moves, g.noteIdle)
	defer stop()
	g.renewWait(ctx)
	if err := g.begin(); err != nil {
		return err
	}
	defer g.note() // where a completion fails, of those before it
	for !g.finished() {
		n, err := g.next(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return err
		}
		g.now = 0
		for i := range g.wcs[:n] {
			if err := g.complete(&g.wcs[i]); err != nil {
				return err
			}
		}
		if err := g.advance(); err != nil {
			return err
		}
		g.note()              // while the peer has its turn
		if ctx.Err() != nil { // completions may never run out
			break
		}
	}
	if !g.finished() {
		return context.Cause(ctx)
	}
	return nil
}

// note keeps what was measured, and makes way for other goroutines in time.
func (g *game) note() {
	for _, took := range g.fresh {
		record(g.times, took)
	}
	g.fresh = g.fresh[:0]
	if g.op.bounces() {
		g.moves.Store(g.received)
	} else {
		g.moves.Store(g.done)
	}
	if !g.events || g.now != 0 { // with events only where the clock has been read: it costs
		g.yields.at(g.clock())
	}
}

func record(times *hdrhistogram.Histogram, took time.Duration) {
	_ = times.RecordValue(min(max(int64(took), 1), maxLatency)) // cannot be out of range
}

// clock reads the time once for all the completions at hand.
func (g *game) clock() time.Duration {
	if g.now == 0 {
		g.now = time.Since(g.start)
	}
	return g.now
}

// next polls or waits until there are completions, or nothing has moved for a while.
func (g *game) next(ctx context.Context) (n int, err error) {
	if g.events {
		n, err = g.cq.Wait(g.wait, g.wcs)
		if err != nil && ctx.Err() == nil && g.wait.Err() != nil {
			err = nil
			g.renewWait(ctx)
		}
	} else {
		for n == 0 && err == nil && !g.stalled.Load() {
			if n, err = g.cq.Poll(g.wcs); n == 0 && err == nil {
				err = ctx.Err()
			}
		}
	}
	if g.stalled.Swap(false) && n == 0 {
		g.writeOff()
	}
	return n, err
}

// noteIdle is called by the watch. A message that is lost brings no completion to wake
// whoever waits for its answer.
func (g *game) noteIdle() {
	if !g.isLossy() {
		return
	}
	g.stalled.Store(true)
	if wake := g.wakeWait.Load(); wake != nil {
		(*wake)()
	}
}

func (g *game) renewWait(ctx context.Context) {
	var cancel context.CancelFunc
	g.wait, cancel = context.WithCancel(ctx)
	if old := g.wakeWait.Swap(&cancel); old != nil {
		(*old)()
	}
}

func (g *game) complete(wc *cq.WC) error {
	if err := wc.Err(); err != nil {
		return g.withHint(err)
	}
	l := g.laneOf(wc)
	if wc.IsRecv() {
		return g.arrived(l, wc)
	}
	return g.sentTo(l, wc.WRID)
}

func (g *game) laneOf(wc *cq.WC) *lane {
	if len(g.lanes) > 1 {
		for _, l := range g.lanes {
			if l.qp.Num() == wc.QPNum {
				return l
			}
		}
	}
	return g.lanes[0]
}

// early is how many messages of a lane come to this side unasked: where both begin, those
// that the peer began with.
func (g *game) early() uint64 {
	if g.bidirectional && g.op.bounces() {
		return uint64(g.depth)
	}
	return 0
}

// lag is how many messages arrive on a lane before the answer to the first that this side
// has sent.
func (g *game) lag() uint64 {
	if !g.begins {
		return uint64(g.depth)
	}
	return g.early()
}

// surplus are the early ones of all lanes.
func (g *game) surplus() uint64 { return g.early() * uint64(len(g.lanes)) }

// begin has this side send first, if it is to.
func (g *game) begin() error {
	for _, l := range g.lanes {
		l.base, l.received, l.lost, l.owed, l.anew = l.posted, 0, 0, 0, 0
		if g.begins {
			l.owed = int(g.depth)
		}
		l.prepare(g)
	}
	return g.advance()
}

// finished reports whether this side has nothing more to do or to wait for.
func (g *game) finished() bool {
	switch {
	case !g.op.bounces():
		return g.done >= g.limit
	case !g.own:
		return g.done >= g.iters && g.received+g.lost >= g.iters
	case g.isClient():
		return g.posted >= g.limit && g.received+g.lost >= g.posted+g.surplus()
	}
	return false // the client says
}

// arrived takes a message: checks it, gives its receive back, and owes an answer.
func (g *game) arrived(l *lane, wc *cq.WC) error {
	length := wc.ByteLen()
	if g.typ == typeUD {
		length -= grhSize
	}
	if err := g.giveBack(l, wc, length); err != nil {
		return err
	}
	if length != int(g.size) {
		if g.own && g.isLossy() {
			return nil // a late one of another size
		}
		return fmt.Errorf("the peer sent %d bytes, not %d: give both sides the same --size", length, g.size)
	}
	l.received++
	g.received++
	if expected := l.posted - l.base + g.early(); g.begins && l.lost > 0 && l.received+l.lost > expected {
		l.lost-- // it was late, and another message has gone in its place
		g.lost--
		return nil
	}
	if i := l.received - 1 + l.lost; i >= g.lag() && !isAnew(wc) {
		g.fresh = append(g.fresh, g.clock()-l.sent[(l.base+i-g.lag())%uint64(len(l.sent))])
	}
	l.owed++
	return nil
}

// giveBack checks what a receive has brought, and posts receives again when they run
// out: before the answer, and so before the peer can send more than there are.
func (g *game) giveBack(l *lane, wc *cq.WC, length int) error {
	if g.check && length == int(g.size) {
		in := g.place(wc.WRID, g.size)
		if err := verify(in, g.outBytes(g.size)); err != nil {
			return fmt.Errorf("round trip %d of %d bytes: %w", l.received+1, g.size, err)
		}
		wipe(in)
	}
	g.spent = append(g.spent, g.recvs[wc.WRID])
	if len(g.recvs)-len(g.spent) > len(g.lanes)*int(g.window()) {
		return nil
	}
	err := g.postRecv(g.spent)
	g.spent = g.spent[:0]
	return err
}

// place is where the message of receive i, or the answer of operation i, is.
func (s *session) place(i uint64, size uint32) []byte {
	at := s.arrival(i)
	if s.typ == typeUD {
		at += grhSize
	}
	return s.region.Bytes()[at:][:size]
}

// sentTo notes that a send and all before it are done.
func (g *game) sentTo(l *lane, position uint64) error {
	if !g.op.bounces() {
		g.fresh = append(g.fresh, g.clock()-l.sent[position%uint64(len(l.sent))])
		if err := g.checkAnswers(l.done, position+1); err != nil {
			return err
		}
	}
	g.done += position + 1 - l.done
	l.done = position + 1
	return nil
}

// checkAnswers checks what operations have brought, from one position up to another.
func (g *game) checkAnswers(from, to uint64) error {
	if !g.check || g.op == opWrite {
		return nil
	}
	for i := from; i < to; i++ {
		got := g.place(i, g.size)
		if g.op.atomic() {
			if old := binary.NativeEndian.Uint64(got); old != i {
				return fmt.Errorf("operation %d returned %d, not %d: others use the word too, or it is not atomic", i+1, old, i)
			}
		} else if err := verify(got, g.outBytes(g.size)); err != nil {
			return fmt.Errorf("operation %d of %d bytes: %w", i+1, g.size, err)
		}
		wipe(got)
	}
	return nil
}

// checkWritten checks what the peer has written here when its round is over.
func (g *game) checkWritten() error {
	if !g.check || g.op != opWrite || g.isClient() && !g.bidirectional {
		return nil
	}
	got := g.place(0, g.size)
	if err := verify(got, g.outBytes(g.size)); err != nil {
		return fmt.Errorf("the last RDMA WRITE of %d bytes: %w", g.size, err)
	}
	wipe(got)
	return nil
}

// writeOff gives up the answers that have not come, and begins anew for each.
func (g *game) writeOff() {
	if !g.isClient() || !g.op.bounces() {
		return
	}
	for _, l := range g.lanes {
		out := l.posted - l.base + g.early() - min(l.posted-l.base+g.early(), l.received+l.lost)
		l.lost += out
		g.lost += out
		l.owed += int(out)
		l.anew += int(out)
	}
}

// advance posts what may be posted now.
func (g *game) advance() error {
	if g.duration > 0 && g.begins && g.posted < g.limit && g.clock() >= g.duration {
		g.stop()
	}
	for _, l := range g.lanes {
		if !g.op.bounces() {
			l.owed = l.room
		}
		if l.owed > 0 {
			if err := l.pump(g); err != nil {
				return err
			}
		}
	}
	return nil
}

// stop ends a round that is measured by time. The last operation must be a signaled one.
func (g *game) stop() {
	if !g.isClient() && g.op.bounces() {
		return // the client decides
	}
	g.limit = g.posted
	if l := g.lanes[0]; !g.op.bounces() && l.posted%uint64(g.signalEvery) != 0 {
		g.limit++
	}
}
