package rdmacm

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/goverbs/goverbs/ibv"
)

//go:generate go run golang.org/x/tools/cmd/stringer@v0.52.0 -linecomment -output enums_string.go -type EventType,PortSpace,RejectReason

// EventType says what an event is.
//
// Implements: rdma_cm_event_type, rdma_event_str
type EventType int32

const (
	EventAddrResolved    EventType = 0  // ADDR_RESOLVED
	EventAddrError       EventType = 1  // ADDR_ERROR
	EventRouteResolved   EventType = 2  // ROUTE_RESOLVED
	EventRouteError      EventType = 3  // ROUTE_ERROR
	EventConnectRequest  EventType = 4  // CONNECT_REQUEST
	EventConnectResponse EventType = 5  // CONNECT_RESPONSE
	EventConnectError    EventType = 6  // CONNECT_ERROR
	EventUnreachable     EventType = 7  // UNREACHABLE
	EventRejected        EventType = 8  // REJECTED
	EventEstablished     EventType = 9  // ESTABLISHED
	EventDisconnected    EventType = 10 // DISCONNECTED
	EventDeviceRemoval   EventType = 11 // DEVICE_REMOVAL
	EventMulticastJoin   EventType = 12 // MULTICAST_JOIN
	EventMulticastError  EventType = 13 // MULTICAST_ERROR
	EventAddrChange      EventType = 14 // ADDR_CHANGE
	EventTimewaitExit    EventType = 15 // TIMEWAIT_EXIT
)

// RejectReason is why a connection was rejected, as InfiniBand and RoCE number it: the
// Status of EventRejected. What a program rejects with ID.Reject is RejectConsumerDefined.
type RejectReason int

const (
	RejectNoQP                      RejectReason = 1  // no QP
	RejectNoResources               RejectReason = 3  // no resources
	RejectTimeout                   RejectReason = 4  // timeout
	RejectUnsupported               RejectReason = 5  // unsupported request
	RejectInvalidCommID             RejectReason = 6  // invalid communication ID
	RejectInvalidCommInstance       RejectReason = 7  // invalid communication instance
	RejectInvalidServiceID          RejectReason = 8  // invalid service ID
	RejectInvalidTransportType      RejectReason = 9  // invalid transport type
	RejectStaleConn                 RejectReason = 10 // stale connection
	RejectInvalidGID                RejectReason = 12 // invalid GID
	RejectInvalidLID                RejectReason = 13 // invalid LID
	RejectInvalidSL                 RejectReason = 14 // invalid SL
	RejectInvalidTrafficClass       RejectReason = 15 // invalid traffic class
	RejectInvalidHopLimit           RejectReason = 16 // invalid hop limit
	RejectInvalidPacketRate         RejectReason = 17 // invalid packet rate
	RejectPortRedirect              RejectReason = 25 // port redirect
	RejectInvalidMTU                RejectReason = 26 // invalid path MTU
	RejectInsufficientRespResources RejectReason = 27 // insufficient responder resources
	RejectConsumerDefined           RejectReason = 28 // consumer defined
	RejectInvalidRNRRetry           RejectReason = 29 // invalid RNR retry count
	RejectDuplicateCommID           RejectReason = 30 // duplicate communication ID
	RejectInvalidFlowLabel          RejectReason = 32 // invalid flow label
	RejectVendorOption              RejectReason = 35 // vendor option not supported
)

// Event is what has become of an id. It is the program's: nothing is to be acknowledged.
// Which fields count depends on Type; see the table in the package's documentation.
//
// Implements: rdma_cm_event
type Event struct {
	Type EventType
	// Status is 0, a negative errno, or, of EventRejected, a RejectReason.
	Status int
	// ID is what the event is about: of EventConnectRequest a new id, on the channel of
	// Listener, for the program to accept or reject, and to close.
	ID *ID
	// Listener is the id that listens, of EventConnectRequest; else nil.
	Listener *ID
	// Conn is what the peer has asked for or granted, from this side's point of view. Its
	// PrivateData is not set.
	Conn ConnParam
	// UD says where to send, of the events of an id with datagrams.
	UD UDParam
	// PrivateData is what the peer has sent with the event. On InfiniBand and RoCE it is as
	// long as the message has room for, filled up with zeros: what is sent must tell its
	// length itself.
	PrivateData []byte
	// ECE is what the peer has told of its enhancements, of EventConnectRequest and
	// EventConnectResponse.
	ECE ECE
	// Group is the multicast group, of EventMulticastJoin and EventMulticastError.
	Group Group

	cause error // why the library could not go on with the connection
}

// UDParam says where to send datagrams: of EventEstablished to the peer, of
// EventMulticastJoin to the group. Make an address handle of AH with ibv.PD.CreateAH.
//
// Implements: rdma_ud_param
type UDParam struct {
	AH    ibv.AHAttr
	QPNum uint32
	QKey  uint32
}

