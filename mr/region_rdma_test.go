//go:build rdma

package mr_test

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/rdmatest"
	"github.com/goverbs/goverbs/mr"
)

func TestRegionOverBuffer(t *testing.T) {
	pd := rdmatest.PD(t, rdmatest.Open(t))
	buf, err := mr.Alloc(10000)
	require.NoError(t, err)
	defer buf.Close()
	r, err := mr.Register(pd, buf, ibv.AccessLocalWrite|ibv.AccessRemoteRead)
	require.NoError(t, err)
	defer r.Close()
	assert.Equal(t, 10000, r.Len())
	assert.NotZero(t, r.LKey())
	assert.NotZero(t, r.RKey())
	assert.Equal(t, ibv.AccessLocalWrite|ibv.AccessRemoteRead, r.Access())
	buf.Bytes()[9999] = 7
	assert.EqualValues(t, 7, r.Bytes()[9999], "the same memory")
}

func TestSGE(t *testing.T) {
	pd := rdmatest.PD(t, rdmatest.Open(t))
	r := rdmatest.Region(t, pd, 100)
	base := r.SGE(0, 0).Addr
	for _, good := range [][2]int{{10, 90}, {100, 0}} {
		sge := r.SGE(good[0], good[1])
		assert.Equal(t, base+uint64(good[0]), sge.Addr)
		assert.EqualValues(t, good[1], sge.Length)
		assert.Equal(t, r.LKey(), sge.LKey)
	}
	for _, bad := range [][2]int{{-1, 1}, {0, 101}, {100, 1}, {50, -1}} {
		assert.Panics(t, func() { r.SGE(bad[0], bad[1]) }, "%v", bad)
	}
}

func TestAccessRules(t *testing.T) {
	pd := rdmatest.PD(t, rdmatest.Open(t))
	for _, access := range []ibv.AccessFlags{ibv.AccessRemoteWrite, ibv.AccessRemoteAtomic, ibv.AccessRemoteAtomic | ibv.AccessRemoteRead} {
		_, err := mr.AllocRegion(pd, 4096, access)
		require.ErrorIs(t, err, syscall.EINVAL)
		assert.ErrorContains(t, err, "LocalWrite")
		assert.ErrorContains(t, err, "ibv_reg_mr on PD")
	}
	for _, access := range []ibv.AccessFlags{0, ibv.AccessRemoteRead, ibv.AccessLocalWrite | ibv.AccessRemoteWrite | ibv.AccessRemoteAtomic} {
		r, err := mr.AllocRegion(pd, 4096, access)
		require.NoError(t, err, "%v", access)
		require.NoError(t, r.Close())
	}
	_, err := mr.AllocRegion(pd, 4096, ibv.AccessOnDemand)
	require.Error(t, err, "rxe has no on-demand paging")
	assert.ErrorContains(t, err, "OnDemand")
	_, err = mr.RegisterSlice(pd, nil, 0)
	require.ErrorIs(t, err, syscall.EINVAL)
	_, err = mr.Register(pd, nil, 0)
	require.ErrorIs(t, err, syscall.EINVAL)
}

// The collector runs while a slice of the Go heap is received into: it must neither
// be moved nor freed.
func TestSliceStaysPinned(t *testing.T) {
	p := rdmatest.NewPair(t, rdmatest.DefaultInit())
	slice := make([]byte, 1000)
	r, err := mr.RegisterSlice(p.PD, slice, ibv.AccessLocalWrite)
	require.NoError(t, err)
	defer r.Close()
	for i := range rdmatest.Rounds(20, 1000) {
		_, err := p.B.QP.PostRecv([]ibv.RecvWR{{SGEs: []ibv.SGE{r.SGE(0, 1000)}}})
		require.NoError(t, err)
		runtime.GC()
		garbage := make([][]byte, 100)
		for j := range garbage {
			garbage[j] = make([]byte, 1000)
		}
		want := bytes.Repeat([]byte{byte(i + 1)}, 1000)
		copy(p.A.Region.Bytes(), want)
		_, err = p.A.QP.PostSend([]ibv.SendWR{{Opcode: ibv.OpSend, SGEs: []ibv.SGE{p.A.Region.SGE(0, 1000)}}})
		require.NoError(t, err)
		require.NoError(t, p.A.Wait(t, 1)[0].Err())
		require.NoError(t, p.B.Wait(t, 1)[0].Err())
		require.Equal(t, want, slice)
		for _, g := range garbage {
			require.Equal(t, make([]byte, 1000), g, "memory of another owner was written")
		}
	}
}

