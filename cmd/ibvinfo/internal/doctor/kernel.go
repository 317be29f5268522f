package doctor

import (
	"errors"
	"io/fs"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/internal/sysfs"
)

// rdmaModules are the modules that make RDMA devices of the network interfaces of a driver.
var rdmaModules = map[string]string{
	"mlx5_core": "mlx5_ib", "mlx4_core": "mlx4_ib", "bnxt_en": "bnxt_re", "ice": "irdma", "i40e": "irdma",
	"cxgb4": "iw_cxgb4", "qede": "qedr", "hns3": "hns_roce_hw_v2", "mana": "mana_ib",
}

func (e *Env) modules() (found []Check) {
	switch {
	case runtime.GOOS != "linux":
		return []Check{failed("use Linux", "RDMA devices exist on Linux only")}
	case !e.exists("sys/class/infiniband"):
		found = append(found, failed("load the adapter's (as modprobe mlx5_ib) or the software device's (modprobe rdma_rxe)",
			"the kernel's RDMA modules are not loaded: there is no /sys/class/infiniband"))
	case !e.exists("sys/class/infiniband_verbs"):
		found = append(found, failed("modprobe ib_uverbs",
			"the kernel's user interface to RDMA is not loaded: there is no /sys/class/infiniband_verbs"))
	}
	for driver, module := range rdmaModules {
		bound := e.glob("sys/bus/pci/drivers/" + driver + "/*:*")
		if len(bound) == 0 || e.exists("sys/module", module) {
			continue
		}
		address := bound[0][strings.LastIndex(bound[0], "/")+1:]
		found = append(found, warning("modprobe "+module, "%s drives %s as a network interface only: %s is not loaded", driver, address, module))
	}
	slices.SortFunc(found, func(a, b Check) int { return strings.Compare(a.Finding, b.Finding) })
	if len(found) == 0 {
		found = append(found, ok("RDMA and its user interface are loaded"))
	}
	return found
}

func (e *Env) devices() []Check {
	switch {
	case len(e.Devices) > 0:
		names := make([]string, len(e.Devices))
		for i, d := range e.Devices {
			names[i] = d.Name
		}
		return []Check{ok("%s", strings.Join(names, ", "))}
	case e.NoDevice != nil && !errors.Is(e.NoDevice, fs.ErrNotExist):
		return []Check{failed("make /sys readable", "they cannot be listed: %v", e.NoDevice)}
	}
	if errors.Is(e.NoDevice, fs.ErrNotExist) {
		return nil // without modules
	}
	return []Check{failed("load the adapter's module; for a software device: rdma link add rxe0 type rxe netdev NETDEV",
		"the kernel's RDMA modules have no device here")}
}

// namespaces tells whether the devices belong to all network namespaces, and whether what
// their GIDs stand for is in this one.
func (e *Env) namespaces() (found []Check) {
	exclusive := e.read("sys/module/ib_core/parameters/netns_mode") == "N"
	if exclusive && len(e.Devices) == 0 {
		return []Check{failed("on the host: rdma dev set DEVICE netns PID, or rdma system set netns shared",
			"each device belongs to one network namespace, and none to this one")}
	}
	for _, d := range e.Devices {
		for _, p := range d.Ports {
			if p.Transport == sysfs.RoCE && p.Netdev != "" && !e.exists("sys/class/net", p.Netdev) {
				found = append(found, warning("run in the host's network namespace (--network=host), or move the device into this one",
					"%s has the addresses of %s, which is in another network namespace", where(d, p), p.Netdev))
			}
		}
	}
	switch {
	case len(found) > 0:
	case exclusive:
		found = append(found, ok("each device belongs to one network namespace (mode exclusive)"))
	case len(e.Devices) > 0:
		found = append(found, ok("all network namespaces see all devices (mode shared)"))
	}
	return found
}

// nodes compares the devices with what is in /dev/infiniband.
func (e *Env) nodes() (found []Check) {
	for _, d := range e.Devices {
		if u := d.Unusable; u != nil && !errors.Is(u, fs.ErrPermission) {
			found = append(found, failed(u.Advice, "%s is visible but cannot be used: %v", d.Name, u.Err))
		}
	}
	if len(found) == 0 && len(e.Devices) > 0 {
		found = append(found, ok("every device has its node in /dev/infiniband"))
	}
	return found
}

// permissions tries to open the nodes: rules of control groups and namespaces are not seen in
// their modes.
func (e *Env) permissions() (found []Check) {
	var opened []string
	for _, d := range e.Devices {
		switch u := d.Unusable; {
		case u != nil && errors.Is(u, fs.ErrPermission):
			found = append(found, failed(u.Advice, "%s: %v", d.Name, u.Err))
		case u != nil:
		default:
			err := e.Open(e.path("dev/infiniband", d.Uverbs))
			switch {
			case errors.Is(err, fs.ErrPermission):
				found = append(found, failed("give the container the device (--device=/dev/infiniband) and not its node alone; "+
					"with RDMA devices of one namespace each: rdma dev set "+d.Name+" netns PID",
					"%s: %v, although its mode allows it", d.Name, err))
			case errors.Is(err, unix.ENXIO), errors.Is(err, unix.ENODEV):
				found = append(found, failed("remove the node and let udev make it again, or pass it to the container again",
					"%s: %v: the node is of a device that is gone", d.Name, err))
			case err != nil:
				found = append(found, failed("see dmesg", "%s: %v", d.Name, err))
			default:
				opened = append(opened, d.Name)
			}
		}
	}
	if len(found) == 0 && len(opened) > 0 {
		found = append(found, ok("this process may open %s", strings.Join(opened, ", ")))
	}
	return found
}

// connectionManager looks for what librdmacm needs; verbs alone do without.
func (e *Env) connectionManager() []Check {
	const node = "/dev/infiniband/rdma_cm"
	const without = "librdmacm and package rdmacm do not work without it"
	if !e.exists("sys/class/misc/rdma_cm") {
		return []Check{warning("modprobe rdma_ucm", "rdma_ucm is not loaded; %s", without)}
	}
	if !e.exists(node) {
		return []Check{warning("in a container, pass it in: --device=/dev/infiniband", "there is no %s; %s", node, without)}
	}
	if err := e.Open(e.path(node)); err != nil {
		return []Check{warning("let this user read and write it: mode 0666, as rdma-core's udev rules set", "%v; %s", err, without)}
	}
	return []Check{ok("rdma_ucm is loaded, and its node can be opened")}
}
