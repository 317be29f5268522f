package ibv

import (
	"fmt"
	"net"
	"runtime"
	"syscall"

	"github.com/goverbs/goverbs/internal/core"
	"github.com/goverbs/goverbs/internal/cverbs"
)

// Context is an open device. Its methods may be called from several goroutines.
//
// Implements: ibv_context
type Context struct{ s *core.Context }

// Core returns the inner state, for the other packages of this module.
func (c *Context) Core() *core.Context {
	if c == nil {
		return nil
	}
	return c.s
}

// Name returns the device's name.
func (c *Context) Name() string { return c.s.Name }

// Software reports whether the device is made by the kernel, with no hardware below.
func (c *Context) Software() bool { return c.s.Software }

// Close closes the device. While something that was made from it is open it
// changes nothing and returns an error that matches ErrBusy and names what is
// open. Closing again returns nil.
//
// Implements: ibv_close_device
func (c *Context) Close() error {
	defer runtime.KeepAlive(c)
	return c.close(c.s.Close)
}

// CloseAll closes everything that was made from the device, each object before what it
// was made from, youngest first, and then the device. Others may still use all of it:
// calls in progress end first, and what comes after fails with ErrClosed, the making of
// new objects too. But nobody may touch memory of AllocRegion any more, which is unmapped.
//
// Where something cannot be closed, the error names it, the rest is closed, and CloseAll
// can be called again. A queue pair that is left posts nothing before it is taken to
// RESET. A queue pair with bound windows is given a second to flush its work requests.
func (c *Context) CloseAll() error {
	defer runtime.KeepAlive(c)
	return c.close(c.s.CloseAll)
}

func (c *Context) close(how func() error) error {
	const op = "ibv_close_device"
	if c.s.Owner != "" {
		return &OpError{Op: op, Object: c.s.Name, Err: syscall.EBUSY, Reason: "it is borrowed: " + c.s.Owner}
	}
	return closeError(op, c.s.Name, how())
}

// call runs f while the device cannot be closed.
func (c *Context) call(op string, f func() error) error {
	defer runtime.KeepAlive(c)
	err := c.s.Use()
	if err == nil {
		defer c.s.Done()
		err = f()
	}
	if err != nil {
		return &OpError{Op: op, Object: c.s.Name, Err: err}
	}
	return nil
}

// QueryPort returns the attributes of a port, counted from 1.
//
// Implements: ibv_query_port
func (c *Context) QueryPort(port uint8) (PortAttr, error) {
	var a cverbs.PortAttr
	if err := c.checkPort("ibv_query_port", port); err != nil {
		return PortAttr{}, err
	}
	err := c.call("ibv_query_port", func() (err error) {
		a, err = cverbs.QueryPort(c.s.H, port)
		return err
	})
	if err != nil {
		return PortAttr{}, err
	}
	return portAttr(&a), nil
}

// QueryPKey returns entry index of a port's partition key table, in host order.
//
// Implements: ibv_query_pkey
func (c *Context) QueryPKey(port uint8, index uint16) (uint16, error) {
	attr, err := c.QueryPort(port)
	if err != nil {
		return 0, err
	}
	if index >= attr.PKeyTableLen {
		return 0, &OpError{Op: "ibv_query_pkey", Object: c.s.Name, Err: syscall.EINVAL,
			Reason: fmt.Sprintf("there is no entry %d: the table of port %d has %d", index, port, attr.PKeyTableLen)}
	}
	var pkey uint16
	err = c.call("ibv_query_pkey", func() (err error) {
		pkey, err = cverbs.QueryPKey(c.s.H, port, int(index))
		return err
	})
	return pkey, err
}

// GIDTable returns the GIDs of all ports, without the empty entries.
//
// Implements: ibv_query_gid_table
func (c *Context) GIDTable() ([]GIDEntry, error) {
	var raw []cverbs.GIDEntry
	err := c.call("ibv_query_gid_table", func() error {
		room := 0
		for port := range c.s.Attr.PhysPortCnt {
			a, err := cverbs.QueryPort(c.s.H, uint8(port+1))
			if err != nil {
				return err
			}
			room += int(a.GIDTblLen)
		}
		var err error
		raw, err = cverbs.QueryGIDTable(c.s.H, room)
		return err
	})
	if err != nil {
		return nil, err
	}
	entries := make([]GIDEntry, len(raw))
	netdevs := netdevNames()
	for i, r := range raw {
		entries[i] = GIDEntry{
			GID:         r.GID,
			Index:       r.Index,
			Port:        uint8(r.Port),
			Type:        GIDType(r.Type),
			NetdevIndex: r.Ifindex,
			Netdev:      netdevs[r.Ifindex],
		}
	}
	return entries, nil
}

// netdevNames has the network devices by number. One of another network namespace
// has a number in a GID table but no name here.
func netdevNames() map[uint32]string {
	names := map[uint32]string{}
	interfaces, _ := net.Interfaces() // without them the numbers must do
	for _, ifc := range interfaces {
		names[uint32(ifc.Index)] = ifc.Name
	}
	return names
}

func (c *Context) checkPort(op string, port uint8) error {
	if n := c.s.Attr.PhysPortCnt; port == 0 || uint32(port) > n {
		return &OpError{Op: op, Object: c.s.Name, Err: syscall.EINVAL,
			Reason: fmt.Sprintf("there is no port %d: the device has ports 1 to %d", port, n)}
	}
	return nil
}

// ChooseGID picks the GID to use for a peer and says why. One of a port that is not
// active is taken only where no other matches.
func (c *Context) ChooseGID(req GIDRequest) (GIDChoice, error) {
	if req.Port != 0 {
		if err := c.checkPort("choosing a GID", req.Port); err != nil {
			return GIDChoice{}, err
		}
	}
	entries, err := c.GIDTable()
	if err != nil {
		return GIDChoice{}, err
	}
	active := map[uint8]bool{}
	for port := range c.s.Attr.PhysPortCnt {
		a, err := c.QueryPort(uint8(port + 1))
		active[uint8(port+1)] = err == nil && a.State == PortActive
	}
	choice, err := chooseGID(entries, active, req)
	if err != nil {
		return GIDChoice{}, &OpError{Op: "choosing a GID", Object: c.s.Name, Err: err}
	}
	return choice, nil
}
