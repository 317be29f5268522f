// Package cq has completion queues: where the device reports what became of the
// work requests that ibv's queue pairs posted.
//
// A program polls. How many completions a poll returned and how each of them ended
// are two things, and both are to be checked:
//
//	var wcs [16]cq.WC
//	n, err := q.Poll(wcs[:])
//	if err != nil {
//		return err // the completion queue itself
//	}
//	for i := range wcs[:n] {
//		if err := wcs[i].Err(); err != nil {
//			return err // this work request
//		}
//		// wcs[i].WRID is done
//	}
//
// A completion queue belongs to a device and may serve any number of its queue
// pairs. It is closed after them.
package cq
