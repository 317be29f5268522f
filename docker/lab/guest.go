//go:build linux

package main

import (
	"bufio"
	"bytes"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// guestInit is the program that the VM's kernel starts as process 1: this one.
const guestInit = "/lab-init"

// stuckLimit is how long killed processes may take to end.
const stuckLimit = 2 * time.Second

// inLabVM tells whether this is a VM of ours.
func inLabVM() bool { return readLine("/proc/1/comm") == guestInit[1:] }

// guestMain is process 1 of the VM. The VM ends with it.
func guestMain() {
	g := &guest{}
	err := g.run()
	fmt.Println("lab: guest:", err) // to the console
	if g.reports != nil {
		_ = g.report(report{Stage: stageFailed, Text: err.Error()})
		select {} // the host ends us
	}
	restart()
}

// restart ends the VM: QEMU is told not to boot it again.
func restart() { _ = unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART) }

type guest struct {
	control   *bufio.Reader
	reporting sync.Mutex
	reports   *gob.Encoder
	outputs   []*output // in the order of their ports
	capture   *capture  // nil without
}

func (g *guest) report(r report) error {
	g.reporting.Lock()
	defer g.reporting.Unlock()
	return g.reports.Encode(r)
}

// run boots the guest and runs the command. It returns only if that fails.
func (g *guest) run() error {
	if err := mount("dev", "/dev", "devtmpfs", 0, ""); err != nil {
		return err
	}
	if err := loadModules("/modules"); err != nil {
		return err
	}
	control, err := openPort(portControl)
	if err != nil {
		return err
	}
	g.control, g.reports = bufio.NewReader(control), gob.NewEncoder(control)
	if err := g.report(report{Stage: stageInit, Text: kernelRelease()}); err != nil {
		return err
	}
	var r request
	if err := gob.NewDecoder(g.control).Decode(&r); err != nil {
		return fmt.Errorf("no request from the host: %w", err)
	}
	if err := mountRoot(r.Build); err != nil {
		return err
	}
	if err := unix.Sethostname([]byte(r.Host)); err != nil {
		return err
	}
	os.Setenv("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
	if err := tool("", "ip", "link", "set", "lo", "up"); err != nil {
		return err
	}
	d, err := addNetwork(r)
	if err != nil {
		return err
	}
	for port := portOut; port <= portErr; port++ {
		o, err := outputTo(port)
		if err != nil {
			return err
		}
		g.outputs = append(g.outputs, o)
	}
	if r.Capture {
		port, err := openPort(portCapture)
		if err != nil {
			return err
		}
		if g.capture, err = startCapture(r.Netdev, port); err != nil {
			return err
		}
	}
	if err := os.Chdir(r.Dir); err != nil {
		return err
	}
	if err := g.report(report{Stage: stageReady, Text: d.name}); err != nil {
		return err
	}
	if _, err := g.control.ReadByte(); err != nil { // mayStart
		restart()
	}
	status, err := g.runCommand(r, d.environ(r.Env, r.Via, r.Kernel))
	if err != nil {
		fmt.Fprintf(g.outputs[1].pipe, "%s: %v\n", r.Program, err)
	}
	return g.end(status)
}

// losePackets has a part of the RoCE packets lost, and no others: what is agreed by TCP beforehand
// would take a second longer now and then.
func losePackets(netdev, percent string) error {
	dev := " add dev " + netdev + " "
	batch := "qdisc" + dev + "root handle 1: prio priomap" + strings.Repeat(" 0", 16) + "\n" +
		"qdisc" + dev + "parent 1:2 netem loss " + percent + "%\n"
	for _, ip := range []string{"ip", "ipv6"} {
		batch += "filter" + dev + "parent 1: protocol " + ip + " flower ip_proto udp dst_port 4791 classid 1:2\n"
	}
	return tool(batch, "tc", "-batch", "-")
}

// addNetwork makes the device and its network.
func addNetwork(r request) (*softDevice, error) {
	if !exists("/sys/class/net/" + r.Netdev) {
		if err := addDummy(r.Netdev); err != nil {
			return nil, err
		}
	}
	d, err := addSoftDevice("rxe0", r.Netdev, r.Addrs)
	if err != nil {
		return nil, err
	}
	d.peer = r.Peer
	if r.Loss != "" {
		if err := losePackets(r.Netdev, r.Loss); err != nil {
			return nil, err
		}
	}
	for range 500 { // the link of a network card comes up a moment after it was told to
		if err = checkUsable("/", d.name); err == nil {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	return d, err
}

// runCommand runs the command and returns its status.
func (g *guest) runCommand(r request, env []string) (int, error) {
	for _, kv := range env {
		if path, ok := strings.CutPrefix(kv, "PATH="); ok {
			os.Setenv("PATH", path)
		}
	}
	path, status, err := lookCommand(r.Args[0])
	if err != nil {
		return status, err
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return statusFailed, err
	}
	files := []uintptr{null.Fd(), g.outputs[0].pipe.Fd(), g.outputs[1].pipe.Fd()}
	if r.OneOut {
		files[2] = files[1]
	}
	unix.Umask(r.Umask)
	openFiles := unix.Rlimit{Cur: 1 << 10, Max: 1 << 19} // as with systemd
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &openFiles); err != nil {
		return statusFailed, err
	}
	pid, err := syscall.ForkExec(path, r.Args, &syscall.ProcAttr{
		Env: env, Files: files, Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return 126, fmt.Errorf("%s: %w", path, err)
	}
	go g.forwardSignals(pid)
	if r.Watched {
		go g.watch()
	}
	return reap(pid), nil
}

// end reports how the command ended, when all that it has printed and written
// is with the host.
func (g *guest) end(status int) error {
	// As in a container nothing outlives the command; so its pipes end as well.
	_ = unix.Kill(-1, unix.SIGKILL)
	r := report{Stage: stageExit, Status: status}
	var captured []int64
	if g.capture != nil {
		n, err := g.capture.finish()
		lost, err2 := g.capture.lost()
		if err := errors.Join(err, err2); err != nil {
			return err
		}
		if lost > 0 {
			fmt.Fprintf(g.outputs[1].pipe, "two-hosts: %d packets are not in the capture, which was too slow\n", lost)
		}
		captured = append(captured, n)
	}
	for _, o := range g.outputs {
		n, err := o.finish()
		if err != nil {
			return err
		}
		r.Sent = append(r.Sent, n)
	}
	r.Sent = append(r.Sent, captured...)
	unix.Sync()
	if err := g.report(r); err != nil {
		return err
	}
	select {} // the host ends us
}

// forwardSignals sends the host's signals to the command's process group, as a
// terminal does, and ends the VM when the host is gone.
func (g *guest) forwardSignals(pid int) {
	for {
		s, err := g.control.ReadByte()
		if err != nil {
			restart()
		}
		_ = unix.Kill(-pid, unix.Signal(s))
	}
}

// watch tells the host when a program listens: one of ours, since there is no other here.
func (g *guest) watch() {
	const often = 50 * time.Millisecond
	for n := 1; !listensByTCP() && (n%10 != 0 || !listensByCM()); n++ { // the second costs much more
		time.Sleep(often)
	}
	_ = g.report(report{Stage: stageListening}) // or the host is gone
}

func listensByTCP() bool {
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		b, _ := os.ReadFile(table)
		for line := range strings.Lines(string(b)) {
			if f := strings.Fields(line); len(f) > 3 && f[3] == "0A" {
				return true
			}
		}
	}
	return false
}

func listensByCM() bool {
	path, err := lookTool("rdma")
	if err != nil {
		return false
	}
	out, _ := exec.Command(path, "resource", "show", "cm_id").Output() // reap takes its status
	return bytes.Contains(out, []byte("state LISTEN"))
}

// reap waits for children, all of them as process 1 must, until pid has ended,
// and returns its status.
func reap(pid int) int {
	for {
		var ws syscall.WaitStatus
		if got, err := syscall.Wait4(-1, &ws, 0, nil); err == nil && got == pid {
			return exitStatus(ws)
		}
	}
}

// output is a pipe that the command writes to. What it writes is copied.
type output struct {
	pipe *os.File // the command's end
	from *os.File
	to   io.Writer
	n    int64
	done chan error
}

func outputTo(port int) (*output, error) {
	f, err := openPort(port)
	if err != nil {
		return nil, err
	}
	return newOutput(f)
}

func newOutput(to io.Writer) (*output, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	o := &output{pipe: w, from: r, to: to, done: make(chan error)}
	go func() { o.done <- o.copy() }()
	return o, nil
}

func (o *output) copy() error {
	n, err := io.Copy(o.to, o.from)
	o.n += n
	return err
}

// finish waits until all is copied and returns how much that was.
func (o *output) finish() (int64, error) {
	o.pipe.Close()
	// The pipe does not end if a process that is stuck in the kernel, and so
	// cannot be killed, has the other end.
	_ = o.from.SetReadDeadline(time.Now().Add(stuckLimit))
	err := <-o.done
	if errors.Is(err, os.ErrDeadlineExceeded) {
		_ = o.from.SetReadDeadline(time.Time{})
		var n int64
		n, err = io.CopyN(o.to, o.from, unread(o.from))
		o.n += n
	}
	return o.n, err
}

// unread returns how many bytes are in a pipe.
func unread(pipe *os.File) (n int64) {
	if c, err := pipe.SyscallConn(); err == nil {
		_ = c.Control(func(fd uintptr) {
			i, _ := unix.IoctlGetInt(int(fd), unix.TIOCINQ) // also FIONREAD
			n = int64(i)
		})
	}
	return n
}

// openPort opens a virtio port, which may appear a moment after its driver.
func openPort(n int) (*os.File, error) {
	pattern := fmt.Sprintf("/dev/vport*p%d", n)
	for range 500 {
		names, _ := filepath.Glob(pattern)
		if len(names) == 1 {
			return os.OpenFile(names[0], os.O_RDWR, 0)
		}
		time.Sleep(10 * time.Millisecond)
	}
	return nil, fmt.Errorf("no %s: QEMU has no virtio-serial port", pattern)
}
