// Package window writes many small records to a peer at full speed: in batches, with a
// completion for one in 32 only, and never more than 256 of them in flight.
package window

import (
	"errors"
	"fmt"

	"github.com/goverbs/goverbs/cq"
	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/mr"
)

const (
	window = 256 // most records in flight
	every  = 32  // records for one completion
)

// Write puts the memory of from at the beginning of to, in records of size bytes, and
// returns when all are done. Nothing else uses from or q meanwhile, and the queue pair
// has room for at least one batch of 32. After an error some may still be in flight:
// close the queue pair before the region.
func Write(qp *ibv.QP, q *cq.CQ, from *mr.Region, to ibv.RemoteRange, size int) error {
	if depth := qp.Cap().MaxSendWR; depth < every {
		return fmt.Errorf("%v takes %d work requests: at least %d, so that one of them is signaled", qp, depth, every)
	}
	var sges [every]ibv.SGE
	var wrs [every]ibv.SendWR
	var wcs [every]cq.WC
	for next, count := 0, from.Len()/size; next < count || from.InFlight() > 0; {
		batch := wrs[:min(every, count-next, window-from.InFlight())]
		for k := range batch {
			i := next + k
			sges[k] = from.SGE(i*size, size)
			batch[k] = ibv.Write(uint64(i), 0, to.Slice(i*size, size), sges[k:k+1]...)
			if (i+1)%every == 0 || i+1 == count {
				batch[k].Flags = ibv.SendSignaled
			}
		}
		accepted, err := qp.PostSend(batch)
		next += accepted // also with an error: what is accepted is on its way
		if err != nil && !errors.Is(err, ibv.ErrQueueFull) {
			return err
		}
		n, err := q.Poll(wcs[:])
		for k := range wcs[:n] {
			err = errors.Join(err, wcs[k].Err())
		}
		if err != nil {
			return err
		}
	}
	return nil
}
