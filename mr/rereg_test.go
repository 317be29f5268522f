package mr

import (
	"errors"
	"math"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/core"
	"github.com/goverbs/goverbs/internal/life"
)

// What the manual says of each result code.
func TestReregOutcomes(t *testing.T) {
	for _, test := range []struct {
		code ReregCode
		err  syscall.Errno
		want Registration
		says string
	}{
		{ReregErrInput, syscall.EINVAL, RegistrationOld, "as it was"},
		{ReregErrDontForkNew, syscall.EINVAL, RegistrationOld, "don't fork on the new memory"},
		{ReregErrDoForkOld, syscall.EINVAL, RegistrationNew, "as was asked for"},
		{ReregErrCmd, syscall.ENOMEM, RegistrationNone, "close it"},
		{ReregErrCmd, syscall.EPROTO, RegistrationNone, "close it"},
		{ReregErrCmd, syscall.EOPNOTSUPP, RegistrationOld, "cannot do it"},
		{ReregErrCmdAndDoForkNew, syscall.EFAULT, RegistrationNone, "close it"},
		{ReregErrCmdAndDoForkNew, syscall.EOPNOTSUPP, RegistrationOld, "as it was"},
		{-6, syscall.EIO, RegistrationNone, "ReregCode(-6)"},
		{int32max, syscall.EIO, RegistrationNone, "close it"},
	} {
		holds := test.code.holds(test.err)
		assert.Equal(t, test.want, holds, "%v %v", test.code, test.err)
		assert.Contains(t, test.code.reason(holds, test.err), test.says)
	}
}

const int32max = ReregCode(math.MaxInt32)

func TestReregErrorMatches(t *testing.T) {
	var err error = &ReregError{Code: ReregErrCmd, Holds: RegistrationOld, OpError: ibv.OpError{Op: opRereg, Err: syscall.EOPNOTSUPP}}
	require.ErrorIs(t, err, ibv.ErrNotSupported)
	require.ErrorIs(t, err, syscall.EOPNOTSUPP)
	var op *ibv.OpError
	require.True(t, errors.As(err, &op))
	assert.Equal(t, "ibv_rereg_mr", op.Op)
}

func TestCheckIOVA(t *testing.T) {
	page := uint64(os.Getpagesize())
	for _, test := range []struct {
		iova, addr uint64
		length     int
		access     ibv.AccessFlags
		want       string
	}{
		{0, 7 * page, 10, 0, ""},
		{5*page + 3, 7*page + 3, 10, 0, ""},
		{math.MaxUint64 - page + 1, page, int(page), 0, ""},
		{math.MaxUint64 - page + 1, page, int(page) + 1, 0, "pass the end of the address space"},
		{math.MaxUint64 - 2, page - 3, 4, 0, "pass the end"},
		{5*page + 1, 7 * page, 10, 0, "1 bytes into a page"},
		{0, 7*page + 16, 10, ibv.AccessZeroBased, "the memory 16"},
		{page, page, 10, ibv.AccessZeroBased, "ZeroBased means addresses from 0 on"},
	} {
		s := regionState{MR: core.MR{Addr: test.iova, Len: test.length, Access: uint32(test.access)}}
		if got := s.checkIOVA(test.addr); test.want == "" {
			assert.Empty(t, got)
		} else {
			assert.Contains(t, got, test.want)
		}
	}
}

func TestOnDemandNeedsTheDevice(t *testing.T) {
	var ctx core.Context
	err := checkAccess(ibv.AccessOnDemand, &ctx)
	require.ErrorIs(t, err, ibv.ErrNotSupported)
	ctx.Attr.ODPGeneralCaps = odpSupport
	require.Nil(t, checkAccess(ibv.AccessOnDemand, &ctx))
}

func TestDMABufArguments(t *testing.T) {
	s := regionState{MR: core.MR{Len: 4096, Access: uint32(ibv.AccessLocalWrite | ibv.AccessRemoteRead)}}
	require.Empty(t, s.checkDMABuf(4096))
	assert.Contains(t, s.checkDMABuf(1), "bytes into a page")
	for access, want := range map[ibv.AccessFlags]string{
		ibv.AccessOnDemand: "OnDemand", ibv.AccessZeroBased: "ZeroBased", ibv.AccessMWBind | ibv.AccessLocalWrite: "flags MWBind",
	} {
		s.Access = uint32(access)
		assert.Contains(t, s.checkDMABuf(0), want)
	}
	for _, length := range []int{0, -1} {
		s := regionState{MR: core.MR{Len: length}}
		assert.Contains(t, s.checkDMABuf(0), "at least 1")
	}
}

func TestPieceOfARegion(t *testing.T) {
	s := regionState{MR: core.MR{Len: 100}}
	for _, ok := range [][2]int{{0, 0}, {0, 100}, {100, 0}, {99, 1}} {
		assert.NotPanics(t, func() { s.mustHold(ok[0], ok[1]) })
	}
	for _, bad := range [][2]int{{-1, 1}, {0, 101}, {100, 1}, {101, 0}, {50, -1}, {1, math.MaxInt}, {math.MaxInt, 1}} {
		assert.Panics(t, func() { s.mustHold(bad[0], bad[1]) }, "%v", bad)
	}
}

// Where no registration holds, all that it may still be stays until the region is closed,
// which works.
func TestReregThatLeavesNothing(t *testing.T) {
	node := func(n interface {
		Init(string, func() error, ...*life.Node) error
		Ready(string)
	}, kind string, parents ...*life.Node,
	) {
		require.NoError(t, n.Init(kind, func() error { return nil }, parents...))
		n.Ready("")
	}
	oldPD, newPD, oldBuf, newBuf := new(core.PD), new(core.PD), new(bufferState), new(bufferState)
	node(oldPD, "old PD")
	node(newPD, "new PD")
	node(oldBuf, "old buffer")
	node(newBuf, "new buffer")
	s := &regionState{MR: core.MR{PD: oldPD, LKey: 1}, buf: oldBuf, mem: make([]byte, 8)}
	node(s, "MR", &oldPD.Node, &oldBuf.Node)
	next := holding{pd: newPD, buf: newBuf, mem: make([]byte, 9)}
	require.NoError(t, s.hold(next))

	err := s.settle(next, ReregErrCmd, syscall.ENOMEM)
	var e *ReregError
	require.ErrorAs(t, err, &e)
	assert.Equal(t, RegistrationNone, e.Holds)
	require.ErrorIs(t, err, syscall.ENOMEM)
	for _, n := range []*life.Node{&oldPD.Node, &newPD.Node, &oldBuf.Node, &newBuf.Node} {
		assert.ErrorIs(t, n.Close(), syscall.EBUSY)
	}
	err = (&Region{s: s}).Rereg(ReregAttr{}, ReregAccess)
	require.ErrorContains(t, err, "left no registration that holds")
	require.ErrorAs(t, err, &e)
	assert.Equal(t, RegistrationNone, e.Holds)
	for _, n := range []*life.Node{&s.Node, &oldPD.Node, &newPD.Node, &oldBuf.Node, &newBuf.Node} {
		require.NoError(t, n.Close())
	}
}
