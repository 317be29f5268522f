// Package mr has registered memory: the buffers that the device reads and writes.
//
// The short way is AllocRegion, which allocates and registers in one call:
//
//	region, err := mr.AllocRegion(pd, 4096, ibv.AccessLocalWrite)
//	if err != nil {
//		return err
//	}
//	defer region.Close()
//	copy(region.Bytes(), "hello")
//	sge := region.SGE(0, 5)
//
// Memory comes from mmap, outside the Go heap, because the device reads and writes
// it behind the back of Go's memory model: no race detector sees that, and the
// memory must neither move nor be freed while it is registered. RegisterSlice
// registers Go memory for those who must, and keeps it pinned for as long.
//
// A Region is over an own Buffer (Register, RegisterIOVA), which is closed after it, over
// memory that it allocated and frees itself (AllocRegion), over a Go slice
// (RegisterSlice), or over a dma-buf, such as the memory of a GPU (RegisterDMABuf).
//
// # Who owns the bytes
//
// From the post of a work request until the completion that covers it the memory
// that it names belongs to the device. A receive buffer holds what it held before,
// or a part of the message, until its completion. A deadline that passes changes nothing
// about that.
//
// Meanwhile the region cannot be closed: Close answers with an error that matches
// ibv.ErrBusy and says how many work requests use it, and CloseWhenIdle waits for them.
// InFlight counts them. Closing the queue pair releases them at once. An SGE that was
// filled by hand, without Region.SGE, is not counted.
//
// A window that is bound to the region keeps it open too (ibv.MW).
//
// # What registration promises to peers
//
// The default access is local reading only. With remote rights, whoever knows the
// rkey and can reach a queue pair of the protection domain can use the whole region
// until it is closed: an rkey is an identifier of 32 bits and no secret. A memory window
// gives less, and for less long. Region.Remote, or a part of it by Slice, is what to send
// to the peer. Its addresses are the region's IOVA: where the memory is in this process,
// unless RegisterIOVA said otherwise.
//
// What peers do is not counted and not seen. Closing the region under their hands fails
// their operation with cq.StatusRemAccessErr and ends both queue pairs; what was under
// way may have been done in part.
//
// # What the collector does
//
// A Region that is dropped without Close is reported (ibv.SetLogger). It is closed when
// the last work request that uses it has completed; but never if it has remote rights,
// since a peer may be using it. Memory whose Bytes were asked for stays mapped, since a
// slice of it may be left.
package mr
