//go:build rdma

package ibv_test

import (
	"context"
	"os"
	"os/exec"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/cq"
	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/rdmatest"
)

const ownNetdev = "gvdummy9"

// ownDevice makes a soft device that only this test has, and has Open take it.
func ownDevice(t *testing.T) (name string) {
	t.Helper()
	if os.Getenv("RXE_VIA") == "host" {
		t.Skip("makes and removes soft devices, which on this host are somebody's")
	}
	const addr = "198.51.100.9"
	name = "gvrxe9"
	tool(t, "ip", "link", "add", ownNetdev, "type", "dummy")
	t.Cleanup(func() { tool(t, "ip", "link", "delete", ownNetdev) })
	tool(t, "ip", "address", "add", addr+"/24", "dev", ownNetdev)
	tool(t, "ip", "link", "set", ownNetdev, "up")
	tool(t, "rdma", "link", "add", name, "type", "rxe", "netdev", ownNetdev)
	t.Cleanup(func() {
		if _, err := os.Stat("/sys/class/infiniband/" + name); err == nil {
			tool(t, "rdma", "link", "delete", name)
		}
	})
	t.Setenv("RXE_DEV", name)
	t.Setenv("RXE_ADDR", addr)
	require.Eventually(t, func() bool { // the GIDs come a moment later
		ctx, err := ibv.Open(name)
		if err != nil {
			return false
		}
		defer func() { assert.NoError(t, ctx.Close()) }()
		_, err = ctx.ChooseGID(ibv.GIDRequest{Local: rdmatest.Addr(t)})
		return err == nil
	}, 10*time.Second, 10*time.Millisecond)
	return name
}

func tool(t *testing.T, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput()
	require.NoError(t, err, "%v: %s", args, out)
}

// Port events come for the port that goes down and up. UD queue pairs learn the MTU that it
// came back with.
func TestPortEvents(t *testing.T) {
	ownDevice(t)
	p, _, toB := rdmatest.NewDatagrams(t)
	l := listen(t, p.Ctx)
	big := ibv.Send(1, 0, p.A.Region.SGE(0, 1500)).To(toB)
	_, err := p.A.QP.PostSend([]ibv.SendWR{big})
	require.ErrorContains(t, err, "longer than the port's active MTU 1024")

	tool(t, "ip", "link", "set", ownNetdev, "down")
	assert.Equal(t, ibv.PortEvent{Type: ibv.EventPortErr, Port: 1}, next(t, l))
	port, err := p.Ctx.QueryPort(1)
	require.NoError(t, err)
	assert.Equal(t, ibv.PortDown, port.State)

	tool(t, "ip", "link", "set", ownNetdev, "mtu", "4500")
	tool(t, "ip", "link", "set", ownNetdev, "up")
	assert.Equal(t, ibv.PortEvent{Type: ibv.EventPortActive, Port: 1}, next(t, l))
	_, err = p.A.QP.PostSend([]ibv.SendWR{big})
	require.NoError(t, err, "the MTU is 4096 now")
	p.A.Wait(t, 1)
}

func TestSRQLimitEvent(t *testing.T) {
	h := newHub(t, 1, 8, slotSize)
	h.post(t, slotSize, 0, 1, 2, 3, 4)
	l, p := listen(t, h.pd.Context()), h.pairs[0]
	require.NoError(t, h.srq.Modify(ibv.SRQAttr{Limit: 3}, ibv.SRQLimit))
	for i := range 3 {
		post(t, &p.A, ibv.Send(uint64(i), 0, p.A.Region.SGE(0, 64)))
		require.NoError(t, p.A.Wait(t, 1)[0].Err())
	}
	e := next(t, l)
	assert.Equal(t, ibv.SRQEvent{Type: ibv.EventSRQLimitReached, SRQ: h.srq}, e)
	assert.Same(t, h.srq, e.(ibv.SRQEvent).SRQ)
	h.in.Wait(t, 3)
	require.NoError(t, h.closeAll())
}

