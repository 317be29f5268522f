//go:build linux

package main

import (
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// kvmLimit is how long a VM with KVM may take to start our init. Where KVM only
// seems to be there, as in some VMs, the guest hangs before that.
const kvmLimit = 8 * time.Second

const bootID = "/proc/sys/kernel/random/boot_id"

var errNoKVM = errors.New("no KVM that works")

// vm is a running VM.
type vm struct {
	qemu     *exec.Cmd
	control  *os.File
	reports  chan report // closed when the VM has ended
	out, err *stream
	console  *console
}

// runInVM runs the command in a VM and returns its status.
func runInVM(c *config, signals <-chan os.Signal) (int, error) {
	switch c.kernel {
	case "":
		c.kernel = "6.1"
	case "6.1", "6.12":
	default:
		return 0, fmt.Errorf("RXE_KERNEL=%s: want 6.1 or 6.12", c.kernel)
	}
	if runtime.GOARCH != "amd64" {
		return 0, fmt.Errorf("no RDMA device, and the VM is for amd64 only: this machine is %s", runtime.GOARCH)
	}
	qemu, err := exec.LookPath("qemu-system-x86_64")
	if err != nil {
		return 0, errors.New("no qemu-system-x86_64 in PATH: run docker/setup (package qemu-system-x86)")
	}
	kernel, status, err := fetchKernel(c, signals)
	if err != nil || status != 0 {
		return status, err
	}
	if c.via == viaKVM || c.allows(viaKVM) && !c.kvmFailed() {
		status, err := runWithKVM(c, qemu, kernel, signals)
		if !errors.Is(err, errNoKVM) {
			return status, err
		}
		if c.via == viaKVM {
			return 0, fmt.Errorf("RXE_VIA=kvm: %w: RXE_VIA=tcg needs none", err)
		}
	}
	return runWith(c, viaTCG, qemu, kernel, signals)
}

// runWithKVM is runWith for KVM, or errNoKVM where the guest does not start with it.
func runWithKVM(c *config, qemu, kernel string, signals <-chan os.Signal) (int, error) {
	node, err := os.OpenFile(c.kvm, os.O_RDWR, 0)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", errNoKVM, err)
	}
	node.Close()
	status, err := runWith(c, viaKVM, qemu, kernel, signals)
	if errors.Is(err, errNoKVM) {
		c.rememberKVMFailed()
	}
	return status, err
}

// runWith boots a VM, runs the command in it and returns its status.
func runWith(c *config, via, qemu, kernel string, signals <-chan os.Signal) (int, error) {
	v, err := startVM(c, via, qemu, kernel)
	if err != nil {
		return 0, err
	}
	defer v.kill()
	limit := c.boot
	if via == viaKVM {
		limit = min(kvmLimit, c.boot)
	}
	var (
		at      stage
		release string
		exit    *report
		stopped os.Signal
		booting = time.After(limit)
		ending  <-chan time.Time
	)
	for {
		if exit != nil && v.out.copied.Load() >= exit.Out && v.err.copied.Load() >= exit.Err {
			return exit.Status, nil
		}
		select {
		case r, ok := <-v.reports:
			if !ok && via == viaKVM && at == stageStart {
				return 0, fmt.Errorf("%w: the VM ended at once: %s", errNoKVM, v.console.save(c.log()))
			}
			if !ok {
				return 0, fmt.Errorf("the VM ended by itself: %s", v.console.save(c.log()))
			}
			at = r.Stage
			switch at {
			case stageInit:
				release = r.Text
				booting = time.After(c.boot)
			case stageReady:
				booting = nil
				say("device %s from a VM (%s, kernel %s)", r.Text, strings.ToUpper(via), release)
				if c.verbose {
					say("ready after %.1f s", time.Since(started).Seconds())
				}
			case stageExit:
				exit = &r
			case stageFailed:
				return 0, fmt.Errorf("in the VM: %s", r.Text)
			}
		case <-booting:
			if via == viaKVM && at == stageStart {
				return 0, fmt.Errorf("%w: the VM's kernel did not start within %v", errNoKVM, limit)
			}
			return 0, fmt.Errorf("the VM did not boot within %v: %s, or raise RXE_BOOT_TIMEOUT on a slow machine",
				c.boot, v.console.save(c.log()))
		case s := <-signals:
			if stopped != nil || at < stageReady {
				return killedBy(s), nil
			}
			stopped, ending = s, time.After(stopLimit)
			_, _ = v.control.Write([]byte{byte(s.(syscall.Signal))})
		case <-ending:
			return killedBy(stopped), nil
		case err := <-v.out.failed:
			return 0, err
		case err := <-v.err.failed:
			return 0, err
		case <-v.out.advanced:
		case <-v.err.advanced:
		}
	}
}

