//go:build linux

package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

// kvmLimit is how long a VM with KVM may take to start our init. Where KVM only
// seems to be there, as in some VMs, the guest hangs before that.
const kvmLimit = 8 * time.Second

const bootID = "/proc/sys/kernel/random/boot_id"

var errNoKVM = errors.New("no KVM that works")

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

// lab is the VMs of a run, one for each command.
type lab struct {
	c        *config
	via      string
	vms      []*vm
	news     chan news
	advanced chan struct{} // an output has been passed on
	failed   chan error    // one could not be

	booting <-chan time.Time
	stopped int // the status if what was to stop does not
	ending  <-chan time.Time
}

// news is what a VM reports, or that it has ended.
type news struct {
	vm *vm
	report
	ended bool
}

// runWith boots the VMs, runs the commands in them and returns their status.
func runWith(c *config, via, qemu, kernel string, signals <-chan os.Signal) (int, error) {
	archive, err := initramfs(kernel)
	if err != nil {
		return 0, err
	}
	initrd, err := memoryFile("initramfs", archive)
	if err != nil {
		return 0, err
	}
	defer initrd.Close()
	l := &lab{c: c, via: via, news: make(chan news), advanced: make(chan struct{}, 1), failed: make(chan error)}
	defer l.kill()
	for _, h := range c.hosts {
		if err := l.startVM(h, qemu, kernel, initrd); err != nil {
			return 0, err
		}
	}
	limit := c.boot
	if via == viaKVM {
		limit = min(kvmLimit, c.boot)
	}
	l.booting = time.After(limit)
	for {
		if status, ended := l.ended(); ended {
			return status, nil
		}
		select {
		case n := <-l.news:
			if err := l.hear(n); err != nil {
				return 0, err
			}
		case <-l.booting:
			if via == viaKVM && !l.all(stageInit) {
				return 0, fmt.Errorf("%w: the VM's kernel did not start within %v", errNoKVM, limit)
			}
			return 0, fmt.Errorf("the VM did not boot within %v: %s, or raise RXE_BOOT_TIMEOUT on a slow machine",
				c.boot, l.saveConsole())
		case s := <-signals:
			if l.stopped != 0 || !l.all(stageReady) {
				return killedBy(s), nil
			}
			l.stop(s, killedBy(s))
		case <-l.ending:
			return l.stopped, nil
		case err := <-l.failed:
			return 0, err
		case <-l.advanced:
		}
	}
}

// hear takes what a VM tells.
func (l *lab) hear(n news) error {
	v := n.vm
	if n.ended {
		if l.via == viaKVM && v.at == stageStart {
			return fmt.Errorf("%w: the VM ended at once: %s", errNoKVM, l.saveConsole())
		}
		return fmt.Errorf("the VM ended by itself: %s", l.saveConsole())
	}
	v.at = n.Stage
	switch v.at {
	case stageInit:
		v.release = n.Text
		if l.all(stageInit) {
			l.booting = time.After(l.c.boot)
		}
	case stageReady:
		if !l.all(stageReady) {
			break
		}
		l.booting = nil
		say("device %s from a VM (%s, kernel %s)", n.Text, strings.ToUpper(l.via), v.release)
		if l.c.verbose {
			say("ready after %.1f s", time.Since(started).Seconds())
		}
	case stageExit:
		v.exit = &n.report
	case stageFailed:
		return fmt.Errorf("in the VM: %s", n.Text)
	}
	return nil
}

// all tells whether all VMs have come that far.
func (l *lab) all(at stage) bool {
	return !slices.ContainsFunc(l.vms, func(v *vm) bool { return v.at < at })
}

// ended tells whether all commands have ended and what they printed has been
// passed on, and then their status.
func (l *lab) ended() (status int, ended bool) {
	for _, v := range l.vms {
		if !v.ended() {
			return 0, false
		}
		status = cmp.Or(status, v.exit.Status)
	}
	return status, true
}

// stop asks the commands to end. If they do not in time, that is the status.
func (l *lab) stop(s os.Signal, status int) {
	l.stopped, l.ending = status, time.After(stopLimit)
	for _, v := range l.vms {
		_, _ = v.control.Write([]byte{byte(s.(syscall.Signal))})
	}
}

// saveConsole writes the VM's console to a file, and returns where it is.
func (l *lab) saveConsole() string {
	return l.vms[0].console.save(l.c.log())
}

func (l *lab) kill() {
	for _, v := range l.vms {
		v.kill()
	}
}

// kvmFailed tells whether KVM is known not to work here since the host's boot.
func (c *config) kvmFailed() bool { return readLine(c.kvmFile()) == readLine(bootID) }

// rememberKVMFailed may fail: the next run tries KVM again then.
func (c *config) rememberKVMFailed() {
	_ = os.WriteFile(c.kvmFile(), []byte(readLine(bootID)+"\n"), 0o666)
}

func (c *config) kvmFile() string { return filepath.Join(c.cache, "kvm-failed-"+c.kernel) }
