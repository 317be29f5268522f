//go:build cgo && linux && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package cverbs

// #include "shims.h"
import "C"

import (
	"syscall"
	"unsafe"
)

// DeviceList stands for ibv_get_device_list. Without the kernel's RDMA modules it
// fails with ENOSYS.
func DeviceList() ([]DeviceInfo, error) {
	var infos []DeviceInfo
	err := eachDevice(func(d *C.struct_ibv_device) bool {
		infos = append(infos, DeviceInfo{
			Name:      C.GoString(C.ibv_get_device_name(d)),
			NodeType:  int32(d.node_type),
			Transport: int32(d.transport_type),
			GUID:      fromBE64(uint64(C.ibv_get_device_guid(d))),
			Index:     int(C.ibv_get_device_index(d)),
		})
		return true
	})
	return infos, err
}

// OpenDevice stands for ibv_open_device. It fails with ENODEV where no device has
// that name.
func OpenDevice(name string) (Context, error) {
	var ctx Context
	err := error(syscall.ENODEV)
	if listErr := eachDevice(func(d *C.struct_ibv_device) bool {
		if C.GoString(C.ibv_get_device_name(d)) != name {
			return true
		}
		p, cErr := C.ibv_open_device(d)
		if ctx.p, err = p, nil; p == nil {
			err = failed(cErr)
		}
		return false
	}); listErr != nil {
		return Context{}, listErr
	}
	return ctx, err
}

func eachDevice(f func(*C.struct_ibv_device) bool) error {
	var n C.int
	list, err := C.ibv_get_device_list(&n)
	if list == nil {
		return failed(err)
	}
	defer C.ibv_free_device_list(list)
	for _, d := range unsafe.Slice(list, int(n)) {
		if !f(d) {
			break
		}
	}
	return nil
}

// CloseDevice stands for ibv_close_device.
func CloseDevice(c Context) error { return errnoOf(C.gv_close_device(c.p)) }

// QueryDevice stands for ibv_query_device_ex.
func QueryDevice(c Context) (DeviceAttr, error) {
	var x C.struct_ibv_device_attr_ex
	if err := errnoOf(C.gv_query_device(c.p, &x)); err != nil {
		return DeviceAttr{}, err
	}
	a := &x.orig_attr
	ports := uint32(x.phys_port_cnt_ex)
	if ports == 0 {
		ports = uint32(a.phys_port_cnt)
	}
	return DeviceAttr{
		FWVer:                    C.GoString(&a.fw_ver[0]),
		NodeGUID:                 fromBE64(uint64(a.node_guid)),
		SysImageGUID:             fromBE64(uint64(a.sys_image_guid)),
		MaxMRSize:                uint64(a.max_mr_size),
		PageSizeCap:              uint64(a.page_size_cap),
		VendorID:                 uint32(a.vendor_id),
		VendorPartID:             uint32(a.vendor_part_id),
		HWVer:                    uint32(a.hw_ver),
		MaxQP:                    int32(a.max_qp),
		MaxQPWR:                  int32(a.max_qp_wr),
		DeviceCapFlags:           uint32(a.device_cap_flags),
		MaxSGE:                   int32(a.max_sge),
		MaxSGERead:               int32(a.max_sge_rd),
		MaxCQ:                    int32(a.max_cq),
		MaxCQE:                   int32(a.max_cqe),
		MaxMR:                    int32(a.max_mr),
		MaxPD:                    int32(a.max_pd),
		MaxQPRdAtom:              int32(a.max_qp_rd_atom),
		MaxEERdAtom:              int32(a.max_ee_rd_atom),
		MaxResRdAtom:             int32(a.max_res_rd_atom),
		MaxQPInitRdAtom:          int32(a.max_qp_init_rd_atom),
		MaxEEInitRdAtom:          int32(a.max_ee_init_rd_atom),
		AtomicCap:                int32(a.atomic_cap),
		MaxEE:                    int32(a.max_ee),
		MaxRDD:                   int32(a.max_rdd),
		MaxMW:                    int32(a.max_mw),
		MaxRawIPv6QP:             int32(a.max_raw_ipv6_qp),
		MaxRawEthyQP:             int32(a.max_raw_ethy_qp),
		MaxMcastGrp:              int32(a.max_mcast_grp),
		MaxMcastQPAttach:         int32(a.max_mcast_qp_attach),
		MaxTotalMcastQPAttach:    int32(a.max_total_mcast_qp_attach),
		MaxAH:                    int32(a.max_ah),
		MaxFMR:                   int32(a.max_fmr),
		MaxMapPerFMR:             int32(a.max_map_per_fmr),
		MaxSRQ:                   int32(a.max_srq),
		MaxSRQWR:                 int32(a.max_srq_wr),
		MaxSRQSGE:                int32(a.max_srq_sge),
		MaxPKeys:                 uint16(a.max_pkeys),
		LocalCAAckDelay:          uint8(a.local_ca_ack_delay),
		ODPGeneralCaps:           uint64(x.odp_caps.general_caps),
		ODPCapsRC:                uint32(x.odp_caps.per_transport_caps.rc_odp_caps),
		ODPCapsUC:                uint32(x.odp_caps.per_transport_caps.uc_odp_caps),
		ODPCapsUD:                uint32(x.odp_caps.per_transport_caps.ud_odp_caps),
		ODPCapsXRC:               uint32(x.xrc_odp_caps),
		CompletionTimestampMask:  uint64(x.completion_timestamp_mask),
		HCACoreClock:             uint64(x.hca_core_clock),
		DeviceCapFlagsEx:         uint64(x.device_cap_flags_ex),
		MaxTSO:                   uint32(x.tso_caps.max_tso),
		TSOSupportedQPTs:         uint32(x.tso_caps.supported_qpts),
		RSSSupportedQPTs:         uint32(x.rss_caps.supported_qpts),
		MaxRWQIndirectionTables:  uint32(x.rss_caps.max_rwq_indirection_tables),
		MaxRWQIndirectionTblSize: uint32(x.rss_caps.max_rwq_indirection_table_size),
		RXHashFieldsMask:         uint64(x.rss_caps.rx_hash_fields_mask),
		RXHashFunction:           uint8(x.rss_caps.rx_hash_function),
		MaxWQTypeRQ:              uint32(x.max_wq_type_rq),
		RateLimitMin:             uint32(x.packet_pacing_caps.qp_rate_limit_min),
		RateLimitMax:             uint32(x.packet_pacing_caps.qp_rate_limit_max),
		RateLimitQPTs:            uint32(x.packet_pacing_caps.supported_qpts),
		RawPacketCaps:            uint32(x.raw_packet_caps),
		TMMaxRndvHdrSize:         uint32(x.tm_caps.max_rndv_hdr_size),
		TMMaxNumTags:             uint32(x.tm_caps.max_num_tags),
		TMFlags:                  uint32(x.tm_caps.flags),
		TMMaxOps:                 uint32(x.tm_caps.max_ops),
		TMMaxSGE:                 uint32(x.tm_caps.max_sge),
		MaxCQCount:               uint16(x.cq_mod_caps.max_cq_count),
		MaxCQPeriod:              uint16(x.cq_mod_caps.max_cq_period),
		MaxDMSize:                uint64(x.max_dm_size),
		PCIAtomicFetchAdd:        uint16(x.pci_atomic_caps.fetch_add),
		PCIAtomicSwap:            uint16(x.pci_atomic_caps.swap),
		PCIAtomicCompareSwap:     uint16(x.pci_atomic_caps.compare_swap),
		PhysPortCnt:              ports,
		NumCompVectors:           int32(c.p.num_comp_vectors),
	}, nil
}

