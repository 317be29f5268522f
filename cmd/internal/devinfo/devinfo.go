package devinfo

import (
	"fmt"
	"io"
	"net/netip"
	"strings"

	"github.com/goverbs/goverbs/ibv"
)

// What follows has the fields, the words and the tabs of ibv_devinfo -v, so that the two outputs can be
// compared, and what reads the one can read the other. Its misspellings are kept.

// names has what ibv_devinfo prints for the encoded values of one field.
type names map[int]string

var (
	transports = names{0: "InfiniBand", 1: "iWARP", 2: "usNIC", 3: "usNIC UDP", 4: "unspecified"}
	atomicCaps = names{0: "ATOMIC_NONE", 1: "ATOMIC_HCA", 2: "ATOMIC_GLOB"}
	portStates = names{1: "PORT_DOWN", 2: "PORT_INIT", 3: "PORT_ARMED", 4: "PORT_ACTIVE"}
	mtus       = names{1: "256", 2: "512", 3: "1024", 4: "2048", 5: "4096"}
	linkLayers = names{0: "Unspecified", 1: "InfiniBand", 2: "Ethernet"}
	vls        = names{1: "1", 2: "2", 3: "4", 4: "8", 5: "15"}
	widths     = names{1: "1", 2: "4", 4: "8", 8: "12", 16: "2"}
	speeds     = names{
		1: "2.5 Gbps", 2: "5.0 Gbps", 4: "10.0 Gbps", 8: "10.0 Gbps", 16: "14.0 Gbps",
		32: "25.0 Gbps", 64: "50.0 Gbps", 128: "100.0 Gbps",
	}
	physStates = names{
		1: "SLEEP", 2: "POLLING", 3: "DISABLED", 4: "PORT_CONFIGURATION TRAINNING",
		5: "LINK_UP", 6: "LINK_ERROR_RECOVERY", 7: "PHY TEST",
	}
)

// or returns the name of a value, and the given one where there is none.
func (n names) or(value int, unknown string) string {
	if name, ok := n[value]; ok {
		return name
	}
	return unknown
}

// bit is a flag by its number, with ibv_devinfo's name.
type bit struct {
	number int
	name   string
}

var (
	deviceCaps = []bit{
		{0, "RESIZE_MAX_WR"}, {1, "BAD_PKEY_CNTR"}, {2, "BAD_QKEY_CNTR"}, {3, "RAW_MULTI"},
		{4, "AUTO_PATH_MIG"}, {5, "CHANGE_PHY_PORT"}, {6, "UD_AV_PORT_ENFORCE"}, {7, "CURR_QP_STATE_MOD"},
		{8, "SHUTDOWN_PORT"}, {9, "INIT_TYPE"}, {10, "PORT_ACTIVE_EVENT"}, {11, "SYS_IMAGE_GUID"},
		{12, "RC_RNR_NAK_GEN"}, {13, "SRQ_RESIZE"}, {14, "N_NOTIFY_CQ"}, {17, "MEM_WINDOW"},
		{18, "UD_IP_CSUM"}, {20, "XRC"}, {21, "MEM_MGT_EXTENSIONS"}, {23, "MEM_WINDOW_TYPE_2A"},
		{24, "MEM_WINDOW_TYPE_2B"}, {25, "RC_IP_CSUM"}, {26, "RAW_IP_CSUM"}, {29, "MANAGED_FLOW_STEERING"},
	}
	deviceCapsEx  = []bit{{34, "RAW_SCATTER_FCS"}, {36, "PCI_WRITE_END_PADDING"}, {41, "CC_DMA_BOUNCE"}}
	odpCaps       = []bit{{0, "ODP_SUPPORT"}, {1, "ODP_SUPPORT_IMPLICIT"}}
	transportCaps = []bit{
		{0, "SUPPORT_SEND"}, {1, "SUPPORT_RECV"}, {2, "SUPPORT_WRITE"}, {3, "SUPPORT_READ"},
		{4, "SUPPORT_ATOMIC"}, {5, "SUPPORT_SRQ"}, {6, "SUPPORT_FLUSH"}, {7, "SUPPORT_ATOMIC_WRITE"},
	}
	rawPacketCaps = []bit{
		{0, "C-VLAN stripping offload"}, {1, "Scatter FCS offload"}, {2, "IP csum offload"}, {3, "Delay drop"},
	}
	tagMatchingCaps = []bit{{0, "IBV_TM_CAP_RC"}}
	qpTypes         = []bit{
		{int(ibv.QPTypeRawPacket), "SUPPORT_RAW_PACKET"}, {int(ibv.QPTypeUD), "SUPPORT_UD"}, {int(ibv.QPTypeRC), "SUPPORT_RC"},
	}
)

