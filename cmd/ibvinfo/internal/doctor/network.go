package doctor

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/goverbs/goverbs/internal/sysfs"
)

// active is the state of a port that can be used.
const active = 4

// roce calls do for each active RoCE port.
func (e *Env) roce(do func(sysfs.Device, sysfs.Port)) {
	for _, d := range e.Devices {
		for _, p := range d.Ports {
			if p.Transport == sysfs.RoCE && p.State.Code == active {
				do(d, p)
			}
		}
	}
}

// ports finds those that are not active. As long as there is another it may be on purpose.
func (e *Env) ports() (found []Check) {
	up := 0
	for _, d := range e.Devices {
		for _, p := range d.Ports {
			if p.State.Code == active {
				up++
			}
		}
	}
	for _, d := range e.Devices {
		for _, p := range d.Ports {
			if p.State.Code == active {
				continue
			}
			f := failed(e.bringUp(p), "%s is %s (physical state %s)", where(d, p), orUnknown(p.State.Name), orUnknown(p.PhysState.Name))
			if up > 0 {
				f.Status = Warning
			}
			found = append(found, f)
		}
	}
	switch {
	case len(found) == 0 && up == 1:
		found = append(found, ok("the port is active"))
	case len(found) == 0 && up > 1:
		found = append(found, ok("all %d are active", up))
	}
	return found
}

func orUnknown(name string) string {
	if name == "" {
		return "unknown"
	}
	return name
}

// bringUp says how to bring a port up.
func (e *Env) bringUp(p sysfs.Port) string {
	switch {
	case p.Transport == sysfs.InfiniBand && p.PhysState.Name == "LinkUp":
		return "start a subnet manager (opensm, or that of a switch): the link is up and waits for it"
	case p.Transport == sysfs.InfiniBand:
		return "check the cable and the switch's port"
	case p.Netdev == "":
		return "bring its network interface up: ip link set NETDEV up"
	case e.read("sys/class/net", p.Netdev, "operstate") == "up":
		return "see dmesg: its network interface " + p.Netdev + " is up"
	}
	return "ip link set " + p.Netdev + " up; if it is up, check the cable"
}

// headers are what drivers take a packet to add to its payload at most: GRH, UDP, BTH, the
// longest extended headers and the checksum.
const headers = 96

// mtu compares the MTU of a port with that of its network interface, from which it is made.
func (e *Env) mtu() (found []Check) {
	var fine []string
	seen := map[string]bool{}
	e.roce(func(d sysfs.Device, p sysfs.Port) {
		text := e.read("sys/class/net", p.Netdev, "mtu")
		mtu, err := strconv.Atoi(text)
		if p.Netdev == "" || seen[p.Netdev] || err != nil {
			return // another network namespace's, which is told above
		}
		seen[p.Netdev] = true
		path := 0
		for _, m := range []int{256, 512, 1024, 2048, 4096} {
			if mtu >= m+headers {
				path = m
			}
		}
		now, most := e.pathMTU(d.Name, p.Number)
		const remedy = "ip link set %s mtu 4200 or more, at the peers and in the switches too"
		switch {
		case path == 0:
			found = append(found, failed(fmt.Sprintf(remedy, p.Netdev), "%s: the MTU %d of %s is too small for the smallest path MTU, 256", where(d, p), mtu, p.Netdev))
		case path < 1024:
			found = append(found, warning(fmt.Sprintf(remedy, p.Netdev), "%s: the MTU %d of %s allows a path MTU of %d, less than the usual 1024", where(d, p), mtu, p.Netdev, path))
		case now > 0 && now < min(path, most):
			found = append(found, warning(fmt.Sprintf("bring %s down and up, and see dmesg", p.Netdev),
				"%s has an active MTU of %d, although the MTU %d of %s allows %d", where(d, p), now, mtu, p.Netdev, min(path, most)))
		default:
			fine = append(fine, fmt.Sprintf("that of %s, %d, allows a path MTU of %d", p.Netdev, mtu, path))
		}
	})
	if len(found) == 0 && len(fine) > 0 {
		note := ""
		if slices.ContainsFunc(fine, func(s string) bool { return !strings.HasSuffix(s, " 4096") }) {
			note = "; 4200 is enough for 4096, if the whole network has it"
		}
		found = append(found, ok("%s%s", strings.Join(fine, "; "), note))
	}
	return found
}

// pathMTU is what the opened device tells: the MTU that packets of the port have at most, and
// could have. 0 if it was not opened.
func (e *Env) pathMTU(device string, port int) (now, most int) {
	for _, d := range e.opened.Devices {
		for _, p := range d.Ports {
			if d.Name == device && int(p.Port) == port {
				return number(p.Attributes["active_mtu"]), number(p.Attributes["max_mtu"])
			}
		}
	}
	return 0, 0
}

