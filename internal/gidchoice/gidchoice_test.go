package gidchoice

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// gidTable reads a table with an entry a line: port, index, GID, type, netdev.
func gidTable(t *testing.T, text string) (entries []Entry) {
	t.Helper()
	types := map[string]Type{"ib": IB, "v1": RoCEv1, "v2": RoCEv2}
	for line := range strings.Lines(strings.TrimSpace(text)) {
		if strings.TrimSpace(line) == "" {
			continue
		}
		var e Entry
		var gid, kind string
		_, err := fmt.Sscan(line+" -", &e.Port, &e.Index, &gid, &kind, &e.Netdev)
		require.NoError(t, err, line)
		require.Contains(t, types, kind)
		e.Netdev = strings.TrimPrefix(e.Netdev, "-")
		e.GID, e.Type = gidOf(t, gid), types[kind]
		entries = append(entries, e)
	}
	return entries
}

func gidOf(t *testing.T, text string) netip.Addr {
	t.Helper()
	addr, err := netip.ParseAddr(text)
	require.NoError(t, err)
	return addr
}

// The tables are modelled after real devices.
const (
	// A NIC with link-local, IPv4 and IPv6 addresses, each as v1 and as v2.
	nicTable = `
		1 0 fe80::1 v1 eth0
		1 1 fe80::1 v2 eth0
		1 2 ::ffff:10.0.0.1 v1 eth0
		1 3 ::ffff:10.0.0.1 v2 eth0
		1 4 2001:db8::1 v1 eth0
		1 5 2001:db8::1 v2 eth0`
	// A soft device: its indices differ.
	softTable = `
		1 0 fe80::2 v2 dummy0
		1 1 ::ffff:10.0.0.1 v2 dummy0`
	// Link-local at indices 0 and 1, a private network behind them, and two VLANs
	// with the parent's link-local address.
	vlanTable = `
		1 0 fe80::1 v2 eth0
		1 1 fe80::1 v2 eth0.7
		1 2 ::ffff:10.0.7.1 v1 eth0.7
		1 3 ::ffff:10.0.8.1 v1 eth0.8
		1 4 ::ffff:10.0.8.1 v2 eth0.8
		1 5 ::ffff:10.0.7.1 v2 eth0.7
		1 6 ::ffff:10.0.7.2 v2 eth0.7
		1 7 2001:db8:7::1 v2 eth0.7`
	// One address a port.
	twoPortTable = `
		1 0 fe80::1 v2 eth0
		1 1 ::ffff:10.0.0.1 v2 eth0
		2 0 fe80::2 v2 eth1
		2 1 ::ffff:10.1.0.1 v2 eth1`
	v1Table = `
		1 0 fe80::1 v1 eth0
		1 1 ::ffff:10.0.0.1 v1 eth0`
	linkLocalTable = `
		1 0 fe80::1 v1 eth0
		1 1 fe80::1 v2 eth0
		1 2 ::ffff:169.254.1.1 v2 eth0`
	ibTable = `
		1 0 fe80::f452:1403:7b:cba1 ib
		1 1 fe80::f452:1403:7b:cba2 ib`
	mixedTable = `
		1 0 fe80::f452:1403:7b:cba1 ib
		2 0 fe80::1 v1 eth0
		2 1 fe80::1 v2 eth0
		2 2 ::ffff:10.0.0.1 v2 eth0`
)

// routes answers as the kernel of a host with the addresses of the tables, and
// with a management network that no RDMA device is on.
func routes(peer netip.Addr) (netip.Addr, error) {
	source, ok := map[string]string{
		"10.0.0.2":       "10.0.0.1",
		"10.0.0.1":       "10.0.0.1", // own address
		"10.1.0.2":       "10.1.0.1",
		"10.0.7.9":       "10.0.7.1",
		"10.0.8.9":       "10.0.8.1",
		"2001:db8::2":    "2001:db8::1",
		"2001:db8::1":    "2001:db8::1",
		"fe80::9%eth0":   "fe80::1%eth0",
		"fe80::9%eth0.7": "fe80::1%eth0.7",
		"192.168.1.2":    "192.168.1.1",
		"2001:db8:1::2":  "2001:db8:1::1",
		"169.254.1.2":    "169.254.1.1",
		"127.0.0.1":      "127.0.0.1",
		"::1":            "::1",
	}[peer.String()]
	if !ok {
		return netip.Addr{}, syscall.ENETUNREACH
	}
	return netip.MustParseAddr(source), nil
}

