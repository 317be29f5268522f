package core

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/goverbs/goverbs/internal/cverbs"
	"github.com/goverbs/goverbs/internal/fdwait"
	"github.com/goverbs/goverbs/internal/life"
)

// The asynchronous events that mean something to the library itself, as C numbers them.
const (
	eventCQErr          = 0
	eventDeviceFatal    = 8
	eventPortActive     = 9
	eventLastWQEReached = 16
	eventWQFatal        = 19 // of objects that the library does not have
)

// Queue is what an asynchronous event can be about: a queue pair, a completion queue or
// a shared receive queue; and a completion channel, which only a device's failure reaches.
type Queue interface {
	// Fail has the queue's use fail with err from now on: the device has failed.
	Fail(err error)
}

// QP is what a device and a completion queue know of a queue pair. All of it is called
// without locks, but for LastWQEReached.
type QP interface {
	Queue
	// Attach and Closed are those of its node in the ownership graph.
	Attach(parent *life.Node) error
	Closed() bool
	// MoveToErr moves the queue pair to ERR, or has the Modify or Drain do so that is in
	// progress. It does not wait for them.
	MoveToErr()
	// LastWQEReached notes that event. It is called with the lock of the events.
	LastWQEReached()
	// PortActive notes the MTU of a port, an ibv_mtu.
	PortActive(port uint8, mtu int32)
}

// Event is an asynchronous event.
type Event struct {
	Type int32
	Port uint8 // of an event of a port
	On   Queue // or nil
}

// ErrDeviceFatal says that the device has failed, for good.
var ErrDeviceFatal = errors.New("the device has failed")

// failure is an error in words that matches others.
type failure struct {
	text    string
	matches []error
}

func (f *failure) Error() string   { return f.text }
func (f *failure) Unwrap() []error { return f.matches }

// events are the asynchronous events of a device. One goroutine waits for them, from
// StartEvents to StopEvents.
type events struct {
	// mu is held to take an event, and shared by each destroy call. So what an event is
	// about, of which there is only the address, is still there when it is looked up; and
	// no provider finds it gone while it acknowledges the event.
	mu      sync.RWMutex
	taken   []Event  // and not handled, the oldest first; under mu
	objects sync.Map // Queue by address

	queue *fdwait.Queue[struct{}, struct{}]
	ended chan struct{} // closed when the goroutine is through

	failed atomic.Pointer[failure] // of the device
	told   stream
}

// StartEvents begins to read the events of a device that was just opened.
func (c *Context) StartEvents() error {
	e := &c.events
	queue, err := fdwait.New(cverbs.AsyncFD(c.H), func() (fdwait.Event[struct{}, struct{}], error) {
		e.mu.Lock()
		defer e.mu.Unlock()
		return fdwait.Event[struct{}, struct{}]{}, c.takeEvent()
	})
	if err == nil {
		e.told.begin()
		e.queue, e.ended = queue, make(chan struct{})
		go c.readEvents(queue, e.ended)
	}
	return err
}

// StopEvents ends what StartEvents began, and runs closing, which closes the device. If
// that fails the events are read on.
func (c *Context) StopEvents(closing func() error) error {
	e := &c.events
	e.queue.Close()
	<-e.ended
	err := closing()
	if err == nil {
		e.told.end(life.ErrClosed)
	} else if startErr := c.StartEvents(); startErr != nil {
		c.readFailed(startErr)
	}
	return err
}

// Put has events that are about the object at addr lead to it.
func (c *Context) Put(addr uintptr, q Queue) {
	c.events.objects.Store(addr, q)
	if f := c.events.failed.Load(); f != nil { // which may have missed it
		q.Fail(f)
	}
}

// Destroy runs the destroy call of the object at addr, which it forgets if that succeeds
// or the device is gone.
func (c *Context) Destroy(addr uintptr, q Queue, destroy func() error) error {
	c.events.mu.RLock()
	defer c.events.mu.RUnlock()
	err := c.Gone(destroy())
	if err == nil {
		c.events.objects.CompareAndDelete(addr, q) // another may be at its address by now
	}
	return err
}

// NoteEvents returns when the QPs know of all their events that the device has raised.
func (c *Context) NoteEvents() {
	c.events.mu.Lock()
	for c.takeEvent() == nil {
	}
	c.events.mu.Unlock()
	c.events.queue.Wake(struct{}{}) // what was taken here does not wake the reader
}

