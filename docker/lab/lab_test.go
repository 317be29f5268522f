//go:build linux

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// tree makes files below a folder and returns the folder.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, content := range files {
		name = filepath.Join(root, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o755))
		require.NoError(t, os.WriteFile(name, []byte(content), 0o755))
	}
	return root
}

func TestFindDevice(t *testing.T) {
	const ib = "sys/class/infiniband/"
	host := map[string]string{
		ib + "mlx5_0/ports/1/state":  "1: DOWN\n",
		ib + "mlx5_1/ports/1/state":  "4: ACTIVE\n",
		ib + "mlx5_1/ports/1/gids/0": "fe80:0000:0000:0000:0000:0000:0000:0001\n",
		ib + "mlx5_1/ports/1/gids/1": "0000:0000:0000:0000:0000:ffff:0a01:0203\n",
		ib + "mlx5_2/ports/1/state":  "4: ACTIVE\n",
		ib + "mlx5_3/ports/1/state":  "4: ACTIVE\n",

		"sys/class/infiniband_verbs/uverbs0/ibdev": "mlx5_0\n",
		"sys/class/infiniband_verbs/uverbs7/ibdev": "mlx5_1\n",
		"sys/class/infiniband_verbs/uverbs8/ibdev": "mlx5_2\n",
		"dev/infiniband/uverbs0":                   "",
		"dev/infiniband/uverbs7":                   "",
	}
	ours := map[string]string{
		ib + ourPrefix + "0/ports/1/state":         "4: ACTIVE\n",
		"sys/class/infiniband_verbs/uverbs0/ibdev": ourPrefix + "0\n",
		"dev/infiniband/uverbs0":                   "",
	}
	down := map[string]string{ib + "rxe0/ports/1/state": "1: DOWN\n"}
	for _, c := range []struct {
		name   string
		files  map[string]string
		device string
		want   device
		err    string
		none   bool // so that another way may be tried
	}{
		{"first active", host, "", device{name: "mlx5_1", addr: "10.1.2.3"}, "", false},
		{"by name", host, "mlx5_1", device{name: "mlx5_1", addr: "10.1.2.3"}, "", false},
		{"down", host, "mlx5_0", device{}, "RXE_DEV=mlx5_0: no active port", false},
		{"no node", host, "mlx5_2", device{}, "uverbs8: no such file or directory", false},
		{"no verbs", host, "mlx5_3", device{}, "RXE_DEV=mlx5_3: no uverbs node", false},
		{"unknown", host, "rxe0", device{}, "RXE_DEV=rxe0: this host has only mlx5_0, mlx5_1, mlx5_2, mlx5_3", false},
		{"nothing usable", down, "", device{}, "no usable RDMA device on this host (rxe0: no active port)", true},
		{"nothing", nil, "", device{}, "no usable RDMA device on this host", true},
		{"nothing by name", nil, "rxe0", device{}, "RXE_DEV=rxe0: this host has no RDMA device", false},
		{"another run's", ours, "", device{}, "no usable RDMA device on this host", true},
		{"another run's by name", ours, ourPrefix + "0", device{name: ourPrefix + "0"}, "", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := findDevice(tree(t, c.files), c.device)
			assert.Equal(t, c.want, got)
			if c.err == "" {
				assert.NoError(t, err)
				return
			}
			assert.ErrorContains(t, err, c.err)
			assert.Equal(t, c.none, errors.Is(err, errNoDevice))
		})
	}
}

func TestMachines(t *testing.T) {
	for _, tt := range []struct {
		c    config
		via  string
		want string
	}{
		{config{}, viaTCG, "-smp 2 -accel tcg,thread=multi -cpu max"},
		{config{}, viaKVM, "-smp 2 -accel kvm -cpu host"},
		{config{icount: true}, viaTCG, "-smp 1 -accel tcg,thread=single -icount shift=0,sleep=off -cpu max"},
	} {
		args := strings.Join(machine(&tt.c, tt.via), " ")
		assert.True(t, strings.HasSuffix(args, " "+tt.want), args)
	}
}

