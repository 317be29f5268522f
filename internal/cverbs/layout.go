package cverbs

// The structs of the data path, as C lays them out on 64-bit machines. They have
// had this layout in every release of libibverbs 1; layout_cgo.go holds each field
// against the header. Pointers are uintptr: they only ever point into C memory.

// None is the index of a failed post whose provider named no WR of the chain.
const None = -1

// SGE is struct ibv_sge.
type SGE struct {
	Addr   uint64
	Length uint32
	LKey   uint32
}

// WRHead is what struct ibv_send_wr and ibv_recv_wr begin with.
type WRHead struct {
	WRID   uint64
	Next   uintptr
	SGList uintptr
}

// SendWR is struct ibv_send_wr, its unions reduced to the members in use.
type SendWR struct {
	WRHead
	NumSGE int32
	Opcode uint32
	Flags  uint32
	Imm    uint32    // big endian; or the rkey to invalidate
	wr     [4]uint64 // rdma, atomic, ud
	xrc    uint64
	_      [6]uint64 // bind_mw, tso
}

// RecvWR is struct ibv_recv_wr.
type RecvWR struct {
	WRHead
	NumSGE int32
	_      int32
}

// WC is struct ibv_wc.
type WC struct {
	WRID         uint64
	Status       uint32
	Opcode       uint32
	VendorErr    uint32
	ByteLen      uint32
	Imm          uint32 // big endian; or the invalidated rkey
	QPNum        uint32
	SrcQP        uint32
	Flags        uint32
	PKeyIndex    uint16
	SLID         uint16
	SL           uint8
	DLIDPathBits uint8
	_            [2]uint8
}
