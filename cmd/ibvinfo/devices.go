package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"runtime"
	"strings"

	"github.com/goverbs/goverbs/internal/sysfs"
)

const noDevices = "no RDMA devices visible in this environment"

// devices returns the devices and ports that were asked for. Where there are none it has
// said why. That there are no devices is no failure unless one was named.
func (r *reply) devices(opts options, namesOnly bool) ([]sysfs.Device, bool) {
	devices, err := r.host.Devices()
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		r.fail(exitFailure, err)
		return nil, false
	case len(devices) == 0 && opts.device != "":
		r.fail(exitFailure, fmt.Errorf("no device %q: %s", opts.device, noDevices))
		return nil, false
	case len(devices) == 0 && namesOnly: // a script reads names from stdout
		r.note(noDevices)
		return nil, false
	case len(devices) == 0:
		r.printf("%s\n", noDevices)
		r.note(whyNone(err == nil))
		return nil, false
	}
	if devices, err = choose(devices, opts); err != nil {
		r.fail(exitFailure, err)
		return nil, false
	}
	return devices, true
}

// whyNone guesses why no device is visible.
func whyNone(subsystem bool) string {
	switch {
	case runtime.GOOS != "linux":
		return "RDMA devices exist on Linux only"
	case !subsystem:
		return "the kernel's RDMA modules are not loaded; load the adapter's (as mlx5_ib) or the software device's (rdma_rxe)"
	}
	return "the kernel's RDMA modules are loaded, but have no device here; " +
		"for a software device: rdma link add rxe0 type rxe netdev NETDEV"
}

// choose returns the devices and ports that were asked for.
func choose(devices []sysfs.Device, opts options) ([]sysfs.Device, error) {
	var chosen []sysfs.Device
	var names []string
	for _, d := range devices {
		names = append(names, d.Name)
		if opts.device == "" || opts.device == d.Name {
			chosen = append(chosen, d)
		}
	}
	if len(chosen) == 0 {
		return nil, fmt.Errorf("no device %q here; there is %s", opts.device, strings.Join(names, ", "))
	}
	if opts.port == 0 {
		return chosen, nil
	}
	var withPort []sysfs.Device
	var ports []string
	for _, d := range chosen {
		for _, p := range d.Ports {
			ports = append(ports, fmt.Sprintf("%s port %d", d.Name, p.Number))
		}
		if d, ok := d.SelectPort(int(opts.port)); ok {
			withPort = append(withPort, d)
		}
	}
	if len(withPort) == 0 {
		return nil, fmt.Errorf("no port %d here; there is %s", opts.port, cmp.Or(strings.Join(ports, ", "), "none"))
	}
	return withPort, nil
}
