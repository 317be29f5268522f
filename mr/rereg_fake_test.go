//go:build cgo && linux && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package mr_test

import (
	"errors"
	"fmt"
	"runtime"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/fakedev"
	"github.com/goverbs/goverbs/internal/fakedev/fakedevtest"
	"github.com/goverbs/goverbs/mr"
)

// rereg is a region on a buffer, and what it may become.
type rereg struct {
	*fakedevtest.Bench
	buf, newBuf *mr.Buffer
	newPD       *ibv.PD
	region      *mr.Region
}

func newRereg(t *testing.T, config fakedev.Config) *rereg {
	r := &rereg{Bench: fakedevtest.New(t, config)}
	alloc := func(size int) *mr.Buffer {
		buf, err := mr.Alloc(size)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, buf.Close()) })
		return buf
	}
	r.buf, r.newBuf = alloc(4096), alloc(8192)
	var err error
	r.newPD, err = r.Ctx.AllocPD()
	require.NoError(t, err)
	r.Keep(r.newPD)
	r.region, err = mr.Register(r.PD, r.buf, ibv.AccessLocalWrite)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.region.Close()) }) // before the buffers
	return r
}

const newAccess = ibv.AccessLocalWrite | ibv.AccessRemoteRead

func (r *rereg) attr() mr.ReregAttr {
	return mr.ReregAttr{Buffer: r.newBuf, PD: r.newPD, Access: newAccess}
}

var reregMasks = []mr.ReregMask{
	mr.ReregTranslation, mr.ReregPD, mr.ReregAccess,
	mr.ReregTranslation | mr.ReregPD, mr.ReregTranslation | mr.ReregAccess, mr.ReregPD | mr.ReregAccess,
	mr.ReregTranslation | mr.ReregPD | mr.ReregAccess,
}

// holds checks that the region has of mask's fields the new ones, and else the old: as
// Region tells, as posts take it, and in what can be closed.
func (r *rereg) holds(t *testing.T, mask mr.ReregMask) {
	t.Helper()
	buf, pd, access := r.buf, r.PD, ibv.AccessLocalWrite
	freeBuf, freePD := r.newBuf, r.newPD
	if mask&mr.ReregTranslation != 0 {
		buf, freeBuf = r.newBuf, r.buf
	}
	if mask&mr.ReregPD != 0 {
		pd, freePD = r.newPD, nil // the old PD has other children
	}
	if mask&mr.ReregAccess != 0 {
		access = newAccess
	}
	assert.Equal(t, access, r.region.Access())
	assert.Equal(t, len(buf.Bytes()), r.region.Len())
	assert.Same(t, &buf.Bytes()[0], &r.region.Bytes()[0])
	assert.ErrorIs(t, buf.Close(), ibv.ErrBusy)
	assert.ErrorIs(t, pd.Close(), ibv.ErrBusy)
	require.NoError(t, freeBuf.Close(), "the region has it no more")
	if freePD != nil {
		require.NoError(t, freePD.Close())
	}

	bench := *r.Bench
	bench.PD = pd
	qp := bench.NewQP(t)
	r.Keep(qp)
	copy(buf.Bytes()[100:], "hello")
	qp.Post(t, ibv.Send(1, ibv.SendSignaled, r.region.SGE(100, 5)))
	assert.Equal(t, "hello", string(qp.SQ.Data(0)), "the device finds it by its key and address")
	assert.Equal(t, 1, r.region.InFlight())
	qp.SQ.Complete(fakedev.Completion{})
	require.Len(t, fakedevtest.Poll(t, qp.Send), 1)
	require.NoError(t, qp.Close())
}

func TestReregOnFake(t *testing.T) {
	for _, mask := range reregMasks {
		t.Run(fmt.Sprintf("mask %d", mask), func(t *testing.T) {
			r := newRereg(t, fakedev.Config{Rereg: true})
			lkey := r.region.LKey()
			require.NoError(t, r.region.Rereg(r.attr(), mask))
			assert.NotEqual(t, lkey, r.region.LKey(), "as the device gives it")
			assert.Contains(t, r.region.String(), fmt.Sprintf("%#x", r.region.LKey()))
			r.holds(t, mask)
		})
	}
}