// page writes lines with tabs as ibv_devinfo does.
type page struct{ w io.Writer }

func (p page) line(indent int, format string, args ...any) {
	fmt.Fprintf(p.w, strings.Repeat("\t", indent)+format+"\n", args...)
}

// field writes a name, tabs up to the column, and a value.
func (p page) field(indent int, name string, column int, format string, args ...any) {
	end := 8*indent + len(name) + len(":")
	tabs := strings.Repeat("\t", (column-end+7)/8)
	p.line(indent, name+":"+tabs+format, args...)
}

// flags writes the names of those flags that are set, and returns the others.
func (p page) flags(value uint64, bits []bit) (others uint64) {
	for _, b := range bits {
		if mask := uint64(1) << b.number; value&mask != 0 {
			p.line(5, "%s", b.name)
			value &^= mask
		}
	}
	return value
}

// allFlags writes also what has no name.
func (p page) allFlags(value uint64, bits []bit) {
	if others := p.flags(value, bits); others != 0 {
		p.line(5, "Unknown flags: 0x%X", others)
	}
}

func (d *details) print(out io.Writer) {
	p := page{out}
	d.printIdentity(p)
	d.printLimits(p)
	d.printOffloads(p)
	for _, port := range d.ports {
		port.print(p, d.transport)
	}
}

func (d *details) printIdentity(p page) {
	a := d.attr
	field := func(name, format string, args ...any) { p.field(1, name, 40, format, args...) }
	p.field(0, "hca_id", 8, "%s", d.name)
	field("transport", "%s (%d)", transports.or(int(d.transport), "invalid transport"), d.transport)
	if a.FirmwareVersion != "" {
		field("fw_ver", "%s", a.FirmwareVersion)
	}
	field("node_guid", "%v", a.NodeGUID)
	field("sys_image_guid", "%v", a.SysImageGUID)
	field("vendor_id", "0x%04x", a.VendorID)
	field("vendor_part_id", "%d", a.VendorPartID)
	field("hw_ver", "0x%X", a.HWVer)
	if d.boardID != "" {
		field("board_id", "%s", d.boardID)
	}
	field("phys_port_cnt", "%d", a.PhysPortCount)
}

