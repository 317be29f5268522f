package cq

import (
	"syscall"

	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/cverbs"
	"github.com/goverbs/goverbs/internal/inflight"
)

// WC is a work completion. The exported fields hold always. What the methods return
// is valid only when Status is StatusSuccess: a failed completion does not say more,
// and they return zero.
//
// Implements: ibv_wc
type WC struct {
	WRID      uint64 // of the work request, as it was posted
	Status    Status
	QPNum     uint32 // the own queue pair
	VendorErr uint32 // what the provider adds to a failed Status

	kind inflight.Kind
	c    cverbs.WC // read only on success
}

const wcFlagGRH, wcFlagWithImm = 1 << 0, 1 << 1 // ibv_wc_flags

func (wc *WC) set(c *cverbs.WC, wrID uint64, kind inflight.Kind) {
	wc.WRID = wrID
	wc.Status = Status(c.Status)
	wc.QPNum = c.QPNum
	wc.VendorErr = c.VendorErr
	wc.kind = kind
	if c.Status == uint32(StatusSuccess) {
		wc.c = *c
		wc.c.Opcode++ // so that zero is none
	} else {
		wc.c = cverbs.WC{}
	}
}

// Err returns nil on success and otherwise an *Error.
func (wc *WC) Err() error {
	if wc.Status == StatusSuccess {
		return nil
	}
	return &Error{WRID: wc.WRID, Status: wc.Status, QPNum: wc.QPNum, VendorErr: wc.VendorErr, Recv: wc.IsRecv()}
}

// IsRecv reports whether the work request was a receive. It is valid on failure too:
// the library knows which queue it posted to.
func (wc *WC) IsRecv() bool {
	if wc.kind == inflight.Foreign {
		return wc.Opcode() == OpRecv || wc.Opcode() == OpRecvRDMAWithImm
	}
	return wc.kind == inflight.Recv
}

// Foreign reports that the work request was not posted through this module; WRID is
// then what the device returned.
func (wc *WC) Foreign() bool { return wc.kind == inflight.Foreign }

// Opcode returns the operation that completed, or zero if it failed.
func (wc *WC) Opcode() Opcode {
	return Opcode(wc.c.Opcode)
}

// ByteLen returns how many bytes were received or read; it means nothing for a send
// or a write. On UD it counts the 40 bytes before the data that hold a GRH.
func (wc *WC) ByteLen() int { return int(wc.c.ByteLen) }

// Imm returns the immediate data that came with a receive, as the number that the
// sender gave, and whether there was any.
func (wc *WC) Imm() (imm uint32, ok bool) {
	if wc.c.Flags&wcFlagWithImm == 0 {
		return 0, false
	}
	return cverbs.FromBE32(wc.c.Imm), true
}

// HasGRH reports whether a global routing header stands before the data of a UD
// receive.
func (wc *WC) HasGRH() bool { return wc.c.Flags&wcFlagGRH != 0 }

// SrcQP returns the sender's QP number of a UD receive.
func (wc *WC) SrcQP() uint32 { return wc.c.SrcQP }

// SLID returns the sender's LID of a UD receive.
func (wc *WC) SLID() uint16 { return wc.c.SLID }

// SL returns the service level of a UD receive.
func (wc *WC) SL() uint8 { return wc.c.SL }

// AHAttr returns the way back to the sender of a UD receive, for ibv's CreateAH. grh is
// the memory of the receive, of which the first 40 bytes count where HasGRH, and must be
// unchanged since; port is the port of the own queue pair. The sender's QP number is
// SrcQP.
//
// Its errors match EINVAL: the completion failed or is no receive, it has no GRH though
// the port is RoCE, or grh is too short. Any other is the library's: the GRH names no
// GID of the port.
//
// Implements: ibv_init_ah_from_wc
func (wc *WC) AHAttr(ctx *ibv.Context, grh []byte, port uint8) (ibv.AHAttr, error) {
	refuse := func(reason string) (ibv.AHAttr, error) {
		return ibv.AHAttr{}, &ibv.OpError{Op: "ibv_init_ah_from_wc", Err: syscall.EINVAL, Reason: reason}
	}
	switch {
	case ctx.Core() == nil:
		return refuse("no device: the Context is nil")
	case wc.Status != StatusSuccess:
		return refuse("a failed completion does not say who sent: look at its Err")
	case !wc.IsRecv():
		return refuse("the completion is of no receive")
	}
	return ctx.InitAHFromWC(wc.c, grh, port)
}
