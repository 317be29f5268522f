//go:build lab

// Package docker_test tests docker/with-rxe and docker/two-hosts as they are used.
// Its VMs take no KVM, so that it tests the same everywhere.
package docker_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// limit is the time that a run may take on a busy machine.
const limit = 100 * time.Second

// lab calls docker/with-rxe, or another script, with a cache of its own, which is
// empty but for links to the kernels. So its path finds the lab's QEMU among all
// processes.
type lab struct {
	t      *testing.T
	script string
	root   string
	cache  string
	env    []string
}

func newLab(t *testing.T, env ...string) *lab {
	t.Helper()
	root, err := filepath.Abs("..")
	require.NoError(t, err)
	l := &lab{t: t, script: "docker/with-rxe", root: root, cache: t.TempDir()}
	for _, series := range []string{"6.1", "6.12"} {
		kernel, err := exec.Command(filepath.Join(root, "docker/fetch-kernel"), series).Output()
		require.NoError(t, err, "fetch-kernel %s", series)
		dir := strings.TrimSpace(string(kernel))
		require.NoError(t, os.Symlink(dir, filepath.Join(l.cache, filepath.Base(dir))))
	}
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "RXE_") {
			l.env = append(l.env, kv)
		}
	}
	l.env = append(l.env, "RXE_VIA=tcg", "GOVERBS_CACHE="+l.cache)
	l.env = append(l.env, env...) // of two the last counts
	return l
}

// stub puts a shell script before the programs of that name in PATH.
func (l *lab) stub(name, script string) {
	l.t.Helper()
	dir := filepath.Join(l.t.TempDir(), "bin")
	require.NoError(l.t, os.Mkdir(dir, 0o755))
	require.NoError(l.t, os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/bash\n"+script+"\n"), 0o755))
	l.env = append(l.env, "PATH="+dir+":"+l.getenv("PATH"))
}

func (l *lab) getenv(name string) (value string) {
	for _, kv := range l.env {
		if v, ok := strings.CutPrefix(kv, name+"="); ok {
			value = v
		}
	}
	return value
}

// command returns the call of the script, which ends with the test at the latest.
func (l *lab) command(args ...string) *exec.Cmd {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	l.t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, filepath.Join(l.root, l.script), args...)
	cmd.Env = l.env
	cmd.Dir = l.root
	return cmd
}

// run runs the script to its end, and checks that it leaves no process.
func (l *lab) run(args ...string) (stdout, stderr string, status int) {
	l.t.Helper()
	var out, errs bytes.Buffer
	cmd := l.command(args...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	status = exitStatus(l.t, cmd.Run())
	assert.Empty(l.t, l.processes())
	return out.String(), errs.String(), status
}

func exitStatus(t *testing.T, err error) int {
	t.Helper()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode()
	}
	require.NoError(t, err)
	return 0
}

// processes returns the processes, other than the script's own, that have the
// lab's cache in their arguments.
func (l *lab) processes() (found []string) {
	names, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, n := range names {
		b, _ := os.ReadFile(n)
		if bytes.Contains(b, []byte(l.cache)) {
			found = append(found, n+": "+string(bytes.ReplaceAll(b, []byte{0}, []byte{' '})))
		}
	}
	return found
}

func (l *lab) requireNoProcesses() {
	l.t.Helper()
	require.Eventually(l.t, func() bool { return len(l.processes()) == 0 }, 10*time.Second, 20*time.Millisecond,
		"QEMU has survived")
}

// start starts the script and waits until it has printed the line on stdout.
func (l *lab) start(line string, args ...string) *exec.Cmd {
	l.t.Helper()
	cmd := l.command(args...)
	out, err := cmd.StdoutPipe()
	require.NoError(l.t, err)
	require.NoError(l.t, cmd.Start())
	l.t.Cleanup(func() { _ = cmd.Process.Kill() })
	got := make([]byte, len(line))
	_, err = io.ReadFull(out, got)
	require.NoError(l.t, err)
	require.Equal(l.t, line, string(got))
	return cmd
}

// TestKernels also shows that a run downloads nothing when the kernel is there.
func TestKernels(t *testing.T) {
	const script = `
		echo "$RXE_DEV $RXE_ADDR $RXE_VIA $RXE_KERNEL $(uname -r) $(id -u)"
		ibv_devinfo -d "$RXE_DEV" | grep -o PORT_ACTIVE
		cat /sys/class/infiniband/rxe0/ports/1/gids/[012]
		stat -c '%a %n' /dev/infiniband/*
		setpriv --reuid 65534 --regid 65534 --clear-groups ibv_devinfo | grep -c hca_id
		ip -brief link show lo | grep -o LOWER_UP
		docker/with-rxe sh -c 'echo "$RXE_DEV $RXE_VIA"' 2>&1
		RXE_DEV=other docker/with-rxe true 2>&1`
	for _, series := range []string{"6.1", "6.12"} {
		t.Run(series, func(t *testing.T) {
			t.Parallel()
			l := newLab(t, "RXE_KERNEL="+series)
			for _, name := range []string{"apt-get", "apt-cache", "curl", "wget"} {
				l.stub(name, "touch "+filepath.Join(l.cache, "network")+"; exit 1")
			}
			out, errs, status := l.run("bash", "-c", script)
			assert.Equal(t, 125, status)
			assert.Regexp(t, `^rxe0 192\.0\.2\.1 tcg `+series+` `+series+`\.\S+ 0
PORT_ACTIVE
fe80:0000:0000:0000:.*
0000:0000:0000:0000:0000:ffff:c000:0201
2001:0db8:0000:0000:0000:0000:0000:0001
666 /dev/infiniband/rdma_cm
666 /dev/infiniband/uverbs0
1
LOWER_UP
with-rxe: device rxe0 of this host
rxe0 host
with-rxe: RXE_DEV=other: this host has only rxe0
$`, out)
			assert.Regexp(t, `^with-rxe: device rxe0 from a VM \(TCG, kernel `+series+`\.\S+\)\n$`, errs)
			assert.NoFileExists(t, filepath.Join(l.cache, "network"))
		})
	}
}

