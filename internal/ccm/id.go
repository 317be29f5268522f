//go:build cgo && linux && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package ccm

// #cgo LDFLAGS: -lrdmacm -libverbs
// #include "shims.h"
import "C"

import (
	"errors"
	"net/netip"
	"syscall"
	"unsafe"

	"github.com/goverbs/goverbs/internal/cverbs"
)

// Channel is struct rdma_event_channel *. The zero value of a handle is no object.
type Channel struct{ p *C.struct_rdma_event_channel }

// ID is struct rdma_cm_id *.
type ID struct{ p *C.struct_rdma_cm_id }

func errnoOf(rc C.int) error {
	if rc == 0 {
		return nil
	}
	return syscall.Errno(rc)
}

// failed returns the errno of a call that returned NULL.
func failed(err error) error {
	if errno := syscall.Errno(0); errors.As(err, &errno) && errno != 0 {
		return errno
	}
	return syscall.EPROTO
}

// CreateEventChannel stands for rdma_create_event_channel. fd is its descriptor.
func CreateEventChannel() (ch Channel, fd int, err error) {
	p, err := C.gv_create_event_channel()
	if p == nil {
		return Channel{}, -1, failed(err)
	}
	return Channel{p}, int(p.fd), nil
}

// DestroyEventChannel stands for rdma_destroy_event_channel.
func DestroyEventChannel(ch Channel) { C.rdma_destroy_event_channel(ch.p) }

// CreateID stands for rdma_create_id.
func CreateID(ch Channel, portSpace int32) (ID, error) {
	var p *C.struct_rdma_cm_id
	err := errnoOf(C.gv_create_id(ch.p, C.int(portSpace), &p))
	return ID{p}, err
}

// IDAddr returns the address that events name.
func IDAddr(id ID) uintptr { return uintptr(unsafe.Pointer(id.p)) }

// DestroyID stands for rdma_destroy_id. It waits for ever for an event that was taken and
// not acknowledged: none must be taken meanwhile.
func DestroyID(id ID) error { return errnoOf(C.gv_destroy_id(id.p)) }

// MigrateID stands for rdma_migrate_id, with the same condition as DestroyID.
func MigrateID(id ID, to Channel) error { return errnoOf(C.gv_migrate_id(id.p, to.p)) }

// BindAddr stands for rdma_bind_addr.
func BindAddr(id ID, addr Addr) (Info, error) {
	a := addrToC(addr)
	var info C.struct_gv_info
	err := errnoOf(C.gv_bind_addr(id.p, &a, &info))
	return infoFromC(&info), err
}

// ResolveAddr stands for rdma_resolve_addr. A zero src is none.
func ResolveAddr(id ID, src, dst Addr, timeoutMS int32) error {
	s, d := addrToC(src), addrToC(dst)
	return errnoOf(C.gv_resolve_addr(id.p, &s, &d, C.int(timeoutMS)))
}

// ResolveRoute stands for rdma_resolve_route. The id must be bound to a device.
func ResolveRoute(id ID, timeoutMS int32) error {
	return errnoOf(C.gv_resolve_route(id.p, C.int(timeoutMS)))
}

// Listen stands for rdma_listen.
func Listen(id ID, backlog int32) (Info, error) {
	var info C.struct_gv_info
	err := errnoOf(C.gv_listen(id.p, C.int(backlog), &info))
	return infoFromC(&info), err
}

// Connect stands for rdma_connect. The id must be bound to a device.
func Connect(id ID, p ConnParam, data []byte) error {
	c := paramToC(p)
	return errnoOf(C.gv_connect(id.p, &c, unsafe.Pointer(unsafe.SliceData(data)), C.uint8_t(len(data))))
}

// Accept stands for rdma_accept. The id must be bound to a device.
func Accept(id ID, p ConnParam, data []byte) error {
	c := paramToC(p)
	return errnoOf(C.gv_accept(id.p, &c, unsafe.Pointer(unsafe.SliceData(data)), C.uint8_t(len(data))))
}

// Reject stands for rdma_reject, or rdma_reject_ece.
func Reject(id ID, ece bool, data []byte) error {
	return errnoOf(C.gv_reject(id.p, boolToC(ece), unsafe.Pointer(unsafe.SliceData(data)), C.uint8_t(len(data))))
}

// Establish stands for rdma_establish.
func Establish(id ID) error { return errnoOf(C.gv_establish(id.p)) }

// Disconnect stands for rdma_disconnect.
func Disconnect(id ID) error { return errnoOf(C.gv_disconnect(id.p)) }

// Notify stands for rdma_notify.
func Notify(id ID, event int32) error { return errnoOf(C.gv_notify(id.p, C.int(event))) }

// InitQPAttr stands for rdma_init_qp_attr.
func InitQPAttr(id ID, state int32) (cverbs.QPAttr, uint32, error) {
	var attr C.struct_ibv_qp_attr
	var mask C.int
	if err := errnoOf(C.gv_init_qp_attr(id.p, C.int(state), &attr, &mask)); err != nil {
		return cverbs.QPAttr{}, 0, err
	}
	return cverbs.QPAttrAt(unsafe.Pointer(&attr)), uint32(mask), nil
}

// SetOption stands for rdma_set_option.
func SetOption(id ID, level, name int32, value []byte) error {
	return errnoOf(C.gv_set_option(id.p, C.int(level), C.int(name), unsafe.Pointer(unsafe.SliceData(value)), C.size_t(len(value))))
}

