package ibv

import (
	"net/netip"

	"github.com/goverbs/goverbs/internal/gidchoice"
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

func (e GIDEntry) label() string { return e.plain().String() }

// plain is the entry as gidchoice has it.
func (e GIDEntry) plain() gidchoice.Entry {
	return gidchoice.Entry{
		GID: netip.AddrFrom16(e.GID), Index: e.Index, Port: e.Port, Type: gidchoice.Type(e.Type),
		NetdevIndex: e.NetdevIndex, Netdev: e.Netdev,
	}
}

// chooseGID returns the entry that suits the request best, of the active ports if one of
// those matches. If none matches, the error says of each why.
func chooseGID(entries []GIDEntry, active map[uint8]bool, req GIDRequest) (GIDChoice, error) {
	plain := make([]gidchoice.Entry, len(entries))
	for i, e := range entries {
		plain[i] = e.plain()
	}
	wanted := gidchoice.Request{Peer: req.Peer, Local: req.Local, Port: req.Port, Index: req.Index}
	if req.Type != nil {
		wanted.Type = new(gidchoice.Type(*req.Type))
	}
	choice, err := gidchoice.Choose(plain, active, wanted, gidchoice.KernelRoute)
	if err != nil {
		return GIDChoice{}, err
	}
	e := choice.Entry
	return GIDChoice{Why: choice.Why, Entry: GIDEntry{
		GID: e.GID.As16(), Index: e.Index, Port: e.Port, Type: GIDType(e.Type), NetdevIndex: e.NetdevIndex, Netdev: e.Netdev,
	}}, nil
}
