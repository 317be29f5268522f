//go:build cgo && linux && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package cverbs

// #include "shims.h"
import "C"

import "unsafe"

type (
	cSGE  = C.struct_ibv_sge
	cSend = C.struct_ibv_send_wr
	cRecv = C.struct_ibv_recv_wr
	cWC   = C.struct_ibv_wc
)

// The structs of layout.go have C's layout, or this does not compile: two different
// sizes or offsets make two different array types. The members that stand between
// two fields of a C struct without a name in cgo are held by their neighbours.
var (
	_ [unsafe.Sizeof(SGE{})]byte               = [unsafe.Sizeof(cSGE{})]byte{}
	_ [unsafe.Offsetof(SGE{}.Addr)]byte        = [unsafe.Offsetof(cSGE{}.addr)]byte{}
	_ [unsafe.Offsetof(SGE{}.Length)]byte      = [unsafe.Offsetof(cSGE{}.length)]byte{}
	_ [unsafe.Offsetof(SGE{}.LKey)]byte        = [unsafe.Offsetof(cSGE{}.lkey)]byte{}
	_ [unsafe.Sizeof(SendWR{})]byte            = [unsafe.Sizeof(cSend{})]byte{}
	_ [unsafe.Offsetof(SendWR{}.WRID)]byte     = [unsafe.Offsetof(cSend{}.wr_id)]byte{}
	_ [unsafe.Offsetof(SendWR{}.Next)]byte     = [unsafe.Offsetof(cSend{}.next)]byte{}
	_ [unsafe.Offsetof(SendWR{}.SGList)]byte   = [unsafe.Offsetof(cSend{}.sg_list)]byte{}
	_ [unsafe.Offsetof(SendWR{}.NumSGE)]byte   = [unsafe.Offsetof(cSend{}.num_sge)]byte{}
	_ [unsafe.Offsetof(SendWR{}.Opcode)]byte   = [unsafe.Offsetof(cSend{}.opcode)]byte{}
	_ [unsafe.Offsetof(SendWR{}.Flags)]byte    = [unsafe.Offsetof(cSend{}.send_flags)]byte{}
	_ [unsafe.Offsetof(SendWR{}.wr)]byte       = [unsafe.Offsetof(cSend{}.wr)]byte{}
	_ [unsafe.Offsetof(SendWR{}.xrc)]byte      = [unsafe.Offsetof(cSend{}.qp_type)]byte{}
	_ [unsafe.Offsetof(SendWR{}.Imm)]byte      = [C.GV_IMM]byte{}
	_ [unsafe.Sizeof(RecvWR{})]byte            = [unsafe.Sizeof(cRecv{})]byte{}
	_ [unsafe.Offsetof(RecvWR{}.WRID)]byte     = [unsafe.Offsetof(cRecv{}.wr_id)]byte{}
	_ [unsafe.Offsetof(RecvWR{}.Next)]byte     = [unsafe.Offsetof(cRecv{}.next)]byte{}
	_ [unsafe.Offsetof(RecvWR{}.SGList)]byte   = [unsafe.Offsetof(cRecv{}.sg_list)]byte{}
	_ [unsafe.Offsetof(RecvWR{}.NumSGE)]byte   = [unsafe.Offsetof(cRecv{}.num_sge)]byte{}
	_ [unsafe.Sizeof(WC{})]byte                = [unsafe.Sizeof(cWC{})]byte{}
	_ [unsafe.Offsetof(WC{}.WRID)]byte         = [unsafe.Offsetof(cWC{}.wr_id)]byte{}
	_ [unsafe.Offsetof(WC{}.Status)]byte       = [unsafe.Offsetof(cWC{}.status)]byte{}
	_ [unsafe.Offsetof(WC{}.Opcode)]byte       = [unsafe.Offsetof(cWC{}.opcode)]byte{}
	_ [unsafe.Offsetof(WC{}.VendorErr)]byte    = [unsafe.Offsetof(cWC{}.vendor_err)]byte{}
	_ [unsafe.Offsetof(WC{}.ByteLen)]byte      = [unsafe.Offsetof(cWC{}.byte_len)]byte{}
	_ [unsafe.Offsetof(WC{}.QPNum)]byte        = [unsafe.Offsetof(cWC{}.qp_num)]byte{}
	_ [unsafe.Offsetof(WC{}.SrcQP)]byte        = [unsafe.Offsetof(cWC{}.src_qp)]byte{}
	_ [unsafe.Offsetof(WC{}.Flags)]byte        = [unsafe.Offsetof(cWC{}.wc_flags)]byte{}
	_ [unsafe.Offsetof(WC{}.PKeyIndex)]byte    = [unsafe.Offsetof(cWC{}.pkey_index)]byte{}
	_ [unsafe.Offsetof(WC{}.SLID)]byte         = [unsafe.Offsetof(cWC{}.slid)]byte{}
	_ [unsafe.Offsetof(WC{}.SL)]byte           = [unsafe.Offsetof(cWC{}.sl)]byte{}
	_ [unsafe.Offsetof(WC{}.DLIDPathBits)]byte = [unsafe.Offsetof(cWC{}.dlid_path_bits)]byte{}
)

