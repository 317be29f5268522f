//go:build rdma

package ibv_test

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/rdmatest"
)

// ownAH is the way from the device under test to itself.
func ownAH(t *testing.T, ctx *ibv.Context) ibv.AHAttr {
	t.Helper()
	choice, err := ctx.ChooseGID(ibv.GIDRequest{Local: rdmatest.Addr(t)})
	require.NoError(t, err)
	return ibv.AHAttr{
		GRH:      ibv.GRH{DGID: choice.Entry.GID, SGIDIndex: uint8(choice.Entry.Index), HopLimit: 64},
		IsGlobal: true,
		Port:     choice.Entry.Port,
	}
}

func TestAH(t *testing.T) {
	ctx := rdmatest.Open(t)
	pd := rdmatest.PD(t, ctx)
	attr := ownAH(t, ctx)
	ah, err := pd.CreateAH(attr)
	require.NoError(t, err)
	assert.Equal(t, "AH to "+attr.GRH.DGID.String()+" of "+ctx.Name(), ah.String())
	err = pd.Close()
	require.ErrorIs(t, err, ibv.ErrBusy)
	assert.ErrorContains(t, err, ah.String())
	require.NoError(t, ah.Close())
	require.NoError(t, ah.Close())
	require.NoError(t, pd.Close())
	_, err = pd.CreateAH(attr)
	require.ErrorIs(t, err, ibv.ErrClosed)
}

func TestAHRefused(t *testing.T) {
	ctx := rdmatest.Open(t)
	pd := rdmatest.PD(t, ctx)
	for want, change := range map[string]func(*ibv.AHAttr){
		"AHAttr.GRH.DGID is not set":           func(a *ibv.AHAttr) { a.GRH.DGID = ibv.GID{} },
		"AHAttr.Port is not set":               func(a *ibv.AHAttr) { a.Port = 0 },
		"AHAttr.Port 9 is above the device's":  func(a *ibv.AHAttr) { a.Port = 9 },
		"AHAttr.SL is 0x10":                    func(a *ibv.AHAttr) { a.SL = 16 },
		"Ethernet (RoCE), where a peer has no": func(a *ibv.AHAttr) { a.IsGlobal, a.DLID = false, 5 },
		"AHAttr names no peer: set IsGlobal":   func(a *ibv.AHAttr) { a.IsGlobal = false },
	} {
		attr := ownAH(t, ctx)
		change(&attr)
		_, err := pd.CreateAH(attr)
		require.ErrorIs(t, err, syscall.EINVAL, want)
		assert.ErrorContains(t, err, want)
		assert.ErrorContains(t, err, "ibv_create_ah on PD")
	}
	attr := ownAH(t, ctx)
	attr.GRH.SGIDIndex = 200
	_, err := pd.CreateAH(attr)
	require.Error(t, err)
	assert.ErrorContains(t, err, "own GID index 200, which port 1 does not have")
	require.NoError(t, pd.Close(), "nothing is left of what was refused")
}