// asNobody runs one test of this binary again as an ordinary user, who may lock limit
// bytes.
func asNobody(t *testing.T, test string, limit uint64) (output string, err error) {
	t.Helper()
	// The folder of this binary may be closed to others, and so is a new TempDir.
	exe := filepath.Join(t.TempDir(), "test")
	require.NoError(t, os.Chmod(filepath.Dir(filepath.Dir(exe)), 0o755))
	binary, err := os.ReadFile("/proc/self/exe")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(exe, binary, 0o755))
	var old unix.Rlimit
	require.NoError(t, unix.Prlimit(0, unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: limit, Max: limit}, &old))
	defer func() { require.NoError(t, unix.Prlimit(0, unix.RLIMIT_MEMLOCK, &old, nil)) }()
	cmd := exec.Command(exe, "-test.run=^"+test+"$", "-test.v", "-test.count=1")
	cmd.Dir = filepath.Dir(exe)
	cmd.Env = append(os.Environ(), "AS_NOBODY=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func TestMemlockTooSmall(t *testing.T) {
	if os.Getenv("AS_NOBODY") == "" {
		out, err := asNobody(t, "TestMemlockTooSmall", 1<<16)
		require.NoError(t, err, "%s", out)
		require.Contains(t, out, "--- PASS: TestMemlockTooSmall")
		return
	}
	pd := rdmatest.PD(t, rdmatest.Open(t))
	_, err := mr.AllocRegion(pd, 1<<20, ibv.AccessLocalWrite)
	require.ErrorIs(t, err, ibv.ErrMemlock)
	require.ErrorIs(t, err, syscall.ENOMEM)
	for _, want := range []string{"1048576 bytes", "65536 bytes", "ulimit -l"} {
		assert.ErrorContains(t, err, want)
	}
	r, err := mr.AllocRegion(pd, 4096, ibv.AccessLocalWrite)
	require.NoError(t, err, "what the limit allows still works")
	require.NoError(t, r.Close())
}

func TestNoPermission(t *testing.T) {
	if os.Getenv("AS_NOBODY") == "" {
		nodes, err := fs.Glob(os.DirFS("/dev/infiniband"), "uverbs*")
		require.NoError(t, err)
		require.NotEmpty(t, nodes)
		for _, n := range nodes {
			node := "/dev/infiniband/" + n
			info, err := os.Stat(node)
			require.NoError(t, err)
			require.NoError(t, os.Chmod(node, 0o600))
			defer func() { require.NoError(t, os.Chmod(node, info.Mode().Perm())) }()
		}
		out, err := asNobody(t, "TestNoPermission", 1<<16)
		require.NoError(t, err, "%s", out)
		require.Contains(t, out, "--- PASS: TestNoPermission")
		return
	}
	_, err := ibv.Open(rdmatest.Device(t))
	require.ErrorIs(t, err, fs.ErrPermission)
	assert.ErrorContains(t, err, "/dev/infiniband/uverbs")
	assert.False(t, errors.Is(err, ibv.ErrNoDevice))
	assert.False(t, strings.Contains(err.Error(), "no such file"), "%v", err)
}

// Memory inside an object that has pointers is as good as any other: the device does
// not follow them.
func TestSliceOfAnObjectWithPointers(t *testing.T) {
	pd := rdmatest.PD(t, rdmatest.Open(t))
	type conn struct {
		next *conn
		buf  [4096]byte
	}
	c := &conn{next: new(conn)}
	r, err := mr.RegisterSlice(pd, c.buf[:], ibv.AccessLocalWrite)
	require.NoError(t, err)
	require.NoError(t, r.Close())
}

func TestClosedMemoryIsNotHandedOut(t *testing.T) {
	pd := rdmatest.PD(t, rdmatest.Open(t))
	buf, err := mr.Alloc(100)
	require.NoError(t, err)
	r, err := mr.Register(pd, buf, 0)
	require.NoError(t, err)
	require.NoError(t, r.Close())
	require.NoError(t, buf.Close())
	assert.Nil(t, r.Bytes())
	assert.Nil(t, buf.Bytes())
	_, err = mr.Register(pd, buf, 0)
	require.ErrorIs(t, err, ibv.ErrClosed)
}
