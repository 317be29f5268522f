package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"time"

	"github.com/goverbs/goverbs/internal/gidchoice"
	"github.com/goverbs/goverbs/internal/sysfs"
)

// gids is the command of that name.
func (r *reply) gids(opts options) {
	devices, ok := r.devices(opts, false)
	if !ok {
		return
	}
	r.doc.Devices = describeAll(devices)
	if opts.peer != "" {
		r.choose(devices, opts)
		return
	}
	if r.json {
		return
	}
	t := newTable(r.out, "DEVICE", "PORT", "INDEX", "GID", "IP", "TYPE", "NETDEV")
	for _, d := range devices {
		for _, p := range d.Ports {
			for _, g := range p.GIDs {
				t.row(d.Name, strconv.Itoa(p.Number), strconv.Itoa(g.Index), g.String(), ipText(g), string(g.Type), g.Netdev)
			}
		}
	}
	t.flush()
}

// choose says of each device which GID the library would choose to reach the peer.
func (r *reply) choose(devices []sysfs.Device, opts options) {
	peer, err := resolve(r.ctx, opts.peer)
	if err != nil {
		r.fail(exitFailure, err)
		return
	}
	between := ""
	for _, d := range devices {
		c := choiceOf(d, uint8(opts.port), peer, r.host.route)
		r.doc.Choices = append(r.doc.Choices, c)
		if c.Error != "" {
			r.fail(exitFailure, errors.New(c.Error))
			continue
		}
		r.printf("%s", between)
		between = "\n"
		r.printChoice(d, c)
	}
}

// resolve returns the address of a host. Of several the first is what a program connects to.
func resolve(ctx context.Context, name string) (netip.Addr, error) {
	if addr, err := netip.ParseAddr(name); err == nil {
		return addr, nil
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", name)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("--for %s is neither an IP address nor a host that can be found: %w", name, err)
	}
	return addrs[0].Unmap(), nil
}

func choiceOf(d sysfs.Device, port uint8, peer netip.Addr, route gidchoice.Route) choice {
	c := choice{Device: d.Name, For: peer.String()}
	var entries []gidchoice.Entry
	active := map[uint8]bool{}
	for _, p := range d.Ports {
		if p.Transport == sysfs.IWARP {
			c.Error = d.Name + " is iWARP, which has no GIDs to choose from: connect with the connection manager (rdmacm)"
			return c
		}
		active[uint8(p.Number)] = p.State.Code == portActive
		for _, g := range p.GIDs {
			entries = append(entries, gidchoice.Entry{
				GID: g.Addr, Index: uint32(g.Index), Port: uint8(p.Number), Type: gidTypes[g.Type], Netdev: g.Netdev,
			})
		}
	}
	chosen, err := gidchoice.Choose(entries, active, gidchoice.Request{Peer: peer, Port: port}, route)
	if err != nil {
		c.Error = fmt.Sprintf("%s: %v", d.Name, err)
		return c
	}
	for _, e := range entries {
		v := verdict{Port: e.Port, Index: e.Index, GID: e.GID.StringExpanded(), Why: chosen.WhyNot(e)}
		if e == chosen.Entry {
			v.Why = chosen.Why
			if !active[e.Port] {
				v.Why += "; warning: its port is not active"
			}
			c.Chosen = &v
		} else {
			c.Others = append(c.Others, v)
		}
	}
	return c
}

// portActive is the state of a port that can be used.
const portActive = 4

var gidTypes = map[sysfs.GIDType]gidchoice.Type{
	"":                  -1, // it could not be read
	sysfs.GIDInfiniBand: gidchoice.IB,
	sysfs.GIDRoCEv1:     gidchoice.RoCEv1,
	sysfs.GIDRoCEv2:     gidchoice.RoCEv2,
}

func (r *reply) printChoice(d sysfs.Device, c choice) {
	if r.json {
		return
	}
	fmt.Fprintf(r.out, "%s to %s: GID %d of port %d: %s\n\n", c.Device, c.For, c.Chosen.Index, c.Chosen.Port, c.Chosen.Why)
	why := map[[2]int]string{}
	for _, o := range c.Others {
		why[[2]int{int(o.Port), int(o.Index)}] = o.Why
	}
	t := newTable(r.out, "CHOICE", "PORT", "INDEX", "TYPE", "ADDRESS", "WHY NOT")
	for _, p := range d.Ports {
		for _, g := range p.GIDs {
			mark, reason := "", why[[2]int{p.Number, g.Index}]
			if reason == "" {
				mark = "*"
			}
			t.row(mark, strconv.Itoa(p.Number), strconv.Itoa(g.Index), string(g.Type), cmp.Or(ipText(g), g.String()), reason)
		}
	}
	t.flush()
}
