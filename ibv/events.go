package ibv

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"github.com/goverbs/goverbs/internal/core"
)

// EventType says what an asynchronous event is.
//
// Implements: ibv_event_type
type EventType int32

const (
	EventCQErr            EventType = 0  // CQ_ERR
	EventQPFatal          EventType = 1  // QP_FATAL
	EventQPReqErr         EventType = 2  // QP_REQ_ERR
	EventQPAccessErr      EventType = 3  // QP_ACCESS_ERR
	EventCommEst          EventType = 4  // COMM_EST
	EventSQDrained        EventType = 5  // SQ_DRAINED
	EventPathMig          EventType = 6  // PATH_MIG
	EventPathMigErr       EventType = 7  // PATH_MIG_ERR
	EventDeviceFatal      EventType = 8  // DEVICE_FATAL
	EventPortActive       EventType = 9  // PORT_ACTIVE
	EventPortErr          EventType = 10 // PORT_ERR
	EventLIDChange        EventType = 11 // LID_CHANGE
	EventPKeyChange       EventType = 12 // PKEY_CHANGE
	EventSMChange         EventType = 13 // SM_CHANGE
	EventSRQErr           EventType = 14 // SRQ_ERR
	EventSRQLimitReached  EventType = 15 // SRQ_LIMIT_REACHED
	EventQPLastWQEReached EventType = 16 // QP_LAST_WQE_REACHED
	EventClientReregister EventType = 17 // CLIENT_REREGISTER
	EventGIDChange        EventType = 18 // GID_CHANGE
	EventWQFatal          EventType = 19 // WQ_FATAL
)

// Event is an asynchronous event: a PortEvent, QPEvent, CQEvent, SRQEvent, WQEvent or
// DeviceEvent. String says it in a line.
//
// Implements: ibv_async_event
type Event interface {
	EventType() EventType
	String() string
}

// PortEvent is an event of a port: EventPortActive, EventPortErr, EventLIDChange,
// EventPKeyChange, EventSMChange, EventClientReregister or EventGIDChange. What the program
// knows of the port and its GIDs may be stale: query them again.
type PortEvent struct {
	Type EventType
	Port uint8 // counted from 1
}

// QPEvent is an event of a queue pair: EventQPFatal, EventQPReqErr, EventQPAccessErr,
// EventCommEst, EventSQDrained, EventPathMig, EventPathMigErr or EventQPLastWQEReached.
// The first three come with the move to ERR, which QP.State tells; not every device raises
// them, nor for every such move.
type QPEvent struct {
	Type EventType
	QP   *QP
}

// CQEvent is EventCQErr: a completion queue has failed. See Context.Listen.
type CQEvent struct {
	Type EventType
	CQ   CompletionQueue // the program's *cq.CQ
}

// SRQEvent is an event of a shared receive queue: EventSRQErr or EventSRQLimitReached.
type SRQEvent struct {
	Type EventType
	SRQ  *SRQ
}

// WQEvent is EventWQFatal, of a work queue that this library did not make.
type WQEvent struct {
	Type EventType
}

// DeviceEvent is EventDeviceFatal, or an event of a type that this library does not know,
// of which it can tell no more than the number.
type DeviceEvent struct {
	Type EventType
}

// EventType returns e.Type.
func (e PortEvent) EventType() EventType { return e.Type }

// EventType returns e.Type.
func (e QPEvent) EventType() EventType { return e.Type }

// EventType returns e.Type.
func (e CQEvent) EventType() EventType { return e.Type }

// EventType returns e.Type.
func (e SRQEvent) EventType() EventType { return e.Type }

// EventType returns e.Type.
func (e WQEvent) EventType() EventType { return e.Type }

// EventType returns e.Type.
func (e DeviceEvent) EventType() EventType { return e.Type }

func (e PortEvent) String() string   { return fmt.Sprintf("%v of port %d", e.Type, e.Port) }
func (e QPEvent) String() string     { return fmt.Sprintf("%v of %v", e.Type, e.QP) }
func (e CQEvent) String() string     { return fmt.Sprintf("%v of %v", e.Type, e.CQ) }
func (e SRQEvent) String() string    { return fmt.Sprintf("%v of %v", e.Type, e.SRQ) }
func (e WQEvent) String() string     { return e.Type.String() }
func (e DeviceEvent) String() string { return e.Type.String() }

