// Package gidchoice picks the GID with which to talk to a peer, and says why that one. It
// is apart from package ibv so that ibvinfo can tell the choice without libibverbs.
package gidchoice

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Type says how packets sent from a GID are encapsulated, by libibverbs' numbers.
type Type int32

const (
	IB Type = iota
	RoCEv1
	RoCEv2
)

func (t Type) String() string {
	switch t {
	case IB:
		return "IB"
	case RoCEv1:
		return "RoCE v1"
	case RoCEv2:
		return "RoCE v2"
	}
	return fmt.Sprintf("GID type %d", int32(t))
}

// Entry is an entry of a port's GID table.
type Entry struct {
	GID         netip.Addr // all 128 bits: IPv4 is mapped
	Index       uint32
	Port        uint8
	Type        Type
	NetdevIndex uint32 // 0 if not known
	Netdev      string // empty if not known
}

// Request says what a GID is wanted for, as ibv.Request does.
type Request struct {
	Peer, Local netip.Addr
	Port        uint8
	Type        *Type
	Index       *uint32
}

// Choice is an entry and the reason for taking it.
type Choice struct {
	Entry   Entry
	Why     string
	ranking ranking
	active  map[uint8]bool
}

// String tells the choice in a sentence.
func (c Choice) String() string { return c.Entry.String() + ": " + c.Why }

// String names the entry as messages do.
func (e Entry) String() string {
	what := []string{e.GID.String(), e.Type.String()}
	if e.Netdev != "" {
		what = append(what, e.Netdev)
	}
	return fmt.Sprintf("GID %d of port %d (%s)", e.Index, e.Port, strings.Join(what, ", "))
}

// addr is the IP address that the entry stands for on RoCE.
func (e Entry) addr() netip.Addr { return e.GID.Unmap() }

func (e Entry) isLinkLocal() bool { return e.addr().IsLinkLocalUnicast() }

// Route returns the own address from which packets to peer are sent.
type Route func(peer netip.Addr) (source netip.Addr, err error)

// hasAddr reports whether the entry stands for addr; where addr has a zone, on
// that network device, since several devices may share a link-local address.
func (e Entry) hasAddr(addr netip.Addr) bool {
	if e.addr() != addr.WithZone("") {
		return false
	}
	zone := addr.Zone()
	return zone == "" || zone == e.Netdev || zone == strconv.FormatUint(uint64(e.NetdevIndex), 10)
}

func (e Entry) sameNetdev(f Entry) bool {
	return e.Netdev != "" && e.Netdev == f.Netdev || e.NetdevIndex != 0 && e.NetdevIndex == f.NetdevIndex
}

// refuse says why the entry does not match the request; empty if it does.
func (r Request) refuse(e Entry) string {
	switch {
	case e.GID == netip.IPv6Unspecified():
		return "unused"
	case e.Type < IB || e.Type > RoCEv2:
		return "of unknown type"
	case r.Port != 0 && e.Port != r.Port:
		return fmt.Sprintf("not on port %d", r.Port)
	case r.Index != nil && e.Index != *r.Index:
		return fmt.Sprintf("not index %d", *r.Index)
	case r.Type != nil && e.Type != *r.Type:
		return fmt.Sprintf("not %v", *r.Type)
	case r.Local.IsValid() && !e.hasAddr(r.Local):
		return fmt.Sprintf("not %v", r.Local)
	}
	return ""
}

// Choose returns the entry that suits the request best, of the active ports if one of
// those matches. If none matches, the error says of each why. It sends nothing and is
// safe for concurrent use.
func Choose(entries []Entry, active map[uint8]bool, req Request, route Route) (Choice, error) {
	usable := slices.DeleteFunc(slices.Clone(entries), func(e Entry) bool { return !active[e.Port] })
	choice, err := choose(usable, req, route)
	if err != nil {
		choice, err = choose(entries, req, route)
	}
	choice.active = active
	return choice, err
}

