// Package sysfs reads what Linux shows of its RDMA devices below /sys/class/infiniband.
//
// It opens no device, needs neither cgo nor rdma-core, and compiles on every system. A device that is
// visible here need not be usable: a container sees all devices of its host in /sys, and can open only
// those whose node in /dev was passed in. Device.Unusable tells the two apart.
//
// Nothing here is fatal to its surroundings: a file that is missing, unreadable or makes no sense leaves
// its field empty and adds an error to Problems of the device or port that it belongs to.
//
// The values are those of one moment: devices, ports and GIDs come and go while they are read.
package sysfs

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
)

// FS says where sysfs and the device nodes are. Its methods may be called from several goroutines.
type FS struct {
	Sys string // normally /sys
	Dev string // normally /dev
}

// Host is the machine that the program runs on.
var Host = FS{Sys: "/sys", Dev: "/dev"}

// Enum is a number with its name, as the kernel prints node types and port states: "4: ACTIVE".
// The zero value, with an empty name, means that it could not be read.
type Enum struct {
	Code int
	Name string
}

// Node types, the codes of Device.NodeType.
const (
	NodeCA          = 1
	NodeSwitch      = 2
	NodeRouter      = 3
	NodeRNIC        = 4
	NodeUSNIC       = 5
	NodeUSNICUDP    = 6
	NodeUnspecified = 7
)

// Device is one entry of /sys/class/infiniband. Strings are empty where the driver says nothing.
type Device struct {
	Name            string
	NodeType        Enum
	NodeGUID        string // four groups of four hexadecimal digits
	SysImageGUID    string
	FirmwareVersion string
	HCAType         string
	BoardID         string

	Software bool   // made by the kernel, with no hardware below: rdma_rxe, siw
	BusID    string // of the hardware, as 0000:3b:00.0
	Driver   string // of the hardware, as mlx5_core
	NUMANode int    // -1 where there is none

	Uverbs   string    // as uverbs0; empty where the kernel offers the device to no user program
	Unusable *Unusable // nil when this process may open the device

	Ports    []Port // by number
	Problems []error
}

// Port is one port of a device.
type Port struct {
	Number    int
	State     Enum // ACTIVE, DOWN, INIT, ARMED
	PhysState Enum // LinkUp, Disabled, Polling
	LinkLayer string
	Transport Transport
	Rate      string // as the kernel prints it: "100 Gb/sec (4X EDR)"
	LID       uint32 // InfiniBand only, as the next one
	SMLID     uint32 // of the subnet manager; 0 where none has been seen
	Netdev    string // the network interface of the port itself; VLANs are in GIDs
	GIDs      []GID  // by index, without the empty ones
	Problems  []error
}

// Transport is what a port speaks. It is empty where it could not be read.
type Transport string

const (
	InfiniBand  Transport = "InfiniBand"
	RoCE        Transport = "RoCE"
	IWARP       Transport = "iWARP"
	USNIC       Transport = "usNIC"
	Unspecified Transport = "unspecified" // the driver's own, as on AWS EFA
)

// GIDType says how packets sent from a GID are encapsulated. It is empty where it could not be read.
type GIDType string

const (
	GIDInfiniBand GIDType = "IB"
	GIDRoCEv1     GIDType = "RoCE v1"
	GIDRoCEv2     GIDType = "RoCE v2"
	GIDIWARP      GIDType = "iWARP" // made of the MAC address; no packet carries it
)

// GID is one entry of a port's GID table.
type GID struct {
	Index  int
	Addr   netip.Addr // all 128 bits; IPv4 is mapped (::ffff:a.b.c.d)
	Type   GIDType
	Netdev string // RoCE only, the interface with that address, which may be a VLAN of the port's
}

// IP returns the IP address that the GID stands for, IPv4 as such. It is invalid for the GIDs of
// InfiniBand and iWARP, which have the form of an IPv6 address and belong to no interface.
func (g GID) IP() netip.Addr {
	if g.Type == GIDInfiniBand || g.Type == GIDIWARP {
		return netip.Addr{}
	}
	return g.Addr.Unmap()
}

// String returns the GID in the kernel's form, eight groups of four digits.
func (g GID) String() string { return g.Addr.StringExpanded() }

func (f FS) classDir() string { return filepath.Join(f.Sys, "class", "infiniband") }

// Devices returns all devices by name. The error matches fs.ErrNotExist where the kernel has no RDMA
// subsystem; what is wrong with single devices and ports is in their Problems.
func (f FS) Devices() ([]Device, error) {
	entries, err := os.ReadDir(f.classDir())
	if err != nil {
		return nil, err
	}
	uverbs := f.uverbs()
	devices := make([]Device, 0, len(entries))
	for _, e := range entries {
		devices = append(devices, f.device(e.Name(), uverbs))
	}
	return devices, nil
}

func (f FS) device(name string, uverbs uverbsTable) Device {
	d := Device{Name: name, NUMANode: -1}
	a := attrs{dir: filepath.Join(f.classDir(), name)}
	if a.isDir() {
		d.NodeType = a.enum("node_type")
		d.NodeGUID = a.matching("node_guid", guids)
		d.SysImageGUID = a.matching("sys_image_guid", guids)
		d.FirmwareVersion = a.optional("fw_ver")
		d.HCAType = a.optional("hca_type")
		d.BoardID = a.optional("board_id")
		d.place(&a)
		d.Ports = ports(&a, d.NodeType)
		if d.Software {
			d.adopt(a.optional("parent"))
		}
	}
	if node, ok := uverbs.byDevice[name]; ok {
		d.Uverbs = node
		d.Unusable = check(filepath.Join(f.Dev, "infiniband", node))
	} else {
		d.Unusable = uverbs.lacks(name)
	}
	d.Problems = a.problems
	return d
}

