//go:build cgo && linux && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package ibv_test

import (
	"errors"
	"fmt"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/cq"
	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/fakedev"
	"github.com/goverbs/goverbs/internal/fakedev/fakedevtest"
	"github.com/goverbs/goverbs/mr"
)

// batch is how many work requests the library gives to the device in one call.
const batch = 32

// rig posts to one kind of queue, and can do the rest that a refused post needs.
type rig struct {
	b    *fakedevtest.Bench
	kind string
	qp   *fakedevtest.QP
	srq  *ibv.SRQ
}

func newRig(t *testing.T, b *fakedevtest.Bench, kind string) *rig {
	t.Helper()
	r := &rig{b: b, kind: kind}
	r.make(t)
	return r
}

func (r *rig) make(t *testing.T) {
	t.Helper()
	r.qp = r.b.NewQP(t, func(_ *ibv.QPInitAttr, queues *ibv.QPQueues) {
		if r.kind == "SRQ" {
			r.srq = r.b.NewSRQ(t)
			queues.SRQ = r.srq
		}
	})
}

func (r *rig) queue() fakedev.Queue {
	switch r.kind {
	case "send":
		return r.qp.SQ
	case "receive":
		return r.qp.RQ
	}
	return r.b.SRQ(r.b.QP(r.qp.Num()).SRQ)
}

func (r *rig) post(region *mr.Region, n int) (int, error) {
	switch r.kind {
	case "send":
		return r.qp.PostSend(fakedevtest.Sends(region, 0, n))
	case "receive":
		return r.qp.PostRecv(fakedevtest.Recvs(region, 0, n))
	}
	return r.srq.PostRecv(fakedevtest.Recvs(region, 0, n))
}

// flush completes all that the device has.
func (r *rig) flush() {
	for q := r.queue(); len(q.WRIDs()) > 0; {
		q.Complete(fakedev.Completion{Status: int(cq.StatusWRFlushErr), QPN: r.qp.Num()})
	}
}

// forget ends the life of what the device never had, so that it cannot complete.
func (r *rig) forget(t *testing.T) {
	t.Helper()
	if r.kind != "SRQ" {
		r.qp.Reset(t)
		r.qp.Ready(t)
		return
	}
	require.NoError(t, r.qp.Close())
	require.NoError(t, r.srq.Close())
	require.NoError(t, r.qp.Send.Close())
	r.make(t)
}

// refusedPost is one way to refuse a post.
type refusedPost struct {
	rc, errno int
	want      syscall.Errno
	bad       fakedev.BadWR
	taken     fakedev.Taken
	at, chain int
}

// owned says what the caller no longer owns after it, and which WR is to be named.
func (c *refusedPost) owned(sends bool) (accepted, index int) {
	first := c.at / batch * batch // of the call that is refused
	switch {
	case c.bad == fakedev.BadNamed:
		return c.at, c.at
	case sends && c.want != syscall.EOPNOTSUPP:
		return min(first+batch, c.chain), -1
	}
	return first, -1
}

// has says what the device has: the calls before, and of the refused one what it took.
func (c *refusedPost) has() int {
	first := c.at / batch * batch
	switch c.taken {
	case fakedev.TakenBefore:
		return c.at
	case fakedev.TakenAll:
		return min(first+batch, c.chain)
	}
	return first
}

// refusedPosts has each way in which a provider can refuse, at each place of a chain.
func refusedPosts(chain int) (all []refusedPost) {
	errnos := []struct {
		rc, errno int
		want      syscall.Errno
	}{
		{int(syscall.EINVAL), fakedev.KeepErrno, syscall.EINVAL},
		{int(syscall.EOPNOTSUPP), fakedev.KeepErrno, syscall.EOPNOTSUPP},
		{int(syscall.ENOMEM), int(syscall.EBADF), syscall.ENOMEM}, // errno means nothing here
		{-int(syscall.ENOSPC), fakedev.KeepErrno, syscall.ENOSPC},
		{-1, int(syscall.EFAULT), syscall.EFAULT},
		{-1, fakedev.KeepErrno, syscall.EPROTO},
	}
	if chain > batch {
		errnos = errnos[:2] // how they are told does not depend on the place
	}
	for _, e := range errnos {
		for _, bad := range []fakedev.BadWR{fakedev.BadNamed, fakedev.BadUntouched, fakedev.BadOutside} {
			for _, taken := range []fakedev.Taken{fakedev.TakenBefore, fakedev.TakenNone, fakedev.TakenAll} {
				for at := range chain {
					all = append(all, refusedPost{e.rc, e.errno, e.want, bad, taken, at, chain})
				}
			}
		}
	}
	return all
}

