//go:build cgo && linux && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package ibv_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/cq"
	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/fakedev"
	"github.com/goverbs/goverbs/internal/fakedev/fakedevtest"
	"github.com/goverbs/goverbs/mr"
)

func TestNoSGEsUseNoRegion(t *testing.T) {
	b := fakedevtest.New(t, fakedev.Config{})
	qp := b.NewQP(t)
	sge := b.Region.SGE(0, 8)
	qp.Post(t, ibv.Send(1, ibv.SendSignaled, sge), ibv.Send(2, ibv.SendSignaled), ibv.Send(3, ibv.SendSignaled, sge))
	assert.Equal(t, 2, b.Region.InFlight())
	qp.SQ.Complete(fakedev.Completion{})
	qp.SQ.Complete(fakedev.Completion{})
	require.Len(t, fakedevtest.Poll(t, qp.Send), 2)
	assert.Equal(t, 1, b.Region.InFlight())
	qp.SQ.Complete(fakedev.Completion{})
	require.Len(t, fakedevtest.Poll(t, qp.Send), 1)
	require.NoError(t, b.Region.Close())
}

// sendMaker makes sends that are mostly alike, so that runs of them are built together,
// with here and there an odd one, that may be refused.
type sendMaker struct {
	*rand.Rand
	typ     ibv.QPType
	often   float64 // the share of what is odd
	regions []*mr.Region
	bare    ibv.SGE // of no region
	gone    ibv.SGE // of a closed one
	ah      *ibv.AH
}

func newSendMaker(t *testing.T, b *fakedevtest.Bench, typ ibv.QPType) *sendMaker {
	m := &sendMaker{Rand: rand.New(rand.NewPCG(1, uint64(typ))), typ: typ, ah: b.NewAH(t)}
	b.Keep(m.ah)
	alloc := func(pd *ibv.PD, access ibv.AccessFlags) *mr.Region {
		r, err := mr.AllocRegion(pd, 4096, access)
		require.NoError(t, err)
		b.Keep(r)
		return r
	}
	other, err := b.Ctx.AllocPD()
	require.NoError(t, err)
	b.Keep(other)
	m.regions = []*mr.Region{b.Region, b.NewRegion(t), alloc(b.PD, 0), alloc(other, ibv.AccessLocalWrite)}
	closed := b.NewRegion(t)
	m.gone = closed.SGE(0, 8)
	require.NoError(t, closed.Close())
	m.bare = ibv.SGE{Addr: b.Region.IOVA(), Length: 7, LKey: b.Region.LKey()}
	return m
}

func (m *sendMaker) odd() bool     { return m.Float64() < m.often }
func (m *sendMaker) veryOdd() bool { return m.Float64() < m.often*m.often }

func (m *sendMaker) sge() ibv.SGE {
	r := m.regions[0]
	if m.odd() {
		r = m.regions[m.IntN(len(m.regions))]
	}
	switch {
	case m.odd():
		return m.bare
	case m.veryOdd():
		return m.gone
	}
	return r.SGE(m.IntN(16), m.IntN(40))
}

func (m *sendMaker) send() ibv.SendWR {
	n := 1
	if m.odd() {
		n = m.IntN(5)
	}
	wr := ibv.Send(m.Uint64(), ibv.SendFlags(m.IntN(8)))
	for range n {
		wr.SGEs = append(wr.SGEs, m.sge())
	}
	if m.typ != ibv.QPTypeRC && !m.odd() {
		wr.Flags &^= ibv.SendFence
	}
	switch {
	case m.odd():
		if wr.Opcode = ibv.Opcode(m.IntN(20)); wr.Opcode == ibv.OpBindMW {
			wr.Opcode = ibv.OpSend
		}
	case m.IntN(3) == 0 && m.typ != ibv.QPTypeUD:
		wr.Opcode = ibv.OpWrite
	case m.IntN(4) == 0 && m.typ == ibv.QPTypeRC:
		wr.Opcode = ibv.OpRead
	}
	if m.odd() {
		wr.Flags |= ibv.SendInline
	}
	if m.veryOdd() {
		wr.Flags |= []ibv.SendFlags{1 << 4, 1 << 31}[m.IntN(2)] // of which there is neither
	}
	if m.odd() {
		wr.Inline = make([]byte, m.IntN(40))
	}
	wr.Remote = ibv.RemoteRange{Addr: 8 * uint64(m.IntN(9)), Length: 1 << 20, RKey: m.Uint32()}
	if m.odd() {
		wr.Remote.Length = uint64(m.IntN(60))
	}
	wr.Imm, wr.RKey, wr.Swap, wr.CompareAdd = m.Uint32(), m.Uint32(), m.Uint64(), m.Uint64()
	if m.typ == ibv.QPTypeUD {
		wr.Datagram = ibv.Datagram{AH: m.ah, QPN: 4, QKey: 5}
	}
	return wr
}