func TestEnvironReplaces(t *testing.T) {
	env := []string{"RXE_DEV=old", "RXE_DEVICE=kept", "RXE_VIA=old", "PATH=/bin", "RXE_DEV=older"}
	got := device{name: "rxe0", addr: "192.0.2.1"}.environ(env, viaTCG, "6.1")
	assert.ElementsMatch(t, []string{
		"RXE_DEVICE=kept", "PATH=/bin", "RXE_DEV=rxe0", "RXE_ADDR=192.0.2.1", "RXE_VIA=tcg", "RXE_KERNEL=6.1",
	}, got)
}

func TestArgumentsOfTwoHosts(t *testing.T) {
	t.Setenv("RXE_VIA", "tcg")
	t.Setenv("GOVERBS_CACHE", t.TempDir())
	for _, name := range []string{"RXE_ICOUNT", "RXE_MEM", "RXE_KERNEL"} {
		t.Setenv(name, "")
	}
	program = "two-hosts"
	defer func() { program = "" }()
	c, err := configure([]string{"--loss=2.50", "-capture", "x y", "a", "-b", "c d", "--", "e", "--", "--loss"})
	require.NoError(t, err)
	require.Len(t, c.hosts, 2)
	assert.Equal(t, []string{"a", "-b", "c d"}, c.hosts[0].args)
	assert.Equal(t, []string{"e", "--", "--loss"}, c.hosts[1].args)
	assert.Equal(t, "x y", c.hosts[0].capture)
	assert.Empty(t, c.hosts[1].capture)
	assert.Equal(t, "2.5", c.loss)
	assert.Equal(t, 512, c.memory)
	for _, loss := range []string{"-1", "101", "NaN", "2%", ""} {
		_, err := configure([]string{"--loss", loss, "a", "--", "b"})
		assert.ErrorContains(t, err, "want per cent, from 0 to 100", loss)
	}
}

// TestCaptureIsComplete has packets that were not read when the capture was to end.
func TestCaptureIsComplete(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK, 0)
	require.NoError(t, err)
	socket, peer := os.NewFile(uintptr(fds[0]), "socket"), os.NewFile(uintptr(fds[1]), "peer")
	defer socket.Close()
	defer peer.Close()
	for _, packet := range []string{"one", "two"} {
		_, err := io.WriteString(peer, packet)
		require.NoError(t, err)
	}
	require.NoError(t, socket.SetReadDeadline(time.Now())) // so that it reads nothing before
	var out bytes.Buffer
	c, err := captureFrom(socket, &out)
	require.NoError(t, err)
	n, err := c.finish()
	require.NoError(t, err)
	assert.EqualValues(t, 24+16+3+16+3, n)
	assert.EqualValues(t, n, out.Len())
	assert.Regexp(t, `(?s)one.*two\z`, out.String())
	_, err = io.WriteString(peer, "late")
	require.NoError(t, err)
	_, err = unix.Read(fds[0], make([]byte, 10))
	assert.ErrorIs(t, err, unix.EAGAIN, "nothing comes after the end")
}

func TestLines(t *testing.T) {
	name := filepath.Join(t.TempDir(), "out")
	f, err := os.Create(name)
	require.NoError(t, err)
	defer f.Close()
	a, b := &lines{prefix: "a: ", to: f}, &lines{prefix: "b: ", to: f}
	for _, w := range []struct {
		to   *lines
		text string
	}{{a, "1"}, {b, "one\n\ntw"}, {a, "2\n3\n4"}, {b, "o"}, {a, "5"}} {
		n, err := io.WriteString(w.to, w.text)
		assert.NoError(t, err)
		assert.Equal(t, len(w.text), n)
	}
	for range 2 {
		b.finish()
		a.finish()
	}
	got, err := os.ReadFile(name)
	require.NoError(t, err)
	assert.Equal(t, "b: one\nb: \na: 12\na: 3\nb: two\na: 45\n", string(got))
}