func TestInstructionClock(t *testing.T) {
	t.Parallel()
	out, errs, status := newLab(t, "RXE_ICOUNT=1").run("bash", "-c", `echo "$RXE_VIA $(nproc)"`)
	require.Zero(t, status, errs)
	assert.Equal(t, "tcg 1\n", out)
}

func TestStatus(t *testing.T) {
	for _, c := range []struct {
		args   []string
		status int
		errs   string
	}{
		{[]string{"false"}, 1, ""},
		{[]string{"sh", "-c", "kill -9 $$"}, 137, ""},
		{[]string{"no such program"}, 127, "with-rxe: no such program: command not found\n"},
	} {
		t.Run(c.args[0], func(t *testing.T) {
			t.Parallel()
			out, errs, status := newLab(t).run(c.args...)
			assert.Equal(t, c.status, status)
			assert.Empty(t, out)
			_, errs, _ = strings.Cut(errs, "\n")
			assert.Equal(t, c.errs, errs)
		})
	}
}

// TestOutput has more of each output than pipes hold.
func TestOutput(t *testing.T) {
	t.Parallel()
	var all []byte
	for i := range 1 << 16 {
		all = append(all, byte(i), byte(i>>8), byte(i*7), byte(i*13), 0, '\n', 0xff, '\r')
	}
	l := newLab(t)
	data := filepath.Join(l.t.TempDir(), "data")
	require.NoError(t, os.WriteFile(data, all, 0o666))
	file := filepath.Join(t.TempDir(), "appended")
	require.NoError(t, os.WriteFile(file, []byte("before\n"), 0o666))
	f, err := os.OpenFile(file, os.O_APPEND|os.O_WRONLY, 0)
	require.NoError(t, err)
	defer f.Close()

	cmd := l.command("sh", "-c", `cat "$1"; cat "$1" >&2; exit 42`, "sh", data)
	var errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = f, &errs
	assert.Equal(t, 42, exitStatus(t, cmd.Run()))
	out, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.True(t, bytes.Equal(append([]byte("before\n"), all...), out), "standard output differs")
	_, got, _ := bytes.Cut(errs.Bytes(), []byte("\n"))
	assert.True(t, bytes.Equal(all, got), "standard error differs")
}

// TestOutputIsComplete reads nothing until the command has ended. What it has
// printed waits in buffers on the way.
func TestOutputIsComplete(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	ended := filepath.Join(l.buildDir(), "ended")
	cmd := l.command("sh", "-c", `seq 30000; : >"$1"`, "sh", ended)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	exited := func() bool { // a zombie until it is waited for
		stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", cmd.Process.Pid))
		return bytes.Contains(stat, []byte(") Z "))
	}
	require.Eventually(t, func() bool {
		_, err := os.Stat(ended)
		return err == nil
	}, limit, 20*time.Millisecond)
	assert.Never(t, exited, 2*time.Second, 20*time.Millisecond)
	got, err := io.ReadAll(out)
	require.NoError(t, err)
	require.NoError(t, cmd.Wait())
	var want strings.Builder
	for i := range 30000 {
		fmt.Fprintln(&want, i+1)
	}
	assert.True(t, want.String() == string(got), "got %d bytes, want %d", len(got), want.Len())
}

func TestOutputsKeepTheirOrderInOneFile(t *testing.T) {
	t.Parallel()
	cmd := newLab(t).command("sh", "-c", "for i in $(seq 1000); do echo out $i; echo err $i >&2; done")
	got, err := cmd.CombinedOutput() // one pipe
	require.NoError(t, err)
	var want strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&want, "out %d\nerr %d\n", i+1, i+1)
	}
	_, lines, _ := strings.Cut(string(got), "\n")
	assert.Equal(t, want.String(), lines)
}