// TestRefusedPosts compares what the library counts as owned with its rule: what stands
// before the WR that is named; if none is, all of a call's sends and none of its
// receives. That holds whatever the device has really taken.
func TestRefusedPosts(t *testing.T) {
	for _, kind := range []string{"send", "receive", "SRQ"} {
		for _, chain := range []int{5, 40} {
			t.Run(fmt.Sprintf("%s, chain of %d", kind, chain), func(t *testing.T) {
				r := newRig(t, fakedevtest.New(t, fakedev.Config{}), kind)
				for _, c := range refusedPosts(chain) {
					c.check(t, r)
					if t.Failed() {
						t.Fatalf("the above is of %+v", c)
					}
				}
			})
		}
	}
}

func (c *refusedPost) check(t *testing.T, r *rig) {
	region := r.b.NewRegion(t)
	r.queue().FailPost(fakedev.Refusal{Index: c.at, RC: c.rc, Errno: c.errno, Bad: c.bad, Taken: c.taken})
	n, err := r.post(region, c.chain)
	accepted, index := c.owned(r.kind == "send")
	assert.Equal(t, accepted, n)
	c.checkError(t, err, r, accepted, index)

	assert.Equal(t, accepted, region.InFlight())
	if accepted > 0 {
		assert.ErrorIs(t, region.Close(), ibv.ErrBusy)
	}
	require.Len(t, r.queue().WRIDs(), c.has())
	r.flush()
	wcs := fakedevtest.Poll(t, r.qp.Recv)
	require.Len(t, wcs, c.has())
	for i := range wcs {
		known := i < accepted
		assert.Equal(t, !known, wcs[i].Foreign(), "WR %d", i)
		if known {
			assert.Equal(t, uint64(i), wcs[i].WRID)
			assert.Equal(t, r.kind != "send", wcs[i].IsRecv())
		}
	}
	left := max(0, accepted-c.has())
	assert.Equal(t, left, region.InFlight(), "what the device never had does not complete")
	if left > 0 {
		assert.ErrorIs(t, region.Close(), syscall.EBUSY)
		r.forget(t)
	}
	assert.Zero(t, region.InFlight())
	require.NoError(t, region.Close())

	n, err = r.post(r.b.Region, c.chain)
	require.NoError(t, err, "the queue works after it")
	require.Equal(t, c.chain, n)
	r.flush()
	require.Len(t, fakedevtest.Poll(t, r.qp.Recv), c.chain)
}

var verbOf = map[string]string{"send": "ibv_post_send", "receive": "ibv_post_recv", "SRQ": "ibv_post_srq_recv"}

func (c *refusedPost) checkError(t *testing.T, err error, r *rig, accepted, index int) {
	var pe *ibv.PostError
	require.ErrorAs(t, err, &pe)
	assert.Equal(t, accepted, pe.Accepted)
	assert.Equal(t, index, pe.Index)
	assert.ErrorIs(t, err, c.want)
	assert.Equal(t, verbOf[r.kind], pe.Op)
	assert.Equal(t, r.name(), pe.Object)
	full := c.want == syscall.ENOMEM || c.want == syscall.ENOSPC
	assert.Equal(t, full, errors.Is(err, ibv.ErrQueueFull), "%v", err)
	assert.Equal(t, c.want == syscall.EOPNOTSUPP, errors.Is(err, ibv.ErrNotSupported), "%v", err)
}
