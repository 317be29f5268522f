package rdmacm

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"weak"

	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/ccm"
	"github.com/goverbs/goverbs/internal/fdwait"
	"github.com/goverbs/goverbs/internal/life"
)

// PortSpace is where an id's port numbers count, and with it what kind of service it has.
//
// Implements: rdma_port_space
type PortSpace int32

const (
	PortSpaceIPoIB PortSpace = 0x0002 // IPOIB
	PortSpaceTCP   PortSpace = 0x0106 // TCP
	PortSpaceUDP   PortSpace = 0x0111 // UDP
	PortSpaceIB    PortSpace = 0x013F // IB
)

// datagrams says whether queue pairs of the port space are UD ones, not RC.
func (p PortSpace) datagrams() bool { return p == PortSpaceUDP || p == PortSpaceIPoIB }

// ID is one end of a connection, or a listener, of the connection manager: what a socket is
// to TCP. Its methods may be called from several goroutines; calls that change it take their
// turns.
//
// Implements: rdma_cm_id
type ID struct {
	s  *idState
	qp atomic.Pointer[ownQP] // that CreateQP made
}

type idState struct {
	life.Node
	handle  weak.Pointer[ID]
	h       ccm.ID
	addr    uintptr // by which events name it
	number  uint64
	ps      PortSpace
	passive bool      // a connect request made it
	asked   ConnParam // by that
	ch      atomic.Pointer[channel]
	info    atomic.Pointer[ccm.Info]

	ctl     sync.Mutex   // held during a call of C that changes the id
	listens bool         // for which ctl is held
	closers atomic.Int32 // calls of Close that are under way

	mu         sync.Mutex
	dev        *device               // that it is bound to, or nil
	requests   map[*idState]struct{} // that nobody has been told of
	groups     []*group              // that it has joined
	nextCookie uintptr
}

var idCount atomic.Uint64

// CreateID makes an id, whose events come on the channel. What was made as PortSpaceTCP is
// for RC queue pairs, as PortSpaceUDP or PortSpaceIPoIB for UD ones. Which port spaces there
// are depends on the device; rdma_rxe has those of TCP and UDP. Close the id when done.
//
// Implements: rdma_create_id
func (c *EventChannel) CreateID(ps PortSpace) (*ID, error) {
	const op = "rdma_create_id"
	defer runtime.KeepAlive(c)
	s := &idState{ps: ps}
	if err := s.enter(c.s); err != nil {
		return nil, closeError(op, &c.s.Node, err)
	}
	h, err := ccm.CreateID(c.s.h, int32(ps))
	if err != nil {
		s.Discard()
		return nil, &ibv.OpError{Op: op, Object: c.s.String(), Kind: kindOf(err), Err: err, Reason: whyNoChannel(err)}
	}
	return s.made(h), nil
}

// enter has the channel own the id.
func (s *idState) enter(c *channel) error {
	s.number = idCount.Add(1)
	s.ch.Store(c)
	return s.Init("CM id", s.destroy, &c.Node)
}

// made is for an id that C has made.
func (s *idState) made(h ccm.ID) *ID {
	s.h, s.addr = h, ccm.IDAddr(h)
	id := &ID{s: s}
	s.handle = weak.Make(id)
	s.info.Store(&ccm.Info{})
	ids.Store(s.addr, s)
	s.BeforeCloseAll(func() {
		s.ctl.Lock()
		defer s.ctl.Unlock()
		if id := s.handle.Value(); id != nil {
			id.end()
		}
	})
	s.Ready(fmt.Sprint(s.number))
	life.Guard(id, &s.Node)
	return id
}

// newRequest makes an id of a connect request, or returns nil if nobody can have it. It runs
// while an event is taken.
func (s *idState) newRequest(c *channel, raw *ccm.Event) *ID {
	r := &idState{ps: s.ps, passive: true, asked: connParam(raw.Conn)}
	if err := r.enter(c); err != nil {
		_ = ccm.DestroyID(raw.NewID)
		return nil
	}
	id := r.made(raw.NewID)
	r.setInfo(&raw.Info)
	r.Rename(fmt.Sprintf("%d from %v", r.number, addrPort(raw.Info.Peer)))
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.requests == nil {
		s.requests = map[*idState]struct{}{}
	}
	s.requests[r] = struct{}{}
	return id
}

// claim has the program own a request, and reports whether it still can.
func (s *idState) claim(r *idState) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.requests[r]; !ok {
		return false
	}
	delete(s.requests, r)
	return true
}

// call runs f, which calls C, on an id that is open.
func (id *ID) call(op string, f func(ccm.ID) error) error {
	defer runtime.KeepAlive(id)
	s := id.s
	if err := s.Use(); err != nil {
		return s.fail(op, err, "")
	}
	defer s.Done()
	s.ctl.Lock()
	defer s.ctl.Unlock()
	if err := f(s.h); err != nil {
		return s.fail(op, err, "")
	}
	return nil
}

// callBound is call for what needs a device.
func (id *ID) callBound(op string, f func(ccm.ID) error) error {
	return id.call(op, func(h ccm.ID) error {
		if id.s.info.Load().Device == "" {
			return invalid("the id is bound to no device: wait for ADDR_RESOLVED, or bind it to an address of one")
		}
		return f(h)
	})
}