func (d *details) printLimits(p page) {
	a := d.attr
	field := func(name, format string, args ...any) { p.field(1, name, 40, format, args...) }
	number := func(name string, n int) { field(name, "%d", n) }
	field("max_mr_size", "0x%x", a.MaxMRSize)
	field("page_size_cap", "0x%x", a.PageSizeCap)
	number("max_qp", a.MaxQP)
	number("max_qp_wr", a.MaxQPWR)
	field("device_cap_flags", "0x%08x", uint64(a.CapFlags))
	p.allFlags(uint64(a.CapFlags), deviceCaps)
	number("max_sge", a.MaxSGE)
	number("max_sge_rd", a.MaxSGERead)
	number("max_cq", a.MaxCQ)
	number("max_cqe", a.MaxCQE)
	number("max_mr", a.MaxMR)
	number("max_pd", a.MaxPD)
	number("max_qp_rd_atom", a.MaxQPRdAtom)
	number("max_ee_rd_atom", a.MaxEERdAtom)
	number("max_res_rd_atom", a.MaxResRdAtom)
	number("max_qp_init_rd_atom", a.MaxQPInitRdAtom)
	number("max_ee_init_rd_atom", a.MaxEEInitRdAtom)
	field("atomic_cap", "%s (%d)", atomicCaps.or(int(a.AtomicCap), "invalid atomic capability"), a.AtomicCap)
	number("max_ee", a.MaxEE)
	number("max_rdd", a.MaxRDD)
	number("max_mw", a.MaxMW)
	number("max_raw_ipv6_qp", a.MaxRawIPv6QP)
	number("max_raw_ethy_qp", a.MaxRawEthyQP)
	number("max_mcast_grp", a.MaxMcastGroup)
	number("max_mcast_qp_attach", a.MaxMcastQPAttach)
	number("max_total_mcast_qp_attach", a.MaxTotalMcastQPAttach)
	number("max_ah", a.MaxAH)
	number("max_fmr", a.MaxFMR)
	if a.MaxFMR != 0 {
		number("max_map_per_fmr", a.MaxMapPerFMR)
	}
	number("max_srq", a.MaxSRQ)
	if a.MaxSRQ != 0 {
		number("max_srq_wr", a.MaxSRQWR)
		number("max_srq_sge", a.MaxSRQSGE)
	}
	number("max_pkeys", int(a.MaxPKeys))
	number("local_ca_ack_delay", int(a.LocalCAAckDelay))
}

func (d *details) printOffloads(p page) {
	a := d.attr
	field := func(name, format string, args ...any) { p.field(1, name, 40, format, args...) }
	p.line(1, "general_odp_caps:")
	p.allFlags(a.ODPGeneralCaps, odpCaps)
	for _, t := range []struct {
		name string
		caps uint32
	}{{"rc", a.ODPCapsRC}, {"uc", a.ODPCapsUC}, {"ud", a.ODPCapsUD}, {"xrc", a.ODPCapsXRC}} {
		p.line(1, "%s_odp_caps:", t.name)
		if t.caps == 0 {
			p.line(5, "NO SUPPORT")
		}
		p.allFlags(uint64(t.caps), transportCaps)
	}
	if a.CompletionTimestampMask != 0 {
		p.field(1, "completion timestamp_mask", 56, "0x%016x", a.CompletionTimestampMask)
	} else {
		p.line(1, "completion_timestamp_mask not supported")
	}
	if a.HCACoreClock != 0 {
		field("hca_core_clock", "%dkHZ", a.HCACoreClock)
	} else {
		p.line(1, "core clock not supported")
	}
	if a.RawPacketCaps != 0 {
		p.line(1, "raw packet caps:")
		p.flags(uint64(a.RawPacketCaps), rawPacketCaps)
	}
	field("device_cap_flags_ex", "0x%X", uint64(a.CapFlagsEx))
	p.allFlags(uint64(a.CapFlagsEx)>>32<<32, deviceCapsEx)

	p.line(1, "tso_caps:")
	p.field(2, "max_tso", 48, "%d", int32(a.MaxTSO))
	if a.MaxTSO != 0 {
		p.supportedQPs(a.TSOSupportedQPTs, qpTypes[:2])
	}
	p.line(1, "rss_caps:")
	p.field(2, "max_rwq_indirection_tables", 64, "%d", a.MaxRWQIndirectionTables)
	p.field(2, "max_rwq_indirection_table_size", 64, "%d", a.MaxRWQIndirectionTableSize)
	p.field(2, "rx_hash_function", 64, "0x%x", a.RXHashFunction)
	p.field(2, "rx_hash_fields_mask", 64, "0x%X", a.RXHashFieldsMask)
	if a.RSSSupportedQPTs != 0 {
		p.supportedQPs(a.RSSSupportedQPTs, qpTypes[:2])
	}
	field("max_wq_type_rq", "%d", a.MaxWQTypeRQ)
	p.line(1, "packet_pacing_caps:")
	p.field(2, "qp_rate_limit_min", 40, "%dkbps", a.RateLimitMin)
	p.field(2, "qp_rate_limit_max", 40, "%dkbps", a.RateLimitMax)
	if a.RateLimitMax != 0 {
		p.supportedQPs(a.RateLimitQPTs, qpTypes)
	}
	if a.TMMaxNumTags != 0 {
		field("max_rndv_hdr_size", "%d", a.TMMaxRndvHdrSize)
		field("max_num_tags", "%d", a.TMMaxNumTags)
		field("max_ops", "%d", a.TMMaxOps)
		field("max_sge", "%d", a.TMMaxSGE)
		p.line(1, "flags:")
		p.flags(uint64(a.TMFlags), tagMatchingCaps)
	} else {
		p.line(1, "tag matching not supported")
	}
	if a.MaxCQCount != 0 && a.MaxCQPeriod != 0 {
		p.line(0, "\n\tcq moderation caps:")
		p.field(2, "max_cq_count", 32, "%d", a.MaxCQCount)
		p.field(2, "max_cq_period", 32, "%d us\n", a.MaxCQPeriod)
	}
	if a.MaxDMSize != 0 {
		p.field(1, "maximum available device memory", 48, "%dBytes\n", a.MaxDMSize)
	}
	field("num_comp_vectors", "%d", a.NumCompVectors)
}

