//go:build linux

// Command lab runs a command with a usable RDMA device. It is what
// docker/with-rxe builds and starts, with its own name as first argument; how it
// is used is written there.
//
// It is also the init of the VM that it boots when there is no other way to a
// device: see guest.go.
package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"
)

// program is the script that called.
var program string

// statusFailed is the exit status when the lab fails, not the command.
const statusFailed = 125

// errReported is an error that has been printed already.
var errReported = errors.New("reported")

// started is when the lab was, for the times that the verbose mode prints.
var started = time.Now()

func init() {
	// QEMU dies with the thread that starts it, so that must be the main one.
	runtime.LockOSThread()
}

func main() {
	if os.Args[0] == guestInit {
		guestMain()
	}
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "lab: docker/with-rxe calls it")
		os.Exit(statusFailed)
	}
	program = os.Args[1]
	status, err := run(os.Args[2:])
	if err != nil {
		status = statusFailed
		if !errors.Is(err, errReported) {
			say("%v", err)
		}
	}
	os.Exit(status)
}

// run takes the first way to a device that works and returns the command's status.
func run(args []string) (int, error) {
	c, err := configure(args)
	if err != nil {
		return 0, err
	}
	if c.allows(viaHost) {
		d, err := findDevice("/", c.device)
		switch {
		case err == nil:
			say("device %s of this host", d.name)
			return become(c.hosts[0].args, d.environ(os.Environ(), viaHost, hostSeries()))
		case !errors.Is(err, errNoDevice):
			return 0, err
		case c.via == viaHost:
			return 0, fmt.Errorf("RXE_VIA=host: %w: without RXE_VIA, a VM can provide one", err)
		}
	}
	signals := notifyEnd()
	if c.allows(viaModule) {
		m, err := loadModule()
		switch {
		case err == nil:
			defer m.unload()
			say("device %s from rdma_rxe, loaded on this host", m.name)
			return runCommand(c.hosts[0].args, m.environ(os.Environ(), viaModule, hostSeries()), signals)
		case c.via == viaModule:
			return 0, fmt.Errorf("RXE_VIA=module: %w: without RXE_VIA, a VM can provide a device", err)
		}
	}
	return runInVM(c, signals)
}

// say prints a line of the lab's own on stderr.
func say(format string, args ...any) {
	fmt.Fprintln(os.Stderr, program+": "+strings.TrimSpace(fmt.Sprintf(format, args...)))
}
