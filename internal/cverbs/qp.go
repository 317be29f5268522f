//go:build cgo && linux && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package cverbs

// #include "shims.h"
import "C"

import "unsafe"

// CreateQP stands for ibv_create_qp. A zero srq is none. It returns the capacities that
// were granted.
func CreateQP(pd PD, send, recv CQ, srq SRQ, typ int32, signalAll bool, ask QPCap) (qp QP, granted QPCap, err error) {
	init := C.struct_ibv_qp_init_attr{
		send_cq: send.p,
		recv_cq: recv.p,
		srq:     srq.p,
		cap:     capToC(ask),
		qp_type: C.enum_ibv_qp_type(typ),
	}
	if signalAll {
		init.sq_sig_all = 1
	}
	p, err := C.ibv_create_qp(pd.p, &init)
	if p == nil {
		return QP{}, QPCap{}, failed(err)
	}
	return QP{p}, capFromC(&init.cap), nil
}

// DestroyQP stands for ibv_destroy_qp.
func DestroyQP(qp QP) error { return errnoOf(C.gv_destroy_qp(qp.p)) }

// QPNum returns qp->qp_num.
func QPNum(qp QP) uint32 { return uint32(qp.p.qp_num) }

// ModifyQP stands for ibv_modify_qp.
func ModifyQP(qp QP, a *QPAttr, mask uint32) error {
	c := C.struct_ibv_qp_attr{
		qp_state:            C.enum_ibv_qp_state(a.State),
		cur_qp_state:        C.enum_ibv_qp_state(a.CurState),
		path_mtu:            C.enum_ibv_mtu(a.PathMTU),
		path_mig_state:      C.enum_ibv_mig_state(a.PathMigState),
		qkey:                C.uint32_t(a.QKey),
		rq_psn:              C.uint32_t(a.RQPSN),
		sq_psn:              C.uint32_t(a.SQPSN),
		dest_qp_num:         C.uint32_t(a.DestQPN),
		qp_access_flags:     C.uint(a.Access),
		cap:                 capToC(a.Cap),
		ah_attr:             ahToC(&a.AH),
		alt_ah_attr:         ahToC(&a.AltAH),
		pkey_index:          C.uint16_t(a.PKeyIndex),
		alt_pkey_index:      C.uint16_t(a.AltPKeyIndex),
		en_sqd_async_notify: flag(a.SQDrainedNotify),
		max_rd_atomic:       C.uint8_t(a.MaxRdAtomic),
		max_dest_rd_atomic:  C.uint8_t(a.MaxDestRdAtomic),
		min_rnr_timer:       C.uint8_t(a.MinRNRTimer),
		port_num:            C.uint8_t(a.Port),
		timeout:             C.uint8_t(a.Timeout),
		retry_cnt:           C.uint8_t(a.RetryCount),
		rnr_retry:           C.uint8_t(a.RNRRetry),
		alt_port_num:        C.uint8_t(a.AltPort),
		alt_timeout:         C.uint8_t(a.AltTimeout),
		rate_limit:          C.uint32_t(a.RateLimit),
	}
	return errnoOf(C.gv_modify_qp(qp.p, &c, C.int(mask)))
}

// QueryQP stands for ibv_query_qp. It also refreshes what CachedState returns.
func QueryQP(qp QP, mask uint32) (QPAttr, error) {
	var c C.struct_ibv_qp_attr
	var init C.struct_ibv_qp_init_attr
	if err := errnoOf(C.gv_query_qp(qp.p, &c, C.int(mask), &init)); err != nil {
		return QPAttr{}, err
	}
	return qpAttrFromC(&c), nil
}

// QPAttrAt returns what a struct ibv_qp_attr holds that another package's C has filled.
func QPAttrAt(attr unsafe.Pointer) QPAttr { return qpAttrFromC((*C.struct_ibv_qp_attr)(attr)) }

func qpAttrFromC(c *C.struct_ibv_qp_attr) QPAttr {
	return QPAttr{
		State:           int32(c.qp_state),
		CurState:        int32(c.cur_qp_state),
		PathMTU:         int32(c.path_mtu),
		PathMigState:    int32(c.path_mig_state),
		QKey:            uint32(c.qkey),
		RQPSN:           uint32(c.rq_psn),
		SQPSN:           uint32(c.sq_psn),
		DestQPN:         uint32(c.dest_qp_num),
		Access:          uint32(c.qp_access_flags),
		Cap:             capFromC(&c.cap),
		AH:              ahFromC(&c.ah_attr),
		AltAH:           ahFromC(&c.alt_ah_attr),
		PKeyIndex:       uint16(c.pkey_index),
		AltPKeyIndex:    uint16(c.alt_pkey_index),
		SQDrainedNotify: c.en_sqd_async_notify != 0,
		SQDraining:      c.sq_draining != 0,
		MaxRdAtomic:     uint8(c.max_rd_atomic),
		MaxDestRdAtomic: uint8(c.max_dest_rd_atomic),
		MinRNRTimer:     uint8(c.min_rnr_timer),
		Port:            uint8(c.port_num),
		Timeout:         uint8(c.timeout),
		RetryCount:      uint8(c.retry_cnt),
		RNRRetry:        uint8(c.rnr_retry),
		AltPort:         uint8(c.alt_port_num),
		AltTimeout:      uint8(c.alt_timeout),
		RateLimit:       uint32(c.rate_limit),
	}
}

