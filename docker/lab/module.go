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

// softDevice is a soft RDMA device on a dummy interface of its own.
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
	if s, err = addSoftDevice(name, name, n); err != nil {
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

// addSoftDevice makes a device and its interface, with addresses that belong to
// documentation and so to no real network.
func addSoftDevice(name, netdev string, n int) (*softDevice, error) {
	s := &softDevice{device: device{name: name, addr: fmt.Sprintf("192.0.2.%d", n+1)}, netdev: netdev}
	if err := tool("", "ip", "link", "add", netdev, "type", "dummy"); err != nil {
		return nil, err
	}
	batch := "address add " + s.addr + "/24 dev " + netdev + "\n"
	if readLine("/proc/sys/net/ipv6/conf/default/disable_ipv6") == "0" {
		batch += fmt.Sprintf("address add 2001:db8::%x/64 dev %s\n", n+1, netdev)
	}
	err := tool(batch+"link set "+netdev+" up\n", "ip", "-batch", "-")
	if err == nil {
		err = tool("", "rdma", "link", "add", name, "type", "rxe", "netdev", netdev)
	}
	if err != nil {
		s.remove()
		return nil, err
	}
	return s, nil
}

func (s *softDevice) remove() {
	_ = tool("", "rdma", "link", "delete", s.name)
	_ = tool("", "ip", "link", "delete", s.netdev)
}

// tool runs a program of the system with that input. What it says becomes the error.
func tool(input, name string, args ...string) error {
	path, err := exec.LookPath(name)
	for _, dir := range []string{"/usr/sbin/", "/sbin/"} {
		if err != nil {
			path, err = exec.LookPath(dir + name)
		}
	}
	if err != nil {
		return fmt.Errorf("no %s on this machine: run docker/setup", name)
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
