//go:build cgo && linux && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package fakedev

// #cgo CFLAGS: -Wall -Wextra
// #cgo LDFLAGS: -libverbs
// #include "fakedev.h"
import "C"

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"unsafe"
)

// Device is a fake device. Its methods may be called from several goroutines. What a
// test asks of an object that does not exist fails the test.
type Device struct {
	t    testing.TB
	name string
	c    *C.struct_fd_device
}

var made atomic.Int32

// New adds a device to those of this process until the test ends. Call it before what
// opens the device registers its own cleanup, so that the device goes last.
func New(t testing.TB, config Config) *Device {
	t.Helper()
	d := &Device{t: t, name: fmt.Sprintf("fake%d", made.Add(1)-1)}
	c, err := config.toC(d.name)
	if err != nil {
		t.Fatalf("fakedev.New: %v", err)
	}
	if d.c = C.fd_add(c); d.c == nil {
		t.Fatal("fakedev.New: no memory")
	}
	t.Cleanup(d.remove)
	return d
}

// Name returns the device's name, which no other device of this process had.
func (d *Device) Name() string { return d.name }

func (d *Device) remove() {
	d.t.Helper()
	if left := d.Open(); len(left) > 0 {
		d.t.Errorf("%s: still open at the test's end: %s", d.name, strings.Join(left, ", "))
	}
	if verb := C.fd_unused_fault(d.c); verb != nil {
		d.t.Errorf("%s: the failure of %s that was ordered never happened", d.name, C.GoString(verb))
	}
	for _, m := range d.Misuse() {
		d.t.Errorf("%s: %s", d.name, m)
	}
	C.fd_remove(d.c)
}

// The kinds of objects, in C's order.
var kinds = []string{"context", "PD", "MR", "MW", "AH", "completion channel", "CQ", "SRQ", "QP"}

// Open returns how many objects of each kind are open, as "2 MR", without those of
// which there are none.
func (d *Device) Open() []string {
	var counts [C.FD_NKINDS]C.int
	C.fd_counts(d.c, &counts[0])
	var open []string
	for kind, n := range counts {
		if n != 0 {
			open = append(open, fmt.Sprintf("%d %s", n, kinds[kind]))
		}
	}
	return open
}

// Misuse returns, and forgets, what the device saw that a real one would not forgive:
// a destroy call that would have waited for ever for events to be acknowledged (it
// was refused with EBUSY), memory, a window or an address handle that goes while a
// posted WR uses it, a WR with fields of another operation, and a refusal that was
// ordered with [Queue.FailPost] and never happened.
func (d *Device) Misuse() []string {
	var texts []string
	for m := C.fd_take_misuse(d.c); m != nil; {
		texts = append(texts, C.GoString(&m.text[0]))
		next := m.next
		C.free(unsafe.Pointer(m))
		m = next
	}
	return texts
}

// Fail orders the next calls of a verb, as "ibv_reg_mr", to fail with errno, in the
// verb's own way: NULL, -1 or the errno itself. With times negative they fail until
// Fail is called with times 0.
//
// ibv_reg_mr stands for its variants with an own IOVA too, ibv_query_gid for
// ibv_query_gid_ex. Posts are refused with [Queue.FailPost].
func (d *Device) Fail(verb string, errno syscall.Errno, times int) {
	d.t.Helper()
	name := C.CString(verb)
	defer C.free(unsafe.Pointer(name))
	d.check("Fail "+verb, C.fd_set_fault(d.c, name, C.int(errno), C.int(times)))
}

// FailRaw is Fail with the very value that is returned, where the verb returns an int:
// negative errnos, the codes of ibv_rereg_mr.
func (d *Device) FailRaw(verb string, rc int, errno syscall.Errno, times int) {
	d.t.Helper()
	name := C.CString(verb)
	defer C.free(unsafe.Pointer(name))
	d.check("FailRaw "+verb, C.fd_set_raw_fault(d.c, name, C.int(rc), C.int(errno), C.int(times)))
}

// Unplug removes the device: verbs that need it fail with EIO, destroy calls among
// them, as they do for a program that did not ask for more. Closing the context works,
// and frees what could not be destroyed. It raises no event.
func (d *Device) Unplug() { C.fd_unplug(d.c) }

// SetComplete changes Config.Complete.
func (d *Device) SetComplete(on bool) { C.fd_set_complete(d.c, C.bool(on)) }

// HoldSends has calls that post sends return only when it is called again, long after the
// device has the work requests and may have completed them.
func (d *Device) HoldSends(on bool) { C.fd_hold_sends(d.c, C.bool(on)) }

// SetPort changes the state of a port, an ibv_port_state. It raises no event.
func (d *Device) SetPort(port, state int) {
	d.t.Helper()
	d.check(fmt.Sprintf("SetPort %d", port), C.fd_set_port(d.c, C.int(port), C.int(state)))
}

