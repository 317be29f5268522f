package rdmacm

import (
	"context"
	"errors"
	"os"
	"runtime"
	"strconv"
	"sync"
	"syscall"

	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/ccm"
	"github.com/goverbs/goverbs/internal/fdwait"
	"github.com/goverbs/goverbs/internal/life"
)

// EventChannel is where the kernel tells what becomes of ids. Several ids can share one.
// Waiting holds no operating system thread. Its methods may be called from several
// goroutines.
//
// Events are acknowledged by the library as it takes them: there is nothing to do about it.
//
// Implements: rdma_event_channel
type EventChannel struct{ s *channel }

type channel struct {
	life.Node
	h      ccm.Channel
	events *fdwait.Queue[*idState, *taken]
}

// taken is an event that was taken off a channel. It is for an id, or for the listener of
// a connect request.
type taken struct {
	ccm.Event
	on      *idState
	request *ID // that the event has made, or nil
}

// ids are those of this process by the address that events name.
var ids sync.Map // of *idState

// CreateEventChannel opens an event channel. It takes two file descriptors. Where there is no
// RDMA device, or the kernel's rdma_ucm is missing, it fails with an error that says so and
// matches ENODEV or ENOENT.
//
// Implements: rdma_create_event_channel
func CreateEventChannel() (*EventChannel, error) {
	const op = "rdma_create_event_channel"
	c := new(channel)
	if err := c.Init("event channel", c.destroy); err != nil {
		return nil, &ibv.OpError{Op: op, Err: err}
	}
	h, fd, err := ccm.CreateEventChannel()
	if err != nil {
		c.Discard()
		return nil, &ibv.OpError{Op: op, Kind: kindOf(err), Err: err, Reason: whyNoChannel(err)}
	}
	c.h = h
	if c.events, err = fdwait.New(fd, c.take); err != nil {
		ccm.DestroyEventChannel(h)
		c.Discard()
		return nil, &ibv.OpError{Op: op, Err: err, Reason: whyNoChannel(err)}
	}
	c.Ready(strconv.Itoa(fd))
	handle := &EventChannel{c}
	life.Guard(handle, &c.Node)
	return handle, nil
}

func whyNoChannel(err error) string {
	switch {
	case errors.Is(err, syscall.ENODEV):
		return "there is no RDMA device that libibverbs can use: ibvinfo lists them"
	case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ENXIO), errors.Is(err, syscall.EPERM):
		return "the kernel's connection manager is not there: load rdma_ucm, and see that /dev/infiniband/rdma_cm exists"
	case errors.Is(err, syscall.EACCES):
		return "no permission to open /dev/infiniband/rdma_cm"
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		return "no file descriptor is left: raise the limit (ulimit -n), or have ids share a channel"
	}
	return ""
}

func (c *channel) destroy() error {
	c.events.Close()
	ccm.DestroyEventChannel(c.h)
	return nil
}

// String names the channel by its file descriptor.
func (c *EventChannel) String() string { return c.s.String() }

// GetEvent waits for the next event of any id of the channel. Each event is returned once;
// those of ids that an [ID.GetEvent] waits for go there.
//
// Of an id that has its queue pair from [ID.CreateQP], GetEvent moves it on as the event
// wants: an id that connects finds ESTABLISHED where C has CONNECT_RESPONSE for one without
// a queue pair.
//
// Where ctx ends first it fails with the cause, which after a deadline matches
// os.ErrDeadlineExceeded, and no event is lost; when the channel is closed with
// ibv.ErrClosed.
//
// Implements: rdma_get_cm_event, rdma_ack_cm_event
func (c *EventChannel) GetEvent(ctx context.Context) (*Event, error) {
	defer runtime.KeepAlive(c)
	for {
		e, err := c.s.events.Next(ctx)
		if err != nil {
			return nil, waitFailed(&c.s.Node, err)
		}
		if told := e.What.tell(); told != nil {
			return told, nil
		}
	}
}

// Close closes the channel, and ends the waits for it. While an id uses it it changes
// nothing and returns an error that matches ibv.ErrBusy and names them. Closing again
// returns nil.
//
// Implements: rdma_destroy_event_channel
func (c *EventChannel) Close() error {
	defer runtime.KeepAlive(c)
	return closeError("rdma_destroy_event_channel", &c.s.Node, c.s.Close())
}

// CloseAll disconnects and closes all ids of the channel, with the queue pairs that
// [ID.CreateQP] made, and then the channel. Others may still use all of it: what comes after
// fails with ibv.ErrClosed. Where something cannot be closed the error names it, the rest is
// closed, and CloseAll can be called again.
func (c *EventChannel) CloseAll() error {
	defer runtime.KeepAlive(c)
	return closeError("rdma_destroy_event_channel", &c.s.Node, c.s.CloseAll())
}

// take takes an event, as fdwait.New wants it.
func (c *channel) take() (e fdwait.Event[*idState, *taken], err error) {
	for {
		raw, err := ccm.TakeEvent(c.h)
		if err != nil {
			return e, err
		}
		addr := raw.ID
		if raw.Listener != 0 {
			addr = raw.Listener
		}
		on, ok := ids.Load(addr)
		if !ok {
			if raw.Listener != 0 {
				_ = ccm.DestroyID(raw.NewID)
			}
			continue // not made here
		}
		s := on.(*idState)
		t := &taken{Event: raw, on: s}
		switch {
		case raw.Listener != 0:
			if t.request = s.newRequest(c, &raw); t.request == nil {
				continue
			}
		case raw.Type == int32(EventDeviceRemoval):
			s.deviceRemoved()
		default:
			s.setInfo(&raw.Info)
		}
		return fdwait.Event[*idState, *taken]{Key: s, What: t}, nil
	}
}

// waitFailed is the error of a wait for events.
func waitFailed(on *life.Node, err error) error {
	e := &ibv.OpError{Op: "rdma_get_cm_event", Object: on.String(), Kind: kindOf(err), Err: err}
	if errors.Is(err, os.ErrClosed) {
		e.Kind = ibv.ErrClosed
	}
	return e
}
