//go:build cgo && linux && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package ibv_test

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/cq"
	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/fakedev"
	"github.com/goverbs/goverbs/internal/fakedev/fakedevtest"
)

// TestSQE has a UC or UD queue pair whose send failed: the device moves it to SQE, where
// sends are flushed and receives go on, and the program takes it back to RTS.
func TestSQE(t *testing.T) {
	for _, typ := range []ibv.QPType{ibv.QPTypeUC, ibv.QPTypeUD} {
		t.Run(typ.String(), func(t *testing.T) {
			b := fakedevtest.New(t, fakedev.Config{})
			qp := b.NewQP(t, func(i *ibv.QPInitAttr, _ *ibv.QPQueues) { i.Type = typ })
			ah := b.NewAH(t)
			b.Keep(ah)
			send := func(id uint64) ibv.SendWR {
				wr := ibv.Send(id, ibv.SendSignaled, b.Region.SGE(0, 16))
				if typ == ibv.QPTypeUD {
					wr = wr.To(ibv.Datagram{AH: ah, QPN: 5, QKey: 6})
				}
				return wr
			}
			qp.Post(t, send(1), send(2))
			_, err := qp.PostRecv([]ibv.RecvWR{ibv.Recv(3, b.Region.SGE(0, 64))})
			require.NoError(t, err)
			qp.SQ.Complete(fakedev.Completion{Status: int(cq.StatusLocProtErr)})
			b.SetQPState(qp.Num(), int(ibv.QPStateSQE))
			qp.SQ.Complete(fakedev.Completion{Status: int(cq.StatusWRFlushErr)})
			wcs := fakedevtest.Poll(t, qp.Send)
			assert.Equal(t, []uint64{1, 2}, fakedevtest.IDs(wcs))
			var e *cq.Error
			require.ErrorAs(t, wcs[1].Err(), &e)
			assert.False(t, e.Unexplained)

			state, err := qp.State()
			require.NoError(t, err)
			assert.Equal(t, ibv.QPStateSQE, state)
			err = qp.Modify(ibv.QPAttr{State: ibv.QPStateSQD}, ibv.AttrState)
			assert.ErrorIs(t, err, syscall.EINVAL)
			assert.ErrorContains(t, err, "SQE")
			assert.Equal(t, int(ibv.QPStateSQE), b.QP(qp.Num()).State)

			require.NoError(t, qp.Modify(ibv.QPAttr{State: ibv.QPStateRTS}, ibv.AttrState))
			qp.Post(t, send(4))
			qp.SQ.Complete(fakedev.Completion{})
			qp.RQ.Complete(fakedev.Completion{})
			assert.Equal(t, []uint64{4, 3}, fakedevtest.IDs(fakedevtest.Poll(t, qp.Send)))
			assert.Zero(t, b.Region.InFlight())
			require.NoError(t, ah.Close())
		})
	}
}

// TestErrBehindTheBack: the library remembers RTS, and asks the device before it refuses.
func TestErrBehindTheBack(t *testing.T) {
	b := fakedevtest.New(t, fakedev.Config{})
	qp := b.NewQP(t)
	b.SetQPState(qp.Num(), int(ibv.QPStateErr))
	qp.Post(t, fakedevtest.Sends(b.Region, 0, 1)...)
	err := qp.Modify(ibv.QPAttr{State: ibv.QPStateRTS}, ibv.AttrState)
	assert.ErrorIs(t, err, syscall.EINVAL)
	assert.ErrorContains(t, err, "the device moved the QP from RTS to ERR by itself")
	qp.Reset(t)
	assert.Zero(t, b.Region.InFlight())
	qp.Ready(t)
	qp.Post(t, fakedevtest.Sends(b.Region, 0, 1)...)
}
