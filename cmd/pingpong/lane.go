package main

import (
	"time"

	"github.com/goverbs/goverbs/cq"
	"github.com/goverbs/goverbs/ibv"
)

// lane is one queue pair and what it has under way. Its sends are counted from the making of
// the queue pair on; a send's position is its wr_id.
type lane struct {
	qp    *ibv.QP
	local ibv.LocalEndpoint
	to    ibv.Datagram    // on UD
	sends []ibv.SendWR    // as many as may be posted at once
	sent  []time.Duration // when each was posted, since the round began, by its position

	room         int    // sends that may be posted and not be known to be done
	posted, done uint64 // sends
	base         uint64 // the first send of this round
	received     uint64 // messages, in this round
	lost         uint64 // answers that are waited for no more, in this round
	owed         int    // messages that this side may send now
	anew         int    // those of them that answer none, since what they stand for is lost
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
		if int(i) < l.anew {
			markAnew(wr)
		}
		l.sent[position%uint64(len(l.sent))] = now
	}
	accepted, err := l.qp.PostSend(l.sends[:n])
	l.posted += uint64(accepted)
	g.posted += uint64(accepted)
	l.owed -= accepted
	l.anew -= min(l.anew, accepted)
	return err
}

// A message that answers none has immediate data, with which a server knows that it has not waited
// for an answer. C's programs do not look at that.
const immAnswers, immAnew = 0, 1 // the second in a send alone, the first in what always has some

func markAnew(wr *ibv.SendWR) {
	if wr.Opcode == ibv.OpSend {
		wr.Opcode = ibv.OpSendImm
	}
	wr.Imm = immAnew
}

func isAnew(wc *cq.WC) bool {
	imm, ok := wc.Imm()
	return ok && imm == immAnew
}

// aim sets what differs from one operation to the next.
func (g *game) aim(wr *ibv.SendWR, position uint64) {
	switch g.op {
	case opSend:
		wr.Opcode = ibv.OpSend
	case opWriteImm:
		wr.Imm = immAnswers
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
