//go:build linux

package fdwait

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A wait that finds an event, or holds its thread until there is one, allocates nothing.
func TestAllocs(t *testing.T) {
	for _, hold := range []time.Duration{0, time.Second} {
		c := newCounter(t)
		require.NoError(t, c.add(1<<40))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		assert.Zero(t, testing.AllocsPerRun(1000, func() {
			if _, err := c.Wait(ctx, 0, hold, nil); err != nil {
				t.Error(err)
			}
		}), "hold %v", hold)
	}
}
