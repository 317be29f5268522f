package core

import (
	"errors"
	"runtime"
	"testing"
	"time"
	"weak"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What a listener that was dropped has not read is collected.
func TestDroppedListenerHoldsNothing(t *testing.T) {
	c := new(Context)
	c.events.told.begin()
	l := c.Listen()
	first := weak.Make(l.at)
	for range 10 {
		c.events.told.publish(Event{})
	}
	runtime.GC()
	require.NotNil(t, first.Value())
	_, err := l.Next(t.Context())
	require.NoError(t, err)
	runtime.KeepAlive(l)
	require.Eventually(t, func() bool { runtime.GC(); return first.Value() == nil }, 10*time.Second, time.Millisecond)
}

func TestEndOfTheStream(t *testing.T) {
	c := new(Context)
	c.events.told.begin()
	l, ends := c.Listen(), errors.New("the end")
	c.events.told.publish(Event{Type: 1})
	c.events.told.end(ends)
	c.events.told.end(errors.New("another"))
	c.events.told.publish(Event{Type: 2})
	e, err := l.Next(t.Context())
	require.NoError(t, err)
	assert.Equal(t, Event{Type: 1}, e)
	for range 2 {
		_, err = l.Next(t.Context())
		require.Same(t, ends, err)
	}
}
