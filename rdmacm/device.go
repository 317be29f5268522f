package rdmacm

import (
	"fmt"
	"runtime"
	"sync"
	"syscall"

	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/ccm"
	"github.com/goverbs/goverbs/internal/life"
)

// device is a device that ids are bound to.
//
// librdmacm opens each for itself and never closes it. The library does not use that
// ibv_context, whose events and end would be another's, but opens the device once more: to
// the kernel a queue pair's attributes are the same whoever asked for them. So a queue pair
// may as well be of a Context that the program opened.
type device struct {
	name  string
	verbs uintptr // librdmacm's own ibv_context

	ids     int  // under devices' lock
	removed bool // likewise

	mu  sync.Mutex
	ctx *ibv.Context // or nil
}

// devices are those with ids, by librdmacm's ibv_context.
var devices = struct {
	sync.Mutex
	used map[uintptr]*device
}{used: map[uintptr]*device{}}

// setInfo notes what C has told of an id.
func (s *idState) setInfo(info *ccm.Info) {
	s.info.Store(info)
	s.mu.Lock()
	defer s.mu.Unlock()
	if info.Verbs == 0 || s.dev != nil {
		return
	}
	devices.Lock()
	defer devices.Unlock()
	d := devices.used[info.Verbs]
	if d == nil {
		d = &device{name: info.Device, verbs: info.Verbs}
		devices.used[info.Verbs] = d
	}
	d.ids++
	s.dev = d
}

func (s *idState) deviceRemoved() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dev != nil {
		devices.Lock()
		s.dev.removed = true
		devices.Unlock()
	}
}

// leaveDevice is for an id that is about to be destroyed, which frees what librdmacm has of a
// device that was removed if the id is its last. It returns the device if it is our last, to be
// closed when the id is destroyed, and the error of ccm.Abandon.
func (s *idState) leaveDevice() (last *device, err error) {
	s.mu.Lock()
	d := s.dev
	s.dev = nil
	s.mu.Unlock()
	if d == nil {
		return nil, nil
	}
	devices.Lock()
	defer devices.Unlock()
	if d.ids--; d.ids > 0 {
		return nil, nil
	}
	delete(devices.used, d.verbs)
	if d.removed {
		// Or the removal of the device would wait for ever for librdmacm to close it.
		err = ccm.Abandon(d.verbs)
	}
	return d, err
}

// close is for a device to which no id is bound any more.
func (d *device) close(abandoned error) {
	if abandoned != nil {
		life.Logger().Error("librdmacm keeps a verbs device that was removed", "object", d.name, "reason", abandoned.Error())
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ctx != nil {
		if err := d.ctx.Core().CloseUnused(); err != nil {
			life.Logger().Error("closing a borrowed verbs device failed", "object", d.name, "reason", err.Error())
		}
	}
}

// Context returns the device that the id is bound to, to make PDs and completion queues
// from. It is the same for all ids of the device, and the library's: its Close is refused,
// and it is closed with the last of the ids, or when the last of what was made from it is
// closed, if that is later. A program that connects often may open the device itself: with
// [ID.CreateQP] any Context of it will do.
func (id *ID) Context() (*ibv.Context, error) {
	defer runtime.KeepAlive(id)
	s := id.s
	const op = "ibv_open_device"
	if err := s.Use(); err != nil {
		return nil, s.fail(op, err, "")
	}
	defer s.Done()
	s.mu.Lock()
	d := s.dev
	s.mu.Unlock()
	if d == nil {
		return nil, s.fail(op, syscall.EINVAL, "the id is bound to no device: wait for ADDR_RESOLVED, or bind it to an address of one")
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ctx == nil {
		ctx, err := ibv.Open(d.name)
		if err != nil {
			return nil, err
		}
		ctx.Core().Owner = fmt.Sprintf("the connection manager closes it with the last id that is bound to %s", d.name)
		d.ctx = ctx
	}
	return d.ctx, nil
}

// Devices returns the names of the devices that librdmacm can use. It opens them all, for
// itself.
//
// Implements: rdma_get_devices, rdma_free_devices
func Devices() ([]string, error) {
	names, err := ccm.Devices()
	if err != nil {
		return nil, &ibv.OpError{Op: "rdma_get_devices", Kind: kindOf(err), Err: err, Reason: whyNoChannel(err)}
	}
	return names, nil
}
