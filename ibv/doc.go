// Package ibv binds libibverbs: devices, protection domains, queue pairs and the
// work requests that they carry out.
//
// The objects and who owns what:
//
//	Context  an open device          Open
//	PD       a protection domain     Context.AllocPD
//	QP       a queue pair            PD.CreateQP, with completion queues of package cq
//
// Completion queues are in package cq, registered memory in package mr. Everything is
// closed after what was made from it: a PD after its queue pairs and memory regions,
// a completion queue after the queue pairs that report to it, the Context last.
// Closing too early is an error that names what is still open, and changes nothing.
// Context.CloseAll closes all of it in order. The garbage collector closes nothing: what
// a program drops stays open until it exits.
//
// A connection that two programs make by themselves takes five steps on each side:
//
//	local, err := qp.Init(ibv.GIDRequest{Peer: peer}, 0) // RESET to INIT
//	_, err = qp.PostRecv(receives)                       // before the peer can send
//	remote, err := local.Exchange(conn)                  // over TCP, or any other way
//	err = qp.Connect(local, remote)                      // INIT to RTS
//	_, err = qp.PostSend(sends)
//
// Init and Connect choose sane attributes; Modify is the verb itself, with every
// attribute.
//
// # Accepted is not done
//
// PostSend and PostRecv return how many work requests the device has accepted. What
// became of them is told by completions, which cq.CQ.Poll returns. Until then the
// memory that a work request names belongs to the device: it must not be written, nor
// a receive's be read, nor may its region be closed. A send that was not signaled has
// no completion of its own; the next one of the same queue covers it.
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
