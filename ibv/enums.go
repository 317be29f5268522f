package ibv

import (
	"fmt"
	"math/bits"
	"strconv"
	"strings"
)

// The values of all constants here are those of C's <infiniband/verbs.h>. The
// text behind a constant is what its String method prints; a value that has no
// constant prints as a number, such as QPState(17).

//go:generate go run golang.org/x/tools/cmd/stringer@v0.52.0 -linecomment -output enums_string.go -type NodeType,TransportType,PortState,PortPhysState,LinkLayer,MTU,AtomicCap,QPType,QPState,MigState,GIDType,Opcode,MWType,EventType

// NodeType says what kind of device this is.
//
// Implements: ibv_node_type, ibv_node_type_str
type NodeType int32

const (
	NodeUnknown     NodeType = -1 // unknown
	NodeCA          NodeType = 1  // CA
	NodeSwitch      NodeType = 2  // switch
	NodeRouter      NodeType = 3  // router
	NodeRNIC        NodeType = 4  // RNIC
	NodeUSNIC       NodeType = 5  // usNIC
	NodeUSNICUDP    NodeType = 6  // usNIC UDP
	NodeUnspecified NodeType = 7  // unspecified
)

// TransportType is the protocol family of a device. RoCE devices report
// TransportIB: it is the port's [LinkLayer] that tells them from InfiniBand.
//
// Implements: ibv_transport_type
type TransportType int32

const (
	TransportUnknown     TransportType = -1 // unknown
	TransportIB          TransportType = 0  // InfiniBand
	TransportIWARP       TransportType = 1  // iWARP
	TransportUSNIC       TransportType = 2  // usNIC
	TransportUSNICUDP    TransportType = 3  // usNIC UDP
	TransportUnspecified TransportType = 4  // unspecified
)

// PortState is the logical state of a port. Only PortActive carries traffic.
//
// Implements: ibv_port_state, ibv_port_state_str
type PortState int32

const (
	PortNop         PortState = 0 // PORT_NOP
	PortDown        PortState = 1 // PORT_DOWN
	PortInit        PortState = 2 // PORT_INIT
	PortArmed       PortState = 3 // PORT_ARMED
	PortActive      PortState = 4 // PORT_ACTIVE
	PortActiveDefer PortState = 5 // PORT_ACTIVE_DEFER
)

// PortPhysState is the state of a port's physical link. C has no names for the
// values; they are those of the InfiniBand specification.
type PortPhysState uint8

const (
	PortPhysNone              PortPhysState = 0 // NONE
	PortPhysSleep             PortPhysState = 1 // SLEEP
	PortPhysPolling           PortPhysState = 2 // POLLING
	PortPhysDisabled          PortPhysState = 3 // DISABLED
	PortPhysTraining          PortPhysState = 4 // TRAINING
	PortPhysLinkUp            PortPhysState = 5 // LINK_UP
	PortPhysLinkErrorRecovery PortPhysState = 6 // LINK_ERROR_RECOVERY
	PortPhysPhyTest           PortPhysState = 7 // PHY_TEST
)

// LinkLayer is the link protocol of a port: Ethernet means RoCE (or iWARP),
// whose address vectors need a GRH.
type LinkLayer uint8

const (
	LinkLayerUnspecified LinkLayer = 0 // unspecified
	LinkLayerInfiniBand  LinkLayer = 1 // InfiniBand
	LinkLayerEthernet    LinkLayer = 2 // Ethernet
)

// MTU is a path MTU in the encoding of the verbs: a payload of 256 to 4096
// bytes. It is not the MTU of a network device, which counts headers too. The
// zero value is not an MTU; where a field may be left open it means "not said".
//
// Implements: ibv_mtu
type MTU int32

const (
	MTU256  MTU = 1 // 256
	MTU512  MTU = 2 // 512
	MTU1024 MTU = 3 // 1024
	MTU2048 MTU = 4 // 2048
	MTU4096 MTU = 5 // 4096
)