// number is a number of a JSON document.
func number(v any) int {
	n, _ := v.(json.Number)
	i, _ := strconv.Atoi(n.String())
	return i
}

// gids looks for an address with which a port can talk through routers.
func (e *Env) gids() (found []Check) {
	var fine []string
	e.roce(func(d sysfs.Device, p sysfs.Port) {
		v2, routable := false, ""
		for _, g := range p.GIDs {
			if g.Type != sysfs.GIDRoCEv2 {
				continue
			}
			v2 = true
			if ip := g.IP(); routable == "" && !ip.IsLinkLocalUnicast() {
				routable = fmt.Sprintf("%s has %v at index %d", where(d, p), ip, g.Index)
			}
		}
		address := fmt.Sprintf("give %s an address: ip addr add ADDRESS/LENGTH dev %s", netdev(p), netdev(p))
		switch {
		case len(p.GIDs) == 0:
			found = append(found, failed(address, "%s has no GIDs", where(d, p)))
		case !v2:
			found = append(found, failed("see whether the adapter can RoCE v2, and is set to it", "%s has no GID for RoCE v2, and RoCE v1 does not cross routers", where(d, p)))
		case routable == "":
			found = append(found, warning(address, "%s has link-local GIDs only: they reach peers on the same link alone", where(d, p)))
		default:
			fine = append(fine, routable)
		}
	})
	if len(found) == 0 && len(fine) > 0 {
		found = append(found, ok("for RoCE v2: %s", strings.Join(fine, "; ")))
	}
	return found
}

func netdev(p sysfs.Port) string {
	if p.Netdev == "" {
		return "its network interface"
	}
	return p.Netdev
}

// flowControl tells what keeps packets from being dropped when a RoCE network is full: pauses
// (PFC) and marks (ECN). Where the driver shows it the settings are in sysfs, or the kernel
// tells PFC.
func (e *Env) flowControl() (found []Check) {
	var fine []string
	e.roce(func(d sysfs.Device, p sysfs.Port) {
		if d.Software || p.Netdev == "" {
			return // a network of software needs neither
		}
		pfc, pfcKnown := e.pfc(p.Netdev)
		ecn, ecnKnown := e.ecn(p.Netdev)
		const remedy = "set them as the switches are (mlnx_qos, dcb pfc), or tell that the network is lossy on purpose"
		switch {
		case !pfcKnown && !ecnKnown:
			fine = append(fine, p.Netdev+" does not tell its settings (try dcb pfc show dev "+p.Netdev+", mlnx_qos -i "+p.Netdev+")")
		case pfcKnown && len(pfc) == 0 && (!ecnKnown || len(ecn) == 0):
			found = append(found, warning(remedy, "%s has neither PFC nor ECN for any priority: packets are dropped when the network is full", p.Netdev))
		default:
			fine = append(fine, fmt.Sprintf("%s: PFC %s, ECN %s", p.Netdev, priorities(pfc, pfcKnown), priorities(ecn, ecnKnown)))
		}
	})
	if len(found) == 0 && len(fine) > 0 {
		found = append(found, ok("%s", strings.Join(fine, "; ")))
	}
	return found
}

func priorities(list []string, known bool) string {
	switch {
	case !known:
		return "not told"
	case len(list) == 0:
		return "off"
	}
	return "for priority " + strings.Join(list, ", ")
}

// pfc returns the priorities with pauses.
func (e *Env) pfc(netdev string) (list []string, known bool) {
	if text := e.read("sys/class/net", netdev, "qos/pfc"); text != "" {
		for i, on := range strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' }) {
			if on == "1" {
				list = append(list, strconv.Itoa(i))
			}
		}
		return list, true
	}
	bits, err := e.PFC(netdev)
	for i := range 8 {
		if bits>>i&1 == 1 {
			list = append(list, strconv.Itoa(i))
		}
	}
	return list, err == nil
}

// ecn returns the priorities for which both sides of congestion control are on: a receiver
// that tells of marks, and a sender that heeds it.
func (e *Env) ecn(netdev string) (list []string, known bool) {
	enabled := func(side string) (on []string) {
		for _, name := range e.glob("sys/class/net/" + netdev + "/ecn/" + side + "/enable/*") {
			known = true
			if priority := filepath.Base(name); e.read("sys/class/net", netdev, "ecn", side, "enable", priority) == "1" {
				on = append(on, priority)
			}
		}
		return on
	}
	senders := enabled("roce_rp")
	for _, priority := range enabled("roce_np") {
		if slices.Contains(senders, priority) {
			list = append(list, priority)
		}
	}
	return list, known
}
