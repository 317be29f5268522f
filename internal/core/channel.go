package core

import (
	"sync"

	"github.com/goverbs/goverbs/internal/cverbs"
	"github.com/goverbs/goverbs/internal/fdwait"
	"github.com/goverbs/goverbs/internal/life"
)

// Channel is a completion channel.
type Channel struct {
	life.Node
	H      cverbs.CompChannel
	Ctx    *Context
	Events *fdwait.Queue[*CQ, struct{}]

	mu  sync.Mutex
	cqs map[uintptr]*CQ // by address; those of which events can come
}

// ackBatch is after how many events of a completion queue they are acknowledged: each
// time costs a lock that the whole context shares, and they have to be by its end.
const ackBatch = 64

// Take takes an event off the channel, as fdwait.New wants it.
func (ch *Channel) Take() (e fdwait.Event[*CQ, struct{}], err error) {
	for {
		addr, err := cverbs.GetCQEvent(ch.H)
		if err != nil {
			return e, err
		}
		ch.mu.Lock()
		q := ch.cqs[addr]
		ch.mu.Unlock()
		if q == nil {
			continue // not made here: whoever has made it acknowledges it
		}
		q.Armed.Store(NotArmed)
		q.Taken.Add(1)
		if q.unacked++; q.unacked == ackBatch {
			q.ack()
		}
		e.Key = q
		return e, nil
	}
}

// Fail has those who wait for an event of any completion queue know, now and later, that the
// device has failed: the event of none.
func (ch *Channel) Fail(error) { ch.Events.Add(fdwait.Event[*CQ, struct{}]{}) }

func (q *CQ) ack() {
	cverbs.AckCQEvents(q.H, q.unacked)
	q.unacked = 0
}

// Adopt has the channel know a completion queue that was made on it.
func (ch *Channel) Adopt(q *CQ) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if ch.cqs == nil {
		ch.cqs = map[uintptr]*CQ{}
	}
	ch.cqs[q.Addr] = q
}

// Destroy destroys the completion queue in C, which waits for ever for an event that was
// taken and not acknowledged: so it acknowledges them, and none is taken meanwhile.
func (q *CQ) Destroy() error {
	destroy := func() error {
		return q.Ctx.Destroy(q.Addr, q, func() error { return cverbs.DestroyCQ(q.H) })
	}
	ch := q.Channel
	if ch == nil {
		return destroy()
	}
	return ch.Events.Remove(q, func() error {
		if q.unacked > 0 {
			q.ack()
		}
		ch.mu.Lock()
		defer ch.mu.Unlock()
		if err := destroy(); err != nil {
			return err
		}
		delete(ch.cqs, q.Addr)
		return nil
	})
}

// How a completion queue is armed. Each includes those before it.
const (
	NotArmed int32 = iota
	ArmedSolicited
	ArmedAny
)
