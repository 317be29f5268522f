//go:build linux

package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

var errNoDevice = errors.New("no usable RDMA device on this host")

// device is an RDMA device that the command can open.
type device struct {
	name string
	addr string // an address of its network interface; "" if it has none
	peer string // that of the other host; "" if there is none
}

// environ returns env with what the command is told about the device.
func (d device) environ(env []string, via, kernel string) []string {
	told := []string{"RXE_DEV=" + d.name, "RXE_ADDR=" + d.addr, "RXE_VIA=" + via, "RXE_KERNEL=" + kernel}
	if d.peer != "" {
		told = append(told, "RXE_PEER="+d.peer)
	}
	for _, kv := range told {
		name := kv[:strings.IndexByte(kv, '=')+1]
		env = slices.DeleteFunc(env, func(old string) bool { return strings.HasPrefix(old, name) })
		env = append(env, kv)
	}
	return env
}

// findDevice looks below root, which is "/", for the device of that name, or
// for the first one with an active port when the name is empty.
func findDevice(root, name string) (device, error) {
	sys := filepath.Join(root, "sys/class/infiniband")
	entries, _ := os.ReadDir(sys) // none without the RDMA subsystem
	var names, reasons []string
	for _, e := range entries {
		names = append(names, e.Name())
		if name != "" && name != e.Name() || name == "" && isOurs(e.Name()) {
			continue
		}
		if err := checkUsable(root, e.Name()); err != nil {
			if name != "" {
				return device{}, fmt.Errorf("RXE_DEV=%s: %w", name, err)
			}
			reasons = append(reasons, fmt.Sprintf("%s: %v", e.Name(), err))
			continue
		}
		return device{name: e.Name(), addr: address(filepath.Join(sys, e.Name()))}, nil
	}
	switch {
	case len(reasons) > 0:
		return device{}, fmt.Errorf("%w (%s)", errNoDevice, strings.Join(reasons, "; "))
	case name != "" && len(names) > 0:
		return device{}, fmt.Errorf("RXE_DEV=%s: this host has only %s", name, strings.Join(names, ", "))
	case name != "":
		return device{}, fmt.Errorf("RXE_DEV=%s: this host has no RDMA device", name)
	default:
		return device{}, errNoDevice
	}
}

// checkUsable says why the device cannot be used, if so.
func checkUsable(root, name string) error {
	states, _ := filepath.Glob(filepath.Join(root, "sys/class/infiniband", name, "ports/*/state"))
	active := func(file string) bool { return strings.HasSuffix(readLine(file), "ACTIVE") }
	if !slices.ContainsFunc(states, active) {
		return errors.New("no active port")
	}
	nodes, _ := filepath.Glob(filepath.Join(root, "sys/class/infiniband_verbs/uverbs*"))
	for _, n := range nodes {
		if readLine(filepath.Join(n, "ibdev")) != name {
			continue
		}
		f, err := os.OpenFile(filepath.Join(root, "dev/infiniband", filepath.Base(n)), os.O_RDWR, 0)
		if err != nil {
			return err
		}
		return f.Close()
	}
	return errors.New("no uverbs node: is the module ib_uverbs loaded?")
}

// address returns an address of the device whose folder in sysfs is dir: of its
// GIDs the first that stands for an IPv4 address, else one of its interface.
func address(dir string) string {
	gids, _ := filepath.Glob(filepath.Join(dir, "ports/*/gids/*"))
	for _, f := range gids {
		if a, err := netip.ParseAddr(readLine(f)); err == nil && a.Is4In6() {
			return a.Unmap().String()
		}
	}
	netdevs, _ := filepath.Glob(filepath.Join(dir, "device/net/*"))
	for _, f := range netdevs {
		i, err := net.InterfaceByName(filepath.Base(f))
		if err != nil {
			continue
		}
		addrs, _ := i.Addrs()
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil && !p.Addr().IsLinkLocalUnicast() {
				return p.Addr().String()
			}
		}
	}
	return ""
}

// hostSeries returns the series of the running kernel, such as 6.1.
func hostSeries() string {
	major, rest, _ := strings.Cut(kernelRelease(), ".")
	minor, _, _ := strings.Cut(rest, ".")
	return major + "." + minor
}

func kernelRelease() string {
	var uts unix.Utsname
	_ = unix.Uname(&uts) // cannot fail
	return unix.ByteSliceToString(uts.Release[:])
}

// readLine returns a file of one line, or "" where there is none.
func readLine(name string) string {
	b, _ := os.ReadFile(name)
	return strings.TrimSpace(string(b))
}
