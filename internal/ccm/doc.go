// Package ccm is the only importer of "C" for librdmacm: shims and handles, as cverbs has
// for libibverbs.
//
// It keeps no state and checks nothing: callers pass live handles, and no id before it has
// what C looks at without asking. Calls take and return plain Go values and an error that
// is a syscall.Errno. None blocks: ids have an event channel, whose descriptor does not.
package ccm

import (
	"net/netip"

	"github.com/goverbs/goverbs/internal/cverbs"
)

//go:generate go run ../cmd/genstub

// ErrNoCgo says that this build has no verbs.
var ErrNoCgo = cverbs.ErrNoCgo

// Addr is an IP address without its zone, a port, and for an IPv6 address the number of
// the zone's interface. The zero value is none.
type Addr struct {
	IP    netip.Addr
	Port  uint16
	Scope uint32
}

// Info says what an id is bound to.
type Info struct {
	Device      string  // "" while there is none
	Verbs       uintptr // the address of librdmacm's own ibv_context of it
	Port        uint8
	Local, Peer Addr
}

// ConnParam holds struct rdma_conn_param, the private data apart.
type ConnParam struct {
	ResponderResources, InitiatorDepth uint8
	FlowControl                        bool
	RetryCount, RNRRetryCount          uint8
	SRQ                                bool
	QPNum                              uint32
}

// ECE holds struct ibv_ece.
type ECE struct{ VendorID, Options uint32 }

// Event holds struct rdma_cm_event. ID and Listener are addresses, as IDAddr returns them,
// of ids that may be gone where nothing else keeps them; NewID is set beside ID where the
// event has made an id.
type Event struct {
	Type, Status int32
	ID, Listener uintptr
	NewID        ID
	Cookie       uintptr // of a multicast event: what JoinMulticast was given
	UD           bool    // AH, QPNum and QKey count instead of Conn
	Conn         ConnParam
	AH           cverbs.AHAttr
	QPNum, QKey  uint32
	ECE          ECE
	PrivateData  []byte
	Info         Info
}
