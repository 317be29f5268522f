package ibv

import (
	"fmt"
	"runtime"
	"syscall"

	"github.com/goverbs/goverbs/internal/core"
	"github.com/goverbs/goverbs/internal/cverbs"
	"github.com/goverbs/goverbs/internal/inflight"
	"github.com/goverbs/goverbs/internal/life"
)

// AH is an address handle: the way of datagrams to one peer, resolved once. Any UD queue
// pair of its protection domain may send to it. Its methods may be called from several
// goroutines.
//
// Implements: ibv_ah
type AH struct{ s *ahState }

type ahState struct {
	life.Node
	inflight.Used
	h  cverbs.AH
	pd *core.PD
}

// CreateAH makes an address handle. RoCE needs IsGlobal; there the kernel looks for the
// peer's address now, and an address that nobody answers for is an error after a while.
//
// Implements: ibv_create_ah
func (pd *PD) CreateAH(attr AHAttr) (*AH, error) {
	fail := func(err error, reason string) (*AH, error) {
		return nil, &OpError{Op: "ibv_create_ah", Object: pd.s.String(), Err: err, Reason: reason}
	}
	ctx := Context{pd.s.Ctx}
	ah := &ahState{pd: pd.s}
	if err := ah.Init("AH", ah.destroy, &pd.s.Node); err != nil {
		return fail(err, "")
	}
	if err := ctx.checkAH(&attr); err != nil {
		ah.Discard()
		return fail(syscall.EINVAL, err.Error())
	}
	if err := ah.Enter(); err != nil {
		ah.Discard()
		return fail(err, "")
	}
	h, err := cverbs.CreateAH(pd.s.H, attr.encode())
	if err != nil {
		reason := ctx.pathReason(&attr, err)
		ah.Leave()
		ah.Discard()
		return fail(err, reason)
	}
	ah.h = h
	ah.Reap(func() life.Verdict { return core.MayReap(&ah.Node, &ah.Used) })
	ah.Ready(fmt.Sprintf("to %s of %s", attr.peer(), pd.s.Ctx.Name))
	handle := &AH{ah}
	life.Guard(handle, &ah.Node)
	return handle, nil
}

// peer names where an address vector leads.
func (ah *AHAttr) peer() string {
	if ah.IsGlobal {
		return ah.GRH.DGID.String()
	}
	return fmt.Sprintf("LID %#x", ah.DLID)
}

// checkAH refuses an address vector that the device cannot have.
func (c *Context) checkAH(attr *AHAttr) error {
	if err := attr.check("AHAttr"); err != nil {
		return err
	}
	if n := c.s.Attr.PhysPortCnt; uint32(attr.Port) > n {
		return fmt.Errorf("AHAttr.Port %d is above the device's number of ports %d", attr.Port, n)
	}
	if attr.IsGlobal {
		return nil
	}
	if port, err := c.QueryPort(attr.Port); err == nil && port.LinkLayer == LinkLayerEthernet {
		return fmt.Errorf("port %d is Ethernet (RoCE), where a peer has no LID: set AHAttr.IsGlobal and GRH", attr.Port)
	}
	return nil
}

// String names the peer and the device.
func (ah *AH) String() string { return ah.s.String() }

// Close destroys the address handle. While sends to it are in flight it changes nothing
// and returns an error that matches ErrBusy and says how many. Closing again returns nil.
//
// Implements: ibv_destroy_ah
func (ah *AH) Close() error {
	defer runtime.KeepAlive(ah)
	return closeError("ibv_destroy_ah", ah.String(), ah.s.Close())
}

func (ah *ahState) destroy() error {
	return ah.CloseUsed(func() error { return ah.pd.Ctx.Gone(cverbs.DestroyAH(ah.h)) })
}

const wcFlagGRH = 1 << 0 // IBV_WC_GRH

// InitAHFromWC is what cq's WC.AHAttr calls, for the other packages of this module.
//
// Implements: ibv_init_ah_from_wc
func (c *Context) InitAHFromWC(wc cverbs.WC, grh []byte, port uint8) (AHAttr, error) {
	const op = "ibv_init_ah_from_wc"
	fail := func(err error, reason string) (AHAttr, error) {
		return AHAttr{}, &OpError{Op: op, Object: c.s.Name, Err: err, Reason: reason}
	}
	if err := c.checkPort(op, port); err != nil {
		return AHAttr{}, err
	}
	var header [cverbs.GRHSize]byte
	if wc.Flags&wcFlagGRH != 0 {
		if copy(header[:], grh) < len(header) {
			return fail(syscall.EINVAL, fmt.Sprintf("the GRH is %d bytes long: give the first %d of the receive's memory", len(grh), len(header)))
		}
	} else if attr, err := c.QueryPort(port); err != nil {
		return AHAttr{}, err
	} else if attr.LinkLayer == LinkLayerEthernet {
		return fail(syscall.EINVAL, "the completion came without a GRH, so that on RoCE nothing says who sent: only receives of UD queue pairs have one")
	}
	if err := c.s.Use(); err != nil {
		return fail(err, "")
	}
	defer c.s.Done()
	attr, err := cverbs.InitAHFromWC(c.s.H, port, wc, header)
	if err != nil {
		return fail(err, fmt.Sprintf("no GID of port %d is the receiver that the GRH names: it came through another port, or the memory was written since", port))
	}
	return DecodeAHAttr(&attr), nil
}
