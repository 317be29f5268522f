package core

import (
	"sync"

	"github.com/goverbs/goverbs/internal/cverbs"
)

// lastWQE keeps of which queue pairs the device has said that it is done with the
// receives of their shared receive queue.
type lastWQE struct {
	mu      sync.Mutex
	reached map[uintptr]bool
}

const eventLastWQEReached = 16 // IBV_EVENT_QP_LAST_WQE_REACHED

// LastWQEReached takes the asynchronous events that are there and reports whether the
// queue pair at addr has had that one since ForgetLastWQE.
func (c *Context) LastWQEReached(addr uintptr) bool {
	c.last.mu.Lock()
	defer c.last.mu.Unlock()
	c.takeEvents()
	return c.last.reached[addr]
}

// ForgetLastWQE is for a queue pair that was destroyed or reset: the device raises no
// more for it.
func (c *Context) ForgetLastWQE(addr uintptr) {
	c.last.mu.Lock()
	defer c.last.mu.Unlock()
	c.takeEvents() // or an event from before would be taken for one of the next drain
	delete(c.last.reached, addr)
}

func (c *Context) takeEvents() {
	for {
		e, err := cverbs.TakeAsyncEvent(c.H)
		if err != nil {
			return
		}
		if e.Type == eventLastWQEReached {
			if c.last.reached == nil {
				c.last.reached = map[uintptr]bool{}
			}
			c.last.reached[e.Element] = true
		}
	}
}
