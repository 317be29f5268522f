package ibv

import "github.com/goverbs/goverbs/internal/core"

// SGE is a piece of registered memory: a scatter/gather element. mr.Region.SGE
// makes one with its bounds checked, and work requests with it keep the region from
// being closed. One filled by hand is allowed, and tracked by nobody.
//
// Implements: ibv_sge
type SGE struct {
	Addr   uint64 // as the memory region's own address range counts
	Length uint32 // bytes
	LKey   uint32

	mr *core.MRRef
}

// NewSGE is for the other packages of this module.
func NewSGE(mr *core.MRRef, addr uint64, length uint32) SGE {
	return SGE{Addr: addr, Length: length, LKey: mr.LKey, mr: mr}
}

// Opcode is the operation of a send work request. The zero value is none, so that
// an operation that was forgotten is not taken for another.
//
// Implements: ibv_wr_opcode
type Opcode uint8

// The operations: C's numbers and one more.
const (
	OpWrite       Opcode = 1  // RDMA_WRITE
	OpWriteImm    Opcode = 2  // RDMA_WRITE_WITH_IMM
	OpSend        Opcode = 3  // SEND
	OpSendImm     Opcode = 4  // SEND_WITH_IMM
	OpRead        Opcode = 5  // RDMA_READ
	OpCompareSwap Opcode = 6  // ATOMIC_CMP_AND_SWP
	OpFetchAdd    Opcode = 7  // ATOMIC_FETCH_AND_ADD
	OpLocalInv    Opcode = 8  // LOCAL_INV
	OpBindMW      Opcode = 9  // BIND_MW
	OpSendInv     Opcode = 10 // SEND_WITH_INV
)

// SendFlags modify a send work request.
//
// Implements: ibv_send_flags
type SendFlags uint32

const (
	// SendFence waits for earlier RDMA reads and atomics to complete first. RC only.
	// The rdma_rxe of Linux 6.1 now and then forgets a work request that waited, which then
	// never completes; that of 6.12 does not.
	SendFence SendFlags = 1 << 0
	// SendSignaled asks for a completion. Without it, and without
	// QPInitAttr.SignalAll, only a failure makes one.
	SendSignaled SendFlags = 1 << 1
	// SendSolicited wakes a receiver that waits for solicited completions only.
	SendSolicited SendFlags = 1 << 2
	// SendInline copies the data during the post: the memory may be used again at
	// once and need not be registered. At most QPCap.MaxInlineData bytes.
	SendInline SendFlags = 1 << 3
)

var sendFlagNames = []string{"Fence", "Signaled", "Solicited", "Inline"}

// String returns the names of the flags that are set.
func (f SendFlags) String() string { return bitNames(uint64(f), sendFlagNames, "none") }

// SendWR is a work request for the send queue. The constructors (Send, Write, Read
// and so on) set the fields that their operation has; the others are ignored, but for
// SGEs and Inline, which an operation without them refuses. The
// memory that its SGEs name belongs to the device from the post until the completion
// that covers it.
//
// Implements: ibv_send_wr
type SendWR struct {
	WRID   uint64 // the caller's own number, returned in the completion
	Opcode Opcode
	Flags  SendFlags
	SGEs   []SGE // in the order in which they are sent, or filled
	// Inline is sent instead of SGEs. It is ordinary Go memory, copied during the
	// post: it may be used again as soon as PostSend has returned.
	Inline []byte
	Imm    uint32      // OpSendImm, OpWriteImm: immediate data; the receiver's completion has the same number
	RKey   uint32      // OpSendInv, OpLocalInv: what to invalidate
	Remote RemoteRange // OpWrite, OpWriteImm, OpRead and atomics: what is reached at the peer
	// CompareAdd is what OpFetchAdd adds, and what OpCompareSwap compares with; it
	// stores Swap if they are equal. Both in the byte order of this machine.
	CompareAdd, Swap uint64
	Datagram         Datagram // on UD: where it goes
	Bind             *MWBind  // OpBindMW
}

// Datagram is where a send of a UD queue pair goes.
type Datagram struct {
	AH   *AH
	QPN  uint32 // the peer's queue pair number
	QKey uint32 // must be the peer's; one with the highest bit set stands for the own QP's
}

// Send makes a SEND: a message that takes one of the peer's receives.
func Send(wrID uint64, flags SendFlags, sges ...SGE) SendWR {
	return SendWR{WRID: wrID, Opcode: OpSend, Flags: flags, SGEs: sges}
}

