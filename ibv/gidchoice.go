package ibv

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

// GIDRequest says what a GID is wanted for. The zero value asks for the best of
// all ports. Of the fields that are set, Peer only ranks the GIDs, but there must be
// a route to it; the others exclude those that do not match.
type GIDRequest struct {
	// Peer is the address that will be talked to. The GID with the source
	// address of the kernel's route to it comes first. An address of this very
	// host is fine, 127.0.0.1 too.
	Peer netip.Addr
	// Local is the own IP address to use. It makes Peer's route irrelevant.
	Local netip.Addr
	// Port is the port to use, from 1; 0 for any.
	Port uint8
	// Type is the type to use; nil ranks RoCE v2 first and RoCE v1 last.
	Type *GIDType
	// Index is the index in the port's table to use; nil for the best.
	Index *uint32
}

// GIDChoice is a GID table entry and the reason for taking it.
type GIDChoice struct {
	Entry GIDEntry
	// Why gives the reason in words, and what is doubtful about the choice after
	// the word "warning".
	Why string
}

// String tells the choice in a sentence, such as
//
//	GID 1 of port 1 (::ffff:10.0.0.1, RoCE v2, eth0): RoCE v2, and its address is the route's source address to 10.0.0.2
func (c GIDChoice) String() string { return c.Entry.label() + ": " + c.Why }

func (e GIDEntry) label() string {
	what := []string{e.GID.String(), e.Type.String()}
	if e.Netdev != "" {
		what = append(what, e.Netdev)
	}
	return fmt.Sprintf("GID %d of port %d (%s)", e.Index, e.Port, strings.Join(what, ", "))
}

// hasAddr reports whether the entry stands for addr; where addr has a zone, on
// that network device, since several devices may share a link-local address.
func (e GIDEntry) hasAddr(addr netip.Addr) bool {
	if e.GID.Addr() != addr.WithZone("") {
		return false
	}
	zone := addr.Zone()
	return zone == "" || zone == e.Netdev || zone == strconv.FormatUint(uint64(e.NetdevIndex), 10)
}

func (e GIDEntry) sameNetdev(f GIDEntry) bool {
	return e.Netdev != "" && e.Netdev == f.Netdev || e.NetdevIndex != 0 && e.NetdevIndex == f.NetdevIndex
}

