//go:build rdma

package main

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/cmd/ibvinfo/internal/doctor"
	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/rdmatest"
	"github.com/goverbs/goverbs/internal/sysfs"
)

// nobody is an ordinary user.
const nobody = 65534

// lab runs ibvinfo as a process of its own, so that it can be another user's.
type lab struct {
	t      *testing.T
	device string
	netdev string
	node   string // in /dev
	dir    string // that every user can read
}

func newLab(t *testing.T) lab {
	t.Helper()
	if os.Getenv("RXE_VIA") == "host" {
		t.Skip("changes device nodes and makes soft devices, which on this host are somebody's")
	}
	l := lab{t: t, device: "ivrxe", netdev: "ivdummy"}
	tool(t, "ip", "link", "add", l.netdev, "type", "dummy")
	t.Cleanup(func() { tool(t, "ip", "link", "delete", l.netdev) })
	tool(t, "ip", "address", "add", "198.51.100.1/24", "dev", l.netdev)
	tool(t, "ip", "link", "set", l.netdev, "up")
	tool(t, "rdma", "link", "add", l.device, "type", "rxe", "netdev", l.netdev)
	t.Cleanup(func() { tool(t, "rdma", "link", "delete", l.device) })
	require.Eventually(t, func() bool { // what udev and the kernel do a moment later
		d, ok := l.find()
		if !ok || d.Unusable != nil || d.Ports[0].State.Code != portActive {
			return false
		}
		for _, g := range d.Ports[0].GIDs {
			if g.IP().String() == "198.51.100.1" {
				l.node = "/dev/infiniband/" + d.Uverbs
			}
		}
		return l.node != ""
	}, 10*time.Second, 10*time.Millisecond)

	l.dir = t.TempDir()
	require.NoError(t, os.Chmod(filepath.Dir(l.dir), 0o755)) // it is closed to others
	self, err := os.Executable()
	require.NoError(t, err)
	text, err := os.ReadFile(self)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(l.dir, "ibvinfo"), text, 0o755))
	for _, name := range []string{"ibvinfo-verbs", "register"} {
		require.NoError(t, os.Symlink("ibvinfo", filepath.Join(l.dir, name)))
	}
	return l
}

func (l lab) find() (sysfs.Device, bool) {
	devices, err := sysfs.Host.Devices()
	require.NoError(l.t, err)
	for _, d := range devices {
		if d.Name == l.device {
			return d, true
		}
	}
	return sysfs.Device{}, false
}

func tool(t *testing.T, name string, args ...string) {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	require.NoError(t, err, "%s %v: %s", name, args, out)
}

// ibvinfo runs the command behind others, such as chroot DIR, and as a user.
func (l lab) ibvinfo(user uint32, behind []string, args ...string) (stdout, stderr string, status int) {
	l.t.Helper()
	return l.run("ibvinfo", user, behind, args...)
}

// run runs one of the commands that this test is.
func (l lab) run(name string, user uint32, behind []string, args ...string) (stdout, stderr string, status int) {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(l.t.Context(), time.Minute)
	defer cancel()
	line := append(append(append([]string{}, behind...), filepath.Join(l.dir, name)), args...)
	cmd := exec.CommandContext(ctx, line[0], line[1:]...)
	cmd.Dir = "/"
	cmd.Env = append(os.Environ(), "HOST=this", "VERBS="+filepath.Join(l.dir, "ibvinfo-verbs"))
	if user != 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: user}}
	}
	var errs bufferOf
	cmd.Stderr = &errs
	out, err := cmd.Output()
	var exit *exec.ExitError
	if err != nil {
		require.True(l.t, errors.As(err, &exit), "%v: %v", line, err)
		status = exit.ExitCode()
	}
	assert.NotContains(l.t, string(errs), "goroutine ")
	return string(out), string(errs), status
}

type bufferOf []byte

func (b *bufferOf) Write(p []byte) (int, error) {
	*b = append(*b, p...)
	return len(p), nil
}

// trouble are the findings of the doctor that are not ok.
func (l lab) trouble(user uint32, behind ...string) (found []doctor.Check) {
	l.t.Helper()
	out, stderr, status := l.ibvinfo(user, behind, "doctor", "--json", "-d", l.device)
	assert.Empty(l.t, stderr)
	var doc document
	require.NoError(l.t, json.Unmarshal([]byte(out), &doc), out)
	failures := 0
	for _, c := range doc.Checks {
		if c.Status != doctor.OK {
			found = append(found, c)
		}
		if c.Status == doctor.Failed {
			failures++
		}
	}
	assert.Equal(l.t, min(failures, 1), status)
	return found
}

