package cq

import (
	"github.com/goverbs/goverbs/internal/core"
	"github.com/goverbs/goverbs/internal/cverbs"
	"github.com/goverbs/goverbs/internal/inflight"
)

// hard is a completion queue of hardware.
var hard = &core.CQ{WithInv: withInv(new(core.Context))}

// NewWC makes a completion as a poll would.
func NewWC(c cverbs.WC, recv bool) WC {
	kind := inflight.Send
	if recv {
		kind = inflight.Recv
	}
	var wc WC
	wc.set(hard, &core.Completion{WC: c, Kind: kind, Explained: true})
	return wc
}

// Spilled returns how many completions wait for Poll, and for how many there is memory.
func Spilled(q *CQ) (n, room int) {
	q.s.Mu.Lock()
	defer q.s.Mu.Unlock()
	return len(q.s.Spill), cap(q.s.Spill)
}

// Waiting returns how many goroutines wait for events of a channel.
func Waiting(ch *Channel) int { return ch.s.Events.Waiting() }

// Armed reports whether an event of q is to come.
func Armed(q *CQ) bool { return q.s.Armed.Load() != core.NotArmed }
