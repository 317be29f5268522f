package ibv

import (
	"errors"
	"fmt"
	"strings"
	"syscall"

	"github.com/goverbs/goverbs/internal/core"
	"github.com/goverbs/goverbs/internal/cverbs"
	"github.com/goverbs/goverbs/internal/life"
	"github.com/goverbs/goverbs/internal/sysfs"
)

// Device is what is known of an RDMA device without opening it.
type Device struct {
	Name      string // "mlx5_0", "rxe0"
	NodeType  NodeType
	Transport TransportType
	GUID      GUID
	Index     int // the kernel's number of the device, -1 where it has none
	// Software devices, as rdma_rxe and siw, are made by the kernel of a network
	// interface. What is measured on one is no measure of RDMA hardware.
	Software bool
}

// Devices lists the RDMA devices that this process can see and libibverbs has a
// provider for. No devices is an empty list; a kernel without the RDMA subsystem
// is an error that matches ErrNoSubsystem.
//
// Implements: ibv_get_device_list, ibv_free_device_list, ibv_get_device_name,
// ibv_get_device_guid, ibv_get_device_index
func Devices() ([]Device, error) {
	infos, err := cverbs.DeviceList()
	if err != nil {
		return nil, listError(err)
	}
	devices := make([]Device, len(infos))
	for i, d := range infos {
		devices[i] = Device{
			Name:      d.Name,
			NodeType:  NodeType(d.NodeType),
			Transport: TransportType(d.Transport),
			GUID:      GUID(d.GUID),
			Index:     d.Index,
			Software:  sysfs.Host.IsSoftware(d.Name),
		}
	}
	return devices, nil
}

func listError(err error) error {
	e := &OpError{Op: "ibv_get_device_list", Err: err}
	switch {
	case errors.Is(err, syscall.ENOSYS):
		e.Kind = ErrNoSubsystem
		e.Reason = "the kernel has no RDMA subsystem here; load ib_uverbs and the driver of the device (for a soft device: modprobe rdma_rxe)"
	case errors.Is(err, syscall.EPERM), errors.Is(err, syscall.EACCES):
		e.Reason = "no permission to read the RDMA devices"
	}
	return e
}

// Open opens the device of that name, or with an empty name the only device of
// this host. Close the Context when done.
//
// It fails with ErrNoSubsystem, ErrNoDevice, an error that matches
// fs.ErrPermission, or the errno of the system; each says what to do.
//
// Implements: ibv_open_device
func Open(name string) (*Context, error) {
	d, err := findDevice(name)
	if err != nil {
		return nil, err
	}
	ctx := &core.Context{Name: d.Name, IWARP: d.Transport == TransportIWARP, Software: d.Software}
	closing := func() error { return ctx.StopEvents(func() error { return cverbs.CloseDevice(ctx.H) }) }
	if err := ctx.Init("device", closing); err != nil {
		return nil, err
	}
	if ctx.H, err = cverbs.OpenDevice(d.Name); err != nil {
		ctx.Discard()
		return nil, openError(d.Name, err)
	}
	fail := func(op string, err error) (*Context, error) {
		_ = cverbs.CloseDevice(ctx.H) // the first error is the one to tell
		ctx.Discard()
		return nil, &OpError{Op: op, Object: d.Name, Err: err}
	}
	if ctx.Attr, err = cverbs.QueryDevice(ctx.H); err != nil {
		return fail("ibv_query_device_ex", err)
	}
	if err := ctx.StartEvents(); err != nil {
		return fail("waiting for asynchronous events", err)
	}
	ctx.Ready(d.Name)
	handle := &Context{ctx}
	life.Guard(handle, &ctx.Node)
	return handle, nil
}

// findDevice finds the device to open, or says why there is none.
func findDevice(name string) (Device, error) {
	devices, err := Devices()
	if err != nil {
		return Device{}, err
	}
	return pickDevice(devices, name)
}

func pickDevice(devices []Device, name string) (Device, error) {
	names := make([]string, len(devices))
	for i, d := range devices {
		if names[i] = d.Name; d.Name == name {
			return d, nil
		}
	}
	e := &OpError{Op: "ibv_open_device", Object: name, Kind: ErrNoDevice, Err: syscall.ENODEV}
	switch {
	case len(devices) == 0:
		e.Reason = "no RDMA device is visible here" + unusable()
	case name == "" && len(devices) == 1:
		return devices[0], nil
	case name == "":
		e.Reason = "there are several devices, name one: " + strings.Join(names, ", ")
	default:
		e.Reason = "there is no such device; there are: " + strings.Join(names, ", ")
	}
	return Device{}, e
}

// unusable says whether the kernel has devices that libibverbs did not list.
func unusable() string {
	devices, err := sysfs.Host.Devices()
	if err != nil || len(devices) == 0 {
		return "; for a soft device: rdma link add rxe0 type rxe netdev NETDEV"
	}
	remedy := ""
	names := make([]string, len(devices))
	for i, d := range devices {
		names[i] = d.Name
		if d.Unusable != nil {
			names[i] += fmt.Sprintf(" (%v)", d.Unusable)
		} else {
			remedy = ": install the device's provider (ibverbs-providers) and do not link statically"
		}
	}
	return " to libibverbs, though the kernel has " + strings.Join(names, ", ") + remedy
}

// openError explains why a listed device cannot be opened. libibverbs tells most
// causes as ENOENT; the device node itself says more.
func openError(name string, err error) error {
	e := &OpError{Op: "ibv_open_device", Object: name, Err: err}
	if errors.Is(err, syscall.ENODEV) {
		e.Kind, e.Reason = ErrNoDevice, "the device is gone"
	}
	devices, _ := sysfs.Host.Devices()
	for _, d := range devices {
		if d.Name != name || d.Unusable == nil {
			continue
		}
		e.Reason = d.Unusable.Error()
		if errno := syscall.Errno(0); errors.As(d.Unusable, &errno) {
			e.Err = errno
		}
	}
	return e
}