// The members of SendWR's unions, likewise.
const (
	inWR   = unsafe.Offsetof(SendWR{}.wr)
	inBind = unsafe.Offsetof(SendWR{}.bind)
)

var (
	_ [inWR + unsafe.Offsetof(wrRDMA{}.addr)]byte         = [C.GV_RDMA_ADDR]byte{}
	_ [inWR + unsafe.Offsetof(wrRDMA{}.rkey)]byte         = [C.GV_RDMA_RKEY]byte{}
	_ [inWR + unsafe.Offsetof(wrAtomic{}.addr)]byte       = [C.GV_ATOMIC_ADDR]byte{}
	_ [inWR + unsafe.Offsetof(wrAtomic{}.compareAdd)]byte = [C.GV_ATOMIC_COMPARE_ADD]byte{}
	_ [inWR + unsafe.Offsetof(wrAtomic{}.swap)]byte       = [C.GV_ATOMIC_SWAP]byte{}
	_ [inWR + unsafe.Offsetof(wrAtomic{}.rkey)]byte       = [C.GV_ATOMIC_RKEY]byte{}
	_ [inWR + unsafe.Offsetof(wrUD{}.ah)]byte             = [C.GV_UD_AH]byte{}
	_ [inWR + unsafe.Offsetof(wrUD{}.qpn)]byte            = [C.GV_UD_QPN]byte{}
	_ [inWR + unsafe.Offsetof(wrUD{}.qkey)]byte           = [C.GV_UD_QKEY]byte{}
	_ [inBind + unsafe.Offsetof(wrBind{}.mw)]byte         = [C.GV_BIND_MW]byte{}
	_ [inBind + unsafe.Offsetof(wrBind{}.rkey)]byte       = [C.GV_BIND_RKEY]byte{}
	_ [inBind + unsafe.Offsetof(wrBind{}.mr)]byte         = [C.GV_BIND_MR]byte{}
	_ [inBind + unsafe.Offsetof(wrBind{}.addr)]byte       = [C.GV_BIND_ADDR]byte{}
	_ [inBind + unsafe.Offsetof(wrBind{}.length)]byte     = [C.GV_BIND_LENGTH]byte{}
	_ [inBind + unsafe.Offsetof(wrBind{}.access)]byte     = [C.GV_BIND_ACCESS]byte{}

	_ [unsafe.Sizeof(SendWR{}.wr)]byte   = [unsafe.Sizeof(wrAtomic{})]byte{}
	_ [unsafe.Sizeof(SendWR{}.bind)]byte = [unsafe.Sizeof(wrBind{})]byte{}
)
