//go:build cgo && linux && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package ibv_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/cverbs"
)

// TestFlowLabelToUDPSport tries all labels, and bits that are none of a label's.
func TestFlowLabelToUDPSport(t *testing.T) {
	for label := range uint32(1 << 21) {
		if got, want := ibv.FlowLabelToUDPSport(label), cverbs.FlowLabelToUDPSport(label); got != want {
			require.Equal(t, want, got, "label %#x", label)
		}
	}
	require.Equal(t, cverbs.FlowLabelToUDPSport(1<<32-1), ibv.FlowLabelToUDPSport(1<<32-1))
}
