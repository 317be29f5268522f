//go:build cgo && linux && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package core

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/goverbs/goverbs/internal/cverbs"
)

func TestEventConstants(t *testing.T) {
	c := cverbs.Constants()
	for name, value := range map[string]int64{
		"IBV_EVENT_CQ_ERR":              eventCQErr,
		"IBV_EVENT_DEVICE_FATAL":        eventDeviceFatal,
		"IBV_EVENT_PORT_ACTIVE":         eventPortActive,
		"IBV_EVENT_QP_LAST_WQE_REACHED": eventLastWQEReached,
		"IBV_EVENT_WQ_FATAL":            eventWQFatal,
	} {
		assert.Equal(t, c[name], value, name)
	}
}