// one requires that the only failure is this, and ignores a warning of memlock, whose limit is
// the lab's.
func one(t *testing.T, found []doctor.Check, check, finding, remedy string) {
	t.Helper()
	var failures []doctor.Check
	for _, c := range found {
		if c.Status == doctor.Failed {
			failures = append(failures, c)
		} else {
			assert.Equal(t, "memlock", c.Check, c)
		}
	}
	require.Len(t, failures, 1, "%v", found)
	assert.Equal(t, check, failures[0].Check)
	assert.Regexp(t, finding, failures[0].Finding)
	assert.Regexp(t, remedy, failures[0].Remedy)
}

func TestDoctorOfAHealthyDevice(t *testing.T) {
	l := newLab(t)
	assert.Empty(t, l.trouble(0))
	for _, c := range l.trouble(nobody) {
		assert.Equal(t, "memlock", c.Check, c)
	}
	out, _, status := l.ibvinfo(nobody, nil, "doctor", "-d", rdmatest.Device(t))
	assert.Zero(t, status, out)
	assert.Regexp(t, `(?m)^ok      opening: libibverbs opens `+rdmatest.Device(t)+`$`, out)
	assert.Regexp(t, `(?m)^ok      provider libraries: librxe-rdmav\d+\.so$`, out)
}

func TestDoctorWithoutPermission(t *testing.T) {
	l := newLab(t)
	require.NoError(t, os.Chmod(l.node, 0o600))
	one(t, l.trouble(nobody), "permissions", `^ivrxe: access `+l.node+`: permission denied$`, `^its mode is -rw-------: run as its owner, or set 0666`)
	_, stderr, status := l.ibvinfo(nobody, nil, "-v", "-d", l.device)
	assert.Equal(t, 1, status)
	assert.Regexp(t, `^ibvinfo: ivrxe: access `+l.node+`: permission denied; its mode is -rw-------: run as its owner, or set 0666 as rdma-core's udev rules do\n$`, stderr)
}

