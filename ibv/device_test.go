package ibv

import (
	"errors"
	"io/fs"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestPickDevice(t *testing.T) {
	a, b := Device{Name: "mlx5_0"}, Device{Name: "mlx5_1"}
	d, err := pickDevice([]Device{a, b}, "mlx5_1")
	require.NoError(t, err)
	assert.Equal(t, b, d)
	d, err = pickDevice([]Device{a}, "")
	require.NoError(t, err)
	assert.Equal(t, a, d)

	for _, tc := range []struct {
		devices []Device
		name    string
		words   string
	}{
		{[]Device{a, b}, "", "several devices, name one: mlx5_0, mlx5_1"},
		{[]Device{a, b}, "rxe0", "there are: mlx5_0, mlx5_1"},
		{nil, "rxe0", "no RDMA device is visible here"},
		{nil, "", "no RDMA device is visible here"},
	} {
		_, err := pickDevice(tc.devices, tc.name)
		require.ErrorIs(t, err, ErrNoDevice)
		require.ErrorIs(t, err, syscall.ENODEV)
		assert.ErrorContains(t, err, tc.words)
	}
}

func TestListErrors(t *testing.T) {
	err := listError(syscall.ENOSYS)
	require.ErrorIs(t, err, ErrNoSubsystem)
	require.ErrorIs(t, err, syscall.ENOSYS)
	assert.ErrorContains(t, err, "load ib_uverbs")
	require.NotErrorIs(t, err, ErrNoDevice)

	require.ErrorIs(t, listError(syscall.EACCES), fs.ErrPermission)
	require.ErrorIs(t, listError(syscall.ENOMEM), syscall.ENOMEM)
}

// On whatever machine this runs, it ends in one of three known ways.
func TestDevicesHere(t *testing.T) {
	_, err := Devices()
	if err == nil {
		return
	}
	var e *OpError
	if !errors.As(err, &e) { // built without cgo
		require.ErrorIs(t, err, ErrUnsupportedBuild)
		return
	}
	require.True(t, errors.Is(err, ErrNoSubsystem) || errors.Is(err, ErrUnsupportedBuild), "%v", err)
	assert.NotEmpty(t, e.Error())
}

func TestOpErrorText(t *testing.T) {
	for want, e := range map[string]OpError{
		"ibv_open_device on rxe0: no such file or directory": {Op: "ibv_open_device", Object: "rxe0", Err: syscall.ENOENT},
		"ibv_x: because (invalid argument)":                  {Op: "ibv_x", Err: syscall.EINVAL, Reason: "because"},
		"ibv_x on QP 1: full up (queue full)":                {Op: "ibv_x", Object: "QP 1", Kind: ErrQueueFull, Reason: "full up"},
		"ibv_x: only words":                                  {Op: "ibv_x", Reason: "only words"},
	} {
		assert.Equal(t, want, e.Error())
	}
}

func TestErrorsMatchSentinelAndErrno(t *testing.T) {
	busy := &OpError{Op: "ibv_dealloc_pd", Err: syscall.EBUSY}
	require.ErrorIs(t, busy, ErrBusy)
	require.ErrorIs(t, busy, syscall.EBUSY)
	require.NotErrorIs(t, busy, ErrClosed)
	none := &OpError{Op: "ibv_create_qp", Err: syscall.EOPNOTSUPP}
	require.ErrorIs(t, none, ErrNotSupported)
	require.ErrorIs(t, none, errors.ErrUnsupported)

	var err error = &PostError{OpError: OpError{Op: "ibv_post_send", Kind: ErrQueueFull, Err: syscall.ENOMEM, Reason: "r"}, Accepted: 3, Index: 3}
	require.ErrorIs(t, err, ErrQueueFull)
	require.ErrorIs(t, err, syscall.ENOMEM)
	var op *OpError
	require.ErrorAs(t, err, &op)
	assert.EqualError(t, err, "ibv_post_send: r (cannot allocate memory) (3 accepted)")
}
