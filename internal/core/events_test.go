package core

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// An event is taken, and what it is about looked up, under a lock that each destroy shares:
// so an address cannot become another object's between the two.
func TestDestroyKeepsEventsWaiting(t *testing.T) {
	const addr = 0x1000
	c, old, next := new(Context), new(CQ), new(CQ)
	at := func() any { q, _ := c.events.objects.Load(uintptr(addr)); return q }
	c.Put(addr, old)
	err := c.Destroy(addr, old, func() error { return syscall.EBUSY })
	require.ErrorIs(t, err, syscall.EBUSY)
	assert.Same(t, old, at(), "what was not destroyed has its events")
	require.NoError(t, c.Destroy(addr, old, func() error {
		assert.False(t, c.events.mu.TryLock(), "no event is taken meanwhile")
		assert.True(t, c.events.mu.TryRLock(), "others may be destroyed")
		c.events.mu.RUnlock()
		return nil
	}))
	assert.Nil(t, at())
	c.Put(addr, old)
	require.NoError(t, c.Destroy(addr, old, func() error {
		c.Put(addr, next) // made at the address that is free now
		return nil
	}))
	assert.Same(t, next, at())
}

// An object that is made while the device fails, and was missed by that, learns it from Put.
func TestPutOnADeadDevice(t *testing.T) {
	c, q := new(Context), new(CQ)
	c.events.failed.Store(&failure{text: "dead", matches: []error{ErrDeviceFatal}})
	c.Put(1, q)
	assert.ErrorIs(t, q.Failure(), ErrDeviceFatal)
}
