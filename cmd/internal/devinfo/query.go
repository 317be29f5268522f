// Package devinfo is the part of ibvinfo that opens devices and so needs libibverbs. It is a
// program of its own, ibvinfo-verbs, since a program that is linked with a library which
// is missing at run time cannot say so: it never starts.
package devinfo

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/spf13/pflag"

	"github.com/goverbs/goverbs/cmd/internal/attributes"
	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/sysfs"
)

const help = `Open RDMA devices with libibverbs and print all that they tell of themselves.
ibvinfo runs this for --verbose; by hand, use that.

Usage: ibvinfo-verbs [flags] [DEVICE...]

Flags:
  -i, --ib-port PORT   print only the port PORT
      --json           print a JSON document
  -h, --help           print this text
`

// Run runs the command and returns its exit status: 1 if a device could not be opened or
// queried, 2 for wrong usage. A device that cannot be queried does not keep the others from
// being shown.
func Run(args []string, stdout, stderr io.Writer) int {
	flags := pflag.NewFlagSet("ibvinfo-verbs", pflag.ContinueOnError)
	flags.Usage = func() {}
	port := flags.Uint8P("ib-port", "i", 0, "")
	asJSON := flags.Bool("json", false, "")
	switch err := flags.Parse(args); {
	case errors.Is(err, pflag.ErrHelp):
		fmt.Fprint(stdout, help)
		return 0
	case err != nil:
		fmt.Fprintln(stderr, "ibvinfo-verbs:", err)
		return 2
	}
	var doc attributes.Document
	status := 0
	fail := func(err error) string {
		status = 1
		fmt.Fprintln(stderr, "ibvinfo:", err)
		return err.Error()
	}
	devices, err := query(flags.Args(), *port)
	if err != nil {
		doc.Error = fail(err)
	}
	for _, d := range devices {
		told := attributes.Device{Name: d.name, Transport: d.transport.String()}
		if d.err != nil {
			told.Error = fail(d.err)
		}
		if d.opened {
			if !*asJSON {
				d.print(stdout)
			}
			told.Attributes = values(d.attr)
			for _, p := range d.ports {
				told.Ports = append(told.Ports, attributes.Port{Port: p.number, Attributes: values(p.attr)})
			}
		}
		doc.Devices = append(doc.Devices, told)
	}
	if *asJSON {
		if err := json.NewEncoder(stdout).Encode(doc); err != nil {
			fail(err)
		}
	}
	return status
}

// details are what an opened device tells of itself.
type details struct {
	name      string
	boardID   string // of sysfs
	transport ibv.TransportType
	attr      ibv.DeviceAttr
	ports     []portDetails
	opened    bool
	err       error // it may be opened all the same
}

type portDetails struct {
	number uint8
	attr   ibv.PortAttr
	gids   []ibv.GIDEntry
}

// query opens the devices of these names, or all, in the order of libibverbs.
func query(names []string, port uint8) ([]*details, error) {
	infos, err := ibv.Devices()
	if err != nil {
		return nil, err
	}
	order := func(name string) int { // -1 for one that libibverbs does not list; opening it says why
		return slices.IndexFunc(infos, func(i ibv.Device) bool { return i.Name == name })
	}
	if len(names) == 0 {
		for _, i := range infos {
			names = append(names, i.Name)
		}
	}
	slices.SortStableFunc(names, func(a, b string) int { return cmp.Compare(order(a), order(b)) })
	visible, _ := sysfs.Host.Devices() // what it cannot tell stays empty
	var devices []*details
	for _, name := range names {
		d := &details{name: name, transport: ibv.TransportUnknown}
		if i := order(name); i >= 0 {
			d.transport = infos[i].Transport
		}
		d.opened, d.err = d.query(port)
		for _, v := range visible {
			switch {
			case v.Name != name:
			case d.opened:
				d.boardID = v.BoardID
			case v.Unusable != nil: // libibverbs reports most reasons as a missing file
				d.err = fmt.Errorf("%s: %w", name, v.Unusable)
			}
		}
		devices = append(devices, d)
	}
	return devices, nil
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
