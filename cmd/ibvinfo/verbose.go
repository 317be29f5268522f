package main

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/sysfs"
)

// details are what an opened device tells of itself.
type details struct {
	name      string
	boardID   string // of sysfs
	transport ibv.TransportType
	attr      ibv.DeviceAttr
	ports     []portDetails
}

type portDetails struct {
	number uint8
	attr   ibv.PortAttr
	gids   []ibv.GIDEntry
}

// verbose opens the devices and prints their attributes, in the order of libibverbs. A device that cannot
// be queried does not keep the others from being shown.
func (c *command) verbose(devices []sysfs.Device, port uint8) {
	infos, err := ibv.Devices()
	if err != nil {
		c.fail(exitFailure, err)
		return
	}
	order := func(d sysfs.Device) int { // -1 for one that libibverbs does not list; opening it says why
		return slices.IndexFunc(infos, func(i ibv.Device) bool { return i.Name == d.Name })
	}
	slices.SortStableFunc(devices, func(a, b sysfs.Device) int { return cmp.Compare(order(a), order(b)) })
	for _, d := range devices {
		all := details{name: d.Name, boardID: d.BoardID}
		if i := order(d); i >= 0 {
			all.transport = infos[i].Transport
		}
		opened, err := all.query(port)
		switch {
		case opened:
			all.print(&c.out)
		case d.Unusable != nil: // libibverbs reports most reasons as a missing file
			err = fmt.Errorf("%s: %w", d.Name, d.Unusable)
		}
		if err != nil {
			c.fail(exitFailure, err)
		}
	}
}

// query opens the device and asks for everything that is known of it and of its ports, or of one port.
// With an error too it may have opened the device, and keeps what it learned before.
func (d *details) query(port uint8) (opened bool, err error) {
	ctx, err := ibv.Open(d.name)
	if err != nil {
		return false, err
	}
	defer func() { err = cmp.Or(err, ctx.Close()) }()
	if d.attr, err = ctx.QueryDevice(); err != nil {
		return false, err
	}
	gids, err := ctx.GIDTable()
	if err != nil {
		return true, err
	}
	for n := range min(d.attr.PhysPortCount, math.MaxUint8) {
		p := portDetails{number: uint8(n + 1)}
		if port != 0 && port != p.number {
			continue
		}
		if p.attr, err = ctx.QueryPort(p.number); err != nil {
			return true, err
		}
		for _, g := range gids {
			if g.Port == p.number {
				p.gids = append(p.gids, g)
			}
		}
		d.ports = append(d.ports, p)
	}
	return true, nil
}