// posted is all that a post leaves to see, in text, but for what is the queue pair's own.
// The device has it afterwards no more.
func (m *sendMaker) posted(t *testing.T, qp *fakedevtest.QP, wrs []ibv.SendWR, post func([]ibv.SendWR) (int, error)) string {
	t.Helper()
	var before []int
	for _, r := range m.regions {
		before = append(before, r.InFlight())
	}
	n, err := post(wrs)
	all := []string{fmt.Sprint(n, " accepted")}
	if err != nil {
		all = append(all, strings.ReplaceAll(err.Error(), qp.String(), "QP"))
	}
	for i, r := range m.regions {
		all = append(all, fmt.Sprintf("%d uses of region %d", r.InFlight()-before[i], i))
	}
	devices := qp.SQ.Posted()
	require.Len(t, devices, n)
	last := -1
	for i, w := range devices {
		const position = 1<<21 - 1
		w.WRID &= position
		if w.Inline != nil {
			w.SGEs = nil // where the copy was
		}
		if w.Signaled {
			last = i
		}
		all = append(all, fmt.Sprintf("%+v", w))
	}
	if last >= 0 { // one completion that covers the others
		qp.SQ.Complete(fakedev.Completion{Index: last, Status: int(cq.StatusRetryExcErr)})
		for _, wc := range fakedevtest.Poll(t, qp.Send) {
			all = append(all, fmt.Sprint("completed ", wc.WRID))
		}
	}
	sends, _ := qp.InFlight()
	all = append(all, fmt.Sprint(sends, " left"))
	for i, r := range m.regions {
		all = append(all, fmt.Sprintf("%d uses of region %d left", r.InFlight()-before[i], i))
	}
	qp.Reset(t)
	qp.Ready(t)
	return strings.Join(all, "\n")
}

// oneByOne posts each by itself, and says what a post of all would.
func oneByOne(qp *fakedevtest.QP) func([]ibv.SendWR) (int, error) {
	return func(wrs []ibv.SendWR) (int, error) {
		for i := range wrs {
			if _, err := qp.PostSend(wrs[i : i+1]); err != nil {
				var pe *ibv.PostError
				if errors.As(err, &pe) {
					pe.Accepted, pe.Index = pe.Accepted+i, pe.Index+i
				}
				return i, err
			}
		}
		return len(wrs), nil
	}
}

// TestBatchesAreWhatTheirPartsAre: however work requests are built and posted, the same
// are accepted, refused for the same reason, seen by the device, and covered by completions.
func TestBatchesAreWhatTheirPartsAre(t *testing.T) {
	for _, typ := range []ibv.QPType{ibv.QPTypeRC, ibv.QPTypeUC, ibv.QPTypeUD} {
		t.Run(typ.String(), func(t *testing.T) {
			b := fakedevtest.New(t, fakedev.Config{})
			m := newSendMaker(t, b, typ)
			newQP := func() *fakedevtest.QP {
				return b.NewQP(t, func(in *ibv.QPInitAttr, _ *ibv.QPQueues) {
					in.Type, in.Cap.MaxSendSGE, in.Cap.MaxInlineData = typ, 3, 32
				})
			}
			atOnce, singly, slow := newQP(), newQP(), newQP()
			refused := 0
			const rounds = 400
			for round := range rounds {
				m.often = []float64{0.003, 0.02, 0.2}[m.IntN(3)]
				wrs := make([]ibv.SendWR, 1+m.IntN(40))
				for i := range wrs {
					wrs[i] = m.send()
				}
				want := m.posted(t, atOnce, wrs, atOnce.PostSend)
				require.Equal(t, m.posted(t, singly, wrs, oneByOne(singly)), want, "round %d, one by one", round)
				ibv.WithoutRuns(slow.QP)
				require.Equal(t, m.posted(t, slow, wrs, slow.PostSend), want, "round %d, without runs", round)
				if !strings.HasPrefix(want, fmt.Sprint(len(wrs), " accepted")) {
					refused++
				}
			}
			assert.Greater(t, refused, rounds/4, "too few that are refused")
			assert.Less(t, refused, 3*rounds/4, "too few that are not")
		})
	}
}
