//go:build linux

package main

import (
	"encoding/gob"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// vm is a running VM and what is known of it.
type vm struct {
	host    host
	qemu    *exec.Cmd
	control *os.File
	outputs []*stream // in the order of their ports
	console *console
	at      stage
	release string // of the kernel
	exit    *report
}

// startVM starts QEMU and the conversation with the guest.
func (l *lab) startVM(h host, qemu, kernel string, initrd *os.File) error {
	v := &vm{host: h, qemu: exec.Command(qemu, machine(l.c, l.via)...), console: &console{also: io.Discard}}
	if l.c.verbose {
		v.console.also = os.Stderr
	}
	v.qemu.Stdout, v.qemu.Stderr = v.console, v.console
	// In a session of its own it does not get a terminal's Ctrl-C; and it dies with us.
	v.qemu.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	add := func(args ...string) { v.qemu.Args = append(v.qemu.Args, args...) }
	inherit := func(f *os.File) (fd int) {
		v.qemu.ExtraFiles = append(v.qemu.ExtraFiles, f)
		return 2 + len(v.qemu.ExtraFiles)
	}
	add("-kernel", filepath.Join(kernel, "vmlinux"), "-initrd", fmt.Sprintf("/proc/self/fd/%d", inherit(initrd)))
	var ports []*os.File
	for n := portControl; n <= portErr; n++ {
		ours, theirs, err := socketPair()
		if err != nil {
			return err
		}
		defer theirs.Close()
		ports = append(ports, ours)
		add("-chardev", fmt.Sprintf("socket,id=port%d,fd=%d", n, inherit(theirs)))
		add("-device", fmt.Sprintf("virtserialport,chardev=port%d,nr=%d", n, n))
	}
	if err := v.qemu.Start(); err != nil {
		return err
	}
	v.control = ports[0]
	for n, to := range []io.Writer{os.Stdout, os.Stderr} {
		v.outputs = append(v.outputs, l.newStream(to, ports[1+n]))
	}
	l.vms = append(l.vms, v)
	go l.converse(v)
	return nil
}

// machine returns QEMU's arguments for the VM, but for its kernel and ports.
func machine(c *config, via string) []string {
	const share = "local,security_model=none,multidevs=remap,"
	args := []string{
		"-nodefaults", "-no-user-config", "-display", "none", "-nic", "none", "-no-reboot",
		"-m", fmt.Sprint(c.memory), "-serial", "stdio", "-device", "virtio-serial-pci",
		"-virtfs", share + "mount_tag=root,readonly=on,path=/",
		"-virtfs", share + "mount_tag=build,path=" + strings.ReplaceAll(c.build(), ",", ",,"),
		"-append", "console=ttyS0 quiet panic=-1 rdinit=" + guestInit,
	}
	switch {
	case c.icount:
		return append(args, "-accel", "tcg,thread=single", "-icount", "shift=0,sleep=off", "-cpu", "max", "-smp", "1")
	case via == viaKVM:
		return append(args, "-accel", "kvm", "-cpu", "host", "-smp", "2")
	default:
		return append(args, "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2")
	}
}

// converse sends the request and passes on the guest's reports until it ends.
func (l *lab) converse(v *vm) {
	req := newRequest(l.c, l.via, v.host)
	go func() { _ = gob.NewEncoder(v.control).Encode(req) }() // the guest reads it when it has booted
	dec := gob.NewDecoder(v.control)
	for {
		var rep report
		if dec.Decode(&rep) != nil {
			l.news <- news{vm: v, ended: true}
			return
		}
		l.news <- news{vm: v, report: rep}
	}
}

// ended tells whether the command has ended, and all that it has printed was passed on.
func (v *vm) ended() bool {
	if v.exit == nil {
		return false
	}
	for n, s := range v.outputs {
		if s.copied.Load() < v.exit.Sent[n] {
			return false
		}
	}
	return true
}

func (v *vm) kill() {
	_ = v.qemu.Process.Kill()
	_ = v.qemu.Wait()
}

func newRequest(c *config, via string, h host) request {
	dir, _ := os.Getwd()
	host, _ := os.Hostname()
	umask := unix.Umask(0)
	unix.Umask(umask)
	out, err1 := os.Stdout.Stat()
	errs, err2 := os.Stderr.Stat()
	return request{
		Program: program, Args: h.args, Env: os.Environ(), Dir: dir, Umask: umask, Host: host,
		Build: c.build(), Via: via, Kernel: c.kernel,
		OneOut: err1 == nil && err2 == nil && os.SameFile(out, errs),
	}
}