// String says the event in a line.
func (e *Event) String() string {
	s := fmt.Sprintf("%v of %v", e.Type, e.ID)
	if e.Type == EventRejected && e.Status > 0 {
		return fmt.Sprintf("%s: %v", s, RejectReason(e.Status))
	}
	if e.Status < 0 {
		return fmt.Sprintf("%s: %v", s, syscall.Errno(-e.Status))
	}
	return s
}

// Err returns nil for an event of success, and else an *ibv.OpError that says what failed
// and why: for EventAddrError, EventRouteError, EventConnectError, EventUnreachable and
// EventMulticastError it matches the errno, for EventRejected ECONNREFUSED, for
// EventDisconnected ECONNRESET, for EventDeviceRemoval ibv.ErrNoDevice and ENODEV.
// EventAddrChange, which tells that the netdev has another hardware address, as after the
// failover of a bond, ends nothing and is no error.
func (e *Event) Err() error {
	fail := func(op string, errno syscall.Errno, reason string) error {
		return &ibv.OpError{Op: op, Object: e.ID.String(), Kind: kindOf(errno), Err: errno, Reason: reason}
	}
	errno := syscall.EPROTO // where there is no other
	if e.Status < 0 {
		errno = syscall.Errno(-e.Status)
	}
	connect := "rdma_connect"
	if e.ID != nil && e.ID.s.passive {
		connect = "rdma_accept"
	}
	switch e.Type {
	case EventAddrError:
		return fail("rdma_resolve_addr", errno, whyNoAddr(errno))
	case EventRouteError:
		return fail("rdma_resolve_route", errno, "")
	case EventConnectError:
		if e.cause != nil {
			return e.cause
		}
		return fail(connect, errno, "the connection could not be made")
	case EventUnreachable:
		if errno == syscall.EPROTO {
			errno = syscall.EHOSTUNREACH
		}
		return fail(connect, errno, "the peer does not answer")
	case EventRejected:
		return fail(connect, syscall.ECONNREFUSED, e.whyRejected())
	case EventDisconnected:
		return fail("rdma_get_cm_event", syscall.ECONNRESET, "the connection has ended")
	case EventDeviceRemoval:
		return fail("rdma_get_cm_event", syscall.ENODEV, "the device was removed: close what was made from it, and the id")
	case EventMulticastError:
		if e.cause != nil {
			return e.cause
		}
		return fail("rdma_join_multicast", errno, "")
	}
	return nil
}

// failure is what Err says of a Conn: of a rejection with what it brought, and of a connection
// that this side has not ended.
func (e *Event) failure() error {
	switch e.Type {
	case EventRejected:
		return &RejectError{Reason: RejectReason(max(e.Status, 0)), PrivateData: e.PrivateData, err: e.Err()}
	case EventDisconnected:
		return &ibv.OpError{Op: "rdma_get_cm_event", Object: e.ID.String(), Kind: ErrDisconnected, Err: syscall.ECONNRESET,
			Reason: ErrDisconnected.Error()}
	}
	return e.Err()
}

func whyNoAddr(err error) string {
	switch {
	case errors.Is(err, syscall.ETIMEDOUT):
		return "no host answers for the address"
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return "there is no route to the address"
	case errors.Is(err, syscall.ENODEV), errors.Is(err, syscall.EADDRNOTAVAIL):
		return "the way to the address leads through no RDMA device"
	}
	return ""
}

func (e *Event) whyRejected() string {
	switch r := RejectReason(e.Status); {
	case e.Status < 0:
		return "the peer has rejected the connection"
	case r == RejectInvalidServiceID:
		return "nobody listens there (invalid service ID)"
	case r == RejectConsumerDefined:
		return "the peer's program has rejected the connection"
	default:
		return fmt.Sprintf("rejected: %v", r)
	}
}

// tell returns what was taken in the form for the program, after it has done what the event
// asks of the library; or nil if there is nobody to tell.
func (t *taken) tell() *Event {
	e := &Event{Type: EventType(t.Type), Status: int(t.Status), PrivateData: t.PrivateData, ECE: ECE(t.ECE)}
	if t.UD {
		e.UD = UDParam{AH: ibv.DecodeAHAttr(&t.AH), QPNum: t.QPNum, QKey: t.QKey}
	} else {
		e.Conn = connParam(t.Conn)
	}
	e.ID = t.on.handle.Value()
	if t.request != nil {
		if !t.on.claim(t.request.s) {
			return nil // the listener was closed, and has closed it
		}
		e.ID, e.Listener = t.request, e.ID
		return e
	}
	if e.ID == nil {
		return nil // dropped
	}
	e.ID.handle(e, t.Cookie)
	return e
}
