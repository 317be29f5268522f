//go:build cgo && linux && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package fakedev

// #include "fakedev.h"
import "C"

import (
	"encoding/binary"
	"fmt"
	"unsafe"
)

// Queue is a work queue of a fake device: of a QP or an SRQ.
type Queue struct {
	d *Device
	c C.struct_fd_name
}

// Send returns the send queue of a QP.
func (d *Device) Send(qpn uint32) Queue {
	return Queue{d, C.struct_fd_name{kind: C.FD_QP, number: C.uint32_t(qpn), send: true}}
}

// Recv returns the receive queue of a QP.
func (d *Device) Recv(qpn uint32) Queue {
	return Queue{d, C.struct_fd_name{kind: C.FD_QP, number: C.uint32_t(qpn)}}
}

// SRQ returns the queue of an SRQ, by its handle.
func (d *Device) SRQ(handle uint32) Queue {
	return Queue{d, C.struct_fd_name{kind: C.FD_SRQ, number: C.uint32_t(handle)}}
}

func (q Queue) String() string {
	kind := "receive queue of QP"
	switch {
	case q.c.kind == C.FD_SRQ:
		kind = "SRQ"
	case bool(q.c.send):
		kind = "send queue of QP"
	}
	return fmt.Sprintf("%s %#x", kind, uint32(q.c.number))
}

// The operations, as C numbers them.
const (
	WRWrite    = C.IBV_WR_RDMA_WRITE
	WRWriteImm = C.IBV_WR_RDMA_WRITE_WITH_IMM
	WRSend     = C.IBV_WR_SEND
	WRSendImm  = C.IBV_WR_SEND_WITH_IMM
	WRRead     = C.IBV_WR_RDMA_READ
	WRCmpSwap  = C.IBV_WR_ATOMIC_CMP_AND_SWP
	WRFetchAdd = C.IBV_WR_ATOMIC_FETCH_AND_ADD
	WRLocalInv = C.IBV_WR_LOCAL_INV
	WRBindMW   = C.IBV_WR_BIND_MW
	WRSendInv  = C.IBV_WR_SEND_WITH_INV
)

// WR is a work request as the device got it. Fields that its operation does not have
// are zero.
type WR struct {
	WRID     uint64
	Opcode   int    // of a send
	Flags    uint32 // ibv_send_flags
	Signaled bool   // by its flags or by the QP; always of a receive
	SGEs     []SGE
	Inline   []byte // what was copied at the post; nil without IBV_SEND_INLINE
	Length   int    // of all SGEs
	Imm      uint32 // host order
	InvRKey  uint32

	RemoteAddr       uint64
	RKey             uint32
	CompareAdd, Swap uint64
	AH               uint32 // handle
	RemoteQPN, QKey  uint32
	Bind             Bind
}

// SGE is struct ibv_sge.
type SGE struct {
	Addr   uint64
	Length uint32
	LKey   uint32
}

// Bind is what a bind of a memory window asks for.
type Bind struct {
	MW           uint32 // handle
	RKey         uint32 // the new one
	LKey         uint32 // of the region; 0 for none
	Addr, Length uint64
	Access       uint32
}

// Posted returns what is posted and not completed, the oldest first.
func (q Queue) Posted() []WR {
	q.d.t.Helper()
	var wrs []WR
	var v C.struct_fd_view
	for i := 0; C.fd_view(q.d.c, q.c, C.uint32_t(i), &v) == 0; i++ {
		wrs = append(wrs, wrFromC(&v))
	}
	if len(wrs) == 0 && C.fd_posted(q.d.c, q.c) < 0 {
		q.d.t.Errorf("%s: there is no %v", q.d.name, q)
	}
	return wrs
}