func TestChoose(t *testing.T) {
	const (
		onRoute   = "its address is the route's source address to "
		routable  = "its address is routable"
		linkLocal = "warning: a link-local address reaches peers on the same link only"
		ambiguous = "equally: give the port or the local address"
	)
	for _, test := range []struct {
		name, table string
		req         Request
		peer, local string
		port        uint8
		index       uint32
		why         []string
		not         string
	}{
		{name: "the route decides", table: nicTable, peer: "10.0.0.2", port: 1, index: 3, why: []string{"RoCE v2, and " + onRoute + "10.0.0.2"}, not: "warning"},
		{name: "another device, another index", table: softTable, peer: "10.0.0.2", port: 1, index: 1, why: []string{onRoute}, not: "warning"},
		{name: "an IPv4 peer as a socket gives it", table: nicTable, peer: "::ffff:10.0.0.2", port: 1, index: 3, why: []string{onRoute + "10.0.0.2"}},
		{name: "IPv6 peer", table: nicTable, peer: "2001:db8::2", port: 1, index: 5, why: []string{onRoute}, not: "warning"},
		{name: "no peer", table: nicTable, port: 1, index: 3, why: []string{routable}, not: "warning"},
		{name: "no peer on a soft device", table: softTable, port: 1, index: 1, why: []string{routable}, not: "warning"},
		{name: "own address as peer", table: nicTable, peer: "10.0.0.1", port: 1, index: 3, why: []string{onRoute}, not: "warning"},
		{name: "own IPv6 address as peer", table: nicTable, peer: "2001:db8::1", port: 1, index: 5, why: []string{onRoute}, not: "warning"},
		{name: "loopback peer", table: softTable, peer: "127.0.0.1", port: 1, index: 1, why: []string{routable, "127.0.0.1 is this host"}, not: "warning"},
		{name: "IPv6 loopback peer", table: nicTable, peer: "::1", port: 1, index: 3, why: []string{routable, "::1 is this host"}, not: "warning"},
		{name: "loopback has a GID", table: softTable + "\n1 2 ::ffff:127.0.0.1 v2 lo", peer: "127.0.0.1", port: 1, index: 2, why: []string{onRoute}, not: "is this host"},

		{name: "VLAN", table: vlanTable, peer: "10.0.7.9", port: 1, index: 5, why: []string{onRoute}, not: "warning"},
		{name: "other VLAN", table: vlanTable, peer: "10.0.8.9", port: 1, index: 4, why: []string{onRoute}, not: "warning"},
		{name: "link-local peer on the parent", table: vlanTable, peer: "fe80::9%eth0", port: 1, index: 0, why: []string{onRoute + "fe80::9%eth0", linkLocal}},
		{name: "link-local peer on a VLAN", table: vlanTable, peer: "fe80::9%eth0.7", port: 1, index: 1, why: []string{onRoute, linkLocal}},
		{name: "several networks and no peer", table: vlanTable, port: 1, index: 4, why: []string{routable, "first of 3 that fit " + ambiguous}},
		{name: "no v2 of the source address", table: strings.Replace(vlanTable, "1 5 ::ffff:10.0.7.1 v2 eth0.7", "", 1), peer: "10.0.7.9", port: 1, index: 6,
			why: []string{"it is on the network device of 10.0.7.1, the route's source address to 10.0.7.9"}, not: "warning"},

		{name: "first port", table: twoPortTable, peer: "10.0.0.2", port: 1, index: 1, why: []string{onRoute}, not: "warning"},
		{name: "second port", table: twoPortTable, peer: "10.1.0.2", port: 2, index: 1, why: []string{onRoute}, not: "warning"},
		{name: "any port", table: twoPortTable, port: 1, index: 1, why: []string{"first of 2 that fit " + ambiguous}},
		{name: "port asked for", table: twoPortTable, req: Request{Port: 2}, port: 2, index: 1, why: []string{routable}, not: "warning"},
		{name: "port asked for is not the route's", table: twoPortTable, req: Request{Port: 2}, peer: "10.0.0.2", port: 2, index: 1,
			why: []string{"warning: the route's source address to 10.0.0.2 is 10.0.0.1, that of GID 1 of port 1 (::ffff:10.0.0.1, RoCE v2, eth0)"}},

		{name: "peer on a management network", table: nicTable, peer: "192.168.1.2", port: 1, index: 3,
			why: []string{routable, "warning: the route's source address to 192.168.1.2 is 192.168.1.1, which no GID has: give the local address"}},
		{name: "IPv6 peer on a management network", table: nicTable, peer: "2001:db8:1::2", port: 1, index: 5, why: []string{routable, "which no GID has"}},
		{name: "IPv6 peer without IPv6 GIDs", table: softTable, peer: "2001:db8:1::2", port: 1, index: 1, why: []string{"which no GID has"}},

		{name: "only v1", table: v1Table, peer: "10.0.0.2", port: 1, index: 1, why: []string{"RoCE v1, and " + onRoute, "warning: RoCE v1 does not cross routers"}},
		{name: "only v1, no peer", table: v1Table, port: 1, index: 1, why: []string{routable, "warning: RoCE v1 does not"}},
		{name: "v1 asked for", table: nicTable, req: Request{Type: new(RoCEv1)}, peer: "10.0.0.2", port: 1, index: 2, why: []string{onRoute, "warning: RoCE v1 does not"}},
		{name: "only link-local", table: linkLocalTable, port: 1, index: 2, why: []string{"none has a routable address", linkLocal}},
		{name: "IPv4 link-local peer", table: linkLocalTable, peer: "169.254.1.2", port: 1, index: 2, why: []string{onRoute, linkLocal}},
		{name: "v2 link-local before v1", table: linkLocalTable, peer: "fe80::9%eth0", port: 1, index: 1, why: []string{onRoute, linkLocal}},

		{name: "local address", table: nicTable, local: "2001:db8::1", port: 1, index: 5, why: []string{"RoCE v2, and its address is the local address asked for"}, not: "warning"},
		{name: "local address, no route", table: nicTable, local: "10.0.0.1", peer: "203.0.113.1", port: 1, index: 3, why: []string{"local address asked for"}, not: "warning"},
		{name: "local address with a zone", table: vlanTable, local: "fe80::1%eth0.7", port: 1, index: 1, why: []string{"local address", linkLocal}},
		{name: "any local address", table: nicTable, local: "::", peer: "10.0.0.2", port: 1, index: 3, why: []string{onRoute}},
		{name: "any local IPv4 address", table: nicTable, local: "0.0.0.0", port: 1, index: 3, why: []string{routable}},

		{name: "index", table: nicTable, req: Request{Index: new(uint32(5))}, peer: "10.0.0.2", port: 1, index: 5, why: []string{"its index is the one asked for"}, not: "warning"},
		{name: "index that is link-local", table: nicTable, req: Request{Index: new(uint32(1))}, peer: "10.0.0.2", port: 1, index: 1, why: []string{"asked for", linkLocal}},
		{name: "index that is v1", table: nicTable, req: Request{Index: new(uint32(2))}, peer: "203.0.113.1", port: 1, index: 2, why: []string{"asked for", "RoCE v1"}},
		{name: "index on two ports", table: twoPortTable, req: Request{Index: new(uint32(1))}, port: 1, index: 1, why: []string{"first of 2"}},

		{name: "InfiniBand", table: ibTable, port: 1, index: 0, why: []string{"IB, and it is the port's default GID; packets to the same subnet are routed by LID"}, not: "warning"},
		{name: "InfiniBand has no route to ask for", table: ibTable, peer: "203.0.113.1", port: 1, index: 0, why: []string{"routed by LID"}, not: "warning"},
		{name: "InfiniBand, further GID", table: ibTable, req: Request{Index: new(uint32(1))}, port: 1, index: 1, why: []string{"asked for"}, not: "warning"},
		{name: "both kinds of port", table: mixedTable, peer: "10.0.0.2", port: 2, index: 2, why: []string{onRoute}, not: "warning"},
		{name: "the InfiniBand one of both", table: mixedTable, req: Request{Port: 1}, peer: "10.0.0.2", port: 1, index: 0, why: []string{"LID"}, not: "warning"},
		{name: "InfiniBand asked for", table: mixedTable, req: Request{Type: new(IB)}, peer: "203.0.113.1", port: 1, index: 0, why: []string{"LID"}},
		{name: "InfiniBand before link-local RoCE", table: strings.Replace(mixedTable, "2 2 ::ffff:10.0.0.1 v2 eth0", "", 1), port: 1, index: 0, why: []string{"LID"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			req := test.req
			if test.peer != "" {
				req.Peer = netip.MustParseAddr(test.peer)
			}
			if test.local != "" {
				req.Local = netip.MustParseAddr(test.local)
			}
			table := gidTable(t, test.table)
			choice, err := choose(table, req, routes)
			require.NoError(t, err)
			assert.Equal(t, [2]uint32{uint32(test.port), test.index}, [2]uint32{uint32(choice.Entry.Port), choice.Entry.Index}, choice)
			for _, why := range test.why {
				assert.Contains(t, choice.Why, why)
			}
			if test.not != "" {
				assert.NotContains(t, choice.Why, test.not)
			}
			assert.NotContains(t, choice.String(), "\n")

			// The order of the table does not matter.
			slices.Reverse(table)
			again, err := choose(table, req, routes)
			require.NoError(t, err)
			assert.Equal(t, choice.Entry, again.Entry)
		})
	}
}

