//go:build rdma

package cq_test

import (
	"encoding/binary"
	"net/netip"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/cq"
	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/cverbs"
	"github.com/goverbs/goverbs/internal/rdmatest"
)

const withGRH = 1 << 0

// ipv4GRH is what RoCE v2 puts before a datagram that came over IPv4: the IP header, in
// the last 20 of the 40 bytes.
func ipv4GRH(src, dst netip.Addr) []byte {
	grh := make([]byte, 40)
	ip := grh[20:]
	ip[0], ip[1], ip[8], ip[9] = 4<<4|5, 0x20, 61, 17 // version and length, TOS, TTL, UDP
	s, d := src.As4(), dst.As4()
	copy(ip[12:], s[:])
	copy(ip[16:], d[:])
	sum := uint32(0)
	for i := 0; i < 20; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(ip[10:], ^uint16(sum))
	return grh
}

// ipv6GRH is the same of IPv6.
func ipv6GRH(src, dst ibv.GID) []byte {
	grh := make([]byte, 40)
	binary.BigEndian.PutUint32(grh, 6<<28|0x20<<20|0xabcde) // version, traffic class, flow label
	grh[6], grh[7] = 17, 61                                 // UDP, hop limit
	copy(grh[8:], src[:])
	copy(grh[24:], dst[:])
	return grh
}

func TestAHOfASender(t *testing.T) {
	ctx := rdmatest.Open(t)
	own := rdmatest.Addr(t)
	wc := cq.NewWC(cverbs.WC{Opcode: 128, Flags: withGRH, SL: 3, SLID: 0}, true)
	grh := append(ipv4GRH(own, own), "and the data"...)
	got, err := wc.AHAttr(ctx, grh, 1)
	require.NoError(t, err)
	assert.Equal(t, ibv.GIDFromAddr(own), got.GRH.DGID)
	assert.True(t, got.IsGlobal)
	assert.EqualValues(t, 1, got.Port)
	assert.EqualValues(t, 3, got.SL)
	entries, err := ctx.GIDTable()
	require.NoError(t, err)
	linkLocal := ibv.GID{}
	for _, e := range entries {
		if e.Index == uint32(got.GRH.SGIDIndex) {
			assert.Equal(t, ibv.GIDFromAddr(own), e.GID, "the GID that it was sent to")
			assert.Equal(t, ibv.GIDTypeRoCEv2, e.Type)
		}
		if e.GID.IsLinkLocal() {
			linkLocal = e.GID
		}
	}
	pd := rdmatest.PD(t, ctx)
	ah, err := pd.CreateAH(got)
	require.NoError(t, err, "the way back can be gone")
	require.NoError(t, ah.Close())

	// The checksum of what looks like an IPv4 header at the end of an IPv6 one tells them
	// apart, so this must be read as IPv6.
	require.False(t, linkLocal.IsZero(), "the device has a link-local GID")
	got, err = wc.AHAttr(ctx, ipv6GRH(linkLocal, linkLocal), 1)
	require.NoError(t, err)
	assert.Equal(t, linkLocal, got.GRH.DGID)
	assert.EqualValues(t, 0xabcde, got.GRH.FlowLabel)
}

func TestAHOfASenderRefused(t *testing.T) {
	ctx := rdmatest.Open(t)
	own := rdmatest.Addr(t)
	grh := ipv4GRH(own, own)
	recv := cverbs.WC{Opcode: 128, Flags: withGRH}
	failed, bare := recv, recv
	failed.Status, bare.Flags = uint32(cq.StatusLocLenErr), 0
	for _, test := range []struct {
		wc   cq.WC
		ctx  *ibv.Context
		grh  []byte
		port uint8
		want string
	}{
		{cq.NewWC(recv, true), nil, grh, 1, "the Context is nil"},
		{cq.NewWC(failed, true), ctx, grh, 1, "a failed completion"},
		{cq.NewWC(recv, false), ctx, grh, 1, "of no receive"},
		{cq.NewWC(bare, true), ctx, grh, 1, "without a GRH"},
		{cq.NewWC(recv, true), ctx, grh[:39], 1, "39 bytes long: give the first 40"},
		{cq.NewWC(recv, true), ctx, nil, 1, "0 bytes long"},
		{cq.NewWC(recv, true), ctx, grh, 0, "no port 0"},
		{cq.NewWC(recv, true), ctx, grh, 9, "no port 9"},
	} {
		_, err := test.wc.AHAttr(test.ctx, test.grh, test.port)
		require.ErrorIs(t, err, syscall.EINVAL, test.want)
		assert.ErrorContains(t, err, test.want)
		assert.ErrorContains(t, err, "ibv_init_ah_from_wc")
	}
	wc := cq.NewWC(recv, true)
	_, err := wc.AHAttr(ctx, ipv4GRH(own, netip.MustParseAddr("203.0.113.9")), 1)
	require.Error(t, err)
	assert.ErrorContains(t, err, "no GID of port 1 is the receiver")
}
