package cverbs

import "unsafe"

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

// SendWR is struct ibv_send_wr. Its unions are written by methods; each rewrites all
// of them, since some providers refuse stale fields.
type SendWR struct {
	WRHead
	NumSGE int32
	Opcode uint32
	Flags  uint32
	Imm    uint32    // big endian; or the rkey to invalidate
	wr     [4]uint64 // wrRDMA, wrAtomic, wrUD
	xrc    uint64
	bind   [6]uint64 // wrBind; tso
}

// The members of SendWR's unions.
type (
	wrRDMA struct {
		addr uint64
		rkey uint32
		_    uint32
	}
	wrAtomic struct {
		addr       uint64
		compareAdd uint64
		swap       uint64
		rkey       uint32
		_          uint32
	}
	wrUD struct {
		ah        uintptr
		qpn, qkey uint32
	}
	wrBind struct {
		mw     uintptr
		rkey   uint32
		_      uint32
		mr     uintptr
		addr   uint64
		length uint64
		access uint32
		_      uint32
	}
)

// ClearUnions is for an operation that has no part in them.
func (w *SendWR) ClearUnions() {
	w.wr = [4]uint64{}
	w.clearBind()
}

// clearBind clears what only a bind sets.
func (w *SendWR) clearBind() {
	if w.bind[0] != 0 {
		w.bind = [6]uint64{}
	}
}

// SetRemote sets what an RDMA read or write reaches at the peer.
func (w *SendWR) SetRemote(addr uint64, rkey uint32) {
	w.wr = [4]uint64{}
	*(*wrRDMA)(unsafe.Pointer(&w.wr)) = wrRDMA{addr: addr, rkey: rkey}
	w.clearBind()
}

// SetAtomic sets the operands of an atomic: compareAdd is what to add, or what to
// compare with before swap is stored.
func (w *SendWR) SetAtomic(addr, compareAdd, swap uint64, rkey uint32) {
	*(*wrAtomic)(unsafe.Pointer(&w.wr)) = wrAtomic{addr: addr, compareAdd: compareAdd, swap: swap, rkey: rkey}
	w.clearBind()
}

// SetUD sets where a datagram goes; ah is what AHAddr returns.
func (w *SendWR) SetUD(ah uintptr, qpn, qkey uint32) {
	w.wr = [4]uint64{}
	*(*wrUD)(unsafe.Pointer(&w.wr)) = wrUD{ah: ah, qpn: qpn, qkey: qkey}
	w.clearBind()
}

// AH returns what SetUD has set.
func (w *SendWR) AH() uintptr { return (*wrUD)(unsafe.Pointer(&w.wr)).ah }

// SetBind sets what a bind does: window mw, as MWAddr returns it, becomes length bytes
// from addr of region mr, as MRAddr returns it, under the new rkey.
func (w *SendWR) SetBind(mw uintptr, rkey uint32, mr uintptr, addr, length uint64, access uint32) {
	w.wr = [4]uint64{}
	*(*wrBind)(unsafe.Pointer(&w.bind)) = wrBind{mw: mw, rkey: rkey, mr: mr, addr: addr, length: length, access: access}
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