// GetEvent waits for the next event of this id, else as EventChannel.GetEvent: those of a
// listener are its CONNECT_REQUESTs. The wait goes with the id to another channel.
//
// Implements: rdma_get_cm_event, rdma_ack_cm_event, rdma_get_request
func (id *ID) GetEvent(ctx context.Context) (*Event, error) {
	defer runtime.KeepAlive(id)
	s := id.s
	for {
		c := s.ch.Load()
		e, err := c.events.Wait(ctx, s, 0, func() error {
			switch {
			case s.Closing():
				return life.ErrClosed
			case s.ch.Load() != c:
				return fdwait.ErrWoken
			}
			return nil
		})
		switch {
		case errors.Is(err, fdwait.ErrWoken), err != nil && s.ch.Load() != c: // whose channel may be closed by now
			continue
		case err != nil:
			return nil, waitFailed(&s.Node, err)
		}
		if told := e.tell(); told != nil {
			return told, nil
		}
	}
}

// Migrate has the id's events come on another channel from now on, also those that have come
// and nobody has read. A connection that has a channel of its own keeps its events out of
// the way of others'.
//
// A listener cannot move, as an error that matches EINVAL says: have it do so before Listen.
// A request that came in that moment would stay with the old channel in the kernel, and with
// the new one in librdmacm, which drops it and leaves the peer without an answer.
//
// Implements: rdma_migrate_id
func (id *ID) Migrate(to *EventChannel) error {
	const op = "rdma_migrate_id"
	defer runtime.KeepAlive(to)
	return id.call(op, func(h ccm.ID) error {
		if to == nil {
			return invalid("no channel is given")
		}
		s := id.s
		from := s.ch.Load()
		if from == to.s {
			return nil
		}
		if s.listens {
			return invalid("a listener that moves can lose a connect request: have it move before Listen")
		}
		if err := s.Attach(&to.s.Node); err != nil {
			return err
		}
		err := from.events.Move(s, to.s.events, func() error {
			err := ccm.MigrateID(h, to.s.h)
			if err == nil {
				s.ch.Store(to.s)
			}
			return err
		})
		if err != nil {
			s.Detach(&to.s.Node)
			return err
		}
		s.Detach(&from.Node)
		return nil
	})
}

// PortSpace returns what the id was made for.
func (id *ID) PortSpace() PortSpace { return id.s.ps }

// Device returns the name of the device that the id is bound to, or "": one is from
// ADDR_RESOLVED on, or when it was bound to an address of a device.
func (id *ID) Device() string { return id.s.info.Load().Device }

// Port returns the port of that device, from 1, or 0.
func (id *ID) Port() uint8 { return id.s.info.Load().Port }

// LocalAddr returns the address that the id is bound to.
//
// Implements: rdma_get_local_addr, rdma_get_src_port
func (id *ID) LocalAddr() netip.AddrPort { return addrPort(id.s.info.Load().Local) }

// PeerAddr returns the peer's address: one is known from ADDR_RESOLVED on, and of a connect
// request, whose link-local address is without its zone.
//
// Implements: rdma_get_peer_addr, rdma_get_dst_port
func (id *ID) PeerAddr() netip.AddrPort { return addrPort(id.s.info.Load().Peer) }

// String names the id and its peer.
func (id *ID) String() string {
	if id == nil {
		return "no CM id"
	}
	return id.s.String()
}

// Patience of Close with a queue pair whose work requests do not end. A device that flushes
// takes much less; one that does not say that it is done with those of a shared receive queue
// is not waited for longer than this.
const (
	patience       = time.Second
	patienceShared = 20 * time.Millisecond
)

// Close leaves the id's multicast groups, disconnects it, ends its queue pair if CreateQP
// made one, as ibv.QP.Close does, and destroys the id. A request that was neither accepted
// nor rejected is rejected by it. Closing a listener closes the requests that no GetEvent
// has returned, and no others. Where the queue pair cannot be closed, as with a memory window
// bound to it, the error says why, and the id is disconnected and stays. Closing again
// returns nil.
//
// Implements: rdma_destroy_id, rdma_destroy_qp, rdma_destroy_ep
func (id *ID) Close() error {
	defer runtime.KeepAlive(id)
	s := id.s
	s.closers.Add(1) // from now on it gets no queue pair
	defer s.closers.Add(-1)
	s.ctl.Lock() // after a CreateQP that has begun
	if s.Use() == nil {
		id.end()
		s.Done()
	}
	s.ctl.Unlock()
	if own := id.own(); own != nil {
		limit := patience
		if own.shared {
			limit = patienceShared
		}
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		_ = own.Drain(ctx) // what is left belongs to nobody once the queue pair is closed
		cancel()
		if err := own.Close(); err != nil {
			return err
		}
	}
	return closeError("rdma_destroy_id", &s.Node, s.Close())
}

// end has the peer and the network know that nothing more comes. What has ended already
// cannot be ended: its errors say nothing new. The caller holds ctl.
func (id *ID) end() {
	id.s.leaveAll()
	if own := id.own(); own != nil {
		own.Core().MoveToErr() // which waits for no Drain
	}
	_ = ccm.Disconnect(id.s.h)
}

func (s *idState) destroy() error {
	s.leaveAll()
	c := s.ch.Load()
	c.events.Collect() // a device removal too
	var unused *device
	var abandoned error
	err := c.events.Remove(s, func() error {
		ids.Delete(s.addr) // before another can be at its address
		unused, abandoned = s.leaveDevice()
		err := ccm.DestroyID(s.h)
		if err != nil {
			ids.Store(s.addr, s)
			s.setInfo(s.info.Load()) // it is bound as before
		}
		return err
	})
	if unused != nil {
		unused.close(abandoned)
	}
	if err != nil {
		return err
	}
	s.mu.Lock()
	requests := s.requests
	s.requests = nil
	s.mu.Unlock()
	for r := range requests {
		_ = r.Close() // it is as new, and nobody has it
	}
	return nil
}