// Raise raises an asynchronous event, an ibv_event_type, for the object of that number:
// a QP number, the handle of a CQ or an SRQ, or a port, by the kind of event. Port
// events, and those of the device, reach all its contexts.
func (d *Device) Raise(event int, number uint32) {
	d.t.Helper()
	d.check(fmt.Sprintf("Raise event %d on %#x", event, number), C.fd_raise_event(d.c, C.int(event), C.uint32_t(number)))
}

// QPInfo is a QP as the device has it.
type QPInfo struct {
	State          int // ibv_qp_state
	SendCQ, RecvCQ uint32
	SRQ            uint32 // 0 is none
}

// QP returns what the device knows of a QP.
func (d *Device) QP(qpn uint32) QPInfo {
	d.t.Helper()
	var i C.struct_fd_qp_info
	d.check(fmt.Sprintf("QP %#x", qpn), C.fd_qp_info(d.c, C.uint32_t(qpn), &i))
	return QPInfo{State: int(i.state), SendCQ: uint32(i.send_cq), RecvCQ: uint32(i.recv_cq), SRQ: uint32(i.srq)}
}

// SetQPState moves a QP to another state behind the program's back, as a device does
// with ERR and SQE. It raises no event.
func (d *Device) SetQPState(qpn uint32, state int) {
	d.t.Helper()
	d.check(fmt.Sprintf("SetQPState of %#x", qpn), C.fd_set_qp_state(d.c, C.uint32_t(qpn), C.int(state)))
}

// Flush completes all that is posted to a QP's own queues as flushed, sends first.
func (d *Device) Flush(qpn uint32) {
	d.t.Helper()
	d.check(fmt.Sprintf("Flush of %#x", qpn), C.fd_flush_qp(d.c, C.uint32_t(qpn)))
}

// CQs returns the handles of all CQs, the oldest first.
func (d *Device) CQs() []uint32 { return d.numbers(C.FD_CQ) }

// SRQs returns the handles of all SRQs, the oldest first.
func (d *Device) SRQs() []uint32 { return d.numbers(C.FD_SRQ) }

// QPs returns the numbers of all QPs, in order.
func (d *Device) QPs() []uint32 { return d.numbers(C.FD_QP) }

func (d *Device) numbers(kind uint32) []uint32 {
	numbers, n := make([]uint32, 16), 0
	for {
		if n = int(C.fd_numbers(d.c, kind, (*C.uint32_t)(&numbers[0]), C.int(len(numbers)))); n <= len(numbers) {
			break
		}
		numbers = make([]uint32, n)
	}
	slices.Sort(numbers[:n])
	return numbers[:n]
}

// Push puts a completion into a CQ that belongs to no WR: foreign, repeated, whatever.
func (d *Device) Push(cq uint32, wc WC) {
	d.t.Helper()
	c := wc.toC()
	d.check(fmt.Sprintf("Push to CQ %d", cq), C.fd_push(d.c, C.uint32_t(cq), &c))
}

// Queued returns how many completions wait in a CQ.
func (d *Device) Queued(cq uint32) int {
	d.t.Helper()
	n := int(C.fd_queued(d.c, C.uint32_t(cq)))
	if n < 0 {
		d.t.Errorf("%s: there is no CQ %d", d.name, cq)
	}
	return n
}

// BreakCQ does to a CQ what an overrun does: once what it holds is polled, polls fail,
// and IBV_EVENT_CQ_ERR is raised.
func (d *Device) BreakCQ(cq uint32) {
	d.t.Helper()
	d.check(fmt.Sprintf("BreakCQ %d", cq), C.fd_break_cq(d.c, C.uint32_t(cq)))
}

// Notify raises a completion event of a CQ, whether or not it is armed. An armed CQ
// raises its own when a completion arrives.
func (d *Device) Notify(cq uint32) {
	d.t.Helper()
	d.check(fmt.Sprintf("Notify of CQ %d", cq), C.fd_notify_cq(d.c, C.uint32_t(cq)))
}

// Moderation returns what a CQ was last told of moderation, the period in microseconds.
func (d *Device) Moderation(cq uint32) (count, period int) {
	d.t.Helper()
	var c, p C.uint16_t
	d.check(fmt.Sprintf("Moderation of CQ %d", cq), C.fd_moderation(d.c, C.uint32_t(cq), &c, &p))
	return int(c), int(p)
}

// check fails the test if the C side says that it could not do what it was asked.
func (d *Device) check(what string, rc C.int) bool {
	d.t.Helper()
	if rc == 0 {
		return true
	}
	why := map[syscall.Errno]string{
		syscall.ENOENT: "there is no such verb, or no such object",
		syscall.ESRCH:  "there is no such WR",
		syscall.ERANGE: "more bytes than the WR has",
		syscall.EFAULT: "the memory is not registered for that",
	}[syscall.Errno(rc)]
	if why == "" {
		why = syscall.Errno(rc).Error()
	}
	d.t.Errorf("%s: %s: %s", d.name, what, why)
	return false
}
