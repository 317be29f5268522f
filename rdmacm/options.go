package rdmacm

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/goverbs/goverbs/internal/ccm"
)

// Of rdma_set_option.
const (
	levelID = 0
	levelIB = 1

	optionTOS        = 0
	optionReuseAddr  = 1
	optionAFOnly     = 2
	optionAckTimeout = 3

	optionIBPath = 1
)

func (id *ID) setOption(level, name int32, value []byte) error {
	return id.call("rdma_set_option", func(h ccm.ID) error { return ccm.SetOption(h, level, name, value) })
}

func flagOption(on bool) []byte {
	value := make([]byte, 4) // an int of C's
	if on {
		binary.NativeEndian.PutUint32(value, 1)
	}
	return value
}

// SetTOS sets the type of service of the connection's packets, before ResolveRoute: DSCP in
// the upper six bits, ECN in the lower two.
//
// Implements: rdma_set_option
func (id *ID) SetTOS(tos uint8) error { return id.setOption(levelID, optionTOS, []byte{tos}) }

// SetReuseAddr lets BindAddr have an address and port that another id, which allows it too,
// is bound to and does not listen on.
//
// Implements: rdma_set_option
func (id *ID) SetReuseAddr(on bool) error {
	return id.setOption(levelID, optionReuseAddr, flagOption(on))
}

// SetAFOnly has an id that is bound to :: listen to IPv6 alone. Set it before BindAddr.
// Unset, the kernel's net.ipv6.bindv6only decides; Listen clears it.
//
// Implements: rdma_set_option
func (id *ID) SetAFOnly(on bool) error {
	return id.setOption(levelID, optionAFOnly, flagOption(on))
}

// SetAckTimeout sets how long an acknowledgement may take before the queue pair's packets
// are sent again, before Connect or Accept: 8.192 µs to 8796 s, rounded up to what the
// hardware can express. It takes the place of what the kernel reckons from the path.
//
// Implements: rdma_set_option
func (id *ID) SetAckTimeout(timeout time.Duration) error {
	code, err := ackTimeoutCode(timeout)
	if err != nil {
		return id.s.fail("rdma_set_option", err, "")
	}
	return id.setOption(levelID, optionAckTimeout, []byte{code})
}

// ackTimeoutCode returns the least code whose time, 4.096 µs times two to the code, is not
// shorter.
func ackTimeoutCode(timeout time.Duration) (uint8, error) {
	const unit, most = 4096 * time.Nanosecond, 31
	if timeout <= 0 || timeout > unit<<most {
		return 0, invalid("an acknowledgement timeout of %v: it is above 0 and at most %v", timeout, unit<<most)
	}
	code := uint8(1)
	for unit<<code < timeout {
		code++
	}
	return code, nil
}

// ECE are the enhancements of a provider that two sides can agree on: what options mean is
// the vendor's matter.
//
// Implements: ibv_ece
type ECE struct{ VendorID, Options uint32 }

// String says the vendor and the options as numbers.
func (e ECE) String() string {
	return fmt.Sprintf("vendor %#x options %#x", e.VendorID, e.Options)
}

// RemoteECE returns what the peer has told of its enhancements, from CONNECT_REQUEST or
// CONNECT_RESPONSE on; else it is zero.
//
// Implements: rdma_get_remote_ece
func (id *ID) RemoteECE() (ECE, error) {
	var ece ECE
	err := id.call("rdma_get_remote_ece", func(h ccm.ID) error {
		e, err := ccm.GetRemoteECE(h)
		ece = ECE(e)
		return err
	})
	return ece, err
}

// SetLocalECE has Connect or Accept tell the peer of these enhancements. A request is answered
// with the vendor that it named.
//
// Implements: rdma_set_local_ece
func (id *ID) SetLocalECE(ece ECE) error {
	return id.call("rdma_set_local_ece", func(h ccm.ID) error {
		if ece.VendorID == 0 {
			return invalid("no VendorID is set")
		}
		return ccm.SetLocalECE(h, ccm.ECE(ece))
	})
}
