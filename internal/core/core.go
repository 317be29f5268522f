// Package core holds the inner state of the live objects that the public packages
// share: ibv's queue pairs report to cq's completion queues, and both hang from
// ibv's contexts and protection domains. A public handle points to one of these;
// the ownership graph keeps it reachable until it is closed, whatever becomes of
// the handle.
package core

import (
	"errors"
	"fmt"
	"sync"
	"syscall"

	"github.com/goverbs/goverbs/internal/cverbs"
	"github.com/goverbs/goverbs/internal/life"
)

// Context is an open device.
type Context struct {
	life.Node
	H        cverbs.Context
	Name     string
	IWARP    bool              // its transitions of a QP are not those of InfiniBand
	Software bool              // made by the kernel, with no hardware below
	Attr     cverbs.DeviceAttr // as it was when the device was opened
	Owner    string            // who closes it, if that is not the program

	// SharedQPs keeps the number of a queue pair with a shared receive queue from being
	// given to another before its completions are out of the way.
	SharedQPs sync.Mutex
	// Ports is held while a port is asked for its MTU and the answer is noted.
	Ports sync.Mutex

	events events
}

// PD is a protection domain.
type PD struct {
	life.Node
	H   cverbs.PD
	Ctx *Context
}

// Label names an object by its handle number and device.
func Label(number uint32, ctx *Context) string {
	return fmt.Sprintf("%d of %s", number, ctx.Name)
}

// Gone turns the EIO of a destroy call into success if the device was removed: the
// kernel has then freed the object with it. The same errno from a device that still
// answers is a failure. It asks the device, which something must keep open.
func (c *Context) Gone(err error) error {
	if !errors.Is(err, syscall.EIO) {
		return err
	}
	if c.Failure() != nil {
		return nil
	}
	if _, query := cverbs.QueryDevice(c.H); errors.Is(query, syscall.EIO) {
		return nil
	}
	return err
}