// The whole host, without its device nodes.
func TestDoctorInAChroot(t *testing.T) {
	l := newLab(t)
	root := t.TempDir()
	chroot := []string{"unshare", "--mount", "sh", "-ec", `
		mount --rbind / "$0"
		mount -t tmpfs none "$0/dev/infiniband"
		exec chroot "$0" "$@"`, root}
	for _, user := range []uint32{0, nobody} {
		behind := chroot
		if user != 0 { // root is what may mount
			behind = append(append([]string{}, chroot...), "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
		}
		found := l.trouble(0, behind...)
		require.NotEmpty(t, found)
		assert.Equal(t, doctor.Check{Check: "device nodes", Status: doctor.Failed,
			Finding: "ivrxe is visible but cannot be used: stat " + l.node + ": no such file or directory",
			Remedy:  "in a container, pass it in: --device=/dev/infiniband; on a host, udev makes it"}, found[0])
		assert.Equal(t, "connection manager", found[1].Check)
		for _, c := range found[1:] {
			assert.Equal(t, doctor.Warning, c.Status, c)
		}
		out, _, status := l.ibvinfo(0, behind, "-d", l.device)
		assert.Zero(t, status)
		assert.Contains(t, out, "Visible but not usable from here:\n  ivrxe: stat "+l.node+": no such file or directory\n")
	}
}

func TestDoctorWithThePortDown(t *testing.T) {
	l := newLab(t)
	tool(t, "ip", "link", "set", l.netdev, "down")
	require.Eventually(t, func() bool {
		d, ok := l.find()
		return ok && d.Ports[0].State.Name == "DOWN"
	}, 10*time.Second, 10*time.Millisecond)
	one(t, l.trouble(0), "ports", `^port 1 of ivrxe is DOWN \(physical state Disabled\)$`, `^ip link set ivdummy up`)
}

func TestDoctorWithLittleMemlock(t *testing.T) {
	l := newLab(t)
	limited := []string{"sh", "-ec", `ulimit -l 64; exec "$0" "$@"`}
	one(t, l.trouble(nobody, limited...), "memlock", "^64 KiB can be locked, which is too little", "^raise it: ulimit -l unlimited, ")
	assert.Empty(t, l.trouble(0, limited...), "root may lock all the same")
}

// A device whose interface has no address, as is found where a wrong GID is used.
func TestDoctorWithoutAnAddress(t *testing.T) {
	l := newLab(t)
	tool(t, "ip", "address", "delete", "198.51.100.1/24", "dev", l.netdev)
	require.Eventually(t, func() bool {
		d, ok := l.find()
		if !ok {
			return false
		}
		for _, g := range d.Ports[0].GIDs {
			if !g.IP().IsLinkLocalUnicast() {
				return false
			}
		}
		return len(d.Ports[0].GIDs) > 0
	}, 10*time.Second, 10*time.Millisecond)
	found := l.trouble(0)
	require.Len(t, found, 1, "%v", found)
	assert.Equal(t, doctor.Check{Check: "GIDs", Status: doctor.Warning,
		Finding: "port 1 of ivrxe has link-local GIDs only: they reach peers on the same link alone",
		Remedy:  "give ivdummy an address: ip addr add ADDRESS/LENGTH dev ivdummy"}, found[0])
	out, _, status := l.ibvinfo(0, nil, "gids", "-d", l.device, "--for", rdmatest.Addr(t).String())
	assert.Zero(t, status)
	assert.Regexp(t, `^ivrxe to .*: RoCE v2, and none has a routable address; warning: a link-local address reaches peers on the same link only`, out)
}

// With no device at all: the one under test goes, and comes again.
func TestDoctorWithoutADevice(t *testing.T) {
	l := newLab(t)
	dev := rdmatest.Device(t)
	_, stderr, status := l.ibvinfo(nobody, nil, "doctor", "-d", "mlx5_0")
	assert.Equal(t, 1, status)
	assert.Equal(t, "ibvinfo: no device \"mlx5_0\" here; there is "+l.device+", "+dev+"\n", stderr)

	netdev := ""
	for _, name := range []string{dev, l.device} {
		parent, err := os.ReadFile("/sys/class/infiniband/" + name + "/parent")
		require.NoError(t, err)
		if name == dev {
			netdev = strings.TrimSpace(string(parent))
		}
		tool(t, "rdma", "link", "delete", name)
	}
	defer func() {
		tool(t, "rdma", "link", "add", l.device, "type", "rxe", "netdev", l.netdev)
		tool(t, "rdma", "link", "add", dev, "type", "rxe", "netdev", netdev)
		require.Eventually(t, func() bool {
			ctx, err := ibv.Open(dev)
			if err != nil {
				return false
			}
			defer ctx.Close()
			_, err = ctx.ChooseGID(ibv.GIDRequest{Local: rdmatest.Addr(t)})
			return err == nil
		}, 10*time.Second, 10*time.Millisecond)
	}()
	out, stderr, status := l.ibvinfo(nobody, nil, "doctor")
	assert.Equal(t, 1, status)
	assert.Empty(t, stderr)
	assert.Regexp(t, `(?m)^failed  devices: the kernel's RDMA modules have no device here; .* rdma link add rxe0 type rxe netdev NETDEV$`, out)
	assert.Equal(t, 1, strings.Count(out, "\nfailed "), out)
	_, err := ibv.Open("")
	assert.ErrorIs(t, err, ibv.ErrNoDevice)
	assert.ErrorContains(t, err, "for a soft device: rdma link add rxe0 type rxe netdev NETDEV")
	out, stderr, status = l.ibvinfo(nobody, nil)
	assert.Zero(t, status)
	assert.Equal(t, "no RDMA devices visible in this environment\n", out)
	assert.Contains(t, stderr, "the kernel's RDMA modules are loaded, but have no device here")
}

// A registration above the limit says what the doctor says.
func TestMemlockErrorAndDoctorAgree(t *testing.T) {
	l := newLab(t)
	out, stderr, status := l.run("register", nobody, []string{"sh", "-ec", `ulimit -l 64; exec "$0" "$@"`}, l.device)
	assert.Equal(t, 1, status, out)
	assert.Regexp(t, `^ibv_reg_mr on .*: cannot lock 1048576 bytes of memory; the limit of this process is 65536 bytes \(ulimit -l\); raise it `, stderr)
}