// TestReregCodes has each result of the verb, for each mask: what the region is then.
func TestReregCodes(t *testing.T) {
	for _, c := range []struct {
		code  mr.ReregCode
		errno syscall.Errno
		holds mr.Registration
	}{
		{mr.ReregErrInput, syscall.EINVAL, mr.RegistrationOld},
		{mr.ReregErrDontForkNew, syscall.ENOMEM, mr.RegistrationOld},
		{mr.ReregErrCmd, syscall.EOPNOTSUPP, mr.RegistrationOld},
		{mr.ReregErrCmd, syscall.EFAULT, mr.RegistrationNone},
		{mr.ReregErrCmdAndDoForkNew, syscall.ENOMEM, mr.RegistrationNone},
		{-77, syscall.EINVAL, mr.RegistrationNone},
	} {
		for _, mask := range reregMasks {
			t.Run(fmt.Sprintf("%v, %v, mask %d", c.code, c.errno, mask), func(t *testing.T) {
				r := newRereg(t, fakedev.Config{Rereg: true})
				r.FailRaw("ibv_rereg_mr", int(c.code), c.errno, 1)
				err := r.region.Rereg(r.attr(), mask)
				var re *mr.ReregError
				require.ErrorAs(t, err, &re)
				assert.Equal(t, c.code, re.Code)
				assert.Equal(t, c.holds, re.Holds)
				assert.ErrorIs(t, err, c.errno)
				assert.Equal(t, "ibv_rereg_mr", re.Op)
				if c.holds == mr.RegistrationOld {
					r.holds(t, 0)
					return
				}
				assert.ErrorContains(t, err, "close it")
				assert.ErrorIs(t, r.buf.Close(), ibv.ErrBusy)
				if mask&mr.ReregTranslation != 0 {
					assert.ErrorIs(t, r.newBuf.Close(), ibv.ErrBusy)
				}
				if mask&mr.ReregPD != 0 {
					assert.ErrorIs(t, r.newPD.Close(), ibv.ErrBusy)
				}
				err = r.region.Rereg(r.attr(), mask)
				require.ErrorAs(t, err, &re)
				assert.Equal(t, mr.RegistrationNone, re.Holds)
				require.NoError(t, r.region.Close())
				require.NoError(t, r.newPD.Close())
			})
		}
	}
}

// ReregErrDoForkOld comes after the change.
func TestReregThatChangedAndFailed(t *testing.T) {
	r := newRereg(t, fakedev.Config{Rereg: true})
	r.FailRaw("ibv_rereg_mr", int(mr.ReregErrDoForkOld), syscall.ENOMEM, 1)
	err := r.region.Rereg(r.attr(), mr.ReregTranslation|mr.ReregPD|mr.ReregAccess)
	var re *mr.ReregError
	require.ErrorAs(t, err, &re)
	assert.Equal(t, mr.RegistrationNew, re.Holds)
	assert.ErrorContains(t, err, "the region is as was asked for")
	assert.Equal(t, newAccess, r.region.Access())
	assert.Equal(t, 8192, r.region.Len())
	assert.ErrorIs(t, r.newBuf.Close(), ibv.ErrBusy)
	assert.ErrorIs(t, r.newPD.Close(), ibv.ErrBusy)
	require.NoError(t, r.buf.Close())
}

func TestReregInFlight(t *testing.T) {
	r := newRereg(t, fakedev.Config{Rereg: true})
	qp := r.NewQP(t)
	qp.Post(t, ibv.Send(1, ibv.SendSignaled, r.region.SGE(0, 16)))
	err := r.region.Rereg(r.attr(), mr.ReregTranslation)
	var re *mr.ReregError
	require.ErrorAs(t, err, &re)
	assert.ErrorIs(t, err, syscall.EBUSY)
	assert.ErrorContains(t, err, "1 work requests in flight")
	assert.Equal(t, mr.RegistrationOld, re.Holds)
	qp.SQ.Complete(fakedev.Completion{})
	require.Len(t, fakedevtest.Poll(t, qp.Send), 1)
	r.holds(t, 0)
}

