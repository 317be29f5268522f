package mr

import (
	"context"
	"fmt"
	"runtime"

	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/core"
	"github.com/goverbs/goverbs/internal/cverbs"
	"github.com/goverbs/goverbs/internal/life"
)

// Close ends the registration and frees what AllocRegion allocated. While work requests
// that use the region are in flight, or a memory window is bound to it, it changes
// nothing and returns an error that matches ibv.ErrBusy and says what. Closing again
// returns nil.
//
// What a peer does is not seen here: its reads and writes that come later fail with a
// remote access error and end both queue pairs, and one that is being carried out may
// have been done in part.
//
// Implements: ibv_dereg_mr
func (r *Region) Close() error {
	defer runtime.KeepAlive(r)
	if err := r.s.Close(); err != nil {
		return &ibv.OpError{Op: "ibv_dereg_mr", Object: r.String(), Err: err}
	}
	return nil
}

// CloseWhenIdle refuses work requests that use the region from now on, waits until those
// in flight have completed, and closes it. Somebody must poll the completions. If ctx
// ends first it changes nothing, and returns an error that matches its cause, and after a
// timeout os.ErrDeadlineExceeded too, and that says how many are left.
func (r *Region) CloseWhenIdle(ctx context.Context) error {
	defer runtime.KeepAlive(r)
	s := r.s
	fail := func(err error, reason string) error {
		return &ibv.OpError{Op: "ibv_dereg_mr", Object: r.String(), Err: err, Reason: reason}
	}
	allow, err := s.Wait(ctx)
	if err != nil {
		return fail(err, fmt.Sprintf("%d work requests in flight still use it", s.InFlight()))
	}
	defer allow()
	return r.Close()
}

// destroy ends the registration. After a failure it goes on from where it was.
func (s *regionState) destroy() error {
	if !s.closed.Load() {
		err := s.CloseUsed(func() error {
			// A bind that completed since the graph was looked at has made a child.
			if err := s.Busy(); err != nil {
				return err
			}
			return s.PD.Ctx.Gone(cverbs.DeregMR(s.H))
		})
		if err != nil {
			return err
		}
		s.closed.Store(true)
		s.pin.Unpin()
	}
	if s.pages == nil || s.reaping.Load() && s.seen.Load() {
		return nil // a slice of the memory may outlive the handle
	}
	if err := unmapMemory(s.pages); err != nil {
		return fmt.Errorf("munmap, after the deregistration: %w", err)
	}
	return nil
}

// mayReap says whether a region whose handle was dropped can be ended. Its memory stays
// mapped all the same if its bytes were given away.
func (s *regionState) mayReap() life.Verdict {
	const remote = ibv.AccessRemoteRead | ibv.AccessRemoteWrite | ibv.AccessRemoteAtomic
	if s.access()&remote != 0 {
		return life.Verdict{When: life.Never, Reason: "a peer may be using it: it was registered with remote rights"}
	}
	v := core.MayReap(&s.Node, &s.Used)
	s.reaping.Store(v.When == life.Now)
	return v
}
