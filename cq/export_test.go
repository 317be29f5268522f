package cq

import (
	"github.com/goverbs/goverbs/internal/cverbs"
	"github.com/goverbs/goverbs/internal/inflight"
)

// NewWC makes a completion as a poll would.
func NewWC(c cverbs.WC, recv bool) WC {
	kind := inflight.Send
	if recv {
		kind = inflight.Recv
	}
	var wc WC
	wc.set(&c, 0, kind)
	return wc
}