// TestCaller checks what the command gets from its caller, and what it can keep.
func TestCaller(t *testing.T) {
	t.Parallel()
	odd := []string{"", "a b", `"'\$HOME*`, "line\nbreak\t", "\xff\xfe", "ü", "-n"}
	l := newLab(t, "ODD="+strings.Join(odd, "|"))
	work := l.buildDir()
	kept := filepath.Join(work, "kept")
	lost := filepath.Join(t.TempDir(), "lost")
	cmd := l.command(append([]string{"bash", "-c", `
		pwd
		umask
		mkdir kept && echo content >kept/file && cp /bin/true kept/program && kept/program && echo ran
		echo lost >"$1" && cat "$1"
		shift
		printf '%s\0' "$ODD" "$@"
		cat`, "bash", lost}, odd...)...)
	cmd.Args = append([]string{"sh", "-c", `umask 0027 && exec "$0" "$@"`}, cmd.Args...)
	cmd.Path = "/bin/sh"
	cmd.Dir = work
	cmd.Stdin = strings.NewReader("not passed on")
	out, err := cmd.Output()
	require.NoError(t, err)
	want := work + "\n0027\nran\nlost\n" + strings.Join(odd, "|") + "\x00" + strings.Join(odd, "\x00") + "\x00"
	assert.Equal(t, want, string(out))
	content, err := os.ReadFile(filepath.Join(kept, "file"))
	require.NoError(t, err)
	assert.Equal(t, "content\n", string(content))
	assert.NoFileExists(t, lost)
}

// buildDir makes a folder below the project's build folder for the test.
func (l *lab) buildDir() string {
	l.t.Helper()
	require.NoError(l.t, os.MkdirAll(filepath.Join(l.root, "build"), 0o755))
	dir, err := os.MkdirTemp(filepath.Join(l.root, "build"), "lab-test-")
	require.NoError(l.t, err)
	l.t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// TestTwoAtOnce has two commands that each wait for the other to have started.
func TestTwoAtOnce(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	work := l.buildDir()
	ended := make(chan error)
	for _, names := range [][]string{{"a", "b"}, {"b", "a"}} {
		cmd := l.command("sh", "-c", `touch "$1"; until [ -e "$2" ]; do sleep 0.1; done`, "sh",
			filepath.Join(work, names[0]), filepath.Join(work, names[1]))
		go func() { ended <- cmd.Run() }()
	}
	assert.NoError(t, <-ended)
	assert.NoError(t, <-ended)
}

// TestOtherUser runs with-rxe as a user who is not root, on a copy of what it
// is made of, for the project may be where only root can read.
func TestOtherUser(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	root := t.TempDir()
	require.NoError(t, os.Chmod(filepath.Dir(root), 0o755))
	out, err := exec.Command("sh", "-c", `
		cp -rL "$1"/go.mod "$1/docker" "$2" "$3" &&
		mkdir "$3/build" && cp "$1/build/lab" "$3/build" &&
		chmod 755 "$3" && mv "$3/$(basename "$2")" "$3/cache" && chmod 755 "$3/cache"
		if [ "$(id -u)" = 0 ]; then chown -R 65534:65534 "$3"; fi`, "sh", l.root, l.cache, root).CombinedOutput()
	require.NoError(t, err, "%s", out)
	l.root = root
	l.env = append(l.env, "GOVERBS_CACHE="+filepath.Join(root, "cache"), "HOME=/nonexistent")
	cmd := l.command("sh", "-c", "id -u; cat /proc/1/comm; echo content >build/file; stat -c %a build/file")
	if os.Getuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	}
	out, err = cmd.Output()
	require.NoError(t, err)
	assert.Equal(t, "0\nlab-init\n644\n", string(out))
	content, err := os.ReadFile(filepath.Join(root, "build/file"))
	require.NoError(t, err)
	assert.Equal(t, "content\n", string(content))
}

// TestModule loads rdma_rxe on a host, which is a VM of ours without it.
func TestModule(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	kernel, err := filepath.Glob(filepath.Join(l.cache, "kernel-6.1-*"))
	require.NoError(t, err)
	require.Len(t, kernel, 1)
	out, _, status := l.run("bash", "-c", `
		PATH=$PATH:/usr/sbin:/sbin
		rdma link delete rxe0 && ip link delete dummy0
		modules=/lib/modules/$(uname -r)
		mkdir -p "$modules"
		for file in "$1"/*.ko; do cp "$file" "$modules/${file#*/[0-9][0-9]-}"; done
		depmod
		rmmod rdma_ucm rdma_rxe
		export RXE_VIA=module
		left() { echo $?; ls /sys/class/infiniband /sys/class/net; ls /sys/module | grep -xE 'rdma_rxe|rdma_ucm|dummy'; }
		docker/with-rxe sh -c 'echo "$RXE_DEV $RXE_ADDR $RXE_VIA"; ibv_devinfo -d $RXE_DEV | grep -o PORT_ACTIVE; exit 7' 2>&1
		left
		modprobe rdma_rxe
		docker/with-rxe false 2>&1
		left`, "bash", kernel[0])
	assert.Zero(t, status)
	assert.Equal(t, `with-rxe: device withrxe0 from rdma_rxe, loaded on this host
withrxe0 192.0.2.1 module
PORT_ACTIVE
7
/sys/class/infiniband:

/sys/class/net:
lo
dummy
with-rxe: device withrxe0 from rdma_rxe, loaded on this host
1
/sys/class/infiniband:

/sys/class/net:
lo
dummy
rdma_rxe
`, out)
}