func (m MTU) valid() bool { return m >= MTU256 && m <= MTU4096 }

// Bytes returns the payload bytes that a packet carries, 0 for an unknown value.
func (m MTU) Bytes() int {
	if !m.valid() {
		return 0
	}
	return 128 << m
}

// MTUOf returns the largest MTU that is not above bytes, so 1024 for 1500. It
// fails below 256. For an MTU that a user typed, see [ParseMTU].
func MTUOf(bytes int) (MTU, error) {
	if bytes < MTU256.Bytes() {
		return 0, fmt.Errorf("no path MTU fits in %d bytes: the smallest is 256", bytes)
	}
	return min(MTU(bits.Len(uint(bytes))-8), MTU4096), nil
}

// ParseMTU reads an MTU from its number of bytes in decimal: 256, 512, 1024,
// 2048 or 4096, and nothing else.
func ParseMTU(s string) (MTU, error) {
	for m := MTU256; m <= MTU4096; m++ {
		if m.String() == s {
			return m, nil
		}
	}
	return 0, fmt.Errorf("%.40q is not a path MTU: use 256, 512, 1024, 2048 or 4096", s)
}

// AtomicCap says among whom a device's atomic operations are atomic.
//
// Implements: ibv_atomic_cap
type AtomicCap int32

const (
	AtomicNone AtomicCap = 0 // ATOMIC_NONE
	AtomicHCA  AtomicCap = 1 // ATOMIC_HCA
	AtomicGlob AtomicCap = 2 // ATOMIC_GLOB
)

// QPType is the transport service of a queue pair.
//
// Implements: ibv_qp_type
type QPType int32

const (
	QPTypeRC        QPType = 2    // RC
	QPTypeUC        QPType = 3    // UC
	QPTypeUD        QPType = 4    // UD
	QPTypeRawPacket QPType = 8    // RAW_PACKET
	QPTypeXRCSend   QPType = 9    // XRC_SEND
	QPTypeXRCRecv   QPType = 10   // XRC_RECV
	QPTypeDriver    QPType = 0xff // DRIVER
)

// QPState is the state of a queue pair. A new one is in QPStateReset.
//
// Implements: ibv_qp_state
type QPState int32

const (
	QPStateReset   QPState = 0 // RESET
	QPStateInit    QPState = 1 // INIT
	QPStateRTR     QPState = 2 // RTR
	QPStateRTS     QPState = 3 // RTS
	QPStateSQD     QPState = 4 // SQD
	QPStateSQE     QPState = 5 // SQE
	QPStateErr     QPState = 6 // ERR
	QPStateUnknown QPState = 7 // UNKNOWN
)

// MigState is the path migration state of a queue pair with an alternate path.
//
// Implements: ibv_mig_state
type MigState int32

const (
	MigMigrated MigState = 0 // MIGRATED
	MigRearm    MigState = 1 // REARM
	MigArmed    MigState = 2 // ARMED
)

// GIDType is the protocol that a GID table entry stands for.
//
// Implements: ibv_gid_type
type GIDType int32

const (
	GIDTypeIB     GIDType = 0 // IB
	GIDTypeRoCEv1 GIDType = 1 // RoCE v1
	GIDTypeRoCEv2 GIDType = 2 // RoCE v2
)

// AccessFlags are the rights that a memory region, a memory window or a queue
// pair grants. The zero value lets this side read locally and nothing else.
//
// Implements: ibv_access_flags
type AccessFlags uint32

