//go:build cgo && linux && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package fakedev

// #include "fakedev.h"
import "C"

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"unsafe"
)

// Config says what a fake device is like. Its zero value is a RoCE device with one
// active port and plenty of everything that all devices have. Numbers of C's enums are
// plain integers here, as C has them.
type Config struct {
	Limits   Limits
	NodeType int    // ibv_node_type; 0 is IBV_NODE_CA
	IWARP    bool   // the transport; InfiniBand's otherwise, which RoCE shares
	CapFlags uint32 // device_cap_flags
	ODP      ODPCaps
	Ports    []Port // at most 4; none stands for one RoCE port with the address 192.0.2.1
	Vectors  int    // completion vectors; 0 is 1

	// What the device has beyond the common. Without it the verb says EOPNOTSUPP.
	Rereg, DMABuf, AdviseMR, ResizeCQ, ModerateCQ, MemoryWindows bool

	// Null gives the device a data path for benchmarks: posts only remember the wr_id of
	// each signaled send and each receive, and polls return them as successes, in
	// order. It takes no lock: one thread at a time may post to the queues of a CQ, and
	// one poll it. Nothing is recorded, and no fault can be ordered for posts and polls.
	Null bool
	// Complete has sends complete at the post in RTS, and all that is posted be flushed
	// in ERR. Receives wait for the test.
	Complete bool
	// KeepCompletions leaves completions that are queued in the CQ when their QP is
	// destroyed or reset, as rdma_rxe does; others, as mlx5, remove them.
	KeepCompletions bool
	// RoundUp grants powers of two of WRs and CQ entries, up to the device's limits.
	RoundUp bool
	// SilentOverrun drops completions that do not fit without a failure of the poll, as
	// rdma_rxe does. The event comes in both cases.
	SilentOverrun bool
}

// Limits are what a device can have. Zero stands for a default, a negative number for
// none.
type Limits struct {
	MaxQP, MaxQPWR, MaxSGE, MaxInline     int
	MaxCQ, MaxCQE                         int
	MaxSRQ, MaxSRQWR, MaxSRQSGE           int
	MaxMR, MaxMRSize, MaxMW, MaxPD, MaxAH int
	MaxRdAtomic                           int // of both directions
}

// ODPCaps are the capabilities for on-demand paging, as bits of C's enums.
type ODPCaps struct {
	General    uint64
	RC, UC, UD uint32
}

// Port is a port of a fake device.
type Port struct {
	State     int // ibv_port_state; 0 is IBV_PORT_ACTIVE
	MTU       int // ibv_mtu, active and most; 0 is IBV_MTU_4096
	IB        bool
	LID       uint16
	GIDs      []GID // at most 32
	PhysState int
}

// GID is an entry of a GID table; its index is its place in the table. A zero GID is
// an empty entry.
type GID struct {
	GID     [16]byte
	Type    int // ibv_gid_type
	Ifindex int
}

// RoCEv2 is the GID of an IP address.
func RoCEv2(addr string) GID {
	return GID{GID: netip.MustParseAddr(addr).As16(), Type: C.IBV_GID_TYPE_ROCE_V2}
}

func or(value, fallback int) C.int {
	switch {
	case value == 0:
		return C.int(fallback)
	case value < 0:
		return 0
	}
	return C.int(value)
}