func wrFromC(v *C.struct_fd_view) WR {
	defer C.free(unsafe.Pointer(v.sges))
	defer C.free(unsafe.Pointer(v.data))
	wr := WR{
		WRID:       uint64(v.wr_id),
		Opcode:     int(v.opcode),
		Flags:      uint32(v.flags),
		Signaled:   bool(v.signaled),
		Length:     int(v.length),
		Imm:        uint32(v.imm),
		InvRKey:    uint32(v.inv_rkey),
		RemoteAddr: uint64(v.remote_addr),
		RKey:       uint32(v.rkey),
		CompareAdd: uint64(v.compare_add),
		Swap:       uint64(v.swap),
		AH:         uint32(v.ah),
		RemoteQPN:  uint32(v.remote_qpn),
		QKey:       uint32(v.remote_qkey),
		Bind: Bind{
			MW:     uint32(v.mw_handle),
			RKey:   uint32(v.mw_rkey),
			LKey:   uint32(v.mw_lkey),
			Addr:   uint64(v.mw_addr),
			Length: uint64(v.mw_length),
			Access: uint32(v.mw_access),
		},
	}
	for _, s := range unsafe.Slice(v.sges, int(v.nsge)) {
		wr.SGEs = append(wr.SGEs, SGE{uint64(s.addr), uint32(s.length), uint32(s.lkey)})
	}
	if v.data != nil {
		wr.Inline = C.GoBytes(unsafe.Pointer(v.data), C.int(v.length))
	}
	return wr
}

// WRIDs returns the wr_ids of what is posted, the oldest first.
func (q Queue) WRIDs() []uint64 {
	q.d.t.Helper()
	var ids []uint64
	for _, wr := range q.Posted() {
		ids = append(ids, wr.WRID)
	}
	return ids
}

// Data returns the bytes that posted WR i sends, or the present ones of the memory that
// it will write to. The memory must be registered, as it must for a real device.
func (q Queue) Data(i int) []byte {
	q.d.t.Helper()
	wrs := q.Posted()
	if i >= len(wrs) {
		q.d.t.Errorf("%s: there is no WR %d in the %v", q.d.name, i, q)
		return nil
	}
	b := make([]byte, wrs[i].Length)
	if len(b) > 0 {
		q.d.check(fmt.Sprintf("Data of WR %d of the %v", i, q),
			C.fd_copy(q.d.c, q.c, C.uint32_t(i), 0, unsafe.Pointer(&b[0]), C.size_t(len(b)), false))
	}
	return b
}

// Write writes to the memory of posted WR i, from byte off of its SGEs on, as a device
// does while a message or the answer to a read arrives.
func (q Queue) Write(i, off int, b []byte) {
	q.d.t.Helper()
	if len(b) > 0 {
		q.d.check(fmt.Sprintf("Write to WR %d of the %v", i, q),
			C.fd_copy(q.d.c, q.c, C.uint32_t(i), C.size_t(off), unsafe.Pointer(&b[0]), C.size_t(len(b)), true))
	}
}

// WC is a completion, as the fields of struct ibv_wc; Imm is in host order.
type WC struct {
	WRID       uint64
	Status     int // ibv_wc_status
	Opcode     int // ibv_wc_opcode
	VendorErr  uint32
	ByteLen    int
	Imm        *uint32 // sets IBV_WC_WITH_IMM
	InvRKey    *uint32 // sets IBV_WC_WITH_INV
	QPN, SrcQP uint32
	GRH        bool // sets IBV_WC_GRH
	SLID       uint16
	SL         uint8
}

func (w *WC) toC() C.struct_ibv_wc {
	c := C.struct_ibv_wc{
		wr_id:      C.uint64_t(w.WRID),
		status:     C.enum_ibv_wc_status(w.Status),
		opcode:     C.enum_ibv_wc_opcode(w.Opcode),
		vendor_err: C.uint32_t(w.VendorErr),
		byte_len:   C.uint32_t(w.ByteLen),
		qp_num:     C.uint32_t(w.QPN),
		src_qp:     C.uint32_t(w.SrcQP),
		slid:       C.uint16_t(w.SLID),
		sl:         C.uint8_t(w.SL),
	}
	union := (*[4]byte)(unsafe.Pointer(&c.anon0))
	if w.Imm != nil {
		c.wc_flags |= C.IBV_WC_WITH_IMM
		binary.BigEndian.PutUint32(union[:], *w.Imm)
	}
	if w.InvRKey != nil {
		c.wc_flags |= C.IBV_WC_WITH_INV
		binary.NativeEndian.PutUint32(union[:], *w.InvRKey)
	}
	if w.GRH {
		c.wc_flags |= C.IBV_WC_GRH
	}
	return c
}