// SetLocalECE stands for rdma_set_local_ece.
func SetLocalECE(id ID, ece ECE) error {
	return errnoOf(C.gv_set_local_ece(id.p, C.uint32_t(ece.VendorID), C.uint32_t(ece.Options)))
}

// JoinMulticast stands for rdma_join_multicast_ex. The group's events bring the cookie.
func JoinMulticast(id ID, group Addr, flags uint32, cookie uintptr) error {
	g := addrToC(group)
	return errnoOf(C.gv_join_multicast(id.p, &g, C.uint32_t(flags), C.uintptr_t(cookie)))
}

// LeaveMulticast stands for rdma_leave_multicast.
func LeaveMulticast(id ID, group Addr) error {
	g := addrToC(group)
	return errnoOf(C.gv_leave_multicast(id.p, &g))
}

// TakeEvent stands for rdma_get_cm_event and rdma_ack_cm_event, on a channel whose
// descriptor does not block: without an event it fails with EAGAIN.
func TakeEvent(ch Channel) (Event, error) {
	var c C.struct_gv_event
	if err := errnoOf(C.gv_take_event(ch.p, &c)); err != nil {
		return Event{}, err
	}
	e := Event{
		Type:     int32(c._type),
		Status:   int32(c.status),
		ID:       uintptr(c.id),
		Listener: uintptr(c.listener),
		Cookie:   uintptr(c.cookie),
		UD:       c.is_ud != 0,
		Conn: ConnParam{
			ResponderResources: uint8(c.conn.responder_resources),
			InitiatorDepth:     uint8(c.conn.initiator_depth),
			FlowControl:        c.conn.flow_control != 0,
			RetryCount:         uint8(c.conn.retry_count),
			RNRRetryCount:      uint8(c.conn.rnr_retry_count),
			SRQ:                c.conn.srq != 0,
			QPNum:              uint32(c.conn.qp_num),
		},
		AH:    cverbs.AHAttrAt(unsafe.Pointer(&c.ah)),
		QPNum: uint32(c.qp_num),
		QKey:  uint32(c.qkey),
		ECE:   ECE{VendorID: uint32(c.ece.vendor_id), Options: uint32(c.ece.options)},
		Info:  infoFromC(&c.info),
	}
	if e.Listener != 0 {
		e.NewID = ID{(*C.struct_rdma_cm_id)(*(*unsafe.Pointer)(unsafe.Pointer(&c.id)))}
	}
	if n := int(c.data_len); n > 0 {
		e.PrivateData = make([]byte, n)
		copy(e.PrivateData, unsafe.Slice((*byte)(unsafe.Pointer(&c.data[0])), n))
	}
	return e, nil
}

// Abandon has librdmacm hold no descriptor any more of a device that was removed, and that
// no id is bound to. verbs is Info.Verbs.
func Abandon(verbs uintptr) error { return errnoOf(C.gv_abandon(C.uintptr_t(verbs))) }

func boolToC(b bool) C.int {
	if b {
		return 1
	}
	return 0
}

func paramToC(p ConnParam) C.struct_gv_conn_param {
	return C.struct_gv_conn_param{
		responder_resources: C.uint8_t(p.ResponderResources),
		initiator_depth:     C.uint8_t(p.InitiatorDepth),
		flow_control:        C.uint8_t(boolToC(p.FlowControl)),
		retry_count:         C.uint8_t(p.RetryCount),
		rnr_retry_count:     C.uint8_t(p.RNRRetryCount),
		srq:                 C.uint8_t(boolToC(p.SRQ)),
		qp_num:              C.uint32_t(p.QPNum),
	}
}

func addrToC(a Addr) C.struct_gv_addr {
	c := C.struct_gv_addr{port: C.uint16_t(a.Port), scope: C.uint32_t(a.Scope)}
	ip := (*[16]byte)(unsafe.Pointer(&c.ip))
	switch {
	case a.IP.Is4():
		c.family = C.AF_INET
		four := a.IP.As4()
		copy(ip[:], four[:])
	case a.IP.Is6():
		c.family = C.AF_INET6
		*ip = a.IP.As16()
	}
	return c
}

func addrFromC(c *C.struct_gv_addr) Addr {
	a := Addr{Port: uint16(c.port), Scope: uint32(c.scope)}
	ip := (*[16]byte)(unsafe.Pointer(&c.ip))
	switch c.family {
	case C.AF_INET:
		a.IP = netip.AddrFrom4([4]byte(ip[:4]))
	case C.AF_INET6:
		a.IP = netip.AddrFrom16(*ip)
	}
	return a
}

func infoFromC(c *C.struct_gv_info) Info {
	info := Info{Port: uint8(c.port), Local: addrFromC(&c.local), Peer: addrFromC(&c.peer)}
	if c.verbs != nil {
		info.Verbs = uintptr(unsafe.Pointer(c.verbs))
		info.Device = C.GoString(C.ibv_get_device_name(c.verbs.device))
	}
	return info
}

// Devices stands for rdma_get_devices. It returns their names.
func Devices() ([]string, error) {
	var n C.int
	list, err := C.gv_get_devices(&n)
	if list == nil {
		return nil, failed(err)
	}
	defer C.rdma_free_devices(list)
	names := make([]string, 0, int(n))
	for _, ctx := range unsafe.Slice(list, int(n)) {
		names = append(names, C.GoString(C.ibv_get_device_name(ctx.device)))
	}
	return names, nil
}
