package ibv

import (
	"runtime"

	"github.com/goverbs/goverbs/internal/core"
	"github.com/goverbs/goverbs/internal/cverbs"
	"github.com/goverbs/goverbs/internal/life"
)

// PD is a protection domain: queue pairs use only the memory regions of their own.
// Its methods may be called from several goroutines.
//
// Implements: ibv_pd
type PD struct {
	ctx *Context
	s   *core.PD
}

// AllocPD makes a protection domain.
//
// Implements: ibv_alloc_pd
func (c *Context) AllocPD() (*PD, error) {
	defer runtime.KeepAlive(c)
	pd := &core.PD{Ctx: c.s}
	err := pd.Init("PD", func() error { return c.s.Gone(cverbs.DeallocPD(pd.H)) }, &c.s.Node)
	if err == nil {
		if pd.H, err = cverbs.AllocPD(c.s.H); err != nil {
			pd.Discard()
		}
	}
	if err != nil {
		return nil, &OpError{Op: "ibv_alloc_pd", Object: c.s.Name, Err: err}
	}
	pd.Ready(core.Label(cverbs.PDHandle(pd.H), c.s))
	handle := &PD{ctx: c, s: pd}
	life.Guard(handle, &pd.Node)
	return handle, nil
}

// Core returns the inner state, for the other packages of this module.
func (pd *PD) Core() *core.PD {
	if pd == nil {
		return nil
	}
	return pd.s
}

// Context returns the device that the protection domain belongs to.
func (pd *PD) Context() *Context { return pd.ctx }

// Close frees the protection domain. While anything that was made from it is open it
// changes nothing and returns an error that matches ErrBusy and names that. Closing
// again returns nil.
//
// Implements: ibv_dealloc_pd
func (pd *PD) Close() error {
	defer runtime.KeepAlive(pd)
	return closeError("ibv_dealloc_pd", pd.s.String(), pd.s.Close())
}

// CloseAll closes everything that was made from the protection domain, and then the
// protection domain, as Context.CloseAll does for a device. Completion queues are not of a
// protection domain, and stay.
func (pd *PD) CloseAll() error {
	defer runtime.KeepAlive(pd)
	return closeError("ibv_dealloc_pd", pd.s.String(), pd.s.CloseAll())
}
