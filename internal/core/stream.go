package core

import (
	"context"
	"sync"

	"github.com/goverbs/goverbs/internal/fdwait"
	"github.com/goverbs/goverbs/internal/life"
)

// stream hands events to listeners. It is a list of which only the end is held here: what
// all listeners have read, or a listener that was dropped has not, the collector takes.
type stream struct {
	mu   sync.Mutex
	last *link // that is still to be filled, or tells why nothing follows
}

type link struct {
	filled chan struct{} // closed when the rest is set
	event  Event
	err    error // nothing follows
	next   *link
}

func (s *stream) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last == nil {
		s.last = &link{filled: make(chan struct{})}
	}
}

func (s *stream) publish(e Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.last
	if l.err != nil {
		return
	}
	l.event, l.next = e, &link{filled: make(chan struct{})}
	s.last = l.next
	close(l.filled)
}

// end has listeners find err behind the last event. The first end stays.
func (s *stream) end(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last.err == nil {
		s.last.err = err
		close(s.last.filled)
	}
}

// Listener reads the events of a device, from the time of Listen on.
type Listener struct {
	closed chan struct{}

	mu sync.Mutex
	at *link // nil once it is closed
}

// Listen begins to listen to the device's events.
func (c *Context) Listen() *Listener {
	c.events.told.mu.Lock()
	defer c.events.told.mu.Unlock()
	return &Listener{closed: make(chan struct{}), at: c.events.told.last}
}

// Next returns the next event. It fails with life.ErrClosed when the listener or the device
// was closed, with Cause of ctx, or with what ended the device's events.
func (l *Listener) Next(ctx context.Context) (Event, error) {
	done := ctx.Done()
	for {
		at := l.place()
		if at == nil {
			return Event{}, life.ErrClosed
		}
		select {
		case <-at.filled: // also if ctx has ended
		default:
			select {
			case <-at.filled:
			case <-l.closed:
				continue
			case <-done:
				return Event{}, fdwait.Cause(ctx)
			}
		}
		if at.err != nil {
			return Event{}, at.err
		}
		if l.pass(at) {
			return at.event, nil
		}
	}
}

func (l *Listener) place() *link {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.at
}

// pass goes on from at, unless another call has, or Close has come.
func (l *Listener) pass(at *link) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.at != at {
		return false
	}
	l.at = at.next
	return true
}

// Close ends the listening, and the calls of Next in progress.
func (l *Listener) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.at != nil {
		l.at = nil
		close(l.closed)
	}
}
