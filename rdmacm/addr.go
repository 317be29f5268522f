package rdmacm

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"strconv"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/internal/ccm"
)

// BindAddr binds the id to an own address, to listen there or to connect from it. With an
// address of an RDMA device the id is bound to that device; one that is not set, 0.0.0.0 or
// ::, stands for all. Port 0 has the kernel choose one, which LocalAddr tells.
//
// An address and port in use are EADDRINUSE, or EADDRNOTAVAIL where one of the two ids is at all
// addresses; an address that this host does not have is EADDRNOTAVAIL or ENODEV, and one that is
// not on an RDMA device ENODEV.
//
// Implements: rdma_bind_addr
func (id *ID) BindAddr(addr netip.AddrPort) error {
	const op = "rdma_bind_addr"
	return id.call(op, func(h ccm.ID) error {
		a, err := toCM(addr)
		if err != nil {
			return err
		}
		info, err := ccm.BindAddr(h, a)
		if err != nil {
			return id.s.fail(op, err, whyNotBound(addr, err))
		}
		id.s.setInfo(&info)
		id.s.Rename(fmt.Sprintf("%d at %v", id.s.number, addrPort(info.Local)))
		return nil
	})
}

func whyNotBound(addr netip.AddrPort, err error) string {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Sprintf("the own address %v is another id's: see SetReuseAddr", addr)
	case errors.Is(err, syscall.EADDRNOTAVAIL) && addr.Addr().IsUnspecified(): // so the kernel has it
		return fmt.Sprintf("another id has port %d at this address or at a single one", addr.Port())
	case errors.Is(err, syscall.EADDRNOTAVAIL) && addr.Port() != 0: // the kernel has it for both
		return fmt.Sprintf("%v is not an address of an RDMA device of this host, or an id at all addresses has port %d", addr.Addr(), addr.Port())
	case errors.Is(err, syscall.ENODEV), errors.Is(err, syscall.EADDRNOTAVAIL):
		return fmt.Sprintf("%v is not an address of an RDMA device of this host", addr.Addr())
	case errors.Is(err, syscall.EINVAL) && addr.Addr().Is6() && addr.Addr().IsLinkLocalUnicast() && addr.Addr().Zone() == "":
		return fmt.Sprintf("%v is a link-local address, and needs its zone", addr.Addr())
	}
	return ""
}

// ResolveAddr looks for the way to a peer, and binds the id to the device that leads there;
// src, which may be the zero value, says from which address. The answer is ADDR_RESOLVED, or
// ADDR_ERROR after timeout at the latest, which is at least a millisecond. An address without
// a route, or whose route leads through no RDMA device, is often refused at once.
//
// Implements: rdma_resolve_addr
func (id *ID) ResolveAddr(src, dst netip.AddrPort, timeout time.Duration) error {
	const op = "rdma_resolve_addr"
	return id.call(op, func(h ccm.ID) error {
		ms, err := milliseconds(timeout)
		if err != nil {
			return err
		}
		var from ccm.Addr
		if src.Addr().IsValid() {
			if from, err = toCM(src); err != nil {
				return err
			}
		}
		to, err := toCM(dst)
		switch {
		case err != nil:
			return err
		case from.IP.IsValid() && from.IP.Is4() != to.IP.Is4():
			return invalid("%v is not reached from %v: one is of IPv4, the other of IPv6", to.IP, from.IP)
		}
		id.s.Rename(fmt.Sprintf("%d to %v", id.s.number, dst))
		if err := ccm.ResolveAddr(h, from, to, ms); err != nil {
			reason := whyNoAddr(err)
			if src.Addr().IsValid() {
				reason = cmp.Or(whyNotBound(src, err), reason)
			}
			return id.s.fail(op, err, reason)
		}
		return nil
	})
}

// ResolveRoute looks for the path to the peer, after ADDR_RESOLVED. The answer is
// ROUTE_RESOLVED, or ROUTE_ERROR after timeout at the latest, which is at least a millisecond.
//
// Implements: rdma_resolve_route
func (id *ID) ResolveRoute(timeout time.Duration) error {
	const op = "rdma_resolve_route"
	return id.callBound(op, func(h ccm.ID) error {
		ms, err := milliseconds(timeout)
		if err != nil {
			return err
		}
		if err := ccm.ResolveRoute(h, ms); err != nil {
			return id.s.fail(op, err, whyNoAddr(err))
		}
		return nil
	})
}

// Listen has the id tell of connections by CONNECT_REQUEST. backlog is how many may be there
// that no GetEvent has taken; what comes above is dropped, and the peer asks again for a
// while. Zero is the kernel's own, and its limit.
//
// Implements: rdma_listen
func (id *ID) Listen(backlog int) error {
	return id.call("rdma_listen", func(h ccm.ID) error {
		if backlog < 0 || backlog > math.MaxInt32 {
			return invalid("backlog %d is not 0 to %d", backlog, math.MaxInt32)
		}
		info, err := ccm.Listen(h, int32(backlog))
		if err != nil {
			return err
		}
		id.s.listens = true
		id.s.setInfo(&info)
		id.s.Rename(fmt.Sprintf("%d at %v", id.s.number, addrPort(info.Local)))
		return nil
	})
}

func milliseconds(timeout time.Duration) (int32, error) {
	const most = math.MaxInt32 * time.Millisecond
	if timeout <= 0 || timeout > most {
		return 0, invalid("a timeout of %v: it is above 0 and at most %v", timeout, most)
	}
	return int32((timeout + time.Millisecond - 1) / time.Millisecond), nil
}

// toCM turns an address into the form that C takes, where a zone is a number.
func toCM(a netip.AddrPort) (ccm.Addr, error) {
	ip := a.Addr().Unmap()
	if !ip.IsValid() {
		return ccm.Addr{}, invalid("no address is given")
	}
	to := ccm.Addr{IP: ip.WithZone(""), Port: a.Port()}
	if zone := ip.Zone(); zone != "" {
		if n, err := strconv.ParseUint(zone, 10, 32); err == nil {
			to.Scope = uint32(n)
		} else if ifc, err := net.InterfaceByName(zone); err == nil {
			to.Scope = uint32(ifc.Index)
		} else {
			return ccm.Addr{}, invalid("the zone of %v is no network interface of this host: %v", ip, err)
		}
	}
	return to, nil
}

// addrPort is the reverse of toCM.
func addrPort(a ccm.Addr) netip.AddrPort {
	ip := a.IP
	if a.Scope != 0 && ip.IsLinkLocalUnicast() {
		zone := strconv.FormatUint(uint64(a.Scope), 10)
		if ifc, err := net.InterfaceByIndex(int(a.Scope)); err == nil {
			zone = ifc.Name
		}
		ip = ip.WithZone(zone)
	}
	return netip.AddrPortFrom(ip, a.Port)
}