func TestSentence(t *testing.T) {
	choice, err := choose(gidTable(t, softTable), Request{Peer: netip.MustParseAddr("10.0.0.2")}, routes)
	require.NoError(t, err)
	assert.Equal(t, "GID 1 of port 1 (::ffff:10.0.0.1, RoCE v2, dummy0): RoCE v2, and its address is the route's source address to 10.0.0.2",
		choice.String())
}

func TestRefused(t *testing.T) {
	nic := gidTable(t, nicTable)
	for _, test := range []struct {
		name    string
		entries []Entry
		req     Request
		want    []string
	}{
		{"empty table", nil, Request{}, []string{"the GID table is empty: the port is down or its network device has no address"}},
		{"local address", nic, Request{Local: netip.MustParseAddr("10.9.9.9")}, []string{
			"no GID matches: GID 0 of port 1 (fe80::1, RoCE v1, eth0) is not 10.9.9.9; ", "GID 5 of port 1 (2001:db8::1, RoCE v2, eth0) is not 10.9.9.9",
		}},
		{"local address on another device", nic, Request{Local: netip.MustParseAddr("fe80::1%eth1")}, []string{"is not fe80::1%eth1"}},
		{"index", nic, Request{Index: new(uint32(9))}, []string{"is not index 9"}},
		{"index of another type", nic, Request{Index: new(uint32(2)), Type: new(RoCEv2)}, []string{
			"(fe80::1, RoCE v1, eth0) is not index 2", "(::ffff:10.0.0.1, RoCE v1, eth0) is not RoCE v2",
		}},
		{"port", nic, Request{Port: 2}, []string{"is not on port 2"}},
		{"type", gidTable(t, ibTable), Request{Type: new(RoCEv2)}, []string{"GID 0 of port 1 (fe80::f452:1403:7b:cba1, IB) is not RoCE v2"}},
		{"unused entry", []Entry{{Port: 1, Type: RoCEv2, GID: netip.IPv6Unspecified()}}, Request{}, []string{"GID 0 of port 1 (::, RoCE v2) is unused"}},
		{"unknown type", []Entry{{Port: 1, Type: 9, GID: netip.MustParseAddr("100::")}}, Request{}, []string{"is of unknown type"}},
		{"large table", slices.Repeat([]Entry{{GID: netip.IPv6Unspecified()}}, 256), Request{}, []string{"; and 240 more"}},
		{"no route", nic, Request{Peer: netip.MustParseAddr("203.0.113.1")}, []string{"no route to 203.0.113.1, give a local address or a GID index instead: "}},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := choose(test.entries, test.req, routes)
			require.Error(t, err)
			for _, want := range test.want {
				assert.ErrorContains(t, err, want)
			}
			assert.NotContains(t, err.Error(), "\n")
		})
	}
	_, err := choose(nic, Request{Peer: netip.MustParseAddr("203.0.113.1")}, routes)
	assert.True(t, errors.Is(err, syscall.ENETUNREACH), "the cause can be told")
}