// The rdma_rxe of 6.12 says when a queue pair in ERR is done with its shared receive queue;
// that of 6.1 does not.
func TestLastWQEReachedEvent(t *testing.T) {
	h := newHub(t, 1, 8, slotSize)
	h.post(t, slotSize, 0, 1)
	l, qp := listen(t, h.pd.Context()), h.pairs[0].B.QP
	toState(t, qp, ibv.QPStateErr)
	if os.Getenv("RXE_KERNEL") != "6.1" {
		e := next(t, l)
		assert.Equal(t, ibv.QPEvent{Type: ibv.EventQPLastWQEReached, QP: qp}, e)
	}
	// Nothing else: the next event is one that is raised now.
	drainSQ(t, h.pairs[0].A.QP)
	assert.Equal(t, ibv.QPEvent{Type: ibv.EventSQDrained, QP: h.pairs[0].A.QP}, next(t, l))
	require.NoError(t, h.closeAll())
}

// drainSQ moves a queue pair to SQD, and asks for the event.
func drainSQ(t *testing.T, qp *ibv.QP) {
	t.Helper()
	require.NoError(t, qp.Modify(ibv.QPAttr{State: ibv.QPStateSQD, SQDrainedNotify: true}, ibv.AttrState|ibv.AttrSQDrainedNotify))
}

func TestSQDrainedEvent(t *testing.T) {
	p := rdmatest.NewPair(t, rdmatest.DefaultInit())
	l := listen(t, p.Ctx)
	for range 2 {
		drainSQ(t, p.A.QP)
		e := next(t, l)
		require.Equal(t, ibv.QPEvent{Type: ibv.EventSQDrained, QP: p.A.QP}, e)
		assert.Same(t, p.A.QP, e.(ibv.QPEvent).QP)
		toState(t, p.A.QP, ibv.QPStateRTS)
	}
}

// A bad rkey ends both queue pairs. The responder learns it from its flushed receives and
// from its state; no event tells it, on either kernel.
func TestBadRKeyRaisesNoEvent(t *testing.T) {
	p := rdmatest.NewPair(t, rdmatest.DefaultInit())
	l := listen(t, p.Ctx)
	_, err := p.B.QP.PostRecv([]ibv.RecvWR{ibv.Recv(1, p.B.Region.SGE(0, 64)), ibv.Recv(2, p.B.Region.SGE(64, 64))})
	require.NoError(t, err)
	remote := ibv.RemoteRange{Addr: 4096, Length: 64, RKey: 0xdead00}
	post(t, &p.A, ibv.Write(3, 0, remote, p.A.Region.SGE(0, 64)))
	assert.Equal(t, cq.StatusRemAccessErr, p.A.Wait(t, 1)[0].Status)
	for _, wc := range p.B.Wait(t, 2) {
		assert.Equal(t, cq.StatusWRFlushErr, wc.Status)
	}
	for _, qp := range []*ibv.QP{p.A.QP, p.B.QP} {
		state, err := qp.State()
		require.NoError(t, err)
		assert.Equal(t, ibv.QPStateErr, state)
	}
	other := rdmatest.Pair{Ctx: p.Ctx, PD: p.PD, Access: p.Access,
		A: rdmatest.NewSide(t, p.PD, rdmatest.DefaultInit()), B: rdmatest.NewSide(t, p.PD, rdmatest.DefaultInit())}
	other.Connect(t)
	drainSQ(t, other.A.QP)
	assert.Equal(t, ibv.QPEvent{Type: ibv.EventSQDrained, QP: other.A.QP}, next(t, l))
}