// startVM starts QEMU and the conversation with the guest.
func startVM(c *config, via, qemu, kernel string) (*vm, error) {
	archive, err := initramfs(kernel)
	if err != nil {
		return nil, err
	}
	initrd, err := memoryFile("initramfs", archive)
	if err != nil {
		return nil, err
	}
	defer initrd.Close()
	v := &vm{
		qemu:    exec.Command(qemu, machine(c, via)...),
		reports: make(chan report),
		console: &console{also: io.Discard},
	}
	if c.verbose {
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
	var ports [portErr + 1]*os.File
	for n := portControl; n <= portErr; n++ {
		ours, theirs, err := socketPair()
		if err != nil {
			return nil, err
		}
		defer theirs.Close()
		ports[n] = ours
		add("-chardev", fmt.Sprintf("socket,id=port%d,fd=%d", n, inherit(theirs)))
		add("-device", fmt.Sprintf("virtserialport,chardev=port%d,nr=%d", n, n))
	}
	if err := v.qemu.Start(); err != nil {
		return nil, err
	}
	v.control = ports[portControl]
	v.out = newStream(os.Stdout, ports[portOut])
	v.err = newStream(os.Stderr, ports[portErr])
	go v.converse(newRequest(c, via))
	return v, nil
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
func (v *vm) converse(r request) {
	defer close(v.reports)
	go func() { _ = gob.NewEncoder(v.control).Encode(r) }() // the guest reads it when it has booted
	dec := gob.NewDecoder(v.control)
	for {
		var r report
		if dec.Decode(&r) != nil {
			return
		}
		v.reports <- r
	}
}

func (v *vm) kill() {
	_ = v.qemu.Process.Kill()
	_ = v.qemu.Wait()
}

func newRequest(c *config, via string) request {
	dir, _ := os.Getwd()
	host, _ := os.Hostname()
	umask := unix.Umask(0)
	unix.Umask(umask)
	out, err1 := os.Stdout.Stat()
	errs, err2 := os.Stderr.Stat()
	return request{
		Args: c.args, Env: os.Environ(), Dir: dir, Umask: umask, Host: host,
		Build: c.build(), Via: via, Kernel: c.kernel,
		OneOut: err1 == nil && err2 == nil && os.SameFile(out, errs),
	}
}

// fetchKernel returns the folder with the VM's kernel, or a status when a signal came.
func fetchKernel(c *config, signals <-chan os.Signal) (dir string, status int, err error) {
	cmd := exec.Command(filepath.Join(c.root, "docker/fetch-kernel"), c.kernel)
	cmd.Env = append(os.Environ(), "GOVERBS_CACHE="+c.cache)
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	if err := cmd.Start(); err != nil {
		return "", 0, err
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		err = cmd.Wait()
	}()
	select {
	case <-ended:
		if err != nil {
			return "", 0, errReported
		}
		return strings.TrimSpace(out.String()), 0, nil
	case s := <-signals:
		_ = unix.Kill(-cmd.Process.Pid, unix.SIGTERM)
		<-ended
		return "", killedBy(s), nil
	}
}

// kvmFailed tells whether KVM is known not to work here since the host's boot.
func (c *config) kvmFailed() bool { return readLine(c.kvmFile()) == readLine(bootID) }

// rememberKVMFailed may fail: the next run tries KVM again then.
func (c *config) rememberKVMFailed() {
	_ = os.WriteFile(c.kvmFile(), []byte(readLine(bootID)+"\n"), 0o666)
}

func (c *config) kvmFile() string { return filepath.Join(c.cache, "kvm-failed-"+c.kernel) }
