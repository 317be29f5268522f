package cverbs

// DeviceInfo is what is known of a device without opening it.
type DeviceInfo struct {
	Name      string
	NodeType  int32
	Transport int32
	GUID      uint64
	Index     int // -1 where the kernel does not number devices
}

// DeviceAttr holds struct ibv_device_attr_ex, in C's order.
type DeviceAttr struct {
	FWVer                    string
	NodeGUID                 uint64
	SysImageGUID             uint64
	MaxMRSize                uint64
	PageSizeCap              uint64
	VendorID                 uint32
	VendorPartID             uint32
	HWVer                    uint32
	MaxQP                    int32
	MaxQPWR                  int32
	DeviceCapFlags           uint32
	MaxSGE                   int32
	MaxSGERead               int32
	MaxCQ                    int32
	MaxCQE                   int32
	MaxMR                    int32
	MaxPD                    int32
	MaxQPRdAtom              int32
	MaxEERdAtom              int32
	MaxResRdAtom             int32
	MaxQPInitRdAtom          int32
	MaxEEInitRdAtom          int32
	AtomicCap                int32
	MaxEE                    int32
	MaxRDD                   int32
	MaxMW                    int32
	MaxRawIPv6QP             int32
	MaxRawEthyQP             int32
	MaxMcastGrp              int32
	MaxMcastQPAttach         int32
	MaxTotalMcastQPAttach    int32
	MaxAH                    int32
	MaxFMR                   int32
	MaxMapPerFMR             int32
	MaxSRQ                   int32
	MaxSRQWR                 int32
	MaxSRQSGE                int32
	MaxPKeys                 uint16
	LocalCAAckDelay          uint8
	ODPGeneralCaps           uint64
	ODPCapsRC                uint32
	ODPCapsUC                uint32
	ODPCapsUD                uint32
	ODPCapsXRC               uint32
	CompletionTimestampMask  uint64
	HCACoreClock             uint64
	DeviceCapFlagsEx         uint64
	MaxTSO                   uint32
	TSOSupportedQPTs         uint32
	RSSSupportedQPTs         uint32
	MaxRWQIndirectionTables  uint32
	MaxRWQIndirectionTblSize uint32
	RXHashFieldsMask         uint64
	RXHashFunction           uint8
	MaxWQTypeRQ              uint32
	RateLimitMin             uint32
	RateLimitMax             uint32
	RateLimitQPTs            uint32
	RawPacketCaps            uint32
	TMMaxRndvHdrSize         uint32
	TMMaxNumTags             uint32
	TMFlags                  uint32
	TMMaxOps                 uint32
	TMMaxSGE                 uint32
	MaxCQCount               uint16
	MaxCQPeriod              uint16
	MaxDMSize                uint64
	PCIAtomicFetchAdd        uint16
	PCIAtomicSwap            uint16
	PCIAtomicCompareSwap     uint16
	PhysPortCnt              uint32
	NumCompVectors           int32
}

// PortAttr holds struct ibv_port_attr.
type PortAttr struct {
	State         int32
	MaxMTU        int32
	ActiveMTU     int32
	GIDTblLen     int32
	PortCapFlags  uint32
	MaxMsgSz      uint32
	BadPKeyCntr   uint32
	QKeyViolCntr  uint32
	PKeyTblLen    uint16
	LID           uint16
	SMLID         uint16
	LMC           uint8
	MaxVLNum      uint8
	SMSL          uint8
	SubnetTimeout uint8
	InitTypeReply uint8
	ActiveWidth   uint8
	ActiveSpeed   uint8
	PhysState     uint8
	LinkLayer     uint8
	Flags         uint8
	PortCapFlags2 uint16
}

// GIDEntry holds struct ibv_gid_entry.
type GIDEntry struct {
	GID     [16]byte
	Index   uint32
	Port    uint32
	Type    uint32
	Ifindex uint32
}

// QPCap holds struct ibv_qp_cap.
type QPCap struct {
	MaxSendWR, MaxRecvWR, MaxSendSGE, MaxRecvSGE, MaxInlineData uint32
}

// AHAttr holds struct ibv_ah_attr.
type AHAttr struct {
	DGID         [16]byte
	FlowLabel    uint32
	SGIDIndex    uint8
	HopLimit     uint8
	TrafficClass uint8
	DLID         uint16
	SL           uint8
	SrcPathBits  uint8
	StaticRate   uint8
	IsGlobal     bool
	Port         uint8
}

// QPAttr holds struct ibv_qp_attr, timers in their wire encodings.
type QPAttr struct {
	State, CurState             int32
	PathMTU, PathMigState       int32
	QKey                        uint32
	RQPSN, SQPSN                uint32
	DestQPN                     uint32
	Access                      uint32
	Cap                         QPCap
	AH, AltAH                   AHAttr
	PKeyIndex, AltPKeyIndex     uint16
	SQDrainedNotify, SQDraining bool
	MaxRdAtomic                 uint8
	MaxDestRdAtomic             uint8
	MinRNRTimer                 uint8
	Port, AltPort               uint8
	Timeout, AltTimeout         uint8
	RetryCount, RNRRetry        uint8
	RateLimit                   uint32
}

// GRHSize is how many bytes stand before the data in the memory of a datagram's receive.
const GRHSize = 40

// SRQAttr holds struct ibv_srq_attr.
type SRQAttr struct {
	MaxWR, MaxSGE, Limit uint32
}

// AsyncEvent holds struct ibv_async_event. Element is the address of the queue that
// it is about, as QPAddr, CQAddr or SRQAddr return it, or 0. The event is acknowledged:
// the queue may be gone, and its address be another's, where nothing else keeps it.
type AsyncEvent struct {
	Type    int32
	Port    int32 // of the events that are about no queue
	Element uintptr
}
