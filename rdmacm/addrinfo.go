package rdmacm

import (
	"context"
	"net"
	"net/netip"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/ccm"
)

// AddrInfo says how to reach a service, or how to offer one. As hints to GetAddrInfo, what is
// set of it counts.
//
// Implements: rdma_addrinfo
type AddrInfo struct {
	Passive   bool       // to listen at Src, not to connect to Dst
	NoRoute   bool       // a hint: do not ask ibacm for the route
	PortSpace PortSpace  // 0 as a hint: that of TCP, or of UDP with UD
	QPType    ibv.QPType // 0 as a hint: RC, or UD with a port space of datagrams
	Src, Dst  netip.AddrPort
	Route     []byte // paths that ibacm knows, in the kernel's form, for CreateEP
	Connect   []byte // what the private data of Connect has to begin with
}

// GetAddrInfo looks up what is at a host and port, by name or number; an empty node with
// hints.Passive stands for all own addresses. It returns at least one. Names are looked up by
// package net, which gives up with ctx. If ibacm runs on this host librdmacm asks it for
// routes.
//
// Implements: rdma_getaddrinfo, rdma_freeaddrinfo
func GetAddrInfo(ctx context.Context, node, service string, hints AddrInfo) ([]AddrInfo, error) {
	const op = "rdma_getaddrinfo"
	object := net.JoinHostPort(node, service)
	fail := func(err error, reason string) ([]AddrInfo, error) {
		return nil, &ibv.OpError{Op: op, Object: object, Kind: kindOf(err), Err: err, Reason: reason}
	}
	if node == "" && !hints.Passive {
		return fail(unix.EINVAL, "no host is given, which is for hints.Passive only")
	}
	if hints.PortSpace == 0 {
		if hints.PortSpace = PortSpaceTCP; hints.QPType == ibv.QPTypeUD {
			hints.PortSpace = PortSpaceUDP
		}
	}
	network := "tcp"
	if hints.PortSpace.datagrams() {
		network = "udp"
	}
	port, err := net.DefaultResolver.LookupPort(ctx, network, service)
	if err != nil {
		return fail(err, "")
	}
	raw := ccm.AddrInfo{Flags: ccm.RAINumericHost, QPType: int32(hints.QPType), PortSpace: int32(hints.PortSpace)}
	if node != "" {
		addr, err := lookupOne(ctx, node, hints.Src.Addr())
		if err != nil {
			return fail(err, "")
		}
		node, raw.Flags = addr.String(), raw.Flags|ccm.RAIFamily
		if raw.Family = unix.AF_INET; addr.Is6() {
			raw.Family = unix.AF_INET6
		}
	}
	if hints.Passive {
		raw.Flags |= ccm.RAIPassive
	}
	if hints.NoRoute {
		raw.Flags |= ccm.RAINoRoute
	}
	if hints.Src.Addr().IsValid() {
		if raw.Src, err = toCM(hints.Src); err != nil {
			return fail(err, "")
		}
	}
	found, err := ccm.GetAddrInfo(node, strconv.Itoa(port), raw)
	if err != nil {
		return fail(err, whyNoChannel(err))
	}
	infos := make([]AddrInfo, len(found))
	for i, f := range found {
		infos[i] = AddrInfo{
			Passive:   f.Flags&ccm.RAIPassive != 0,
			PortSpace: PortSpace(f.PortSpace),
			QPType:    ibv.QPType(f.QPType),
			Src:       addrPort(f.Src),
			Dst:       addrPort(f.Dst),
			Route:     f.Route,
			Connect:   f.Connect,
		}
	}
	return infos, nil
}

// lookupOne returns an address of the host, of the family of src if that is set.
func lookupOne(ctx context.Context, node string, src netip.Addr) (netip.Addr, error) {
	network := "ip"
	if src.IsValid() {
		if network = "ip6"; src.Unmap().Is4() {
			network = "ip4"
		}
	}
	addrs, err := lookup(ctx, network, node)
	if err != nil {
		return netip.Addr{}, err
	}
	return addrs[0].Unmap(), nil
}

// endpointTimeout is what rdma_create_ep gives each step.
const endpointTimeout = 2 * time.Second

// CreateEP makes an id as far as ai says: bound to Src, to listen, or with address and route
// resolved, for CreateQP and Connect. While it waits for these the events of the id belong to
// it. Where it fails the id is closed.
//
// It stands for rdma_create_ep, whose ids have calls that wait in C.
//
// Implements: rdma_create_ep
func (c *EventChannel) CreateEP(ctx context.Context, ai AddrInfo) (*ID, error) {
	id, err := c.CreateID(ai.PortSpace)
	if err != nil {
		return nil, err
	}
	if ai.Passive {
		err = id.BindAddr(ai.Src)
	} else {
		err = id.resolve(ctx, ai)
	}
	if err != nil {
		_ = id.Close() // the first error is the one to tell
		return nil, err
	}
	return id, nil
}

func (id *ID) resolve(ctx context.Context, ai AddrInfo) error {
	err := id.ResolveAddr(ai.Src, ai.Dst, endpointTimeout)
	if err == nil {
		err = id.await(ctx, EventAddrResolved)
	}
	if err != nil {
		return err
	}
	if len(ai.Route) > 0 {
		err = id.setOption(levelIB, optionIBPath, ai.Route)
	} else {
		err = id.ResolveRoute(endpointTimeout)
	}
	if err == nil {
		err = id.await(ctx, EventRouteResolved)
	}
	return err
}

// await waits for the event, which the id's next must be.
func (id *ID) await(ctx context.Context, want EventType) error {
	e, err := id.GetEvent(ctx)
	switch {
	case err != nil:
		return err
	case e.Type == want:
		return nil
	case e.Err() != nil:
		return e.Err()
	}
	return id.s.fail("rdma_get_cm_event", unix.EPROTO, "an event that does not belong here: "+e.String())
}
