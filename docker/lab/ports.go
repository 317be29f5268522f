//go:build linux

package main

import (
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// The guest and this program on the host speak through virtio ports, each of which
// is a socket of QEMU's on the host. On the control port the host sends a request
// (gob), and then a byte when the command may start and one for each signal; the
// guest sends reports (gob). On the others the guest sends what the command prints,
// and the packets of its network.
const (
	portControl = 1 + iota
	portOut
	portErr
	portCapture // if asked for
)

// mayStart is what stands for no signal.
const mayStart byte = 0

// request is what the guest runs.
type request struct {
	Program string // that was called on the host
	Args    []string
	Env     []string
	Dir     string
	Umask   int
	Host    string // name of the host
	Build   string // folder that is shared with the host for writing too
	Via     string
	Kernel  string
	OneOut  bool // both outputs are the same file, and are to keep their order

	Netdev  string   // of the device; made if it is a dummy
	Addrs   []string // of Netdev
	Peer    string   // the other host's first address
	Loss    string   // per cent of RoCE packets sent, or ""
	Capture bool     // the packets are wanted
	Watched bool     // the host waits for stageListening
}

// report is what the guest says. Status and counts come with stageExit.
type report struct {
	Stage  stage
	Text   string  // the kernel's release, the device, or the error
	Status int     // of the command
	Sent   []int64 // bytes, for each of the ports from portOut on
}

type stage int

const (
	stageStart     stage = iota // nothing heard yet
	stageInit                   // the kernel has started our init
	stageReady                  // the device is there, and the command may start
	stageListening              // a program of the command waits for clients
	stageExit                   // the command has ended
	stageFailed                 // the guest could not get that far
)

// stream copies one of the command's outputs to ours.
type stream struct {
	to       io.Writer
	copied   atomic.Int64
	advanced chan<- struct{} // copied has grown
}

func (l *lab) newStream(to io.Writer, from *os.File) *stream {
	s := &stream{to: to, advanced: l.advanced}
	go func() {
		if _, err := io.Copy(s, from); err != nil {
			l.failed <- fmt.Errorf("cannot pass on what comes from the VM: %w", err)
		}
	}()
	return s
}

func (s *stream) Write(b []byte) (int, error) {
	n, err := s.to.Write(b)
	s.copied.Add(int64(n))
	select {
	case s.advanced <- struct{}{}:
	default:
	}
	return n, err
}

// console keeps the end of what QEMU and the guest's kernel print.
type console struct {
	also io.Writer
	mu   sync.Mutex
	text []byte
}

func (c *console) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.text = append(c.text, b...)
	c.text = c.text[max(0, len(c.text)-64<<10):]
	return c.also.Write(b)
}

// save writes the text to a file and returns the name, for an error's sake.
func (c *console) save(name string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := os.WriteFile(name, c.text, 0o666); err != nil {
		return "RXE_VERBOSE=1 shows why"
	}
	return "see " + name
}

// socketPair returns two connected sockets.
func socketPair() (ours, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	return os.NewFile(uintptr(fds[0]), "socket"), os.NewFile(uintptr(fds[1]), "socket"), nil
}

// memoryFile returns a file in memory with that content.
func memoryFile(name string, content []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), name)
	if _, err := f.Write(content); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}
