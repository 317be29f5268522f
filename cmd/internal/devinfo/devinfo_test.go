package devinfo

import (
	"bytes"
	"net/netip"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/ibv"
)

func entry(index uint32, kind ibv.GIDType, addr string) ibv.GIDEntry {
	return ibv.GIDEntry{GID: netip.MustParseAddr(addr).As16(), Index: index, Type: kind}
}

// everything has a value of its own in each field, and every flag and feature that there is.
var everything = details{
	name:    "mlx5_0",
	boardID: "MT_0000000008",
	attr: ibv.DeviceAttr{
		FirmwareVersion: "16.35.2000", NodeGUID: 0x506b4b0300c12d3e, SysImageGUID: 0x506b4b0300c12d3f,
		MaxMRSize: 0xffffffffffffffff, PageSizeCap: 0xfffffffffffff000,
		VendorID: 0x2c9, VendorPartID: 4119, HWVer: 0xab, PhysPortCount: 2,
		MaxQP: 101, MaxQPWR: 102, CapFlags: 0xffffffff, MaxSGE: 103, MaxSGERead: 104, MaxCQ: 105, MaxCQE: 106,
		MaxMR: 107, MaxPD: 108, MaxQPRdAtom: 109, MaxEERdAtom: 110, MaxResRdAtom: 111, MaxQPInitRdAtom: 112,
		MaxEEInitRdAtom: 113, AtomicCap: ibv.AtomicGlob, MaxEE: 114, MaxRDD: 115, MaxMW: 116,
		MaxRawIPv6QP: 117, MaxRawEthyQP: 118, MaxMcastGroup: 119, MaxMcastQPAttach: 120, MaxTotalMcastQPAttach: 121,
		MaxAH: 122, MaxFMR: 123, MaxMapPerFMR: 124, MaxSRQ: 125, MaxSRQWR: 126, MaxSRQSGE: 127, MaxPKeys: 128,
		LocalCAAckDelay: 16, NumCompVectors: 63,
		ODPGeneralCaps: 0x7, ODPCapsRC: 0x1003f, ODPCapsUC: 0x1, ODPCapsUD: 0x3, ODPCapsXRC: 0x20,
		CompletionTimestampMask: 0x7fffffffffffffff, HCACoreClock: 78125, CapFlagsEx: 0x15ffffffff,
		RawPacketCaps: 0xf, MaxTSO: 262144, TSOSupportedQPTs: 1<<8 | 1<<4 | 1<<9,
		RSSSupportedQPTs: 1<<8 | 1<<0, MaxRWQIndirectionTables: 129, MaxRWQIndirectionTableSize: 130,
		RXHashFieldsMask: 0x800000ff, RXHashFunction: 1, MaxWQTypeRQ: 131,
		RateLimitMin: 1, RateLimitMax: 100000000, RateLimitQPTs: 1<<8 | 1<<10,
		TMMaxRndvHdrSize: 64, TMMaxNumTags: 127, TMFlags: 1, TMMaxOps: 132, TMMaxSGE: 133,
		MaxCQCount: 134, MaxCQPeriod: 135, MaxDMSize: 131072,
	},
	ports: []portDetails{{
		number: 1,
		attr: ibv.PortAttr{
			State: ibv.PortActive, PhysState: ibv.PortPhysLinkUp, MaxMTU: ibv.MTU4096, ActiveMTU: ibv.MTU1024,
			GIDTableLen: 8, CapFlags: 0x4010000, MaxMsgSize: 0x40000000, BadPKeyCounter: 1, QKeyViolCounter: 2,
			PKeyTableLen: 1, LID: 3, SMLID: 4, LMC: 5, MaxVLNum: 5, SMSL: 6, SubnetTimeout: 18, InitTypeReply: 7,
			ActiveWidth: 2, ActiveSpeed: 32, LinkLayer: ibv.LinkLayerEthernet, CapFlags2: 0x22,
		},
		gids: []ibv.GIDEntry{
			entry(0, ibv.GIDTypeRoCEv1, "fe80::526b:4bff:fec1:2d3e"),
			entry(1, ibv.GIDTypeRoCEv2, "fe80::526b:4bff:fec1:2d3e"),
			entry(2, ibv.GIDTypeRoCEv1, "::ffff:10.77.0.1"),
			entry(3, ibv.GIDTypeRoCEv2, "::ffff:10.77.0.1"),
			entry(4, ibv.GIDTypeRoCEv1, "fe80::"),
		},
	}, {
		// A port with encoded values that have no name.
		number: 2,
		attr: ibv.PortAttr{
			State: ibv.PortDown, PhysState: ibv.PortPhysTraining, MaxMTU: ibv.MTU2048, ActiveMTU: 7, GIDTableLen: 2,
			MaxVLNum: 9, ActiveWidth: 3, ActiveSpeed: 3, LinkLayer: ibv.LinkLayerInfiniBand,
		},
		gids: []ibv.GIDEntry{entry(0, ibv.GIDTypeIB, "fe80::526b:4bff:fec1:2d3e")},
	}},
}

// The file is what ibv_devinfo of rdma-core 44 prints for a device with these attributes.
func TestDevinfo(t *testing.T) {
	want, err := os.ReadFile("testdata/devinfo.golden")
	require.NoError(t, err)
	var out bytes.Buffer
	everything.print(&out)
	assert.Equal(t, string(want), out.String())
}