// QueryPort stands for ibv_query_port.
func QueryPort(c Context, port uint8) (PortAttr, error) {
	var a C.struct_ibv_port_attr
	if err := errnoOf(C.gv_query_port(c.p, C.uint8_t(port), &a)); err != nil {
		return PortAttr{}, err
	}
	return PortAttr{
		State:         int32(a.state),
		MaxMTU:        int32(a.max_mtu),
		ActiveMTU:     int32(a.active_mtu),
		GIDTblLen:     int32(a.gid_tbl_len),
		PortCapFlags:  uint32(a.port_cap_flags),
		MaxMsgSz:      uint32(a.max_msg_sz),
		BadPKeyCntr:   uint32(a.bad_pkey_cntr),
		QKeyViolCntr:  uint32(a.qkey_viol_cntr),
		PKeyTblLen:    uint16(a.pkey_tbl_len),
		LID:           uint16(a.lid),
		SMLID:         uint16(a.sm_lid),
		LMC:           uint8(a.lmc),
		MaxVLNum:      uint8(a.max_vl_num),
		SMSL:          uint8(a.sm_sl),
		SubnetTimeout: uint8(a.subnet_timeout),
		InitTypeReply: uint8(a.init_type_reply),
		ActiveWidth:   uint8(a.active_width),
		ActiveSpeed:   uint8(a.active_speed),
		PhysState:     uint8(a.phys_state),
		LinkLayer:     uint8(a.link_layer),
		Flags:         uint8(a.flags),
		PortCapFlags2: uint16(a.port_cap_flags2),
	}, nil
}

// QueryPKey stands for ibv_query_pkey.
func QueryPKey(c Context, port uint8, index int) (uint16, error) {
	var pkey C.uint16_t
	err := errnoOf(C.gv_query_pkey(c.p, C.uint8_t(port), C.int(index), &pkey))
	return uint16(pkey), err
}

// QueryGIDTable stands for ibv_query_gid_table: the non-zero GIDs of all ports.
// It returns at most limit entries.
func QueryGIDTable(c Context, limit int) ([]GIDEntry, error) {
	if limit == 0 {
		return nil, nil
	}
	raw := make([]C.struct_ibv_gid_entry, limit)
	n := int(C.gv_query_gid_table(c.p, &raw[0], C.size_t(limit)))
	if n < 0 {
		return nil, syscall.Errno(-n)
	}
	entries := make([]GIDEntry, n)
	for i := range entries {
		r := &raw[i]
		entries[i] = GIDEntry{
			GID:     r.gid,
			Index:   uint32(r.gid_index),
			Port:    uint32(r.port_num),
			Type:    uint32(r.gid_type),
			Ifindex: uint32(r.ndev_ifindex),
		}
	}
	return entries, nil
}
