//go:build linux

package main

import (
	"bufio"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
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
		_ = g.reports.Encode(report{Stage: stageFailed, Text: err.Error()})
		select {} // the host ends us
	}
	restart()
}

// restart ends the VM: QEMU is told not to boot it again.
func restart() { _ = unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART) }

type guest struct {
	control *bufio.Reader
	reports *gob.Encoder
	outputs []*output // in the order of their ports
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
	if err := g.reports.Encode(report{Stage: stageInit, Text: kernelRelease()}); err != nil {
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
	d, err := addSoftDevice("rxe0", "dummy0", 0)
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
	if err := os.Chdir(r.Dir); err != nil {
		return err
	}
	if err := g.reports.Encode(report{Stage: stageReady, Text: d.name}); err != nil {
		return err
	}
	status, err := g.runCommand(r, d.environ(r.Env, r.Via, r.Kernel))
	if err != nil {
		fmt.Fprintf(g.outputs[1].pipe, "%s: %v\n", r.Program, err)
	}
	return g.end(status)
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
	return reap(pid), nil
}

// end reports how the command ended, when all that it has printed and written
// is with the host.
func (g *guest) end(status int) error {
	// As in a container nothing outlives the command; so its pipes end as well.
	_ = unix.Kill(-1, unix.SIGKILL)
	r := report{Stage: stageExit, Status: status}
	for _, o := range g.outputs {
		n, err := o.finish()
		if err != nil {
			return err
		}
		r.Sent = append(r.Sent, n)
	}
	unix.Sync()
	if err := g.reports.Encode(r); err != nil {
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