// SendImm makes a SEND_WITH_IMM: a message with 32 bits beside it.
func SendImm(wrID uint64, flags SendFlags, imm uint32, sges ...SGE) SendWR {
	return SendWR{WRID: wrID, Opcode: OpSendImm, Flags: flags, Imm: imm, SGEs: sges}
}

// SendInv makes a SEND_WITH_INV: a message on whose arrival the peer's rkey, that of
// a memory window of type 2, becomes invalid. RC only.
func SendInv(wrID uint64, flags SendFlags, rkey uint32, sges ...SGE) SendWR {
	return SendWR{WRID: wrID, Opcode: OpSendInv, Flags: flags, RKey: rkey, SGEs: sges}
}

// Write makes an RDMA_WRITE of the SGEs, one after another, to the beginning of the
// remote range. The peer's program is not told. RC and UC.
func Write(wrID uint64, flags SendFlags, remote RemoteRange, sges ...SGE) SendWR {
	return SendWR{WRID: wrID, Opcode: OpWrite, Flags: flags, Remote: remote, SGEs: sges}
}

// WriteImm makes an RDMA_WRITE_WITH_IMM: a write that then takes one of the peer's
// receives, to tell that it is there; nothing is written to that receive's memory.
func WriteImm(wrID uint64, flags SendFlags, imm uint32, remote RemoteRange, sges ...SGE) SendWR {
	return SendWR{WRID: wrID, Opcode: OpWriteImm, Flags: flags, Imm: imm, Remote: remote, SGEs: sges}
}

// Read makes an RDMA_READ from the beginning of the remote range to the SGEs, whose
// regions need AccessLocalWrite. RC only.
func Read(wrID uint64, flags SendFlags, remote RemoteRange, sges ...SGE) SendWR {
	return SendWR{WRID: wrID, Opcode: OpRead, Flags: flags, Remote: remote, SGEs: sges}
}

// CompareSwap makes an ATOMIC_CMP_AND_SWP on the first 8 bytes of the remote range,
// which begin at a multiple of 8: they become swap if they are compare. What they were
// goes to result, 8 bytes in this machine's byte order. It is atomic to other
// operations of the same device; to others, and to the peer's processor, only as far
// as DeviceAttr.AtomicCap says. RC only.
func CompareSwap(wrID uint64, flags SendFlags, remote RemoteRange, compare, swap uint64, result SGE) SendWR {
	return SendWR{WRID: wrID, Opcode: OpCompareSwap, Flags: flags, Remote: remote, CompareAdd: compare, Swap: swap, SGEs: []SGE{result}}
}

// FetchAdd makes an ATOMIC_FETCH_AND_ADD: as CompareSwap, but the 8 bytes grow by add.
func FetchAdd(wrID uint64, flags SendFlags, remote RemoteRange, add uint64, result SGE) SendWR {
	return SendWR{WRID: wrID, Opcode: OpFetchAdd, Flags: flags, Remote: remote, CompareAdd: add, SGEs: []SGE{result}}
}

// LocalInv makes a LOCAL_INV: the rkey of an own memory window of type 2, which
// MW.Remote has, becomes invalid. Put SendFence on the bind that follows, if any. RC and UC.
func LocalInv(wrID uint64, flags SendFlags, rkey uint32) SendWR {
	return SendWR{WRID: wrID, Opcode: OpLocalInv, Flags: flags, RKey: rkey}
}

// BindMW makes a BIND_MW of a memory window of type 2; for type 1 there is
// QP.BindMW. MW.Remote has the new rkey once the post has accepted it, which works for
// the peer once the bind has completed. RC and UC.
func BindMW(wrID uint64, flags SendFlags, bind MWBind) SendWR {
	return SendWR{WRID: wrID, Opcode: OpBindMW, Flags: flags, Bind: &bind}
}

// To returns the work request with the address of a datagram, for UD.
func (wr SendWR) To(d Datagram) SendWR {
	wr.Datagram = d
	return wr
}

// RecvWR is a work request for the receive queue: where the next message goes. Its
// memory belongs to the device until its completion. A message longer than the
// SGEs together fails on both sides. On UD the first 40 bytes are the place of a
// global routing header.
//
// Implements: ibv_recv_wr
type RecvWR struct {
	WRID uint64 // the caller's own number, returned in the completion
	SGEs []SGE
}

// Recv makes a receive.
func Recv(wrID uint64, sges ...SGE) RecvWR { return RecvWR{WRID: wrID, SGEs: sges} }
