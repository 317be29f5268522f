package main

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/goverbs/goverbs/cq"
	"github.com/goverbs/goverbs/ibv"
)

// flight is what a lane has under way. Its sends are counted from the making of the queue
// pair on; a send's position is its wr_id.
type flight struct {
	room         int             // sends that may be posted and not be known to be done
	posted, done uint64          // sends
	base         uint64          // the first send of this round
	received     uint64          // messages, in this round
	lost         uint64          // answers that are waited for no more, in this round
	owed         int             // messages that this side may send now
	sent         []time.Duration // when each send was posted, by its position
}

// window is how many messages to each side may be on their way on a queue pair.
func (o *options) window() uint32 {
	if o.bidirectional && o.op.bounces() {
		return 2 * o.depth
	}
	return o.depth
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
		l.base, l.received, l.lost, l.owed = l.posted, 0, 0, 0
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
	if i := l.received - 1 + l.lost; i >= g.lag() {
		g.record(g.clock() - l.sent[(l.base+i-g.lag())%uint64(len(l.sent))])
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
		g.record(g.clock() - l.sent[position%uint64(len(l.sent))])
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

// prepare makes the work requests of a round once: the loop posts them again and again.
func (l *lane) prepare(g *game) {
	local := g.region.SGE(int(g.out), int(g.size))
	opcode := map[operation]ibv.Opcode{
		opSend: ibv.OpSend, opWrite: ibv.OpWrite, opWriteImm: ibv.OpWriteImm, opRead: ibv.OpRead,
		opFetchAdd: ibv.OpFetchAdd, opCmpSwap: ibv.OpCompareSwap,
	}[g.op]
	remote := g.peer
	if g.op != opSend {
		remote = g.peer.Slice(0, int(g.size))
	}
	l.sends = make([]ibv.SendWR, l.room)
	for i := range l.sends {
		l.sends[i] = ibv.SendWR{Opcode: opcode, SGEs: []ibv.SGE{local}, Remote: remote, Datagram: l.to}
	}
	if l.sent == nil {
		l.sent = make([]time.Duration, l.room+2*int(g.window()))
	}
}

// pump posts messages that are owed, or operations, as far as there is room.
func (l *lane) pump(g *game) error {
	n := min(uint64(l.owed), uint64(l.room)-(l.posted-l.done), g.limit-min(g.limit, g.posted))
	if n == 0 {
		return nil
	}
	flags := ibv.SendFlags(0)
	if g.sendsInline(g.size) {
		flags = ibv.SendInline
	}
	now := g.clock()
	for i := range n {
		wr, position := &l.sends[i], l.posted+i
		wr.WRID, wr.Flags = position, flags
		if (position+1)%uint64(g.signalEvery) == 0 || g.posted+i+1 == g.limit {
			wr.Flags |= ibv.SendSignaled
		}
		g.aim(wr, position)
		l.sent[position%uint64(len(l.sent))] = now
	}
	accepted, err := l.qp.PostSend(l.sends[:n])
	l.posted += uint64(accepted)
	g.posted += uint64(accepted)
	l.owed -= accepted
	return err
}

// aim sets what differs from one operation to the next.
func (g *game) aim(wr *ibv.SendWR, position uint64) {
	switch g.op {
	case opSend, opWrite:
	case opWriteImm:
		wr.Imm = uint32(position)
		if g.slots > 1 {
			wr.Remote = g.peer.Slice(int(position%uint64(g.slots)*g.slot), int(g.size))
		}
	case opFetchAdd:
		wr.SGEs[0], wr.CompareAdd = g.region.SGE(g.arrival(position), atomicSize), 1
	case opCmpSwap:
		wr.SGEs[0], wr.CompareAdd, wr.Swap = g.region.SGE(g.arrival(position), atomicSize), position, position+1
	case opRead:
		wr.SGEs[0] = g.region.SGE(g.arrival(position), int(g.size))
	}
}