// Listener gets the asynchronous events of a device. Its methods may be called from
// several goroutines: an event goes to one of the calls of Next, and every other Listener
// has it too.
type Listener struct {
	ctx *Context
	l   *core.Listener
}

// Listen begins to listen to the device's asynchronous events: Next returns, in order,
// each that the library takes from now on. It may be called any number of times.
//
// Listening is optional. The library itself reads the events of every open device, and
// acknowledges them at once, so that no Close ever waits for the program to do so. It does
// by itself what no program can do without:
//
//   - EventCQErr: polls of the completion queue fail once they have found it empty, and its
//     queue pairs are moved to ERR. Each queue is told once, to listeners and to the logger
//     of SetLogger, however often the device repeats it.
//   - EventDeviceFatal, or the removal of the device: whatever is called on the device and
//     on what was made from it fails with ErrDeviceFatal, polls after what is there. Only
//     Close works, and CloseAll. The logger is told.
//   - EventPortActive: UD queue pairs learn the port's MTU, which bounds their sends.
//
// An event of an object whose handle the program has dropped is not told. One that was
// closed may still be told of by an event from before.
//
// What is not read stays in memory, until the Listener is closed or dropped.
//
// Which events there are depends on the device. The rdma_rxe of Linux 6.1 and 6.12 raises
// EventCQErr, EventSQDrained, EventSRQLimitReached, EventPortActive and EventPortErr, and
// that of 6.12 EventQPLastWQEReached, for queue pairs with a shared receive queue. It
// raises none when a queue pair fails.
//
// Implements: ibv_get_async_event, ibv_ack_async_event
func (c *Context) Listen() (*Listener, error) {
	l := &Listener{ctx: c}
	err := c.call(opEvents, func() error {
		l.l = c.s.Listen()
		return nil
	})
	if err != nil {
		return nil, err
	}
	return l, nil
}

const opEvents = "ibv_get_async_event"

// Next waits for the next event and returns it; one that is there it returns also if ctx
// has ended. It holds no thread while it waits. It fails with the cause of ctx, which for a
// deadline matches os.ErrDeadlineExceeded; with ErrClosed, after the events that were there
// if it is the Context that was closed; and after EventDeviceFatal with ErrDeviceFatal, when
// the device was removed and no event can come any more.
func (l *Listener) Next(ctx context.Context) (Event, error) {
	defer runtime.KeepAlive(l)
	for {
		e, err := l.l.Next(ctx)
		if err != nil {
			reason := ""
			if errors.Is(err, ErrClosed) {
				reason = "the Listener or the device was closed"
			}
			return nil, &OpError{Op: opEvents, Object: l.ctx.s.Name, Err: err, Reason: reason}
		}
		if e := typed(e); e != nil {
			return e, nil
		}
	}
}

// typed returns the event in the form of its kind, or nil if nobody has the handle of what
// it is about.
func typed(e core.Event) Event {
	t := EventType(e.Type)
	switch on := e.On.(type) {
	case *qpState:
		if qp := on.handle.Value(); qp != nil {
			return QPEvent{t, qp}
		}
		return nil
	case *srqState:
		if srq := on.handle.Value(); srq != nil {
			return SRQEvent{t, srq}
		}
		return nil
	case *core.CQ:
		if cq, ok := on.Handle().(CompletionQueue); ok {
			return CQEvent{t, cq}
		}
		return nil
	}
	switch t {
	case EventPortActive, EventPortErr, EventLIDChange, EventPKeyChange, EventSMChange, EventClientReregister, EventGIDChange:
		return PortEvent{t, e.Port}
	case EventWQFatal:
		return WQEvent{t}
	}
	return DeviceEvent{t}
}

// Close ends the listening, and calls of Next in progress with ErrClosed. Events that were
// not read are forgotten. A Listener that is dropped without Close costs nothing.
func (l *Listener) Close() error {
	l.l.Close()
	return nil
}
