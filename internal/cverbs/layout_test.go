//go:build cgo && linux && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package cverbs

import (
	"encoding/binary"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// image is a work request's memory as C sees it, read by offset.
type image [128]byte

func imageOf(w *SendWR) *image { return (*image)(unsafe.Pointer(w)) }

func (m *image) u32(off int) uint32 { return binary.NativeEndian.Uint32(m[off:]) }
func (m *image) u64(off int) uint64 { return binary.NativeEndian.Uint64(m[off:]) }

// The offsets below are those of struct ibv_send_wr; what no member holds must be zero,
// whatever was set before.
func TestSendWRUnions(t *testing.T) {
	require.EqualValues(t, len(image{}), unsafe.Sizeof(SendWR{}))
	tests := map[string]struct {
		set func(*SendWR)
		u32 map[int]uint32
		u64 map[int]uint64
	}{
		"remote": {
			func(w *SendWR) { w.SetRemote(1<<63+1, 1<<31+2) },
			map[int]uint32{48: 1<<31 + 2},
			map[int]uint64{40: 1<<63 + 1},
		},
		"atomic": {
			func(w *SendWR) { w.SetAtomic(1<<63+1, 1<<63+2, 1<<63+3, 1<<31+4) },
			map[int]uint32{64: 1<<31 + 4},
			map[int]uint64{40: 1<<63 + 1, 48: 1<<63 + 2, 56: 1<<63 + 3},
		},
		"ud": {
			func(w *SendWR) { w.SetUD(0x7fff_0000_0001, 1<<31+2, 1<<31+3) },
			map[int]uint32{48: 1<<31 + 2, 52: 1<<31 + 3},
			map[int]uint64{40: 0x7fff_0000_0001},
		},
		"bind": {
			func(w *SendWR) { w.SetBind(0x7fff_0000_0001, 1<<31+2, 0x7fff_0000_0003, 1<<63+4, 1<<63+5, 1<<31+6) },
			map[int]uint32{88: 1<<31 + 2, 120: 1<<31 + 6},
			map[int]uint64{80: 0x7fff_0000_0001, 96: 0x7fff_0000_0003, 104: 1<<63 + 4, 112: 1<<63 + 5},
		},
		"none": {(*SendWR).ClearUnions, nil, nil},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			var w SendWR
			m := imageOf(&w)
			for i := range m[:40] {
				m[i] = 0xa5
			}
			for _, before := range tests {
				before.set(&w)
			}
			test.set(&w)
			for off, want := range test.u32 {
				assert.Equal(t, want, m.u32(off), "at %d", off)
				clear(m[off : off+4])
			}
			for off, want := range test.u64 {
				assert.Equal(t, want, m.u64(off), "at %d", off)
				clear(m[off : off+8])
			}
			assert.Equal(t, make([]byte, 128-40), m[40:], "stale bytes")
			for i, b := range m[:40] {
				require.EqualValues(t, 0xa5, b, "byte %d is not the unions'", i)
			}
		})
	}
}

func TestIncRKey(t *testing.T) {
	for rkey, want := range map[uint32]uint32{
		0: 1, 0x1234_56fe: 0x1234_56ff, 0x1234_56ff: 0x1234_5600, 0xffff_ffff: 0xffff_ff00,
	} {
		assert.Equal(t, want, IncRKey(rkey), "%#x", rkey)
	}
}
