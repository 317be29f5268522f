//go:build linux

package mr_test

import (
	"math"
	"os"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/mr"
)

func TestBufferIsPageAlignedAndZero(t *testing.T) {
	for _, size := range []int{1, 4095, 4096, 4097, 1 << 20} {
		buf, err := mr.Alloc(size)
		require.NoError(t, err)
		b := buf.Bytes()
		require.Len(t, b, size)
		assert.Equal(t, size, cap(b), "what lies behind cannot be reached by append")
		assert.Zero(t, uintptr(unsafe.Pointer(&b[0]))%uintptr(os.Getpagesize()))
		for i := range b {
			require.Zero(t, b[i])
			b[i] = 0xff
		}
		require.NoError(t, buf.Close())
		require.NoError(t, buf.Close(), "closing again")
	}
}

func TestBadBufferSizes(t *testing.T) {
	for _, size := range []int{0, -1} {
		_, err := mr.Alloc(size)
		require.ErrorIs(t, err, syscall.EINVAL)
	}
	for _, size := range []int{math.MaxInt / 2, math.MaxInt} {
		_, err := mr.Alloc(size)
		var e *ibv.OpError
		require.ErrorAs(t, err, &e)
		require.ErrorIs(t, err, syscall.ENOMEM)
		assert.NotEmpty(t, e.Reason)
	}
}

// Where no huge pages are reserved the error says how to; where some are, it works.
func TestHugePages(t *testing.T) {
	buf, err := mr.AllocHuge(1)
	if err == nil {
		require.Len(t, buf.Bytes(), 1)
		require.NoError(t, buf.Close())
		return
	}
	var e *ibv.OpError
	require.ErrorAs(t, err, &e)
	assert.Contains(t, e.Error(), "huge pages")
}
