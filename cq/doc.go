// Package cq has completion queues: where the device reports what became of the
// work requests that ibv's queue pairs posted.
//
// A program polls. How many completions a poll returned and how each of them ended
// are two things, and both are to be checked:
//
//	var wcs [16]cq.WC
//	n, err := q.Poll(wcs[:])
//	for i := range wcs[:n] {
//		if err := wcs[i].Err(); err != nil {
//			return err // this work request
//		}
//		// wcs[i].WRID is done
//	}
//	if err != nil {
//		return err // the completion queue itself
//	}
//
// # Waiting
//
// A completion queue that was created on a [Channel] can be waited for. [CQ.Wait] is Poll
// that waits where there is nothing; errors are left out here:
//
//	ch, err := cq.NewChannel(dev)
//	q, err := cq.Create(dev, cq.InitAttr{Entries: 64, Channel: ch})
//	...
//	n, err := q.Wait(ctx, wcs[:])
//
// It parks the goroutine and holds no thread, or for a short time where InitAttr.Hold asks
// for it; it ends with its context and with Close, and it does not sleep while there is a
// completion to poll. Many completion queues can share a channel, and many goroutines wait
// for each. A wait that ended takes nothing with it: what was posted is still with the
// device, and owns its memory.
//
// A [Dispatcher] is for programs in which many goroutines post, and each wants its own
// completion: one goroutine runs it and waits, the others wait for their operations.
//
// Below that are [CQ.ReqNotify] and [Channel.GetEvent], one to one as in C. An event says
// only that a completion has arrived after the ReqNotify. So a loop of its own must poll
// once more between ReqNotify and GetEvent, or it may sleep with a completion in the
// queue, for ever. Nobody has to acknowledge events.
//
// # What a completion covers
//
// A completion gives back its work request's memory to the program. On a send queue it
// covers all work requests before it too: those that were not signaled have no
// completion of their own. What each one says is in package ibv, under "What is not
// guaranteed".
//
// One that failed says which work request (WRID), on which queue pair, how (Status) and
// whether it was a receive; its Error adds the class and what most often is the cause.
// The methods that tell more return zero. A failure takes an RC queue pair to ERR, and all
// that is posted there comes back with StatusWRFlushErr.
//
// # Size
//
// A completion queue belongs to a device and may serve any number of its queue pairs,
// sends and receives alike. It must hold what can complete between two polls: signaled
// sends, receives, and, when a queue pair fails, unsignaled sends too, which are flushed
// one by one. What does not fit is lost; the memory of those work requests is in use until
// a later completion of the same queue, or until their queue pair is closed or reset. An
// overrun is the end of the completion queue: see CQ.Poll.
//
// It is closed after its queue pairs. Completions of a queue pair that was closed or
// reset are never reported, also if they were in the queue.
package cq
