package ibv

import (
	"fmt"
	"net/netip"
)

// GID is a global identifier in network byte order: the address of a port. On
// RoCE it is the IP address of a network device, IPv4 in its IPv6-mapped form.
type GID [16]byte

// ParseGID reads a GID in any IPv6 notation: ::ffff:10.0.0.1 as well as sysfs's
// 0000:0000:0000:0000:0000:ffff:0a00:0001. For an IP address use [GIDFromAddr].
func ParseGID(s string) (GID, error) {
	addr, err := netip.ParseAddr(s)
	switch {
	case err != nil:
		return GID{}, fmt.Errorf("%.60q is not a GID: want IPv6 notation, such as fe80::1 or ::ffff:10.0.0.1", s)
	case addr.Is4():
		return GID{}, fmt.Errorf("%q is not a GID: the GID of an IPv4 address is written ::ffff:%v", s, addr)
	case addr.Zone() != "":
		return GID{}, fmt.Errorf("%.60q is not a GID: a GID has no zone", s)
	}
	return addr.As16(), nil
}

// GIDFromAddr returns the GID that RoCE gives to an IP address. It drops the
// zone; the invalid Addr gives the zero GID.
func GIDFromAddr(addr netip.Addr) GID {
	if !addr.IsValid() {
		return GID{}
	}
	return addr.As16()
}

// String returns the GID as an IPv6 address in its short form, as [netip.Addr]
// prints it: fe80::1, or ::ffff:10.0.0.1 for an IPv4 address.
func (g GID) String() string { return netip.AddrFrom16(g).String() }

// MarshalText implements [encoding.TextMarshaler] with the form of String.
func (g GID) MarshalText() ([]byte, error) { return []byte(g.String()), nil }

// UnmarshalText implements [encoding.TextUnmarshaler]; it reads what
// [ParseGID] reads.
func (g *GID) UnmarshalText(text []byte) error {
	parsed, err := ParseGID(string(text))
	if err == nil {
		*g = parsed
	}
	return err
}

// Addr returns the IP address that the GID stands for on RoCE: IPv4 if it is
// IPv4-mapped, else IPv6.
func (g GID) Addr() netip.Addr { return netip.AddrFrom16(g).Unmap() }

// IsZero reports whether all bytes are zero: an unused GID table entry.
func (g GID) IsZero() bool { return g == GID{} }

// IsIPv4Mapped reports whether the GID stands for an IPv4 address.
func (g GID) IsIPv4Mapped() bool { return g.Addr().Is4() }

// IsLinkLocal reports whether the address is link-local: within fe80::/10, or
// IPv4-mapped within 169.254.0.0/16. On RoCE such a GID reaches only peers on
// the same link. On InfiniBand it is the ordinary GID of a port.
func (g GID) IsLinkLocal() bool { return g.Addr().IsLinkLocalUnicast() }

// GIDEntry is an entry of a port's GID table.
//
// Implements: ibv_gid_entry
type GIDEntry struct {
	GID         GID
	Index       uint32 // within the table of Port; it differs from device to device
	Port        uint8  // from 1
	Type        GIDType
	NetdevIndex uint32 // interface index, 0 if there is no network device
	Netdev      string // interface name, empty if there is none or it is not known
}

// GUID is a globally unique identifier of a device or port, in host byte order.
type GUID uint64

// String returns the GUID as four groups of four hexadecimal digits.
func (g GUID) String() string {
	return fmt.Sprintf("%04x:%04x:%04x:%04x", uint16(g>>48), uint16(g>>32), uint16(g>>16), uint16(g))
}