// Completion says how a posted WR completes. The zero value is the success of the
// oldest one. What a failed completion does not define is garbage, on purpose.
type Completion struct {
	Index     int // among the posted WRs
	Status    int // ibv_wc_status
	VendorErr uint32
	// Payload is written to the memory of the WR: what a receive gets, a read, an
	// atomic.
	Payload   []byte
	ByteLen   *int    // the length of Payload otherwise, or of a send's SGEs
	Opcode    *int    // ibv_wc_opcode; that of the WR otherwise
	WRID      *uint64 // that of the WR otherwise
	Imm       *uint32
	InvRKey   *uint32
	QPN       uint32 // for the WR of an SRQ: the QP that took it
	SrcQP     uint32
	GRH       bool
	SLID      uint16
	SL        uint8
	Solicited bool
}

// Complete completes a posted WR. On a send queue the unsignaled WRs before it go too,
// without completions; signaled ones stay, to be completed out of order.
func (q Queue) Complete(c Completion) {
	q.d.t.Helper()
	wc := WC{
		Status:    c.Status,
		VendorErr: c.VendorErr,
		Imm:       c.Imm,
		InvRKey:   c.InvRKey,
		QPN:       c.QPN,
		SrcQP:     c.SrcQP,
		GRH:       c.GRH,
		SLID:      c.SLID,
		SL:        c.SL,
	}
	out := C.struct_fd_completion{
		index:        C.uint32_t(c.Index),
		has_wr_id:    c.WRID != nil,
		has_opcode:   c.Opcode != nil,
		has_byte_len: c.ByteLen != nil,
		solicited:    C.bool(c.Solicited),
	}
	if c.WRID != nil {
		wc.WRID = *c.WRID
	}
	if c.Opcode != nil {
		wc.Opcode = *c.Opcode
	}
	if c.ByteLen != nil {
		wc.ByteLen = *c.ByteLen
	}
	out.wc = wc.toC()
	q.d.check(fmt.Sprintf("Complete of WR %d of the %v", c.Index, q),
		C.fd_complete(q.d.c, q.c, &out, unsafe.Pointer(unsafe.SliceData(c.Payload)), C.size_t(len(c.Payload))))
}

// BadWR is what a refused post does with the caller's bad_wr.
type BadWR int

// The ways to treat bad_wr: providers know all of them.
const (
	BadNamed     BadWR = C.FD_BAD_NAMED     // points to the refused WR
	BadUntouched BadWR = C.FD_BAD_UNTOUCHED // is as it was
	BadOutside   BadWR = C.FD_BAD_OUTSIDE   // points to memory that is not in the chain
)

// Taken is what a refused post queues all the same.
type Taken int

// What a refused post may queue. It is with the device then, and completes.
const (
	TakenBefore Taken = C.FD_TAKEN_BEFORE // the WRs before the refused one
	TakenNone   Taken = C.FD_TAKEN_NONE
	TakenAll    Taken = C.FD_TAKEN_ALL // the refused one and those after it too
)

// KeepErrno is the Errno of a Refusal that leaves errno as it is.
const KeepErrno = -1

// Refusal is a post that the device refuses.
type Refusal struct {
	Index int // among the WRs that are posted to the queue from now on
	RC    int // what the post returns
	Errno int // the errno that it leaves, or KeepErrno
	Bad   BadWR
	Taken Taken
}

// FailPost orders the device to refuse a WR, once.
func (q Queue) FailPost(r Refusal) {
	q.d.t.Helper()
	c := C.struct_fd_refusal{
		index: C.uint32_t(r.Index),
		rc:    C.int(r.RC),
		err:   C.int(r.Errno),
		bad:   uint32(r.Bad),
		taken: uint32(r.Taken),
	}
	q.d.check(fmt.Sprintf("FailPost of the %v", q), C.fd_refuse(q.d.c, q.c, &c))
}

// Refuses reports whether a refusal that was ordered has not happened yet.
func (q Queue) Refuses() bool { return bool(C.fd_refuses(q.d.c, q.c)) }
