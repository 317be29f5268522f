package cq

import (
	"syscall"

	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/core"
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
	opcode    Opcode // as in C: one less than what Opcode returns
	VendorErr uint32 // what the provider adds to a failed Status
	byteLen   uint32
	imm       uint32 // big endian; or the rkey that the peer invalidated
	QPNum     uint32 // the own queue pair
	srcQP     uint32
	flags     uint32
	pkeyIndex uint16
	slid      uint16
	sl        uint8
	pathBits  uint8
	// The fields so far are in the order of C, so that succeeded copies several at a time.
	// Those without a capital letter are zero if it failed.

	kind      inflight.Kind
	explained bool    // as inflight.Table.Explained; true of a success
	window    *ibv.MW // that the peer invalidated
}

const wcFlagGRH, wcFlagWithImm, wcFlagWithInv = 1 << 0, 1 << 1, 1 << 3 // ibv_wc_flags

// withInv returns the bits of wc_flags that say that the peer has invalidated an rkey.
// rdma_rxe gives programs the kernel's own number of that flag. In the verbs that one
// tells of an IP checksum, of which software devices do not tell.
func withInv(ctx *core.Context) uint32 {
	if ctx.Software {
		return wcFlagWithInv | 1<<2
	}
	return wcFlagWithInv
}

// take settles a completion of the device. It reports false if it is to be dropped. The
// caller holds the CQ lock.
func (wc *WC) take(q *core.CQ, c *cverbs.WC) bool {
	if c.Status != uint32(StatusSuccess) || c.Flags&q.WithInv != 0 {
		var settled core.Completion
		if !q.Settle(c, &settled) {
			ibv.NoteInvalidation(q, c)
			return false
		}
		wc.set(q, &settled)
		return true
	}
	user, kind, outcome := q.Settler.Complete(c.WRID, true)
	if outcome == inflight.Late {
		return false
	}
	wc.succeeded(c, user, kind)
	return true
}

func (wc *WC) succeeded(c *cverbs.WC, wrID uint64, kind inflight.Kind) {
	wc.WRID = wrID
	wc.Status, wc.opcode, wc.VendorErr, wc.byteLen, wc.imm, wc.QPNum, wc.srcQP, wc.flags =
		StatusSuccess, Opcode(c.Opcode), c.VendorErr, c.ByteLen, c.Imm, c.QPNum, c.SrcQP, c.Flags
	wc.pkeyIndex, wc.slid, wc.sl, wc.pathBits = c.PKeyIndex, c.SLID, c.SL, c.DLIDPathBits
	wc.kind, wc.explained = kind, true
	if wc.window != nil {
		wc.window = nil
	}
}

func (wc *WC) set(q *core.CQ, c *core.Completion) {
	*wc = WC{}
	if c.WC.Status == uint32(StatusSuccess) {
		wc.succeeded(&c.WC, c.WRID, c.Kind)
		if c.WC.Flags&q.WithInv != 0 {
			wc.flags |= wcFlagWithInv
			wc.window = ibv.Invalidated(q.Ctx, c.WC.Imm)
		}
		return
	}
	wc.WRID = c.WRID
	wc.Status = Status(c.WC.Status)
	wc.QPNum = c.WC.QPNum
	wc.VendorErr = c.WC.VendorErr
	wc.kind = c.Kind
	wc.explained = c.Explained
}

// Err returns nil on success and otherwise an *Error.
func (wc *WC) Err() error {
	if wc.Status == StatusSuccess {
		return nil
	}
	return wc.failure()
}

// failure is apart from Err so that Err is inlined.
//
//go:noinline
func (wc *WC) failure() error {
	return &Error{WRID: wc.WRID, Status: wc.Status, QPNum: wc.QPNum, VendorErr: wc.VendorErr, Recv: wc.IsRecv(), Unexplained: !wc.explained}
}

// IsRecv reports whether the work request was a receive. It is valid on failure too:
// the library knows which queue it posted to.
func (wc *WC) IsRecv() bool {
	if wc.kind == inflight.Foreign {
		return wc.Opcode() == OpRecv || wc.Opcode() == OpRecvRDMAWithImm
	}
	return wc.kind == inflight.Recv || wc.kind == inflight.Shared
}

// Foreign reports that the work request was not posted through this module; WRID is
// then what the device returned.
func (wc *WC) Foreign() bool { return wc.kind == inflight.Foreign }

// Opcode returns the operation that completed, or zero if it failed.
func (wc *WC) Opcode() Opcode {
	if wc.Status != StatusSuccess || !wc.explained { // or the WC holds no completion
		return 0
	}
	return wc.opcode + 1
}

// ByteLen returns how many bytes were received or read; it means nothing for a send
// or a write. On UD it counts the 40 bytes before the data that hold a GRH.
func (wc *WC) ByteLen() int { return int(wc.byteLen) }

// Imm returns the immediate data that came with a receive, as the number that the
// sender gave, and whether there was any.
func (wc *WC) Imm() (imm uint32, ok bool) {
	if wc.flags&wcFlagWithImm == 0 {
		return 0, false
	}
	return cverbs.FromBE32(wc.imm), true
}

// Invalidated returns the rkey that came with a receive of a SEND_WITH_INV, and whether
// there was any. Window is the memory window that had it, or nil if it was none of this
// program or was dropped by it.
func (wc *WC) Invalidated() (rkey uint32, window *ibv.MW, ok bool) {
	if wc.flags&wcFlagWithInv == 0 {
		return 0, nil, false
	}
	return wc.imm, wc.window, true
}

// HasGRH reports whether a global routing header stands before the data of a UD
// receive.
func (wc *WC) HasGRH() bool { return wc.flags&wcFlagGRH != 0 }

// SrcQP returns the sender's QP number of a UD receive.
func (wc *WC) SrcQP() uint32 { return wc.srcQP }

// SLID returns the sender's LID of a UD receive.
func (wc *WC) SLID() uint16 { return wc.slid }

// SL returns the service level of a UD receive.
func (wc *WC) SL() uint8 { return wc.sl }

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
	return ctx.InitAHFromWC(cverbs.WC{
		ByteLen:      wc.byteLen,
		Imm:          wc.imm,
		QPNum:        wc.QPNum,
		SrcQP:        wc.srcQP,
		Flags:        wc.flags,
		PKeyIndex:    wc.pkeyIndex,
		SLID:         wc.slid,
		SL:           wc.sl,
		DLIDPathBits: wc.pathBits,
	}, grh, port)
}
