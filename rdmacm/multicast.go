package rdmacm

import (
	"net/netip"
	"slices"
	"syscall"
	"weak"

	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/ccm"
)

// JoinFlags says as what to join a multicast group.
//
// Implements: rdma_cm_mc_join_flags
type JoinFlags uint32

const (
	JoinFullMember JoinFlags = 0 // sends and receives
	JoinSendOnly   JoinFlags = 1 // sends only: a send-only full member
)

// Group is a multicast group that an id has joined. MGID and MLID are set with
// MULTICAST_JOIN.
type Group struct {
	Addr  netip.Addr
	Flags JoinFlags
	MGID  ibv.GID
	MLID  uint16
}

// group is what an id knows of one.
type group struct {
	Group
	cookie   uintptr              // of its events
	attached weak.Pointer[ibv.QP] // or of nil; the id must not keep it from being collected
}

// JoinMulticast joins a multicast group, with an id of datagrams that is bound to a device.
// The answer is MULTICAST_JOIN, whose UD says where to send, or MULTICAST_ERROR. A full
// member's queue pair of CreateQP is attached to the group then; one of the program's own it
// attaches itself, with ibv.QP.AttachMcast.
//
// An error that matches ibv.ErrNotSupported is a device's that cannot: on rdma_rxe groups of
// IPv6.
//
// Implements: rdma_join_multicast, rdma_join_multicast_ex
func (id *ID) JoinMulticast(addr netip.Addr, flags JoinFlags) error {
	return id.callBound("rdma_join_multicast", func(h ccm.ID) error {
		to, err := toCM(netip.AddrPortFrom(addr, 0))
		switch {
		case err != nil:
			return err
		case !addr.IsMulticast():
			return invalid("%v is no multicast address", addr)
		case flags > JoinSendOnly:
			return invalid("JoinFlags %d do not exist", flags)
		}
		s := id.s
		s.mu.Lock()
		defer s.mu.Unlock()
		if slices.ContainsFunc(s.groups, func(g *group) bool { return g.Addr == addr }) {
			return invalid("the id is in the group %v already", addr)
		}
		cookie := s.nextCookie + 1
		if err := ccm.JoinMulticast(h, to, uint32(flags), cookie); err != nil {
			return err
		}
		s.nextCookie = cookie
		s.groups = append(s.groups, &group{Group: Group{Addr: addr, Flags: flags}, cookie: cookie})
		return nil
	})
}

// LeaveMulticast leaves a group, and detaches from it the queue pair that was attached.
//
// Implements: rdma_leave_multicast
func (id *ID) LeaveMulticast(addr netip.Addr) error {
	return id.call("rdma_leave_multicast", func(h ccm.ID) error {
		s := id.s
		s.mu.Lock()
		i := slices.IndexFunc(s.groups, func(g *group) bool { return g.Addr == addr })
		if i < 0 {
			s.mu.Unlock()
			return &ibv.OpError{Err: syscall.EADDRNOTAVAIL, Reason: "the id is not in the group " + addr.String()}
		}
		g := s.groups[i]
		s.groups = slices.Delete(s.groups, i, i+1)
		s.mu.Unlock()
		return g.leave(h)
	})
}

// leave is for a group that its id no longer has.
func (g *group) leave(h ccm.ID) error {
	if qp := g.attached.Value(); qp != nil {
		_ = qp.DetachMcast(g.MGID, g.MLID) // it may be closed
	}
	to, err := toCM(netip.AddrPortFrom(g.Addr, 0))
	if err != nil {
		return err
	}
	return ccm.LeaveMulticast(h, to)
}

// leaveAll leaves all groups.
func (s *idState) leaveAll() {
	s.mu.Lock()
	groups := s.groups
	s.groups = nil
	s.mu.Unlock()
	for _, g := range groups {
		_ = g.leave(s.h) // what was not joined cannot be left
	}
}

// joinedGroup does what the answer to JoinMulticast asks of the library, and says in the event
// which group it is of.
func (id *ID) joinedGroup(e *Event, cookie uintptr) {
	err := id.call("rdma_join_multicast", func(h ccm.ID) error {
		s := id.s
		s.mu.Lock()
		defer s.mu.Unlock()
		i := slices.IndexFunc(s.groups, func(g *group) bool { return g.cookie == cookie })
		if i < 0 {
			return nil // left meanwhile
		}
		g := s.groups[i]
		var err error
		if e.Type == EventMulticastJoin {
			g.MGID, g.MLID = e.UD.AH.GRH.DGID, e.UD.AH.DLID
			if own := id.own(); own != nil && g.Flags == JoinFullMember {
				if err = own.AttachMcast(g.MGID, g.MLID); err == nil {
					g.attached = weak.Make(own.QP)
				}
			}
		}
		e.Group = g.Group
		if e.Type == EventMulticastError || err != nil {
			s.groups = slices.Delete(s.groups, i, i+1)
			_ = g.leave(h)
		}
		return err
	})
	if err != nil {
		e.Type, e.cause = EventMulticastError, err
	}
}
