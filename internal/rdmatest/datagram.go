package rdmatest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/ibv"
)

// QKey is that of the queue pairs of NewDatagrams.
const QKey = 0x1234

// NewDatagrams makes two UD queue pairs in RTS, and what addresses each of them; change edits
// what they are made of.
func NewDatagrams(t testing.TB, change ...func(*ibv.QPInitAttr)) (p *Pair, toA, toB ibv.Datagram) {
	t.Helper()
	init := DefaultInit()
	init.Type = ibv.QPTypeUD
	for _, f := range change {
		f(&init)
	}
	ctx := Open(t)
	p = &Pair{Ctx: ctx, PD: PD(t, ctx)}
	p.A, p.B = NewSide(t, p.PD, init), NewSide(t, p.PD, init)
	choice, err := ctx.ChooseGID(ibv.GIDRequest{Local: Addr(t)})
	require.NoError(t, err)
	ah, err := p.PD.CreateAH(ibv.AHAttr{
		IsGlobal: true,
		Port:     choice.Entry.Port,
		GRH:      ibv.GRH{DGID: choice.Entry.GID, SGIDIndex: uint8(choice.Entry.Index), HopLimit: 64},
	})
	require.NoError(t, err)
	closeAtEnd(t, ah.Close)
	for _, s := range []*Side{&p.A, &p.B} {
		ReadyDatagrams(t, s.QP, choice.Entry.Port)
	}
	return p, ibv.Datagram{AH: ah, QPN: p.A.QP.Num(), QKey: QKey}, ibv.Datagram{AH: ah, QPN: p.B.QP.Num(), QKey: QKey}
}

// ReadyDatagrams takes a UD queue pair from RESET to RTS.
func ReadyDatagrams(t testing.TB, qp *ibv.QP, port uint8) {
	t.Helper()
	require.NoError(t, qp.Modify(ibv.QPAttr{State: ibv.QPStateInit, Port: port, QKey: QKey},
		ibv.AttrState|ibv.AttrPKeyIndex|ibv.AttrPort|ibv.AttrQKey))
	require.NoError(t, qp.Modify(ibv.QPAttr{State: ibv.QPStateRTR}, ibv.AttrState))
	require.NoError(t, qp.Modify(ibv.QPAttr{State: ibv.QPStateRTS}, ibv.AttrState|ibv.AttrSQPSN))
}