func (c *Config) toC(name string) (*C.struct_fd_config, error) {
	out := &C.struct_fd_config{
		node_type:      or(c.NodeType, C.IBV_NODE_CA),
		transport:      C.IBV_TRANSPORT_IB,
		comp_vectors:   or(c.Vectors, 1),
		max_inline:     C.uint32_t(or(c.Limits.MaxInline, 1024)),
		features:       c.features(),
		null:           C.bool(c.Null),
		complete:       C.bool(c.Complete),
		keep:           C.bool(c.KeepCompletions),
		round_up:       C.bool(c.RoundUp),
		silent_overrun: C.bool(c.SilentOverrun),
	}
	if c.IWARP {
		out.transport = C.IBV_TRANSPORT_IWARP
	}
	for i, b := range []byte(name) {
		out.name[i] = C.char(b)
	}
	c.Limits.toC(&out.attr.orig_attr)
	out.attr.orig_attr.device_cap_flags = C.uint(c.CapFlags)
	out.attr.odp_caps.general_caps = C.uint64_t(c.ODP.General)
	out.attr.odp_caps.per_transport_caps.rc_odp_caps = C.uint32_t(c.ODP.RC)
	out.attr.odp_caps.per_transport_caps.uc_odp_caps = C.uint32_t(c.ODP.UC)
	out.attr.odp_caps.per_transport_caps.ud_odp_caps = C.uint32_t(c.ODP.UD)

	ports := c.Ports
	if ports == nil {
		ports = []Port{{GIDs: []GID{RoCEv2("192.0.2.1")}}}
	}
	if len(ports) > len(out.ports) {
		return nil, fmt.Errorf("%d ports are more than a fake device can have, %d", len(ports), len(out.ports))
	}
	out.attr.orig_attr.phys_port_cnt = C.uint8_t(len(ports))
	for i := range ports {
		if err := ports[i].toC(i+1, &out.ports[i]); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (c *Config) features() (f C.uint) {
	for _, x := range []struct {
		has bool
		bit C.uint
	}{
		{c.Rereg, C.FD_HAS_REREG},
		{c.DMABuf, C.FD_HAS_DMABUF},
		{c.AdviseMR, C.FD_HAS_ADVISE},
		{c.ResizeCQ, C.FD_HAS_RESIZE_CQ},
		{c.ModerateCQ, C.FD_HAS_MODERATION},
		{c.MemoryWindows, C.FD_HAS_MW},
	} {
		if x.has {
			f |= x.bit
		}
	}
	return f
}

func (l *Limits) toC(a *C.struct_ibv_device_attr) {
	const plenty = 1 << 16
	a.node_guid = C.__be64(binary.NativeEndian.Uint64([]byte{0x02, 0, 0, 0, 0, 0, 0, 1}))
	a.sys_image_guid = a.node_guid
	for i, b := range []byte("fake") {
		a.fw_ver[i] = C.char(b)
	}
	a.max_mr_size = 1 << 40
	if l.MaxMRSize != 0 {
		a.max_mr_size = C.uint64_t(max(l.MaxMRSize, 0))
	}
	a.page_size_cap = 0xfffff000
	a.max_qp = or(l.MaxQP, plenty)
	a.max_qp_wr = or(l.MaxQPWR, 1<<14)
	a.max_sge = or(l.MaxSGE, 32)
	a.max_sge_rd = a.max_sge
	a.max_cq = or(l.MaxCQ, plenty)
	a.max_cqe = or(l.MaxCQE, 1<<16)
	a.max_mr = or(l.MaxMR, plenty)
	a.max_pd = or(l.MaxPD, plenty)
	a.max_mw = or(l.MaxMW, plenty)
	a.max_ah = or(l.MaxAH, plenty)
	a.max_srq = or(l.MaxSRQ, plenty)
	a.max_srq_wr = or(l.MaxSRQWR, 1<<14)
	a.max_srq_sge = or(l.MaxSRQSGE, 32)
	a.max_qp_rd_atom = or(l.MaxRdAtomic, 16)
	a.max_qp_init_rd_atom = a.max_qp_rd_atom
	a.max_res_rd_atom = a.max_qp_rd_atom
	a.atomic_cap = C.IBV_ATOMIC_HCA
	a.max_pkeys = 1
}

func (p *Port) toC(number int, out *C.struct_fd_port) error {
	if len(p.GIDs) > len(out.gids) {
		return fmt.Errorf("%d GIDs are more than a fake port can have, %d", len(p.GIDs), len(out.gids))
	}
	a := &out.attr
	a.state = C.enum_ibv_port_state(or(p.State, C.IBV_PORT_ACTIVE))
	a.max_mtu = C.enum_ibv_mtu(or(p.MTU, C.IBV_MTU_4096))
	a.active_mtu = a.max_mtu
	a.gid_tbl_len = C.int(len(out.gids))
	a.max_msg_sz = 1 << 31
	a.pkey_tbl_len = 1
	a.lid = C.uint16_t(p.LID)
	a.active_width, a.active_speed = 2, 32
	a.phys_state = C.uint8_t(or(p.PhysState, 5))
	a.link_layer = C.IBV_LINK_LAYER_ETHERNET
	if p.IB {
		a.link_layer = C.IBV_LINK_LAYER_INFINIBAND
	}
	for i, g := range p.GIDs {
		if g.GID == [16]byte{} {
			continue
		}
		e := &out.gids[out.ngids]
		e.gid = *(*C.union_ibv_gid)(unsafe.Pointer(&g.GID))
		e.gid_index, e.port_num = C.uint32_t(i), C.uint32_t(number)
		e.gid_type, e.ndev_ifindex = C.uint32_t(g.Type), C.uint32_t(g.Ifindex)
		out.ngids++
	}
	return nil
}
