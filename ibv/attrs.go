package ibv

import "github.com/goverbs/goverbs/internal/cverbs"

// DeviceAttr is what a device can do. Limits are the most that the device could
// ever grant; what is there to be had may be less.
//
// Implements: ibv_device_attr, ibv_device_attr_ex
type DeviceAttr struct {
	FirmwareVersion            string
	NodeGUID                   GUID
	SysImageGUID               GUID
	MaxMRSize                  uint64 // bytes
	PageSizeCap                uint64 // bit mask of the page sizes that can be registered
	VendorID                   uint32
	VendorPartID               uint32
	HWVer                      uint32
	MaxQP                      int
	MaxQPWR                    int            // work requests in one work queue
	CapFlags                   DeviceCapFlags // the flags that fit 32 bits; CapFlagsEx has all
	MaxSGE                     int            // SGEs in one work request
	MaxSGERead                 int            // and in an RDMA READ
	MaxCQ                      int
	MaxCQE                     int // entries of one completion queue
	MaxMR                      int
	MaxPD                      int
	MaxQPRdAtom                int // RDMA READs and atomics in flight to one QP, as responder
	MaxEERdAtom                int
	MaxResRdAtom               int // and to all QPs together
	MaxQPInitRdAtom            int // and from one QP, as initiator
	MaxEEInitRdAtom            int
	AtomicCap                  AtomicCap
	MaxEE                      int
	MaxRDD                     int
	MaxMW                      int
	MaxRawIPv6QP               int
	MaxRawEthyQP               int
	MaxMcastGroup              int
	MaxMcastQPAttach           int
	MaxTotalMcastQPAttach      int
	MaxAH                      int
	MaxFMR                     int
	MaxMapPerFMR               int
	MaxSRQ                     int
	MaxSRQWR                   int
	MaxSRQSGE                  int
	MaxPKeys                   uint16
	LocalCAAckDelay            uint8  // encoded: 4.096 us * 2^n
	PhysPortCount              uint32 // ports are numbered from 1
	NumCompVectors             int    // completion vectors are numbered from 0
	ODPGeneralCaps             uint64
	ODPCapsRC                  uint32
	ODPCapsUC                  uint32
	ODPCapsUD                  uint32
	ODPCapsXRC                 uint32
	CompletionTimestampMask    uint64 // 0 where completions carry no time
	HCACoreClock               uint64 // kHz
	CapFlagsEx                 DeviceCapFlags
	MaxTSO                     uint32 // bytes
	TSOSupportedQPTs           uint32 // bit 1<<QPType for each type
	RSSSupportedQPTs           uint32 // as above
	MaxRWQIndirectionTables    uint32
	MaxRWQIndirectionTableSize uint32
	RXHashFieldsMask           uint64
	RXHashFunction             uint8
	MaxWQTypeRQ                uint32
	RateLimitMin               uint32 // kbit/s
	RateLimitMax               uint32 // kbit/s
	RateLimitQPTs              uint32 // bit 1<<QPType for each type
	RawPacketCaps              uint32
	TMMaxRndvHdrSize           uint32 // tag matching
	TMMaxNumTags               uint32
	TMFlags                    uint32
	TMMaxOps                   uint32
	TMMaxSGE                   uint32
	MaxCQCount                 uint16 // CQ moderation: completions
	MaxCQPeriod                uint16 // CQ moderation: microseconds
	MaxDMSize                  uint64 // bytes of device memory
	PCIAtomicFetchAdd          uint16 // bit mask of operand sizes
	PCIAtomicSwap              uint16
	PCIAtomicCompareSwap       uint16
}