// Memory that was the region's own stays until its Close.
func TestReregMemoryOfItsOwn(t *testing.T) {
	r := newRereg(t, fakedev.Config{Rereg: true})
	own := r.NewRegion(t)
	require.NoError(t, own.Rereg(r.attr(), mr.ReregTranslation))
	assert.Equal(t, 8192, own.Len())
	require.NoError(t, own.Close())
	require.NoError(t, r.newBuf.Close())
}

func TestReregNotSupported(t *testing.T) {
	r := newRereg(t, fakedev.Config{})
	err := r.region.Rereg(r.attr(), mr.ReregTranslation)
	require.ErrorIs(t, err, ibv.ErrNotSupported)
	assert.ErrorContains(t, err, "register the memory anew instead; the region is as it was")
	r.holds(t, 0)
}

func TestReregOfARegionWithAWindow(t *testing.T) {
	b := fakedevtest.New(t, fakedev.Config{Rereg: true, MemoryWindows: true})
	r := b.NewRegion(t, ibv.AccessMWBind)
	qp, mw := b.NewQP(t), b.NewMW(t, ibv.MWType2)
	qp.Post(t, ibv.BindMW(1, ibv.SendSignaled, r.MWBind(mw, 0, 8, ibv.AccessRemoteRead)))
	qp.SQ.Complete(fakedev.Completion{})
	require.Len(t, fakedevtest.Poll(t, qp.Send), 1)
	err := r.Rereg(mr.ReregAttr{Access: ibv.AccessLocalWrite}, mr.ReregAccess)
	require.ErrorIs(t, err, ibv.ErrBusy)
	assert.ErrorContains(t, err, mw.String())
	qp.Post(t, ibv.Send(2, 0, r.SGE(0, 8))) // it can be used as before
	require.NoError(t, mw.Close())
	require.NoError(t, qp.Close())
	require.NoError(t, r.Rereg(mr.ReregAttr{Access: ibv.AccessLocalWrite}, mr.ReregAccess))
}

// A region that Rereg left without a registration is not used again, whatever Close says.
func TestSpoiledRegionStaysRefused(t *testing.T) {
	b := fakedevtest.New(t, fakedev.Config{Rereg: true})
	qp := b.NewQP(t)
	refused := func() {
		t.Helper()
		n, err := qp.PostSend(fakedevtest.Sends(b.Region, 1, 1))
		require.Zero(t, n)
		require.ErrorIs(t, err, ibv.ErrClosed)
	}
	b.FailRaw("ibv_rereg_mr", int(mr.ReregErrCmd), syscall.ENOMEM, 1)
	err := b.Region.Rereg(mr.ReregAttr{Access: newAccess}, mr.ReregAccess)
	require.ErrorIs(t, err, syscall.ENOMEM)
	refused()
	b.Fail("ibv_dereg_mr", syscall.EINVAL, 2)
	require.ErrorIs(t, b.Region.Close(), syscall.EINVAL)
	refused()
	require.ErrorIs(t, b.Region.CloseWhenIdle(t.Context()), syscall.EINVAL)
	refused()
	require.NoError(t, b.Region.Close())
}

// What is being closed cannot become a region's: it is closed, or the region has it.
func TestReregToWhatIsBeingClosed(t *testing.T) {
	b := fakedevtest.New(t, fakedev.Config{Rereg: true})
	for round := range 100 {
		buf, err := mr.Alloc(4 << 20)
		require.NoError(t, err)
		clear(buf.Bytes()) // so that there is much to unmap
		region := b.NewRegion(t)
		begins, closed := make(chan struct{}), make(chan error)
		go func() {
			close(begins)
			closed <- buf.Close()
		}()
		<-begins
		for range round {
			runtime.Gosched()
		}
		err = region.Rereg(mr.ReregAttr{Buffer: buf}, mr.ReregTranslation)
		if <-closed == nil {
			require.ErrorIs(t, err, ibv.ErrClosed, "round %d", round)
		} else {
			require.NoError(t, err)
		}
		require.NoError(t, errors.Join(region.Close(), buf.Close()))
	}
}
