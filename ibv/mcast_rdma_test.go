//go:build rdma

package ibv_test

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/rdmatest"
)

// A queue pair leaves its multicast groups when it is closed.
func TestAttachMcast(t *testing.T) {
	group, err := ibv.ParseGID("::ffff:239.1.2.5")
	require.NoError(t, err)
	p, _, _ := rdmatest.NewDatagrams(t)
	qp := p.A.QP
	require.Error(t, qp.DetachMcast(group, 0), "it is not attached")
	for range 2 {
		require.NoError(t, qp.AttachMcast(group, 0))
	}
	require.NoError(t, qp.DetachMcast(group, 0))
	require.NoError(t, qp.AttachMcast(group, 0))
	require.NoError(t, qp.Close())
	require.ErrorIs(t, qp.AttachMcast(group, 0), ibv.ErrClosed)

	side := rdmatest.NewSide(t, p.PD, rdmatest.DefaultInit())
	err = side.QP.AttachMcast(group, 0)
	require.ErrorIs(t, err, syscall.EINVAL)
	require.ErrorContains(t, err, "multicast is for UD")
}