// refuse says why the entry does not match the request; empty if it does.
func (r GIDRequest) refuse(e GIDEntry) string {
	switch {
	case e.GID.IsZero():
		return "unused"
	case e.Type < GIDTypeIB || e.Type > GIDTypeRoCEv2:
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

// chooseGID returns the entry that suits the request best. If none matches, the
// error says of each why. It sends nothing and is safe for concurrent use.
func chooseGID(entries []GIDEntry, req GIDRequest) (GIDChoice, error) {
	return chooseGIDByRoute(entries, req, sourceFor)
}

// chooseGIDOfPorts is chooseGID that prefers active ports.
func chooseGIDOfPorts(entries []GIDEntry, active map[uint8]bool, req GIDRequest) (GIDChoice, error) {
	usable := slices.DeleteFunc(slices.Clone(entries), func(e GIDEntry) bool { return !active[e.Port] })
	if choice, err := chooseGID(usable, req); err == nil {
		return choice, nil
	}
	return chooseGID(entries, req)
}

// chooseGIDByRoute is chooseGID with the kernel's routes as a parameter.
func chooseGIDByRoute(entries []GIDEntry, req GIDRequest, source func(netip.Addr) (netip.Addr, error)) (GIDChoice, error) {
	req.Peer, req.Local = req.Peer.Unmap(), req.Local.Unmap()
	if req.Local.IsUnspecified() {
		req.Local = netip.Addr{} // a socket bound to any address
	}
	if len(entries) == 0 {
		return GIDChoice{}, errors.New("the GID table is empty: the port is down or its network device has no address")
	}
	var matching []GIDEntry
	var refused []string
	for _, e := range entries {
		if why := req.refuse(e); why != "" {
			refused = append(refused, e.label()+" is "+why)
		} else {
			matching = append(matching, e)
		}
	}
	if len(matching) == 0 {
		const most = 16 // tables have up to some hundred entries
		if n := len(refused) - most; n > 0 {
			refused = append(refused[:most], fmt.Sprintf("and %d more", n))
		}
		return GIDChoice{}, fmt.Errorf("no GID matches: %s", strings.Join(refused, "; "))
	}

	ranking := gidRanking{req: req}
	roce := slices.ContainsFunc(matching, func(e GIDEntry) bool { return e.Type != GIDTypeIB })
	if roce && req.Peer.IsValid() && !req.Local.IsValid() && req.Index == nil {
		addr, err := source(req.Peer)
		if err != nil {
			zone := ""
			if req.Peer.IsLinkLocalUnicast() && req.Peer.Zone() == "" {
				zone = " (a link-local address needs its zone, as in fe80::1%eth0)"
			}
			return GIDChoice{}, fmt.Errorf("no route to %v%s, give a local address or a GID index instead: %w", req.Peer, zone, err)
		}
		ranking.useRoute(entries, addr)
	}
	best := slices.MinFunc(matching, func(a, b GIDEntry) int {
		return cmp.Or(
			cmp.Compare(ranking.of(a), ranking.of(b)),
			cmp.Compare(a.Port, b.Port),
			cmp.Compare(a.Index, b.Index),
		)
	})
	equals := 0
	for _, e := range matching {
		if ranking.of(e) == ranking.of(best) {
			equals++
		}
	}
	return GIDChoice{Entry: best, Why: ranking.explain(best, equals)}, nil
}

// gidRank orders entries, the best first. All of RoCE v1 comes after that.
type gidRank int

const (
	rankAddr       gidRank = iota // has the route's source address, or the local one asked for
	rankNetdev                    // routable, on the source address's network device, of the peer's family
	rankFamily                    // routable, of the peer's family; without a peer, IPv4
	rankRoutable                  // routable
	rankIB                        // InfiniBand's default GID
	rankIBOther                   // InfiniBand, further GIDs
	rankLinkLocal                 // link-local, IPv4
	rankLinkLocal6                // link-local, IPv6
	rankRoCEv1                    // added to the rank of a RoCE v1 entry
)

// gidRanking is what entries are ranked by.
type gidRanking struct {
	req     GIDRequest
	source  netip.Addr // of the route to req.Peer, invalid if it was not asked for
	onRoute GIDEntry   // the first entry with the source address
	found   bool       // there is one
	onHost  bool       // the source is a loopback address, which says nothing of the device
}

// useRoute ranks by the source address of the route to the peer.
func (r *gidRanking) useRoute(entries []GIDEntry, source netip.Addr) {
	r.source = source
	i := slices.IndexFunc(entries, func(e GIDEntry) bool { return e.Type != GIDTypeIB && e.hasAddr(source) })
	if r.found = i >= 0; r.found {
		r.onRoute = entries[i]
	}
	r.onHost = source.IsLoopback() && !r.found
}

// wantsIPv6 reports which family goes first: the GIDs of the two sides must be
// of the same.
func (r *gidRanking) wantsIPv6() bool { return r.req.Peer.Is6() && !r.onHost }

func (r *gidRanking) of(e GIDEntry) gidRank {
	addr := e.GID.Addr()
	var rank gidRank
	switch {
	case e.Type == GIDTypeIB:
		if e.Index == 0 {
			return rankIB
		}
		return rankIBOther
	case r.source.IsValid() && e.hasAddr(r.source), r.req.Local.IsValid():
		rank = rankAddr
	case e.GID.IsLinkLocal() && addr.Is4():
		rank = rankLinkLocal
	case e.GID.IsLinkLocal():
		rank = rankLinkLocal6
	case addr.Is6() != r.wantsIPv6():
		rank = rankRoutable
	case r.found && e.sameNetdev(r.onRoute):
		rank = rankNetdev
	default:
		rank = rankFamily
	}
	if e.Type == GIDTypeRoCEv1 {
		rank += rankRoCEv1
	}
	return rank
}

// explain says why e, one of the given number of entries with the best rank.
func (r *gidRanking) explain(e GIDEntry, equals int) string {
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

	if e.Type == GIDTypeRoCEv1 {
		warnings = append(warnings, "RoCE v1 does not cross routers, and the peer must use RoCE v1 too")
	}
	if e.Type != GIDTypeIB && e.GID.IsLinkLocal() {
		warnings = append(warnings, "a link-local address reaches peers on the same link only, others end in retry-exceeded errors")
	}
	if rank := r.of(e) % rankRoCEv1; r.source.IsValid() && !r.onHost && rank != rankAddr && rank != rankNetdev {
		owner := "which no GID has"
		if r.found {
			owner = "that of " + r.onRoute.label()
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

// rocePort is the UDP destination port of RoCE v2, for policy routes that look
// at it.
const rocePort = 4791

// sourceFor returns the own address from which the kernel would talk to peer:
// that of a connected UDP socket, which sends no packet.
func sourceFor(peer netip.Addr) (netip.Addr, error) {
	conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(peer, rocePort)))
	if err != nil {
		return netip.Addr{}, err
	}
	defer conn.Close()
	return conn.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap(), nil
}