// choose is Choose whatever the state of the ports.
func choose(entries []Entry, req Request, route Route) (Choice, error) {
	req.Peer, req.Local = req.Peer.Unmap(), req.Local.Unmap()
	if req.Local.IsUnspecified() {
		req.Local = netip.Addr{} // a socket bound to any address
	}
	if len(entries) == 0 {
		return Choice{}, errors.New("the GID table is empty: the port is down or its network device has no address")
	}
	var matching []Entry
	var refused []string
	for _, e := range entries {
		if why := req.refuse(e); why != "" {
			refused = append(refused, e.String()+" is "+why)
		} else {
			matching = append(matching, e)
		}
	}
	if len(matching) == 0 {
		const most = 16 // tables have up to some hundred entries
		if n := len(refused) - most; n > 0 {
			refused = append(refused[:most], fmt.Sprintf("and %d more", n))
		}
		return Choice{}, fmt.Errorf("no GID matches: %s", strings.Join(refused, "; "))
	}

	rank := ranking{req: req}
	roce := slices.ContainsFunc(matching, func(e Entry) bool { return e.Type != IB })
	if roce && req.Peer.IsValid() && !req.Local.IsValid() && req.Index == nil {
		addr, err := route(req.Peer)
		if err != nil {
			zone := ""
			if req.Peer.IsLinkLocalUnicast() && req.Peer.Zone() == "" {
				zone = " (a link-local address needs its zone, as in fe80::1%eth0)"
			}
			return Choice{}, fmt.Errorf("no route to %v%s, give a local address or a GID index instead: %w", req.Peer, zone, err)
		}
		rank.useRoute(entries, addr)
	}
	best := slices.MinFunc(matching, func(a, b Entry) int {
		return cmp.Or(
			cmp.Compare(rank.of(a), rank.of(b)),
			cmp.Compare(a.Port, b.Port),
			cmp.Compare(a.Index, b.Index),
		)
	})
	equals := 0
	for _, e := range matching {
		if rank.of(e) == rank.of(best) {
			equals++
		}
	}
	return Choice{Entry: best, Why: rank.explain(best, equals), ranking: rank}, nil
}

// rank orders entries, the best first. All of RoCE v1 comes after that.
type rank int

const (
	rankAddr       rank = iota // has the route's source address, or the local one asked for
	rankNetdev                 // routable, on the source address's network device, of the peer's family
	rankFamily                 // routable, of the peer's family; without a peer, IPv4
	rankRoutable               // routable
	rankIB                     // InfiniBand's default GID
	rankIBOther                // InfiniBand, further GIDs
	rankLinkLocal              // link-local, IPv4
	rankLinkLocal6             // link-local, IPv6
	rankRoCEv1                 // added to the rank of a RoCE v1 entry
)

// ranking is what entries are ranked by.
type ranking struct {
	req     Request
	source  netip.Addr // of the route to req.Peer, invalid if it was not asked for
	onRoute Entry      // the first entry with the source address
	found   bool       // there is one
	onHost  bool       // the source is a loopback address, which says nothing of the device
}

// useRoute ranks by the source address of the route to the peer.
func (r *ranking) useRoute(entries []Entry, source netip.Addr) {
	r.source = source
	i := slices.IndexFunc(entries, func(e Entry) bool { return e.Type != IB && e.hasAddr(source) })
	if r.found = i >= 0; r.found {
		r.onRoute = entries[i]
	}
	r.onHost = source.IsLoopback() && !r.found
}

// wantsIPv6 reports which family goes first: the GIDs of the two sides must be
// of the same.
func (r *ranking) wantsIPv6() bool { return r.req.Peer.Is6() && !r.onHost }

func (r *ranking) of(e Entry) rank {
	addr := e.addr()
	var rank rank
	switch {
	case e.Type == IB:
		if e.Index == 0 {
			return rankIB
		}
		return rankIBOther
	case r.source.IsValid() && e.hasAddr(r.source), r.req.Local.IsValid():
		rank = rankAddr
	case e.isLinkLocal() && addr.Is4():
		rank = rankLinkLocal
	case e.isLinkLocal():
		rank = rankLinkLocal6
	case addr.Is6() != r.wantsIPv6():
		rank = rankRoutable
	case r.found && e.sameNetdev(r.onRoute):
		rank = rankNetdev
	default:
		rank = rankFamily
	}
	if e.Type == RoCEv1 {
		rank += rankRoCEv1
	}
	return rank
}

