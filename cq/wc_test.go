package cq

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/internal/core"
	"github.com/goverbs/goverbs/internal/cverbs"
	"github.com/goverbs/goverbs/internal/inflight"
)

func TestZeroWCHasNoOpcode(t *testing.T) {
	var wc WC
	assert.Zero(t, wc.Opcode())
}

// Only wr_id, status, qp_num and vendor_err hold in a failed completion.
func TestFailedWCSaysNoMore(t *testing.T) {
	var wc WC
	c := cverbs.WC{Status: uint32(StatusRemAccessErr), Opcode: 128, ByteLen: 9, Flags: 3, Imm: 1, QPNum: 0x11, SrcQP: 7, SLID: 1, SL: 1, VendorErr: 0x88}
	wc.set(hard, &core.Completion{WC: c, WRID: 42, Kind: inflight.Send, Explained: true})
	assert.EqualValues(t, 42, wc.WRID)
	assert.EqualValues(t, 0x11, wc.QPNum)
	assert.EqualValues(t, 0x88, wc.VendorErr)
	assert.False(t, wc.IsRecv())
	assert.Zero(t, wc.Opcode())
	assert.Zero(t, wc.ByteLen())
	assert.Zero(t, wc.SrcQP())
	assert.Zero(t, wc.SLID())
	assert.Zero(t, wc.SL())
	assert.False(t, wc.HasGRH())
	_, ok := wc.Imm()
	assert.False(t, ok)
	require.EqualError(t, wc.Err(), "send WR 42 on QP 0x11: remote access error (status 10, vendor_err 0x88): "+
		"the remote address and rkey do not name memory of the peer with the right that is needed, or no longer: it may just have ended")

	// A later success in the same WC is not mixed up with it.
	c = cverbs.WC{Opcode: 128, ByteLen: 9, Flags: wcFlagWithImm, Imm: cverbs.FromBE32(0x01020304)}
	wc.set(hard, &core.Completion{WC: c, WRID: 43, Kind: inflight.Recv, Explained: true})
	require.NoError(t, wc.Err())
	assert.Equal(t, OpRecv, wc.Opcode())
	assert.Equal(t, 9, wc.ByteLen())
	imm, ok := wc.Imm()
	assert.True(t, ok)
	assert.EqualValues(t, 0x01020304, imm)
	assert.True(t, wc.IsRecv())
}

func TestClassesAndUnknownStatus(t *testing.T) {
	for status, class := range map[Status]Class{
		StatusWRFlushErr: ClassFlushed, StatusLocProtErr: ClassLocal, StatusRemAccessErr: ClassRemote,
		StatusRetryExcErr: ClassRetryExceeded, StatusRNRRetryExcErr: ClassRNR,
	} {
		e := Error{Status: status}
		assert.Equal(t, class, e.Class(), status.String())
		assert.NotEmpty(t, hints[status], status.String())
	}
	assert.Equal(t, "Status(99)", Status(99).String())
	assert.Equal(t, "Opcode(99)", Opcode(99).String())
}
