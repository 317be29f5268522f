//go:build cgo && linux && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package ibv_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/cq"
	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/fakedev"
	"github.com/goverbs/goverbs/internal/fakedev/fakedevtest"
)

// TestStaleCompletionsTakeNoPlace has a device that leaves in a completion queue what a queue
// pair has completed, when that is reset or closed. What is posted next fits all the same, as
// even a strict queue has counted.
func TestStaleCompletionsTakeNoPlace(t *testing.T) {
	const depth = 64
	for name, bind := range map[string]bool{"completed": false, "flushed for the sake of a bind": true} {
		for end, again := range map[string]bool{"reset": true, "closed": false} {
			t.Run(name+", "+end, func(t *testing.T) {
				b := fakedevtest.New(t, fakedev.Config{Complete: true, MemoryWindows: true, KeepCompletions: true})
				q, err := cq.Create(b.Ctx, cq.InitAttr{Entries: depth, Strict: true})
				require.NoError(t, err)
				region, mw := b.NewRegion(t, ibv.AccessMWBind), b.NewMW(t, ibv.MWType1)
				newQP := func() *fakedevtest.QP {
					return b.NewQP(t, func(_ *ibv.QPInitAttr, queues *ibv.QPQueues) { queues.Recv = q })
				}
				qp := newQP()
				for range 2 {
					_, err := qp.PostRecv(fakedevtest.Recvs(b.Region, 1, depth))
					require.NoError(t, err)
					if bind {
						require.NoError(t, qp.BindMW(1, 0, region.MWBind(mw, 0, 64, ibv.AccessRemoteRead)))
					} else {
						completeAll(qp, depth)
					}
					if again {
						qp.Reset(t)
						qp.Ready(t)
					} else {
						require.NoError(t, qp.Close())
						qp = newQP()
					}
				}
				_, err = qp.PostRecv(fakedevtest.Recvs(b.Region, 1, depth))
				require.NoError(t, err)
				completeAll(qp, depth)
				var wcs [depth]cq.WC
				n, err := q.Poll(wcs[:])
				require.NoError(t, err)
				assert.Equal(t, depth, n)
				require.NoError(t, mw.Close())
			})
		}
	}
}

func completeAll(qp *fakedevtest.QP, n int) {
	for range n {
		qp.RQ.Complete(fakedev.Completion{})
	}
}