// CachedState returns qp->state, which only ModifyQP and QueryQP set.
func CachedState(qp QP) int32 { return int32(qp.p.state) }

func capToC(q QPCap) C.struct_ibv_qp_cap {
	return C.struct_ibv_qp_cap{
		max_send_wr:     C.uint32_t(q.MaxSendWR),
		max_recv_wr:     C.uint32_t(q.MaxRecvWR),
		max_send_sge:    C.uint32_t(q.MaxSendSGE),
		max_recv_sge:    C.uint32_t(q.MaxRecvSGE),
		max_inline_data: C.uint32_t(q.MaxInlineData),
	}
}

func capFromC(c *C.struct_ibv_qp_cap) QPCap {
	return QPCap{
		MaxSendWR:     uint32(c.max_send_wr),
		MaxRecvWR:     uint32(c.max_recv_wr),
		MaxSendSGE:    uint32(c.max_send_sge),
		MaxRecvSGE:    uint32(c.max_recv_sge),
		MaxInlineData: uint32(c.max_inline_data),
	}
}

func ahToC(a *AHAttr) C.struct_ibv_ah_attr {
	return C.struct_ibv_ah_attr{
		grh: C.struct_ibv_global_route{
			dgid:          a.DGID,
			flow_label:    C.uint32_t(a.FlowLabel),
			sgid_index:    C.uint8_t(a.SGIDIndex),
			hop_limit:     C.uint8_t(a.HopLimit),
			traffic_class: C.uint8_t(a.TrafficClass),
		},
		dlid:          C.uint16_t(a.DLID),
		sl:            C.uint8_t(a.SL),
		src_path_bits: C.uint8_t(a.SrcPathBits),
		static_rate:   C.uint8_t(a.StaticRate),
		is_global:     flag(a.IsGlobal),
		port_num:      C.uint8_t(a.Port),
	}
}

// AHAttrAt returns what a struct ibv_ah_attr holds that another package's C has filled.
func AHAttrAt(attr unsafe.Pointer) AHAttr { return ahFromC((*C.struct_ibv_ah_attr)(attr)) }

func ahFromC(c *C.struct_ibv_ah_attr) AHAttr {
	return AHAttr{
		DGID:         c.grh.dgid,
		FlowLabel:    uint32(c.grh.flow_label),
		SGIDIndex:    uint8(c.grh.sgid_index),
		HopLimit:     uint8(c.grh.hop_limit),
		TrafficClass: uint8(c.grh.traffic_class),
		DLID:         uint16(c.dlid),
		SL:           uint8(c.sl),
		SrcPathBits:  uint8(c.src_path_bits),
		StaticRate:   uint8(c.static_rate),
		IsGlobal:     c.is_global != 0,
		Port:         uint8(c.port_num),
	}
}

func flag(b bool) C.uint8_t {
	if b {
		return 1
	}
	return 0
}

// QPAddr returns the address that PostSend and PostRecv take.
func QPAddr(qp QP) uintptr { return uintptr(unsafe.Pointer(qp.p)) }

// AttachMcast stands for ibv_attach_mcast.
func AttachMcast(qp QP, gid [16]byte, lid uint16) error {
	return errnoOf(C.gv_mcast(qp.p, (*C.uint8_t)(&gid[0]), C.uint16_t(lid), 1))
}

// DetachMcast stands for ibv_detach_mcast.
func DetachMcast(qp QP, gid [16]byte, lid uint16) error {
	return errnoOf(C.gv_mcast(qp.p, (*C.uint8_t)(&gid[0]), C.uint16_t(lid), 0))
}

// CQAddr returns the address that PollCQ takes.
func CQAddr(cq CQ) uintptr { return uintptr(unsafe.Pointer(cq.p)) }

// FlowLabelToUDPSport stands for ibv_flow_label_to_udp_sport. Tests hold ibv's own
// against it.
func FlowLabelToUDPSport(label uint32) uint16 {
	return uint16(C.ibv_flow_label_to_udp_sport(C.uint32_t(label)))
}

// CompChannelAddr returns the address of a completion channel, which no call takes.
func CompChannelAddr(ch CompChannel) uintptr { return uintptr(unsafe.Pointer(ch.p)) }
