package ibv

// SGE is a piece of registered memory: a scatter/gather element. mr.Region.SGE
// makes one with its bounds checked; one filled by hand is allowed.
//
// Implements: ibv_sge
type SGE struct {
	Addr   uint64 // as the memory region's own address range counts
	Length uint32 // bytes
	LKey   uint32
}

// Opcode is the operation of a send work request. The zero value is none, so that
// an operation that was forgotten is not taken for another.
//
// Implements: ibv_wr_opcode
type Opcode uint8

// The operations.
const (
	OpSend Opcode = 3 // C's number and one more
)

// SendFlags modify a send work request.
//
// Implements: ibv_send_flags
type SendFlags uint32

const (
	// SendFence waits for earlier RDMA reads and atomics to complete first. RC only.
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

// SendWR is a work request for the send queue. The memory that its SGEs name
// belongs to the device from the post until the completion that covers it.
//
// Implements: ibv_send_wr
type SendWR struct {
	WRID   uint64 // the caller's own number, returned in the completion
	Opcode Opcode
	Flags  SendFlags
	SGEs   []SGE // in the order in which they are sent
	// Inline is sent instead of SGEs. It is ordinary Go memory, copied during the
	// post: it may be used again as soon as PostSend has returned.
	Inline []byte
}

// RecvWR is a work request for the receive queue: where the next message goes. Its
// memory belongs to the device until its completion. A message longer than the
// SGEs together fails on both sides.
//
// Implements: ibv_recv_wr
type RecvWR struct {
	WRID uint64 // the caller's own number, returned in the completion
	SGEs []SGE
}