// IsSoftware reports whether the device of that name is made by the kernel, with no hardware below.
func (f FS) IsSoftware(device string) bool {
	a := attrs{dir: filepath.Join(f.classDir(), device)}
	return a.isDir() && a.software()
}

// software tells a device without hardware below: it hangs below devices/virtual. Older kernels put
// rxe below the NIC's own device, where only its attribute "parent" gives it away.
func (a *attrs) software() bool { return !a.has("device") || a.has("parent") }

// place finds the hardware below the device.
func (d *Device) place(a *attrs) {
	if d.Software = a.software(); d.Software {
		return
	}
	hardware, err := filepath.EvalSymlinks(filepath.Join(a.dir, "device"))
	if err != nil {
		a.problem(err)
		return
	}
	d.BusID = filepath.Base(hardware)
	if driver, err := os.Readlink(filepath.Join(hardware, "driver")); err == nil {
		d.Driver = filepath.Base(driver)
	}
	if text := a.optional("device/numa_node"); text != "" {
		if d.NUMANode, err = strconv.Atoi(text); err != nil {
			a.unexpected("device/numa_node", text)
			d.NUMANode = -1
		}
	}
}

// adopt gives a software device's port the interface it was made on, where its GIDs told none: an
// interface that is down has no address and so no GID.
func (d *Device) adopt(netdev string) {
	for i := range d.Ports {
		if d.Ports[i].Netdev == "" {
			d.Ports[i].Netdev = netdev
		}
	}
}

func ports(device *attrs, node Enum) []Port {
	numbers, ok := device.numbers("ports")
	if ok && len(numbers) == 0 {
		device.problem(&fs.PathError{Op: "list", Path: filepath.Join(device.dir, "ports"), Err: errors.New("no port")})
	}
	var list []Port
	next := 1
	for _, n := range numbers {
		if n > next { // a switch has a port 0; all others count from 1
			device.problem(&fs.PathError{Op: "list", Path: filepath.Join(device.dir, "ports"),
				Err: fmt.Errorf("port %d is missing, although there is a port %d", next, n)})
		}
		next = n + 1
		list = append(list, port(device.dir, n, node))
	}
	return list
}

func port(device string, number int, node Enum) Port {
	p := Port{Number: number}
	a := attrs{dir: filepath.Join(device, "ports", strconv.Itoa(number))}
	if a.isDir() {
		p.State = a.enum("state")
		p.PhysState = a.enum("phys_state")
		p.LinkLayer = a.matching("link_layer", linkLayers)
		p.Transport = transport(node, p.LinkLayer)
		p.Rate = a.matching("rate", rates)
		p.LID = a.uint32("lid")
		p.SMLID = a.uint32("sm_lid")
		p.GIDs = gids(&a, p.Transport)
		p.Netdev = netdev(&a, device, p)
	}
	p.Problems = a.problems
	return p
}

func transport(node Enum, linkLayer string) Transport {
	switch node.Code {
	case NodeRNIC:
		return IWARP
	case NodeUSNIC, NodeUSNICUDP:
		return USNIC
	case NodeUnspecified:
		return Unspecified
	case NodeCA, NodeSwitch, NodeRouter:
		switch linkLayer {
		case "InfiniBand":
			return InfiniBand
		case "Ethernet":
			return RoCE
		}
	}
	return ""
}

func gids(a *attrs, t Transport) []GID {
	var list []GID
	indexes, _ := a.numbers("gids")
	for _, i := range indexes {
		index := strconv.Itoa(i)
		addr, ok := a.ipv6("gids/" + index)
		// The attributes of an empty entry exist, and reading them fails.
		if !ok || addr == netip.IPv6Unspecified() {
			continue
		}
		g := GID{Index: i, Addr: addr}
		switch t {
		case InfiniBand:
			g.Type = GIDInfiniBand
		case IWARP:
			g.Type = GIDIWARP
		case RoCE:
			switch text := a.matching("gid_attrs/types/"+index, gidTypes); text {
			case "IB/RoCE v1":
				g.Type = GIDRoCEv1
			case "RoCE v2":
				g.Type = GIDRoCEv2
			}
			g.Netdev = a.matching("gid_attrs/ndevs/"+index, netdevs)
		}
		list = append(list, g)
	}
	return list
}

// netdev finds the interface of a port. On RoCE it is that of the port's first GID, which is the
// interface's own, before those of its VLANs. Elsewhere the interfaces hang below the same hardware, and
// tell the port's number, counted from 0.
func netdev(a *attrs, device string, p Port) string {
	for _, g := range p.GIDs {
		if g.Netdev != "" {
			return g.Netdev
		}
	}
	dir := filepath.Join(device, "device", "net")
	interfaces, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		a.problem(err)
	}
	found := ""
	for _, e := range interfaces {
		nic := attrs{dir: filepath.Join(dir, e.Name())}
		number := nic.optional("dev_port")
		a.problems = append(a.problems, nic.problems...)
		if number != strconv.Itoa(p.Number-1) || nic.has("parent") { // the last is a partition's, as ib0.8001
			continue
		}
		if found != "" {
			return "" // with representors of virtual functions it cannot be told
		}
		found = e.Name()
	}
	return found
}

// SelectPort returns the device with only the given port, and false where it has no such port.
func (d Device) SelectPort(number int) (Device, bool) {
	i := slices.IndexFunc(d.Ports, func(p Port) bool { return p.Number == number })
	if i < 0 {
		return d, false
	}
	d.Ports = d.Ports[i : i+1]
	return d, true
}
