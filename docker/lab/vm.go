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
	told    bool // that the command has ended
}

// name is what an error says of whose VM it is.
func (v *vm) name() string {
	if v.host.name == "" {
		return "the"
	}
	return "the " + v.host.name + "'s"
}

// saveConsole writes the console to a file, and returns where it is.
func (v *vm) saveConsole(c *config) string { return v.console.save(c.log(v.host)) }

// startVM starts QEMU and the conversation with the guest.
func (l *lab) startVM(h host, qemu, kernel string, initrd, link *os.File) error {
	outputs, err := h.outputs()
	if err != nil {
		return err
	}
	v := &vm{host: h, qemu: exec.Command(qemu, machine(l.c, l.via)...), console: &console{also: io.Discard}}
	if l.c.verbose {
		v.console.also = outputs[1]
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
	if link != nil {
		add("-netdev", fmt.Sprintf("socket,id=link,fd=%d", inherit(link)))
		add("-device", fmt.Sprintf("virtio-net-pci,netdev=link,romfile=,mac=52:54:00:00:00:%02x", len(l.vms)+1))
	}
	var ports []*os.File
	for n := portControl; n < portOut+len(outputs); n++ {
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
	for n, to := range outputs {
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
		"-append", "console=ttyS0 quiet panic=-1 tsc=reliable rdinit=" + guestInit,
	}
	cpus := "2"
	if c.linked() || c.icount {
		cpus = "1"
	}
	args = append(args, "-smp", cpus)
	switch {
	case c.icount:
		return append(args, "-accel", "tcg,thread=single", "-icount", "shift=0,sleep=off", "-cpu", "max")
	case via == viaKVM:
		return append(args, "-accel", "kvm", "-cpu", "host")
	default:
		return append(args, "-accel", "tcg,thread=multi", "-cpu", "max")
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
	v.finishLines()
}

func (v *vm) finishLines() {
	for _, s := range v.outputs {
		if to, ok := s.to.(*lines); ok {
			to.finish()
		}
	}
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
		Netdev: h.netdev, Addrs: h.addrs, Peer: h.peer, Loss: c.loss, Capture: h.capture != "", Watched: h.name == "server",
	}
}
