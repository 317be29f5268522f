//go:build linux

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// ourPrefix begins the names of the devices and interfaces that this program
// makes on a host. Another run must not take them for devices that stay.
const ourPrefix = "withrxe"

func isOurs(name string) bool { return strings.HasPrefix(name, ourPrefix) }

// softDevice is a soft RDMA device on an interface.
type softDevice struct {
	device
	netdev string
	loaded []string // modules that were not loaded before
}

// loadModule makes a device with the host's own rdma_rxe.
func loadModule() (s *softDevice, err error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("only root can load a module")
	}
	var loaded []string
	defer func() {
		if err != nil {
			unloadModules(loaded)
		}
	}()
	for _, m := range []string{"rdma_rxe", "rdma_ucm", "ib_uverbs", "dummy"} {
		if exists("/sys/module/" + m) {
			continue
		}
		if err := tool("", "modprobe", m); err != nil {
			return nil, err
		}
		loaded = append(loaded, m)
	}
	n := 0
	for exists(fmt.Sprint("/sys/class/net/", ourPrefix, n)) { // another run's
		n++
	}
	name := fmt.Sprint(ourPrefix, n)
	if err := addDummy(name); err != nil {
		return nil, err
	}
	if s, err = addSoftDevice(name, name, soloAddrs(n)); err != nil {
		deleteLink(name)
		return nil, err
	}
	s.loaded = loaded
	if err := checkUsable("/", name); err != nil { // as in a container without the node
		s.remove()
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return s, nil
}

func exists(name string) bool {
	_, err := os.Stat(name)
	return err == nil
}

// unload removes the device, and the modules if nothing else uses them.
func (s *softDevice) unload() {
	s.remove()
	unloadModules(s.loaded)
}

func unloadModules(names []string) {
	for _, m := range names {
		_ = tool("", "modprobe", "-r", m)
	}
}

// soloAddrs returns addresses for a device that has no network but its own. They
// belong to documentation, and so to no real network.
func soloAddrs(n int) []string {
	return []string{fmt.Sprintf("192.0.2.%d/24", n+1), fmt.Sprintf("2001:db8::%x/64", n+1)}
}

func addDummy(netdev string) error { return tool("", "ip", "link", "add", netdev, "type", "dummy") }

// addSoftDevice makes a device on an interface, which gets the addresses, the first
// of them IPv4.
func addSoftDevice(name, netdev string, addrs []string) (*softDevice, error) {
	addr, _, _ := strings.Cut(addrs[0], "/")
	batch := ""
	for _, a := range addrs {
		if !strings.Contains(a, ":") {
			batch += "address add " + a + " dev " + netdev + "\n"
		} else if readLine("/proc/sys/net/ipv6/conf/default/disable_ipv6") == "0" {
			batch += "address add " + a + " dev " + netdev + " nodad\n" // usable at once
		}
	}
	err := tool(batch+"link set "+netdev+" up\n", "ip", "-batch", "-")
	if err == nil {
		err = tool("", "rdma", "link", "add", name, "type", "rxe", "netdev", netdev)
	}
	if err != nil {
		return nil, err
	}
	return &softDevice{device: device{name: name, addr: addr}, netdev: netdev}, nil
}

func (s *softDevice) remove() {
	_ = tool("", "rdma", "link", "delete", s.name)
	deleteLink(s.netdev)
}

func deleteLink(netdev string) { _ = tool("", "ip", "link", "delete", netdev) }

// tool runs a program of the system with that input. What it says becomes the error.
func tool(input, name string, args ...string) error {
	path, err := lookTool(name)
	if err != nil {
		return err
	}
	cmd := exec.Command(path, args...)
	cmd.Stdin = strings.NewReader(input)
	out, err := cmd.CombinedOutput()
	if err != nil {
		line, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, line)
	}
	return nil
}

// lookTool finds a program of the system, also one that is for root.
func lookTool(name string) (string, error) {
	path, err := exec.LookPath(name)
	for _, dir := range []string{"/usr/sbin/", "/sbin/"} {
		if err != nil {
			path, err = exec.LookPath(dir + name)
		}
	}
	if err != nil {
		return "", fmt.Errorf("no %s on this machine: run docker/setup", name)
	}
	return path, nil
}