// An overrun fails the completion queue, and ends the queue pairs that report to it: rdma_rxe
// by itself would leave them in RTS, and polls of the queue would go on.
func TestCQOverrun(t *testing.T) {
	ctx := rdmatest.Open(t)
	p := &rdmatest.Pair{Ctx: ctx, PD: rdmatest.PD(t, ctx), Access: rdmatest.RemoteAccess}
	small := rdmatest.CQ(t, ctx, 4)
	lost := 8
	init := rdmatest.DefaultInit()
	init.Cap.MaxSendWR = uint32(small.Entries() + lost)
	qp, err := p.PD.CreateQP(init, ibv.QPQueues{Send: small, Recv: small})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, qp.Close()) })
	p.A = rdmatest.Side{QP: qp, CQ: small, Region: rdmatest.Region(t, p.PD, 4096)}
	p.B = rdmatest.NewSide(t, p.PD, rdmatest.DefaultInit())
	target := rdmatest.Region(t, p.PD, 4096, rdmatest.RemoteAccess)
	p.Connect(t)
	l := listen(t, ctx)

	var wrs []ibv.SendWR
	for i := range small.Entries() + lost {
		wrs = append(wrs, ibv.Write(uint64(i), 0, target.Remote(), p.A.Region.SGE(0, 64)))
	}
	n, err := qp.PostSend(wrs)
	require.NoError(t, err)
	require.Len(t, wrs, n)

	e := next(t, l)
	assert.Equal(t, ibv.CQEvent{Type: ibv.EventCQErr, CQ: small}, e)
	assert.Same(t, small, e.(ibv.CQEvent).CQ)
	assert.Equal(t, ibv.EventSQDrained, func() ibv.EventType { // it is not told again
		drainSQ(t, p.B.QP)
		return next(t, l).EventType()
	}())
	state, err := qp.State()
	require.NoError(t, err)
	assert.Equal(t, ibv.QPStateErr, state)

	wcs := make([]cq.WC, 2*small.Entries()+lost)
	n, err = small.Poll(wcs)
	require.ErrorIs(t, err, syscall.EIO)
	require.ErrorContains(t, err, small.String()+": the completion queue failed")
	require.GreaterOrEqual(t, n, small.Entries(), "what was there comes first")
	for i := range wcs[:small.Entries()] {
		assert.Equal(t, uint64(i), wcs[i].WRID)
	}
	_, err = qp.PostSend(wrs[:1]) // in ERR it is accepted, to be flushed
	require.NoError(t, err)
	require.NoError(t, qp.Close())
	require.NoError(t, small.Close())
	assert.Zero(t, p.A.Region.InFlight())
}

// `rdma link delete` raises no event, and waits until the device is closed: in the middle of
// traffic CloseAll is all that it takes.
func TestLinkDeleteDuringTraffic(t *testing.T) {
	name := ownDevice(t)
	p := rdmatest.NewPair(t, rdmatest.DefaultInit())
	target := rdmatest.Region(t, p.PD, 4096, rdmatest.RemoteAccess)
	var writes atomic.Int64
	traffic := make(chan error, 1)
	wrs := []ibv.SendWR{ibv.Write(1, 0, target.Remote(), p.A.Region.SGE(0, 4096))}
	go func() {
		for {
			if _, err := p.A.QP.PostSend(wrs); err != nil {
				traffic <- err
				return
			}
			for n := 0; n == 0; {
				var err error
				if n, err = p.A.CQ.Poll(make([]cq.WC, 1)); err != nil {
					traffic <- err
					return
				}
			}
			writes.Add(1)
		}
	}()

	deleted := make(chan error, 1)
	go func() { deleted <- exec.Command("rdma", "link", "delete", name).Run() }()
	for range 50 { // the traffic goes on while the deletion waits
		before := writes.Load()
		require.Eventually(t, func() bool { return writes.Load() > before }, 10*time.Second, time.Millisecond)
	}
	require.Empty(t, deleted, "it waits for the device to be closed")
	require.NoError(t, p.Ctx.CloseAll())
	require.ErrorIs(t, <-traffic, ibv.ErrClosed)
	select {
	case err := <-deleted:
		require.NoError(t, err)
	case <-time.After(20 * time.Second):
		require.Fail(t, "rdma link delete waits on")
	}
	_, err := ibv.Open(name)
	require.ErrorIs(t, err, ibv.ErrNoDevice)
}