// The kernel of this host is asked: its loopback address is there in any case.
func TestKernelRoute(t *testing.T) {
	source, err := KernelRoute(netip.MustParseAddr("127.0.0.1"))
	require.NoError(t, err)
	assert.Equal(t, netip.MustParseAddr("127.0.0.1"), source)

	choice, err := choose(gidTable(t, softTable), Request{Peer: netip.MustParseAddr("127.0.0.1")}, KernelRoute)
	require.NoError(t, err)
	assert.Equal(t, uint32(1), choice.Entry.Index)
}

func TestActivePortsComeFirst(t *testing.T) {
	entries := []Entry{
		{Port: 1, Type: IB, GID: netip.MustParseAddr("fe80::1")},
		{Port: 2, Type: IB, GID: netip.MustParseAddr("fe80::2")},
	}
	for name, tc := range map[string]struct {
		active map[uint8]bool
		req    Request
		port   uint8
	}{
		"both":           {map[uint8]bool{1: true, 2: true}, Request{}, 1},
		"the second":     {map[uint8]bool{2: true}, Request{}, 2},
		"none":           {nil, Request{}, 1},
		"the other port": {map[uint8]bool{2: true}, Request{Port: 1}, 1},
	} {
		choice, err := Choose(entries, tc.active, tc.req, routes)
		require.NoError(t, err, name)
		assert.Equal(t, tc.port, choice.Entry.Port, name)
	}
}

