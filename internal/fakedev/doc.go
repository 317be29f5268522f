// Package fakedev makes fake RDMA devices for tests that need no hardware: a device
// that does exactly what a test says, also what real devices do once a year.
//
// The package defines the functions of libibverbs, in C in the test binary, and the
// linker prefers them to the shared library's. Calls for a device that is not fake go
// on to the real library. So the code under test has no hook, and a program that does
// not import this package has nothing of it.
//
// A new device records what is posted and completes nothing: the test looks at it with
// [Queue.Posted], reads and writes its memory, and completes it with [Queue.Complete],
// in any order and with any status. [Config.Complete] has sends complete by
// themselves, and [Config.Null] makes a provider for benchmarks that does next to
// nothing.
//
// When its test ends, the device fails it for objects that are still open, for faults
// that were ordered and never happened, and for what [Device.Misuse] holds.
//
// A fake device has no multicast and no extended verbs (ibv_create_qp_ex,
// ibv_create_cq_ex and what belongs to them): they answer EOPNOTSUPP. ECE, import and
// fork support are not faked and must not be asked of a fake device.
package fakedev