func TestRunCommand(t *testing.T) {
	// The command tells that it is ready for signals by making a file.
	const ready = `: >"$READY"; while :; do sleep 0.05; done`
	for _, c := range []struct {
		name    string
		args    []string
		signals []syscall.Signal
		want    int
	}{
		{"status", []string{"sh", "-c", "exit 42"}, nil, 42},
		{"killed", []string{"sh", "-c", "kill -9 $$"}, nil, 137},
		{"not found", []string{"no such program"}, nil, 127},
		{"not executable", []string{"/dev/null"}, nil, 126},
		{"signal", []string{"sh", "-c", "trap 'exit 7' TERM; " + ready}, []syscall.Signal{syscall.SIGTERM}, 7},
		{"no trap", []string{"sh", "-c", ready}, []syscall.Signal{syscall.SIGUSR1}, 138}, // nohup would have SIGHUP ignored
		{"second signal", []string{"sh", "-c", "trap '' TERM; " + ready},
			[]syscall.Signal{syscall.SIGTERM, syscall.SIGTERM}, 143},
	} {
		t.Run(c.name, func(t *testing.T) {
			runtime.LockOSThread() // the command dies with it
			defer runtime.UnlockOSThread()
			file := filepath.Join(t.TempDir(), "ready")
			signals := make(chan os.Signal)
			go func() {
				for _, s := range c.signals {
					for !exists(file) {
						runtime.Gosched()
					}
					signals <- s
				}
			}()
			start := time.Now()
			got, err := runCommand(c.args, append(os.Environ(), "READY="+file), signals)
			assert.NoError(t, err)
			assert.Equal(t, c.want, got)
			assert.Less(t, time.Since(start), stopLimit)
		})
	}
}

// TestKVMThatFailsIsRemembered has a QEMU that writes down how it was called,
// and ends.
func TestKVMThatFailsIsRemembered(t *testing.T) {
	root := tree(t, map[string]string{
		"docker/fetch-kernel": "#!/bin/sh\necho /nowhere\n",
		"qemu-system-x86_64": `#!/bin/sh
			for a; do case $a in kvm|tcg*) echo "$a" >>"$CALLS"; esac; done
			case "$*" in *kvm*) if [ "$HANG" ]; then exec sleep 1000; fi; esac`,
	})
	t.Setenv("PATH", root+":"+os.Getenv("PATH"))
	for _, hang := range []string{"", "1"} {
		t.Run("hang="+hang, func(t *testing.T) {
			calls := filepath.Join(t.TempDir(), "calls")
			t.Setenv("CALLS", calls)
			t.Setenv("HANG", hang)
			c := config{root: root, cache: t.TempDir(), kvm: os.DevNull, memory: 512, boot: time.Second, hosts: []host{{args: []string{"true"}}}}
			for _, want := range []string{"kvm tcg,thread=multi", "tcg,thread=multi"} {
				_, err := runInVM(&c, nil)
				assert.ErrorContains(t, err, "the VM ended by itself")
				assert.Equal(t, want, strings.Join(accels(t, calls), " "))
			}
			forced := c
			forced.via = viaKVM
			_, err := runInVM(&forced, nil)
			assert.ErrorContains(t, err, "RXE_VIA=kvm: no KVM that works")
			assert.Equal(t, []string{"kvm"}, accels(t, calls))

			require.NoError(t, os.WriteFile(c.kvmFile(), []byte("another boot\n"), 0o666))
			_, err = runInVM(&c, nil)
			assert.Error(t, err)
			assert.Equal(t, []string{"kvm", "tcg,thread=multi"}, accels(t, calls))
		})
	}
}

// accels returns and forgets the accelerators that QEMU was called with.
func accels(t *testing.T, calls string) []string {
	t.Helper()
	b, err := os.ReadFile(calls)
	require.NoError(t, err)
	require.NoError(t, os.Remove(calls))
	return strings.Fields(string(b))
}

func TestOutputOfStuckProcess(t *testing.T) {
	for _, stuck := range []bool{false, true} {
		t.Run(fmt.Sprintf("stuck=%t", stuck), func(t *testing.T) {
			r, w, err := os.Pipe() // of which nothing is read before the output is finished
			require.NoError(t, err)
			defer r.Close()
			o, err := newOutput(w)
			require.NoError(t, err)
			if stuck {
				fd, err := syscall.Dup(int(o.pipe.Fd()))
				require.NoError(t, err)
				defer syscall.Close(fd)
			}
			const size = 100 << 10 // more than a pipe holds, and less than two
			_, err = o.pipe.Write(make([]byte, size))
			require.NoError(t, err)
			read := make(chan int64)
			time.AfterFunc(2*stuckLimit, func() {
				n, _ := io.Copy(io.Discard, r)
				read <- n
			})
			n, err := o.finish()
			assert.NoError(t, err)
			assert.EqualValues(t, size, n)
			w.Close()
			assert.EqualValues(t, size, <-read)
		})
	}
}
