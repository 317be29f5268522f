//go:build linux

package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// captureBuffer is what the kernel keeps of packets while the capture waits for a CPU.
	captureBuffer = 32 << 20
	// snapLength is more than a packet of the network can have.
	snapLength = 1 << 16
)

// capture writes a pcap file of the packets that an interface sends and receives.
// Unlike a program that is told to end, it has no packet to lose then: finish takes
// what the kernel still holds.
type capture struct {
	socket *os.File
	to     io.Writer
	n      int64 // bytes written
	done   chan error
	buf    [snapLength]byte
}

func startCapture(netdev string, to io.Writer) (*capture, error) {
	i, err := net.InterfaceByName(netdev)
	if err != nil {
		return nil, err
	}
	// It gets no packet before it is bound to the interface, for all protocols.
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	protocol := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ALL))
	if err := errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, captureBuffer),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1),
		unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: protocol, Ifindex: i.Index}),
	); err != nil {
		return nil, fmt.Errorf("capture on %s: %w", netdev, err)
	}
	return captureFrom(os.NewFile(uintptr(fd), "packets"), to)
}

func captureFrom(socket *os.File, to io.Writer) (*capture, error) {
	c := &capture{socket: socket, to: to, done: make(chan error, 1)}
	if err := c.write(pcapHeader()); err != nil {
		return nil, err
	}
	go func() { c.done <- c.run() }()
	return c, nil
}

// run writes packets until the socket's deadline.
func (c *capture) run() error {
	conn, err := c.socket.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = conn.Read(func(fd uintptr) bool {
		failed = c.drain(int(fd))
		return failed != nil
	})
	if errors.Is(err, os.ErrDeadlineExceeded) {
		nothing := unix.SockFprog{Len: 1, Filter: &unix.SockFilter{Code: unix.BPF_RET}} // so that there is an end
		err = conn.Control(func(fd uintptr) {
			failed = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &nothing)
			failed = errors.Join(failed, c.drain(int(fd)))
		})
	}
	return errors.Join(failed, err)
}

// drain writes the packets that the kernel has.
func (c *capture) drain(fd int) error {
	var control [64]byte
	for {
		n, nc, _, _, err := unix.Recvmsg(fd, c.buf[:], control[:], unix.MSG_TRUNC)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return nil
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return os.NewSyscallError("recvmsg", err)
		}
		if err := c.write(pcapPacket(timestamp(control[:nc]), c.buf[:min(n, len(c.buf))], n)); err != nil {
			return err
		}
	}
}

func (c *capture) write(b []byte) error {
	n, err := c.to.Write(b)
	c.n += int64(n)
	return err
}

// finish ends the capture, and returns how many bytes it has written.
func (c *capture) finish() (int64, error) {
	if err := c.socket.SetReadDeadline(time.Now()); err != nil {
		return 0, err
	}
	err := <-c.done
	return c.n, err
}

// lost returns how many packets the kernel had no room for.
func (c *capture) lost() (int, error) {
	stats, err := unix.GetsockoptTpacketStats(int(c.socket.Fd()), unix.SOL_PACKET, unix.PACKET_STATISTICS)
	if err != nil {
		return 0, os.NewSyscallError("getsockopt", err)
	}
	return int(stats.Drops), nil
}

// timestamp returns when the kernel got the packet.
func timestamp(control []byte) time.Time {
	messages, _ := unix.ParseSocketControlMessage(control)
	for _, m := range messages {
		if m.Header.Level == unix.SOL_SOCKET && m.Header.Type == unix.SCM_TIMESTAMPNS && len(m.Data) >= 16 {
			sec, nsec := binary.NativeEndian.Uint64(m.Data), binary.NativeEndian.Uint64(m.Data[8:])
			return time.Unix(int64(sec), int64(nsec))
		}
	}
	return time.Now()
}

// pcapHeader begins a file of Ethernet packets with times in nanoseconds.
func pcapHeader() []byte {
	var b bytes.Buffer
	for _, v := range []any{
		uint32(0xa1b23c4d), uint16(2), uint16(4), // magic number, version
		uint32(0), uint32(0), uint32(snapLength), uint32(1), // time zone, accuracy, length, Ethernet
	} {
		_ = binary.Write(&b, binary.LittleEndian, v)
	}
	return b.Bytes()
}

// pcapPacket is a packet's record; length is that of which data may be a part.
func pcapPacket(at time.Time, data []byte, length int) []byte {
	b := make([]byte, 0, 16+len(data))
	for _, v := range []uint32{uint32(at.Unix()), uint32(at.Nanosecond()), uint32(len(data)), uint32(length)} {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	return append(b, data...)
}