const (
	AccessLocalWrite      AccessFlags = 1 << 0
	AccessRemoteWrite     AccessFlags = 1 << 1
	AccessRemoteRead      AccessFlags = 1 << 2
	AccessRemoteAtomic    AccessFlags = 1 << 3
	AccessMWBind          AccessFlags = 1 << 4
	AccessZeroBased       AccessFlags = 1 << 5
	AccessOnDemand        AccessFlags = 1 << 6
	AccessHugeTLB         AccessFlags = 1 << 7
	AccessFlushGlobal     AccessFlags = 1 << 8
	AccessFlushPersistent AccessFlags = 1 << 9
	// AccessRelaxedOrdering is optional: a device that cannot do it ignores it.
	AccessRelaxedOrdering AccessFlags = 1 << 20
)

var accessNames = []string{
	0: "LocalWrite", 1: "RemoteWrite", 2: "RemoteRead", 3: "RemoteAtomic", 4: "MWBind",
	5: "ZeroBased", 6: "OnDemand", 7: "HugeTLB", 8: "FlushGlobal", 9: "FlushPersistent",
	20: "RelaxedOrdering",
}

// String joins the names of the flags, "LocalWrite|RemoteRead"; "LocalRead"
// where none is set.
func (f AccessFlags) String() string { return bitNames(uint64(f), accessNames, "LocalRead") }

// Check refuses rights that a memory region cannot have: remote write or remote
// atomic without local write. It does not apply to the access flags of a queue
// pair, where the remote rights stand alone.
func (f AccessFlags) Check() error {
	if need := f & (AccessRemoteWrite | AccessRemoteAtomic); need != 0 && f&AccessLocalWrite == 0 {
		return fmt.Errorf("access %v grants %v without LocalWrite: add AccessLocalWrite, a peer may not write where this side may not",
			f, need)
	}
	return nil
}

// DeviceCapFlags are the optional features of a device.
//
// Implements: ibv_device_cap_flags
type DeviceCapFlags uint64

const (
	DeviceResizeMaxWR         DeviceCapFlags = 1 << 0
	DeviceBadPKeyCntr         DeviceCapFlags = 1 << 1
	DeviceBadQKeyCntr         DeviceCapFlags = 1 << 2
	DeviceRawMulti            DeviceCapFlags = 1 << 3
	DeviceAutoPathMig         DeviceCapFlags = 1 << 4
	DeviceChangePhyPort       DeviceCapFlags = 1 << 5
	DeviceUDAVPortEnforce     DeviceCapFlags = 1 << 6
	DeviceCurrQPStateMod      DeviceCapFlags = 1 << 7
	DeviceShutdownPort        DeviceCapFlags = 1 << 8
	DeviceInitType            DeviceCapFlags = 1 << 9
	DevicePortActiveEvent     DeviceCapFlags = 1 << 10
	DeviceSysImageGUID        DeviceCapFlags = 1 << 11
	DeviceRCRNRNakGen         DeviceCapFlags = 1 << 12
	DeviceSRQResize           DeviceCapFlags = 1 << 13
	DeviceNNotifyCQ           DeviceCapFlags = 1 << 14
	DeviceMemWindow           DeviceCapFlags = 1 << 17
	DeviceUDIPCsum            DeviceCapFlags = 1 << 18
	DeviceXRC                 DeviceCapFlags = 1 << 20
	DeviceMemMgtExtensions    DeviceCapFlags = 1 << 21
	DeviceMemWindowType2A     DeviceCapFlags = 1 << 23
	DeviceMemWindowType2B     DeviceCapFlags = 1 << 24
	DeviceRCIPCsum            DeviceCapFlags = 1 << 25
	DeviceRawIPCsum           DeviceCapFlags = 1 << 26
	DeviceManagedFlowSteering DeviceCapFlags = 1 << 29
	DeviceRawScatterFCS       DeviceCapFlags = 1 << 34
	DevicePCIWriteEndPadding  DeviceCapFlags = 1 << 36
)