// explain says why e, one of the given number of entries with the best rank.
func (r *ranking) explain(e Entry, equals int) string {
	var why string
	var warnings []string
	switch r.of(e) % rankRoCEv1 {
	case rankAddr:
		why = fmt.Sprintf("its address is the route's source address to %v", r.req.Peer)
		if r.req.Local.IsValid() {
			why = "its address is the local address asked for"
		}
	case rankNetdev:
		why = fmt.Sprintf("it is on the network device of %v, the route's source address to %v", r.source, r.req.Peer)
	case rankIB:
		why = "it is the port's default GID; packets to the same subnet are routed by LID"
	case rankIBOther:
		why = "it is a further GID of the port"
	case rankLinkLocal, rankLinkLocal6:
		why = "none has a routable address"
	default:
		why = "its address is routable"
	}
	if r.req.Index != nil {
		why = "its index is the one asked for"
	}
	if r.onHost {
		why += fmt.Sprintf("; %v is this host, which every GID of the device reaches", r.req.Peer)
	}

	if e.Type == RoCEv1 {
		warnings = append(warnings, "RoCE v1 does not cross routers, and the peer must use RoCE v1 too")
	}
	if e.Type != IB && e.isLinkLocal() {
		warnings = append(warnings, "a link-local address reaches peers on the same link only, others end in retry-exceeded errors")
	}
	if rank := r.of(e) % rankRoCEv1; r.source.IsValid() && !r.onHost && rank != rankAddr && rank != rankNetdev {
		owner := "which no GID has"
		if r.found {
			owner = "that of " + r.onRoute.String()
		}
		warnings = append(warnings, fmt.Sprintf("the route's source address to %v is %v, %s: give the local address unless the peer is reached from this one too",
			r.req.Peer, r.source, owner))
	}
	if equals > 1 {
		warnings = append(warnings, fmt.Sprintf("it is the first of %d that fit equally: give the port or the local address to choose", equals))
	}
	sentence := fmt.Sprintf("%v, and %s", e.Type, why)
	if len(warnings) > 0 {
		sentence += "; warning: " + strings.Join(warnings, "; ")
	}
	return sentence
}

// WhyNot says why e, of the entries that were chosen from, is not the choice: what is
// better about that one. It is empty for the choice itself.
func (c Choice) WhyNot(e Entry) string {
	if e == c.Entry {
		return ""
	}
	r := &c.ranking
	if why := r.req.refuse(e); why != "" {
		return "it is " + why
	}
	if c.active[c.Entry.Port] && !c.active[e.Port] {
		return "its port is not active"
	}
	mine, best := r.of(e), r.of(c.Entry)
	switch {
	case mine == best:
		return "it fits equally; the lower port and index goes first"
	case mine >= rankRoCEv1 && best < rankRoCEv1:
		return "RoCE v1 does not cross routers"
	}
	mine %= rankRoCEv1
	switch {
	case mine == rankIBOther:
		return "the port's first GID goes first"
	case mine == rankIB || e.Type == IB:
		return "it is of InfiniBand, and the peer's address is on RoCE"
	case mine >= rankLinkLocal && best%rankRoCEv1 < rankIB:
		return "link-local: it reaches peers on the same link only"
	case best%rankRoCEv1 == rankAddr:
		return fmt.Sprintf("the route's source address to %v is %v", r.req.Peer, r.source)
	case mine == rankRoutable:
		return "the peer's address is of the other IP version"
	case best%rankRoCEv1 == rankNetdev:
		return fmt.Sprintf("it is not on the network device of %v, the route's source address", r.source)
	}
	return "it ranks lower"
}

// rocePort is the UDP destination port of RoCE v2, for policy routes that look
// at it.
const rocePort = 4791

// KernelRoute is the Route of the kernel: the address of a connected UDP socket, which
// sends no packet.
func KernelRoute(peer netip.Addr) (netip.Addr, error) {
	conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(peer, rocePort)))
	if err != nil {
		return netip.Addr{}, err
	}
	defer conn.Close()
	return conn.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap(), nil
}
