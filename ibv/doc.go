// Package ibv binds libibverbs: devices, protection domains, queue pairs and the
// work requests that they carry out.
//
// The objects, and what makes them:
//
//	Context  an open device              Open
//	PD       a protection domain         Context.AllocPD
//	AH       the way of datagrams        PD.CreateAH
//	SRQ      a shared receive queue      PD.CreateSRQ
//	MW       a memory window             PD.AllocMW
//	QP       a queue pair                PD.CreateQP, with completion queues of package cq
//
// Completion queues are in package cq, registered memory in package mr.
//
// A connection that two programs make by themselves takes five steps on each side:
//
//	local, err := qp.Init(ibv.GIDRequest{Peer: peer}, 0) // RESET to INIT
//	_, err = qp.PostRecv(receives)                       // before the peer can send
//	remote, err := local.Exchange(conn)                  // over TCP, or any other way
//	err = qp.Connect(local, remote)                      // INIT to RTS
//	_, err = qp.PostSend(sends)
//
// A second Exchange before the first send tells each side that the other is connected:
// what reaches a peer before is sent again by RC, and lost by UC.
//
// Init and Connect choose sane attributes; Modify is the verb itself, with every
// attribute. A UD queue pair has no connection: Modify takes it to RTS, and each send
// says where it goes (SendWR.To).
//
// # Accepted is not done
//
// PostSend and PostRecv return how many work requests the device has accepted. What
// became of them is told by completions, which cq.CQ.Poll returns. From the post until
// the completion that covers it, the memory that a work request names belongs to the
// device: it must not be written, nor a receive's be read. Exempt is what is sent inline
// (SendWR.Inline, SendInline): it is copied during the post.
//
// A send that is not signaled makes no completion, unless it fails. The next completion
// of the same send queue covers it and all before it. A queue full of unsignaled sends
// will never have one: signal the last of each batch at least.
//
// # When a post fails
//
// The error is a *PostError. Accepted counts the first work requests of the slice that
// are with the device all the same: they complete, and what they use stays in use until
// then. The rest is the caller's again. Index is the one that failed:
//
//   - The library refused it, or the device refused it and named it: what stands before
//     it is accepted.
//   - The queue is full, which is ErrQueueFull: poll, and post the rest again.
//   - The device failed and named none (Index is -1). Some providers queue sends all the
//     same. So of sends all that the device was given in that call, up to 32, count as
//     accepted, except with ErrNotSupported; of receives none. A send that in truth was
//     not queued has no completion of its own: a later one covers it, or Close or RESET.
//
// # Closing
//
// Everything is closed after what was made from it or uses it: a PD after its queue
// pairs, shared receive queues, regions, windows and address handles; completion queues
// and a shared receive queue after their queue pairs; a region after the windows that are bound to it; the
// Context last. Close too early changes nothing, and returns an error that matches
// ErrBusy and names what is open. The same happens to a region, window or address handle
// that work requests in flight use: the error says how many, and mr's CloseWhenIdle
// waits for them. Closing again returns nil.
//
// Context.CloseAll closes all of it in order: the youngest first, and what refuses once
// more after the rest, so that memory goes after the queue pair that used it. Calls of
// others that are in progress end first, later ones fail with ErrClosed. PD.CloseAll does
// the same to one protection domain.
//
// Work requests in flight end in one of three ways:
//
//   - QP.Drain refuses new posts and waits until every work request has completed, most
//     of them flushed. No completion is lost: Poll returns them all.
//   - QP.Modify to RESET discards them without completions, and the queue pair can be
//     used again.
//   - QP.Close discards them too.
//
// When Modify or Close has returned, no completion of the discarded ones is reported any
// more, also when a new queue pair gets the same number, and their memory is free.
//
// # What the collector does
//
// Close is the way to end an object. One whose handle is dropped is closed by the library
// in the same order, and reported as a leak to the logger of SetLogger, with the line that
// made it if SetTrace is on:
//
//   - A queue pair is closed when its sends have completed, and its receives too unless
//     its receive queue's CQ was dropped as well. Completions that nobody can poll any
//     more the library polls. Unsignaled sends that nothing signaled follows keep it. After
//     a failure of its completion queue or of the device it is closed at once.
//   - An address handle, an unbound window and a region without remote rights are closed
//     when the last work request that uses them has completed.
//   - A region with remote rights, and a bound window, are kept: a peer may be using them.
//     Memory whose bytes the program was given is never unmapped: a slice may be left.
//   - Everything else is closed when nothing is open below it.
//
// What is kept is closed by CloseAll, or by the end of the process.
//
// # Shared receive queues
//
// The receives of an SRQ go to whichever of its queue pairs gets a message. They complete
// on the CQ of that queue pair, in any order. Only the device knows when an SRQ is full. A
// receive that a queue pair took for a message that was then broken off may never
// complete: it counts as in flight until the SRQ is closed (SRQ.InFlight).
//
// # Remote memory
//
// A RemoteRange is all that a peer needs to read or write memory, as far as the rights of
// the region or window and of the queue pair allow. Nothing of it is a secret: an rkey is
// 32 bits, often easy to guess, and travels unencrypted in every packet. Whoever has a
// queue pair to the same protection domain can use it, and so can whoever can forge
// packets on the network. Protection is the default access (local only), protection
// domains that are not shared between peers that do not trust each other, and a network
// that is closed.
//
// A window narrows range, rights and time. After it is revoked (LocalInv, the peer's
// SendInv, another bind of type 1, MW.Close), or the region is closed, operations of the
// peer on RC fail with cq.StatusRemAccessErr and end both queue pairs; on UC they are
// lost. One that was being carried out may have been done in part. Nothing tells this side
// what a peer did.
//
// Atomics are of 8 bytes at a multiple of 8; all else is refused. They are atomic to each
// other on one device. To other devices, and to the processor of the peer, they are only
// if DeviceAttr.AtomicCap says so.
//
// # What is not guaranteed
//
// A completion says less than one would like:
//
//   - RDMA WRITE on RC: the peer's device has it. A read behind it on the same queue pair
//     returns it. That the peer's program has seen it, or that it will outlive a power
//     failure, is not said.
//   - SEND on RC: the peer's device has put it into a receive. What the peer's program
//     makes of it only that program can say.
//   - On UC and UD: it was sent. It may be lost, and on UC so may the rest of a write of
//     which a part arrived.
//   - A failed one: nothing. It may have been done, in part or in whole.
//
// Order: the work requests of one queue pair begin in order, and on RC they are carried
// out at the peer in order, with one exception: a read or an atomic may be overtaken by
// what stands behind it. SendFence has a work request wait for those before it. Between
// queue pairs there is no order at all, also not between two to the same peer.
//
// Payload, then flag: a peer's program that polls its memory for a flag may find the flag
// before the payload, unless all of this holds. The flag is a word of its own alignment,
// in a later WRITE of the same queue pair; the region has no AccessRelaxedOrdering; the
// platform lets the processor see the device's writes in order, which verbs do not
// promise; the program loads the flag with sync/atomic, and the payload after it. What
// verbs promise is the receive: when that of a WRITE_WITH_IMM or of a SEND completes, all
// that the queue pair wrote before is there. The bytes of one WRITE come in any order.
//
// Persistence: no operation of this package makes data durable.
//
// # Events
//
// The library reads the asynchronous events of every open device, and acknowledges them at
// once: no Close waits for an event that nobody has read. What no program can do without it
// does by itself. A completion queue that has failed fails its polls and moves its queue
// pairs to ERR; after a failure of the device everything but Close fails with
// ErrDeviceFatal. Context.Listen tells a program the events too:
//
//	l, err := ctx.Listen()
//	for {
//		e, err := l.Next(context.Background())
//		if err != nil {
//			return err // ErrClosed: l or the device was closed
//		}
//		switch e := e.(type) {
//		case ibv.PortEvent:
//			log.Printf("%v", e) // "PORT_ERR of port 1"
//		case ibv.QPEvent:
//			reconnect(e.QP)
//		}
//	}
//
// Do not wait for an event to learn that a queue pair has failed: not every device raises
// one. Its completions and QP.State tell.
//
// # Errors
//
// The error of a call that stands for a verb is an *OpError: it names the C function,
// the object, the errno, and in words the reason where that is known. Use errors.Is with the
// sentinels of this package, or with a syscall.Errno. A post returns a *PostError,
// which adds how many work requests were accepted.
//
// # Goroutines
//
// All methods may be called from several goroutines. Posts to one work queue take
// turns; so do polls of one completion queue; a post and a poll never wait for each
// other. Close waits for the calls in progress and makes later ones fail with
// ErrClosed.
package ibv