func TestWhyNot(t *testing.T) {
	const (
		equal     = "it fits equally; the lower port and index goes first"
		v1        = "RoCE v1 does not cross routers"
		linkLocal = "link-local: it reaches peers on the same link only"
		family    = "the peer's address is of the other IP version"
	)
	source := func(peer, source string) string {
		return "the route's source address to " + peer + " is " + source
	}
	for _, tt := range []struct {
		name, table string
		peer        string
		req         Request
		down        uint8
		want        []string // of each entry; empty for the choice
	}{
		{"route", nicTable, "10.0.0.2", Request{}, 0, []string{v1, linkLocal, v1, "", v1, source("10.0.0.2", "10.0.0.1")}},
		{"IPv6 through another network", nicTable, "2001:db8:1::2", Request{}, 0, []string{v1, linkLocal, v1, family, v1, ""}},
		{"only v1", v1Table, "10.0.0.2", Request{}, 0, []string{linkLocal, ""}},
		{"asked for", nicTable, "10.0.0.2", Request{Type: new(RoCEv1)}, 0, []string{
			linkLocal, "it is not RoCE v1", "", "it is not RoCE v1", source("10.0.0.2", "10.0.0.1"), "it is not RoCE v1",
		}},
		{"network device", `
			1 0 ::ffff:10.0.0.1 v1 eth0
			1 1 ::ffff:10.0.0.7 v2 eth0
			1 2 ::ffff:10.0.8.1 v2 eth0.8`, "10.0.0.2", Request{}, 0, []string{
			v1, "", "it is not on the network device of 10.0.0.1, the route's source address",
		}},
		{"equal", twoPortTable, "", Request{}, 0, []string{linkLocal, "", linkLocal, equal}},
		{"port down", twoPortTable, "10.0.0.2", Request{}, 1, []string{"its port is not active", "its port is not active", linkLocal, ""}},
		{"InfiniBand", ibTable, "", Request{}, 0, []string{"", "the port's first GID goes first"}},
		{"both", mixedTable, "10.0.0.2", Request{}, 0, []string{"it is of InfiniBand, and the peer's address is on RoCE", v1, linkLocal, ""}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.peer != "" {
				tt.req.Peer = netip.MustParseAddr(tt.peer)
			}
			entries := gidTable(t, tt.table)
			active := map[uint8]bool{1: tt.down != 1, 2: tt.down != 2}
			choice, err := Choose(entries, active, tt.req, routes)
			require.NoError(t, err)
			var got []string
			for _, e := range entries {
				got = append(got, choice.WhyNot(e))
			}
			assert.Equal(t, tt.want, got)
		})
	}
}