// takeEvent takes an event from the device. The caller holds the lock of the events.
func (c *Context) takeEvent() error {
	raw, err := cverbs.TakeAsyncEvent(c.H)
	if err != nil {
		return err
	}
	e := Event{Type: raw.Type, Port: uint8(raw.Port)}
	if found, ok := c.events.objects.Load(raw.Element); ok {
		e.On = found.(Queue)
	} else if raw.Element != 0 && raw.Type != eventWQFatal {
		return nil // it was never seen by the program
	}
	if qp, ok := e.On.(QP); ok && e.Type == eventLastWQEReached {
		qp.LastWQEReached()
	}
	c.events.taken = append(c.events.taken, e)
	return nil
}

// takenEvents returns the events that are to be handled.
func (c *Context) takenEvents() []Event {
	c.events.mu.Lock()
	defer c.events.mu.Unlock()
	taken := c.events.taken
	c.events.taken = nil
	return taken
}

func (c *Context) readEvents(queue *fdwait.Queue[struct{}, struct{}], ended chan<- struct{}) {
	defer close(ended)
	noted := func() error {
		c.events.mu.RLock()
		defer c.events.mu.RUnlock()
		if len(c.events.taken) > 0 {
			return fdwait.ErrWoken
		}
		return nil
	}
	for {
		_, err := queue.Wait(context.Background(), struct{}{}, 0, noted)
		for _, e := range c.takenEvents() {
			c.handle(e)
		}
		switch {
		case err == nil, errors.Is(err, fdwait.ErrWoken):
		case errors.Is(err, os.ErrClosed):
			return
		default:
			c.readFailed(err)
			return
		}
	}
}

// handle does what an event asks of the library, and then tells it to the listeners.
func (c *Context) handle(e Event) {
	switch q, _ := e.On.(*CQ); {
	case e.Type == eventDeviceFatal:
		c.fail("IBV_EVENT_DEVICE_FATAL")
	case e.Type == eventPortActive:
		c.portActive(e.Port)
	case e.Type == eventCQErr && q != nil:
		q.Fail(errCQ)
		if q.reported {
			return // some devices raise one for each completion that is lost
		}
		q.reported = true
		logError("verbs completion queue failed", q.String(), errCQ)
	}
	c.events.told.publish(e)
}

// readFailed is the end of the events.
func (c *Context) readFailed(err error) {
	if !errors.Is(err, syscall.EIO) {
		logError("reading verbs events failed", c.Name, err)
		c.events.told.end(err)
		return
	}
	if c.Failure() == nil {
		c.fail("its events end with EIO: it was removed")
		c.handle(Event{Type: eventDeviceFatal})
	}
	c.events.told.end(c.Failure())
}

// fail has everything of the device fail.
func (c *Context) fail(how string) {
	f := &failure{
		text:    fmt.Sprintf("%s has failed for good (%s): close all that was made from it and the device itself, as CloseAll does, and open it again when it is back", c.Name, how),
		matches: []error{ErrDeviceFatal, syscall.EIO},
	}
	if !c.events.failed.CompareAndSwap(nil, f) {
		return
	}
	c.FailAll(f)
	for _, q := range c.events.objects.Range {
		q.(Queue).Fail(f)
	}
	logError("verbs device failed", c.Name, f)
}

// Failure returns why the device does nothing any more, or nil.
func (c *Context) Failure() error {
	if f := c.events.failed.Load(); f != nil {
		return f
	}
	return nil
}

// portActive has the QPs learn what MTU the port has now.
func (c *Context) portActive(port uint8) {
	c.Ports.Lock()
	defer c.Ports.Unlock()
	attr, err := cverbs.QueryPort(c.H, port)
	if err != nil {
		return // what they know may still be right
	}
	for _, q := range c.events.objects.Range {
		if qp, ok := q.(QP); ok {
			qp.PortActive(port, attr.ActiveMTU)
		}
	}
}

// logError reports what no call can return. A handler is the user's code and may take its
// time, or close the device, which waits for the reader.
func logError(message, object string, err error) {
	go life.Logger().Error(message, "object", object, "reason", err.Error())
}
