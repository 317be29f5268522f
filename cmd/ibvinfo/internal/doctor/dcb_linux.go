package doctor

import (
	"encoding/binary"
	"errors"

	"golang.org/x/sys/unix"
)

// What follows is of linux/dcbnl.h.
const (
	dcbCommandGet  = 21
	dcbAttrIfname  = 1
	dcbAttrIEEE    = 13
	dcbAttrIEEEPFC = 2
)

// KernelPFC asks the kernel for which priorities, as bits, a network interface pauses. Most
// drivers of virtual interfaces do not know; the error says so.
func KernelPFC(netdev string) (uint8, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 1}); err != nil {
		return 0, err
	}
	if err := unix.Sendto(fd, pfcRequest(netdev), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return 0, err
	}
	answer := make([]byte, 8192)
	n, _, err := unix.Recvfrom(fd, answer, 0)
	if err != nil {
		return 0, err
	}
	return pfcAnswer(answer[:n])
}

// pfcRequest is a struct nlmsghdr, a struct dcbmsg and the name of the interface.
func pfcRequest(netdev string) []byte {
	name := append([]byte(netdev), 0)
	b := make([]byte, 20, 64)
	b[16], b[17] = unix.AF_UNSPEC, dcbCommandGet
	b = binary.NativeEndian.AppendUint16(b, uint16(4+len(name)))
	b = binary.NativeEndian.AppendUint16(b, dcbAttrIfname)
	b = append(b, name...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	binary.NativeEndian.PutUint32(b, uint32(len(b)))
	binary.NativeEndian.PutUint16(b[4:], unix.RTM_GETDCB)
	binary.NativeEndian.PutUint16(b[6:], unix.NLM_F_REQUEST)
	return b
}

var errNoPFC = errors.New("the kernel does not tell PFC of this interface")

func pfcAnswer(b []byte) (uint8, error) {
	if len(b) < 20 {
		return 0, errNoPFC
	}
	if binary.NativeEndian.Uint16(b[4:]) == unix.NLMSG_ERROR {
		return 0, unix.Errno(-int32(binary.NativeEndian.Uint32(b[16:])))
	}
	pfc := attribute(attribute(b[20:], dcbAttrIEEE), dcbAttrIEEEPFC)
	if len(pfc) < 2 {
		return 0, errNoPFC
	}
	return pfc[1], nil // of struct ieee_pfc: what it can, then what is on
}

// attribute returns the content of the first netlink attribute of a kind.
func attribute(b []byte, kind uint16) []byte {
	for len(b) >= 4 {
		size := int(binary.NativeEndian.Uint16(b))
		if size < 4 || size > len(b) {
			return nil
		}
		if binary.NativeEndian.Uint16(b[2:])&^unix.NLA_F_NESTED == kind {
			return b[4:size]
		}
		b = b[min((size+3)&^3, len(b)):]
	}
	return nil
}
