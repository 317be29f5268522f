package main

import (
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestPattern(t *testing.T) {
	page := os.Getpagesize()
	for _, size := range []int{1, 2, page - 1, page, page + 1, 3*page + 5} {
		msg := make([]byte, size)
		fill(msg, filler, false)
		for i, b := range msg {
			require.EqualValues(t, 0x7b, b, "byte %d", i)
		}
		fill(msg, filler, true)
		for i, b := range msg {
			if i%page == 0 {
				require.Zero(t, b, "byte %d", i)
			} else {
				require.EqualValues(t, 0x7b, b, "byte %d", i)
			}
		}
	}
}

func TestVerify(t *testing.T) {
	want := make([]byte, 2*os.Getpagesize()+3)
	fill(want, filler, true)
	for _, at := range []int{0, 1, 4095, 4096, len(want) - 1} {
		got := append([]byte{}, want...)
		require.NoError(t, verify(got, want))
		got[at] ^= 1
		got[len(got)-1] ^= 1 // that it is the first one that is named
		if at == len(want)-1 {
			got[at] ^= 1
		}
		assert.ErrorContains(t, verify(got, want), fmt.Sprintf("byte %d is", at))
	}
	got := make([]byte, len(want))
	fill(got, filler, false)
	assert.ErrorContains(t, verify(got, want), "byte 0 is 0x7b, not 0x00", "a peer without --chk")
}

// A message that was wiped matches the pattern in no byte, so none can be missing
// from the next one.
func TestWipe(t *testing.T) {
	want := make([]byte, os.Getpagesize()+1)
	fill(want, filler, true)
	got := make([]byte, len(want))
	wipe(got)
	for i := range got {
		require.NotEqual(t, want[i], got[i], "byte %d", i)
	}
}
