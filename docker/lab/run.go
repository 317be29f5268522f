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

	"golang.org/x/sys/unix"
)

// kvmLimit is how long a VM with KVM may take to start our init. Where KVM only
// seems to be there, as in some VMs, the guest hangs before that.
const kvmLimit = 8 * time.Second

const (
	// listenLimit is how long the client waits for the server to listen.
	listenLimit = 10 * time.Second
	// noticeLimit is how long a command may go on when the other has failed.
	noticeLimit = 10 * time.Second
)

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

	booting  <-chan time.Time
	next     int              // the first VM whose command may not start yet
	waiting  <-chan time.Time // for the last one that may to listen
	status   int              // of the first command that failed
	noticing <-chan time.Time // for the others to end after that
	stopped  int              // the status if what was to stop does not
	ending   <-chan time.Time
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
	var links [2]*os.File
	if c.linked() {
		if links[0], links[1], err = socketPair(); err != nil {
			return 0, err
		}
		defer links[0].Close()
		defer links[1].Close()
	}
	for n, h := range c.hosts {
		if err := l.startVM(h, qemu, kernel, initrd, links[n]); err != nil {
			return 0, err
		}
	}
	limit := c.boot
	if via == viaKVM {
		limit = min(kvmLimit, c.boot)
	}
	l.booting = time.After(limit)
	for {
		if l.ended() {
			return l.status, nil
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
			return 0, fmt.Errorf("%s VM did not boot within %v: %s, or raise RXE_BOOT_TIMEOUT on a slow machine",
				l.slowest().name(), c.boot, l.slowest().saveConsole(c))
		case s := <-signals:
			if l.stopped != 0 || l.next == 0 {
				return killedBy(s), nil
			}
			l.stop(s, killedBy(s))
		case <-l.ending:
			return l.stopped, nil
		case <-l.waiting:
			l.start()
		case <-l.noticing:
			say("the other command still runs after %v: ending it", noticeLimit)
			l.stop(unix.SIGTERM, l.status)
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
			return fmt.Errorf("%w: the VM ended at once: %s", errNoKVM, v.saveConsole(l.c))
		}
		return fmt.Errorf("%s VM ended by itself: %s", v.name(), v.saveConsole(l.c))
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
		from := "a VM"
		if l.c.linked() {
			from = "each of two VMs"
		}
		say("device %s from %s (%s, kernel %s)", n.Text, from, strings.ToUpper(l.via), v.release)
		if l.c.verbose {
			say("ready after %.1f s", time.Since(started).Seconds())
		}
		l.start()
	case stageListening:
		l.start()
	case stageExit:
		v.exit = &n.report
	case stageFailed:
		return fmt.Errorf("in %s VM: %s", v.name(), n.Text)
	}
	return nil
}

// all tells whether all VMs have come that far.
func (l *lab) all(at stage) bool {
	return !slices.ContainsFunc(l.vms, func(v *vm) bool { return v.at < at })
}

// start lets the next command start, if one has yet to.
func (l *lab) start() {
	l.waiting = nil
	if l.next == len(l.vms) || l.status != 0 || l.stopped != 0 {
		return
	}
	_, _ = l.vms[l.next].control.Write([]byte{mayStart})
	l.next++
	if l.next < len(l.vms) {
		l.waiting = time.After(listenLimit)
	}
}

// ended tells whether all commands have ended, and what they printed has been
// passed on.
func (l *lab) ended() bool {
	running := l.next == 0
	for n := 0; n < l.next; n++ { // it may grow
		v := l.vms[n]
		if !v.ended() {
			running = true
		} else if !v.told {
			v.told = true
			l.exited(v)
		}
	}
	if !running {
		l.noticing = nil
	}
	return !running
}

// exited takes the status of a command.
func (l *lab) exited(v *vm) {
	v.finishLines()
	if status := v.exit.Status; status != 0 && l.c.linked() {
		say("%s: exit status %d", v.host.name, status)
	}
	if l.status == 0 && v.exit.Status != 0 {
		l.status, l.noticing = v.exit.Status, time.After(noticeLimit)
	}
	l.start()
}

// stop asks the commands to end. If they do not in time, that is the status.
func (l *lab) stop(s os.Signal, status int) {
	l.stopped, l.ending, l.noticing = status, time.After(stopLimit), nil
	for _, v := range l.vms[:l.next] {
		_, _ = v.control.Write([]byte{byte(s.(syscall.Signal))})
	}
}

// slowest returns the VM that is least far.
func (l *lab) slowest() *vm {
	return slices.MinFunc(l.vms, func(a, b *vm) int { return cmp.Compare(a.at, b.at) })
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
