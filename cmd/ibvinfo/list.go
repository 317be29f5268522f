package main

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/goverbs/goverbs/internal/sysfs"
)

// list is the command without a name.
func (r *reply) list(opts options) {
	devices, ok := r.devices(opts, opts.list)
	switch {
	case !ok:
	case opts.list:
		for _, d := range devices {
			r.printf("%s\n", d.Name)
			r.doc.Devices = append(r.doc.Devices, device{Name: d.Name})
		}
	case opts.verbose:
		r.verbose(devices, opts.port)
	default:
		r.doc.Devices = describeAll(devices)
		if !r.json {
			r.printList(devices)
		}
	}
}

// printList prints the devices, their ports, the GIDs of each port, and what is wrong.
func (r *reply) printList(devices []sysfs.Device) {
	out := r.out
	t := newTable(out, "DEVICE", "KIND", "BUS ID", "DRIVER", "FIRMWARE", "NODE GUID", "NUMA", "USABLE")
	for _, d := range devices {
		t.row(d.Name, kind(d), d.BusID, d.Driver, d.FirmwareVersion, d.NodeGUID, numa(d), r.usable(d))
	}
	t.flush()

	fmt.Fprintln(out)
	t = newTable(out, "DEVICE", "PORT", "STATE", "PHYSICAL", "LINK LAYER", "TRANSPORT", "RATE", "NETDEV")
	for _, d := range devices {
		for _, p := range d.Ports {
			t.row(d.Name, strconv.Itoa(p.Number), p.State.Name, p.PhysState.Name, p.LinkLayer, transport(p), p.Rate, p.Netdev)
		}
	}
	t.flush()

	for _, d := range devices {
		for _, p := range d.Ports {
			listGIDs(out, d.Name, p)
		}
	}
	r.listUnusable(devices)
	listProblems(out, devices)
}

// listGIDs prints a port's GID table. The interfaces of the entries are told one by one only where they
// differ, as with VLANs.
func listGIDs(out io.Writer, device string, p sysfs.Port) {
	fmt.Fprintf(out, "\n%s port %d", device, p.Number)
	switch {
	case p.Transport == sysfs.InfiniBand:
		fmt.Fprintf(out, ", LID %d, subnet manager's LID %d", p.LID, p.SMLID)
	case p.Netdev != "":
		fmt.Fprintf(out, ", netdev %s", p.Netdev)
	}
	if len(p.GIDs) == 0 {
		fmt.Fprintln(out, ", no GIDs")
		return
	}
	fmt.Fprintln(out)
	header := []string{"INDEX", "TYPE", "GID", "IP"}
	several := p.Transport == sysfs.RoCE && slices.ContainsFunc(p.GIDs, func(g sysfs.GID) bool { return g.Netdev != p.Netdev })
	if several {
		header = append(header, "NETDEV")
	}
	t := newTable(out, header...)
	for _, g := range p.GIDs {
		row := []string{strconv.Itoa(g.Index), string(g.Type), g.String(), ipText(g)}
		if several {
			row = append(row, g.Netdev)
		}
		t.row(row...)
	}
	t.flush()
}

func (r *reply) listUnusable(devices []sysfs.Device) {
	header := "\nVisible but not usable from here:\n"
	for _, d := range devices {
		if d.Unusable != nil {
			fmt.Fprintf(r.out, "%s  %s: %v\n    %s\n", header, d.Name, d.Unusable.Err, d.Unusable.Advice)
			header = ""
		}
	}
}

func listProblems(out io.Writer, devices []sysfs.Device) {
	var problems []error
	for _, d := range devices {
		problems = append(problems, d.Problems...)
		for _, p := range d.Ports {
			problems = append(problems, p.Problems...)
		}
	}
	if len(problems) == 0 {
		return
	}
	fmt.Fprint(out, "\nCould not be read:\n")
	for _, p := range problems {
		fmt.Fprintf(out, "  %v\n", p)
	}
}

// ipText is the IP address that a GID stands for, empty where it stands for none.
func ipText(g sysfs.GID) string {
	if ip := g.IP(); ip.IsValid() {
		return ip.String()
	}
	return ""
}

func kind(d sysfs.Device) string {
	switch {
	case d.Software:
		return "software"
	case d.BusID != "":
		return "hardware"
	}
	return ""
}

func numa(d sysfs.Device) string {
	if d.NUMANode < 0 {
		return ""
	}
	return strconv.Itoa(d.NUMANode)
}

func (r *reply) usable(d sysfs.Device) string {
	if d.Unusable != nil {
		return r.paint(red, "NO")
	}
	return "yes"
}

// transport names the versions of RoCE that the port's GIDs offer.
func transport(p sysfs.Port) string {
	var v1, v2 bool
	for _, g := range p.GIDs {
		v1 = v1 || g.Type == sysfs.GIDRoCEv1
		v2 = v2 || g.Type == sysfs.GIDRoCEv2
	}
	switch {
	case v1 && v2:
		return "RoCE v1+v2"
	case v1:
		return "RoCE v1"
	case v2:
		return "RoCE v2"
	}
	return string(p.Transport)
}

// table aligns columns, and shows an empty value as a dash.
type table struct{ w *tabwriter.Writer }

func newTable(out io.Writer, header ...string) table {
	t := table{tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)}
	if len(header) > 0 {
		t.row(header...)
	}
	return t
}

func (t table) row(cells ...string) {
	for i, c := range cells {
		if c == "" {
			cells[i] = "-"
		}
	}
	t.cells(cells...)
}

// cells writes a row as it is.
func (t table) cells(cells ...string) { fmt.Fprintln(t.w, strings.Join(cells, "\t")) }

func (t table) flush() { t.w.Flush() }