func (p page) supportedQPs(types uint32, bits []bit) {
	p.line(2, "supported_qp:")
	p.allFlags(uint64(types), bits)
}

func (d portDetails) print(p page, transport ibv.TransportType) {
	a := d.attr
	field := func(name, format string, args ...any) { p.field(3, name, 48, format, args...) }
	p.field(2, "port", 24, "%d", d.number)
	field("state", "%s (%d)", portStates.or(int(a.State), "invalid state"), a.State)
	field("max_mtu", "%s (%d)", mtus.or(int(a.MaxMTU), "invalid MTU"), a.MaxMTU)
	field("active_mtu", "%s (%d)", mtus.or(int(a.ActiveMTU), "invalid MTU"), a.ActiveMTU)
	field("sm_lid", "%d", a.SMLID)
	field("port_lid", "%d", a.LID)
	field("port_lmc", "0x%02x", a.LMC)
	field("link_layer", "%s", linkLayers.or(int(a.LinkLayer), "Unknown"))
	field("max_msg_sz", "0x%x", a.MaxMsgSize)
	field("port_cap_flags", "0x%08x", a.CapFlags)
	field("port_cap_flags2", "0x%04x", a.CapFlags2)
	field("max_vl_num", "%s (%d)", vls.or(int(a.MaxVLNum), "invalid value"), a.MaxVLNum)
	field("bad_pkey_cntr", "0x%x", a.BadPKeyCounter)
	field("qkey_viol_cntr", "0x%x", a.QKeyViolCounter)
	field("sm_sl", "%d", a.SMSL)
	field("pkey_tbl_len", "%d", a.PKeyTableLen)
	field("gid_tbl_len", "%d", a.GIDTableLen)
	field("subnet_timeout", "%d", a.SubnetTimeout)
	field("init_type_reply", "%d", a.InitTypeReply)
	field("active_width", "%sX (%d)", widths.or(int(a.ActiveWidth), "invalid width"), a.ActiveWidth)
	field("active_speed", "%s (%d)", speeds.or(int(a.ActiveSpeed), "invalid speed"), a.ActiveSpeed)
	if transport == ibv.TransportIB {
		field("phys_state", "%s (%d)", physStates.or(int(a.PhysState), "invalid physical state"), a.PhysState)
	}
	for _, g := range d.gids {
		if [8]byte(g.GID[8:]) != [8]byte{} { // without an interface identifier it counts as empty
			p.field(3, fmt.Sprintf("GID[%3d]", g.Index), 48, "%s", gidText(g, a.LinkLayer))
		}
	}
	p.line(0, "")
}

func gidText(g ibv.GIDEntry, link ibv.LinkLayer) string {
	text := netip.AddrFrom16(g.GID).StringExpanded()
	kind := ", RoCE v1"
	if g.Type == ibv.GIDTypeRoCEv2 {
		text, kind = g.GID.String(), ", RoCE v2"
	}
	if link != ibv.LinkLayerEthernet {
		kind = ""
	}
	return text + kind
}