var deviceCapNames = []string{
	0: "ResizeMaxWR", 1: "BadPKeyCntr", 2: "BadQKeyCntr", 3: "RawMulti", 4: "AutoPathMig",
	5: "ChangePhyPort", 6: "UDAVPortEnforce", 7: "CurrQPStateMod", 8: "ShutdownPort", 9: "InitType",
	10: "PortActiveEvent", 11: "SysImageGUID", 12: "RCRNRNakGen", 13: "SRQResize", 14: "NNotifyCQ",
	17: "MemWindow", 18: "UDIPCsum", 20: "XRC", 21: "MemMgtExtensions", 23: "MemWindowType2A",
	24: "MemWindowType2B", 25: "RCIPCsum", 26: "RawIPCsum", 29: "ManagedFlowSteering",
	34: "RawScatterFCS", 36: "PCIWriteEndPadding",
}

// String joins the names of the flags with "|"; "none" where none is set.
func (f DeviceCapFlags) String() string { return bitNames(uint64(f), deviceCapNames, "none") }

// QPAttrMask names the fields of a [QPAttr] that a call sets or asks for.
//
// Implements: ibv_qp_attr_mask
type QPAttrMask uint32

const (
	AttrState           QPAttrMask = 1 << 0
	AttrCurState        QPAttrMask = 1 << 1
	AttrSQDrainedNotify QPAttrMask = 1 << 2 // IBV_QP_EN_SQD_ASYNC_NOTIFY
	AttrAccess          QPAttrMask = 1 << 3
	AttrPKeyIndex       QPAttrMask = 1 << 4
	AttrPort            QPAttrMask = 1 << 5
	AttrQKey            QPAttrMask = 1 << 6
	AttrAV              QPAttrMask = 1 << 7 // QPAttr.AH
	AttrPathMTU         QPAttrMask = 1 << 8
	AttrTimeout         QPAttrMask = 1 << 9
	AttrRetryCount      QPAttrMask = 1 << 10
	AttrRNRRetry        QPAttrMask = 1 << 11
	AttrRQPSN           QPAttrMask = 1 << 12
	AttrMaxRdAtomic     QPAttrMask = 1 << 13 // IBV_QP_MAX_QP_RD_ATOMIC
	AttrAltPath         QPAttrMask = 1 << 14 // AltAH, AltPKeyIndex, AltPort and AltTimeout
	AttrMinRNRTimer     QPAttrMask = 1 << 15
	AttrSQPSN           QPAttrMask = 1 << 16
	AttrMaxDestRdAtomic QPAttrMask = 1 << 17
	AttrPathMigState    QPAttrMask = 1 << 18
	AttrCap             QPAttrMask = 1 << 19
	AttrDestQPN         QPAttrMask = 1 << 20
	AttrRateLimit       QPAttrMask = 1 << 25
)

var attrNames = []string{
	0: "State", 1: "CurState", 2: "SQDrainedNotify", 3: "Access", 4: "PKeyIndex", 5: "Port", 6: "QKey",
	7: "AV", 8: "PathMTU", 9: "Timeout", 10: "RetryCount", 11: "RNRRetry", 12: "RQPSN",
	13: "MaxRdAtomic", 14: "AltPath", 15: "MinRNRTimer", 16: "SQPSN", 17: "MaxDestRdAtomic",
	18: "PathMigState", 19: "Cap", 20: "DestQPN", 25: "RateLimit",
}

// String joins the names of the attributes, "State|PKeyIndex|Port"; "none"
// where none is set.
func (m QPAttrMask) String() string { return bitNames(uint64(m), attrNames, "none") }

// bitNames joins the names of v's bits from the lowest up, then what has no
// name as one hexadecimal number. zero stands for a v without bits.
func bitNames(v uint64, names []string, zero string) string {
	if v == 0 {
		return zero
	}
	var parts []string
	for i, name := range names {
		if bit := uint64(1) << i; v&bit != 0 && name != "" {
			parts = append(parts, name)
			v &^= bit
		}
	}
	if v != 0 {
		parts = append(parts, "0x"+strconv.FormatUint(v, 16))
	}
	return strings.Join(parts, "|")
}
