package ibv

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestRemoteRange(t *testing.T) {
	r := RemoteRange{Addr: 0x7f0012340000, Length: 0x1000, RKey: 0x1a2b}
	text, err := r.MarshalText()
	require.NoError(t, err)
	assert.Equal(t, "rdma-range/1 addr=0x7f0012340000 length=0x1000 rkey=0x1a2b", string(text))
	var back RemoteRange
	require.NoError(t, back.UnmarshalText(text))
	assert.Equal(t, r, back)
	assert.Equal(t, RemoteRange{Addr: 0x7f0012340ff0, Length: 0x10, RKey: 0x1a2b}, r.Slice(0xff0, 0x10))
	assert.Equal(t, RemoteRange{Addr: 0x7f0012341000, RKey: 0x1a2b}, r.Slice(0x1000, 0))
	for _, bad := range [][2]int{{-1, 1}, {0, 0x1001}, {0x1000, 1}, {0, -1}, {math.MaxInt, 1}} {
		assert.Panics(t, func() { r.Slice(bad[0], bad[1]) }, "%v", bad)
	}
	for text, want := range map[string]string{
		"":                                 "does not begin with rdma-range/1",
		"rdma-range/1 addr=0x1 length=0x2": "ends before the field rkey",
		"rdma-range/1 addr=1 length=0x2 rkey=0x3":                     "field addr",
		"rdma-range/1 addr=0x1 length=0x2 rkey=0x100000000":           "field rkey",
		"rdma-range/1 addr=0x1 length=0x2 rkey=0x3 more":              "follows the last field",
		"rdma-range/1 addr=0xfffffffffffffffc length=0x64 rkey=0x100": "end of the address space",
	} {
		err := back.UnmarshalText([]byte(text))
		require.ErrorContains(t, err, want)
		assert.Equal(t, r, back, "unchanged")
	}
	wraps := RemoteRange{Addr: 1<<64 - 4, Length: 100}
	_, err = wraps.MarshalText()
	require.ErrorContains(t, err, "end of the address space")
	assert.Panics(t, func() { wraps.Slice(50, 10) })
}
