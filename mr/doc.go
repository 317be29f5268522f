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
// From the post of a work request until the completion that covers it the memory
// that it names belongs to the device. A receive buffer holds what it held before,
// or a part of the message, until its completion.
//
// The default access is local reading only. With remote rights, whoever knows the
// rkey and can reach a queue pair of the protection domain can use the whole region
// until it is closed: an rkey is an identifier of 32 bits and no secret.
package mr
