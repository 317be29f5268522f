// Ibvinfo shows the RDMA devices of this host, their ports and their GIDs.
//
// The listing is read from sysfs alone: it opens no device, needs no rights, and works in a build without
// cgo. With -v it opens the devices and prints what they are capable of, as ibv_devinfo -v does.
package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"runtime"
	"strings"

	"github.com/spf13/pflag"

	"github.com/goverbs/goverbs/internal/sysfs"
)

const (
	exitFailure = 1
	exitUsage   = 2
)

const noDevices = "no RDMA devices visible in this environment"

const help = `Show the RDMA devices of this host, their ports and their GIDs.

Usage: ibvinfo [flags]

Without -v everything is read from /sys and no device is opened. A device that
is visible there need not be usable: the listing says which is not, and why.

Flags:
  -d, --ib-dev DEV     show only the device DEV
  -i, --ib-port PORT   show only the port PORT, from 1
  -l, --list           print the names of the devices, one a line
  -v, --verbose        open the devices and print all attributes, as ibv_devinfo -v
  -h, --help           print this text

Exit status: 0, also where there are no devices; 1 if a device or port was not
found or could not be queried; 2 for wrong usage.
`

func main() {
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr, sysfs.Host))
}

// run runs the command on the host whose files are at host, and returns the exit status.
func run(args []string, stdout, stderr io.Writer, host sysfs.FS) int {
	var c command
	opts, err := parse(args)
	switch {
	case errors.Is(err, pflag.ErrHelp):
		c.out.WriteString(help)
	case err != nil:
		c.fail(exitUsage, fmt.Errorf("%w (see ibvinfo --help)", err))
	default:
		c.show(host, opts)
	}
	if _, err := c.out.WriteTo(stdout); err != nil {
		c.fail(exitFailure, err)
	}
	c.notes.WriteTo(stderr) //nolint:errcheck // nowhere left to tell
	return c.status
}

type options struct {
	device  string
	port    uint // 0 for all
	list    bool
	verbose bool
}

func parse(args []string) (opts options, err error) {
	flags := pflag.NewFlagSet("ibvinfo", pflag.ContinueOnError)
	flags.Usage = func() {} // run prints it
	flags.StringVarP(&opts.device, "ib-dev", "d", "", "")
	flags.UintVarP(&opts.port, "ib-port", "i", 0, "")
	flags.BoolVarP(&opts.list, "list", "l", false, "")
	flags.BoolVarP(&opts.verbose, "verbose", "v", false, "")

	err = flags.Parse(args)
	switch {
	case err != nil:
	case flags.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q", flags.Arg(0))
	case flags.Changed("ib-dev") && opts.device == "":
		err = errors.New("--ib-dev needs the name of a device")
	case flags.Changed("ib-port") && (opts.port < 1 || opts.port > math.MaxUint8):
		err = fmt.Errorf("--ib-port %d is not from 1 to %d", opts.port, math.MaxUint8)
	}
	return opts, err
}

// command collects what one run prints.
type command struct {
	out    bytes.Buffer // for stdout
	notes  bytes.Buffer // for stderr
	status int
}

func (c *command) note(text any) { fmt.Fprintln(&c.notes, "ibvinfo:", text) }

func (c *command) fail(status int, err error) {
	c.note(err)
	c.status = status
}

func (c *command) show(host sysfs.FS, opts options) {
	devices, err := host.Devices()
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		c.fail(exitFailure, err)
		return
	case len(devices) == 0 && opts.device != "":
		c.fail(exitFailure, fmt.Errorf("no device %q: %s", opts.device, noDevices))
		return
	case len(devices) == 0 && opts.list: // a script reads names from stdout
		c.note(noDevices)
		return
	case len(devices) == 0:
		fmt.Fprintln(&c.out, noDevices)
		c.note(whyNone(err == nil))
		return
	}
	if devices, err = choose(devices, opts); err != nil {
		c.fail(exitFailure, err)
		return
	}
	switch {
	case opts.list:
		for _, d := range devices {
			fmt.Fprintln(&c.out, d.Name)
		}
	case opts.verbose:
		c.verbose(devices, uint8(opts.port))
	default:
		list(&c.out, devices)
	}
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
