//go:build cgo && linux && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package fakedev_test

import (
	"fmt"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/fakedev"
)

// recorder is a test whose failures are recorded, and whose end the outer test
// chooses.
type recorder struct {
	testing.TB
	errors   []string
	cleanups []func()
}

func newRecorder(t testing.TB) *recorder {
	r := &recorder{TB: t}
	t.Cleanup(r.end)
	return r
}

func (r *recorder) Errorf(format string, args ...any) {
	r.errors = append(r.errors, fmt.Sprintf(format, args...))
}
func (r *recorder) Cleanup(f func()) { r.cleanups = append(r.cleanups, f) }

func (r *recorder) end() {
	for len(r.cleanups) > 0 {
		last := len(r.cleanups) - 1
		f := r.cleanups[last]
		r.cleanups = r.cleanups[:last]
		f()
	}
}

func TestLeftOpen(t *testing.T) {
	r := newRecorder(t)
	d := fakedev.New(r, fakedev.Config{})
	ctx, err := ibv.Open(d.Name())
	require.NoError(t, err)
	pd, err := ctx.AllocPD()
	require.NoError(t, err)
	r.end()
	assert.Equal(t, []string{d.Name() + ": still open at the test's end: 1 context, 1 PD"}, r.errors)
	require.NoError(t, pd.Close(), "the device lives on for those that still use it")
	require.NoError(t, ctx.Close())
}

func TestOrderedAndNotHappened(t *testing.T) {
	r := newRecorder(t)
	d := fakedev.New(r, fakedev.Config{})
	d.Fail("ibv_alloc_pd", syscall.EIO, 1)
	d.Fail("ibv_alloc_td", syscall.EIO, 1)
	d.Send(0x999).Complete(fakedev.Completion{})
	d.Send(0x999).Posted()
	d.Raise(0, 99)
	r.end()
	assert.Equal(t, []string{
		d.Name() + ": Fail ibv_alloc_td: there is no such verb, or no such object",
		d.Name() + ": Complete of WR 0 of the send queue of QP 0x999: there is no such verb, or no such object",
		d.Name() + ": there is no send queue of QP 0x999",
		d.Name() + ": Raise event 0 on 0x63: there is no such verb, or no such object",
		d.Name() + ": the failure of ibv_alloc_pd that was ordered never happened",
	}, r.errors)
}

// untracked fills the SGEs by hand, so that ibv does not keep their regions.
func untracked(wrs []ibv.RecvWR) []ibv.RecvWR {
	for i := range wrs {
		for k, sge := range wrs[i].SGEs {
			wrs[i].SGEs[k] = ibv.SGE{Addr: sge.Addr, Length: sge.Length, LKey: sge.LKey}
		}
	}
	return wrs
}

func TestMemoryThatGoes(t *testing.T) {
	s := newSide(t, fakedev.Config{})
	_, err := s.qp.PostRecv(untracked(s.recvs(1)))
	require.NoError(t, err)
	require.NoError(t, s.region.Close())
	misuse := s.Misuse()
	require.Len(t, misuse, 1)
	assert.Regexp(t, `region .* goes while WR .* posted to QP 0x11, uses it`, misuse[0])
	assert.Empty(t, s.Misuse(), "it was told")
}

func TestMemoryOfWRs(t *testing.T) {
	r := newRecorder(t)
	s := newSide(r, fakedev.Config{})
	_, err := s.qp.PostRecv(untracked(s.recvs(1)))
	require.NoError(t, err)
	s.rq.Complete(fakedev.Completion{Payload: make([]byte, 17)})
	s.rq.Write(1, 0, []byte("x"))
	require.NoError(t, s.region.Close())
	s.rq.Data(0)
	assert.Equal(t, []string{
		s.Name() + ": Complete of WR 0 of the receive queue of QP 0x11: more bytes than the WR has",
		s.Name() + ": Write to WR 1 of the receive queue of QP 0x11: there is no such WR",
		s.Name() + ": Data of WR 0 of the receive queue of QP 0x11: the memory is not registered for that",
	}, r.errors)
	s.Misuse()
}

func TestRefusalNotHappened(t *testing.T) {
	s := newSide(t, fakedev.Config{})
	s.rq.FailPost(fakedev.Refusal{Index: 1, RC: int(syscall.EINVAL), Errno: fakedev.KeepErrno})
	_, err := s.qp.PostRecv(s.recvs(1))
	require.NoError(t, err)
	require.NoError(t, s.qp.Close())
	assert.Equal(t, []string{"the refusal that was ordered for a queue of 0x11 never happened"}, s.Misuse())
}