// QueryDevice returns the attributes of the device.
//
// Implements: ibv_query_device, ibv_query_device_ex
func (c *Context) QueryDevice() (DeviceAttr, error) {
	var a cverbs.DeviceAttr
	if err := c.call("ibv_query_device_ex", func() (err error) {
		a, err = cverbs.QueryDevice(c.s.H)
		return err
	}); err != nil {
		return DeviceAttr{}, err
	}
	return DeviceAttr{
		FirmwareVersion:            a.FWVer,
		NodeGUID:                   GUID(a.NodeGUID),
		SysImageGUID:               GUID(a.SysImageGUID),
		MaxMRSize:                  a.MaxMRSize,
		PageSizeCap:                a.PageSizeCap,
		VendorID:                   a.VendorID,
		VendorPartID:               a.VendorPartID,
		HWVer:                      a.HWVer,
		MaxQP:                      int(a.MaxQP),
		MaxQPWR:                    int(a.MaxQPWR),
		CapFlags:                   DeviceCapFlags(a.DeviceCapFlags),
		MaxSGE:                     int(a.MaxSGE),
		MaxSGERead:                 int(a.MaxSGERead),
		MaxCQ:                      int(a.MaxCQ),
		MaxCQE:                     int(a.MaxCQE),
		MaxMR:                      int(a.MaxMR),
		MaxPD:                      int(a.MaxPD),
		MaxQPRdAtom:                int(a.MaxQPRdAtom),
		MaxEERdAtom:                int(a.MaxEERdAtom),
		MaxResRdAtom:               int(a.MaxResRdAtom),
		MaxQPInitRdAtom:            int(a.MaxQPInitRdAtom),
		MaxEEInitRdAtom:            int(a.MaxEEInitRdAtom),
		AtomicCap:                  AtomicCap(a.AtomicCap),
		MaxEE:                      int(a.MaxEE),
		MaxRDD:                     int(a.MaxRDD),
		MaxMW:                      int(a.MaxMW),
		MaxRawIPv6QP:               int(a.MaxRawIPv6QP),
		MaxRawEthyQP:               int(a.MaxRawEthyQP),
		MaxMcastGroup:              int(a.MaxMcastGrp),
		MaxMcastQPAttach:           int(a.MaxMcastQPAttach),
		MaxTotalMcastQPAttach:      int(a.MaxTotalMcastQPAttach),
		MaxAH:                      int(a.MaxAH),
		MaxFMR:                     int(a.MaxFMR),
		MaxMapPerFMR:               int(a.MaxMapPerFMR),
		MaxSRQ:                     int(a.MaxSRQ),
		MaxSRQWR:                   int(a.MaxSRQWR),
		MaxSRQSGE:                  int(a.MaxSRQSGE),
		MaxPKeys:                   a.MaxPKeys,
		LocalCAAckDelay:            a.LocalCAAckDelay,
		PhysPortCount:              a.PhysPortCnt,
		NumCompVectors:             int(a.NumCompVectors),
		ODPGeneralCaps:             a.ODPGeneralCaps,
		ODPCapsRC:                  a.ODPCapsRC,
		ODPCapsUC:                  a.ODPCapsUC,
		ODPCapsUD:                  a.ODPCapsUD,
		ODPCapsXRC:                 a.ODPCapsXRC,
		CompletionTimestampMask:    a.CompletionTimestampMask,
		HCACoreClock:               a.HCACoreClock,
		CapFlagsEx:                 DeviceCapFlags(a.DeviceCapFlagsEx),
		MaxTSO:                     a.MaxTSO,
		TSOSupportedQPTs:           a.TSOSupportedQPTs,
		RSSSupportedQPTs:           a.RSSSupportedQPTs,
		MaxRWQIndirectionTables:    a.MaxRWQIndirectionTables,
		MaxRWQIndirectionTableSize: a.MaxRWQIndirectionTblSize,
		RXHashFieldsMask:           a.RXHashFieldsMask,
		RXHashFunction:             a.RXHashFunction,
		MaxWQTypeRQ:                a.MaxWQTypeRQ,
		RateLimitMin:               a.RateLimitMin,
		RateLimitMax:               a.RateLimitMax,
		RateLimitQPTs:              a.RateLimitQPTs,
		RawPacketCaps:              a.RawPacketCaps,
		TMMaxRndvHdrSize:           a.TMMaxRndvHdrSize,
		TMMaxNumTags:               a.TMMaxNumTags,
		TMFlags:                    a.TMFlags,
		TMMaxOps:                   a.TMMaxOps,
		TMMaxSGE:                   a.TMMaxSGE,
		MaxCQCount:                 a.MaxCQCount,
		MaxCQPeriod:                a.MaxCQPeriod,
		MaxDMSize:                  a.MaxDMSize,
		PCIAtomicFetchAdd:          a.PCIAtomicFetchAdd,
		PCIAtomicSwap:              a.PCIAtomicSwap,
		PCIAtomicCompareSwap:       a.PCIAtomicCompareSwap,
	}, nil
}

// PortAttr is the state of a port.
//
// Implements: ibv_port_attr
type PortAttr struct {
	State           PortState
	PhysState       PortPhysState
	MaxMTU          MTU // what the port could have
	ActiveMTU       MTU // and what it has now: the most that a path MTU can be
	GIDTableLen     int // entries, with the empty ones
	CapFlags        uint32
	MaxMsgSize      uint32 // bytes of one message
	BadPKeyCounter  uint32
	QKeyViolCounter uint32
	PKeyTableLen    uint16
	LID             uint16 // 0 on RoCE
	SMLID           uint16
	LMC             uint8
	MaxVLNum        uint8 // encoded
	SMSL            uint8
	SubnetTimeout   uint8 // encoded: 4.096 us * 2^n
	InitTypeReply   uint8
	ActiveWidth     uint8 // encoded: 1, 2, 4, 8, 16 for 1X, 4X, 8X, 12X, 2X
	ActiveSpeed     uint8 // encoded: 1 is 2.5 Gbit/s a lane
	LinkLayer       LinkLayer
	Flags           uint8
	CapFlags2       uint16
}

func portAttr(a *cverbs.PortAttr) PortAttr {
	return PortAttr{
		State:           PortState(a.State),
		PhysState:       PortPhysState(a.PhysState),
		MaxMTU:          MTU(a.MaxMTU),
		ActiveMTU:       MTU(a.ActiveMTU),
		GIDTableLen:     int(a.GIDTblLen),
		CapFlags:        a.PortCapFlags,
		MaxMsgSize:      a.MaxMsgSz,
		BadPKeyCounter:  a.BadPKeyCntr,
		QKeyViolCounter: a.QKeyViolCntr,
		PKeyTableLen:    a.PKeyTblLen,
		LID:             a.LID,
		SMLID:           a.SMLID,
		LMC:             a.LMC,
		MaxVLNum:        a.MaxVLNum,
		SMSL:            a.SMSL,
		SubnetTimeout:   a.SubnetTimeout,
		InitTypeReply:   a.InitTypeReply,
		ActiveWidth:     a.ActiveWidth,
		ActiveSpeed:     a.ActiveSpeed,
		LinkLayer:       LinkLayer(a.LinkLayer),
		Flags:           a.Flags,
		CapFlags2:       a.PortCapFlags2,
	}
}
