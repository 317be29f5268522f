package core

import (
	"github.com/goverbs/goverbs/internal/cverbs"
	"github.com/goverbs/goverbs/internal/inflight"
	"github.com/goverbs/goverbs/internal/life"
)

// MR is a memory region. Its fields change only in a rereg, which shuts it.
type MR struct {
	life.Node
	inflight.Used
	H          cverbs.MR
	PD         *PD
	Addr       uint64 // where the range begins that SGEs and peers count in
	Local      uint64 // where this process has the memory, or 0
	Len        int
	LKey, RKey uint32
	Access     uint32
}

// MRRef is what an SGE holds of a region. It is a part of the region's public
// handle, which an SGE thereby keeps reachable: what can still be posted is not
// collected.
type MRRef struct{ *MR }

// MayReap says whether a thing whose handle was dropped can be closed: not while work
// requests use it.
func MayReap(n *life.Node, u *inflight.Used) life.Verdict {
	if u.InFlight() > 0 {
		u.OnIdle(n.Reconsider)
		if k := u.InFlight(); k > 0 {
			return life.Verdict{When: life.WhenTold, Reason: (&inflight.BusyError{InFlight: k}).Error()}
		}
	}
	return life.Verdict{}
}
