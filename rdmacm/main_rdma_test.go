//go:build rdma

package rdmacm_test

import (
	"context"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/cq"
	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/rdmatest"
	"github.com/goverbs/goverbs/mr"
	"github.com/goverbs/goverbs/rdmacm"
)

func TestMain(m *testing.M) {
	_, _ = rdmacm.Devices() // which librdmacm opens, and never closes
	rdmatest.Main(m)
}

// patience is how long any one step may take, on a slow machine too.
const patience = 20 * time.Second

func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// channel makes an event channel until the test ends, which has a limit of time from then on.
func channel(t testing.TB) *rdmacm.EventChannel {
	t.Helper()
	rdmatest.Watchdog(t, rdmatest.Limit())
	c, err := rdmacm.CreateEventChannel()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.CloseAll()) })
	return c
}

// next is the id's next event, which must be of that type.
func next(t testing.TB, id *rdmacm.ID, want rdmacm.EventType) *rdmacm.Event {
	t.Helper()
	e, err := id.GetEvent(within(t))
	require.NoError(t, err)
	require.Equal(t, want, e.Type, "%v: %v", e, e.Err())
	return e
}

// listen makes a listener at a port of the device that the kernel chooses.
func listen(t testing.TB, c *rdmacm.EventChannel, ps rdmacm.PortSpace) *rdmacm.ID {
	t.Helper()
	l := bound(t, c, ps)
	require.NoError(t, l.Listen(0))
	require.NotZero(t, l.LocalAddr().Port())
	return l
}

// bound makes an id that can listen.
func bound(t testing.TB, c *rdmacm.EventChannel, ps rdmacm.PortSpace) *rdmacm.ID {
	t.Helper()
	id, err := c.CreateID(ps)
	require.NoError(t, err)
	require.NoError(t, id.BindAddr(netip.AddrPortFrom(rdmatest.Addr(t), 0)))
	t.Cleanup(func() { require.NoError(t, id.Close()) }) // which holds it
	return id
}

// resolved makes an id that can connect to the address.
func resolved(t testing.TB, c *rdmacm.EventChannel, ps rdmacm.PortSpace, to netip.AddrPort) *rdmacm.ID {
	t.Helper()
	id, err := c.CreateID(ps)
	require.NoError(t, err)
	require.NoError(t, id.ResolveAddr(netip.AddrPort{}, to, patience))
	next(t, id, rdmacm.EventAddrResolved)
	require.NoError(t, id.ResolveRoute(patience))
	next(t, id, rdmacm.EventRouteResolved)
	return id
}

// side is what an id needs to send and receive.
type side struct {
	id     *rdmacm.ID
	pd     *ibv.PD
	ch     *cq.Channel
	cq     *cq.CQ
	qp     *ibv.QP
	region *mr.Region
}

// The numbers of work requests.
const (
	idRecv = 1
	idSend = 2
)

// equip gives an id a queue pair with a receive posted.
func equip(t testing.TB, id *rdmacm.ID) *side {
	t.Helper()
	s := equipped(t, id)
	init := rdmatest.DefaultInit()
	if id.PortSpace() == rdmacm.PortSpaceUDP {
		init.Type = ibv.QPTypeUD
	}
	var err error
	s.qp, err = id.CreateQP(s.pd, init, ibv.QPQueues{Send: s.cq, Recv: s.cq})
	require.NoError(t, err)
	s.receive(t)
	return s
}

// equipped makes all but the queue pair, until the test ends.
func equipped(t testing.TB, id *rdmacm.ID) *side {
	t.Helper()
	ctx, err := id.Context()
	require.NoError(t, err)
	s := &side{id: id}
	s.pd, err = ctx.AllocPD()
	require.NoError(t, err)
	s.ch, err = cq.NewChannel(ctx)
	require.NoError(t, err)
	s.cq, err = cq.Create(ctx, cq.InitAttr{Entries: 64, Channel: s.ch})
	require.NoError(t, err)
	s.region, err = mr.AllocRegion(s.pd, 4096, ibv.AccessLocalWrite)
	require.NoError(t, err)
	t.Cleanup(func() { s.close(t) })
	return s
}

// close closes it all. It may be called again.
func (s *side) close(t testing.TB) {
	t.Helper()
	require.NoError(t, s.id.Close())
	require.NoError(t, s.cq.Close())
	require.NoError(t, s.ch.Close())
	require.NoError(t, s.region.Close())
	require.NoError(t, s.pd.Close())
}

func (s *side) receive(t testing.TB) {
	t.Helper()
	_, err := s.qp.PostRecv([]ibv.RecvWR{ibv.Recv(idRecv, s.region.SGE(1024, 1024))})
	require.NoError(t, err)
}

// send sends text.
func (s *side) send(t testing.TB, text string) {
	t.Helper()
	s.post(t, ibv.Send(idSend, 0, s.region.SGE(0, copy(s.region.Bytes(), text))))
}

// sendTo sends text as a datagram.
func (s *side) sendTo(t testing.TB, to rdmacm.UDParam, text string) {
	t.Helper()
	ah, err := s.pd.CreateAH(to.AH)
	require.NoError(t, err)
	s.post(t, ibv.Send(idSend, 0, s.region.SGE(0, copy(s.region.Bytes(), text))).
		To(ibv.Datagram{AH: ah, QPN: to.QPNum, QKey: to.QKey}))
	for {
		wc := s.completion(t)
		require.Equal(t, cq.StatusSuccess, wc.Status, "%v", wc)
		if wc.WRID == idSend { // not what a group sends to the sender too
			break
		}
	}
	t.Cleanup(func() { require.NoError(t, ah.Close()) }) // rdma_rxe needs it a little longer
}

func (s *side) post(t testing.TB, wr ibv.SendWR) {
	t.Helper()
	_, err := s.qp.PostSend([]ibv.SendWR{wr})
	require.NoError(t, err)
}

// completion waits for the next completion.
func (s *side) completion(t testing.TB) cq.WC {
	t.Helper()
	wcs := make([]cq.WC, 1)
	_, err := s.cq.Wait(within(t), wcs)
	require.NoError(t, err)
	return wcs[0]
}

// received waits for a message and returns its text.
func (s *side) received(t testing.TB) string {
	t.Helper()
	for {
		wc := s.completion(t)
		require.Equal(t, cq.StatusSuccess, wc.Status, "%v", wc)
		if wc.WRID == idRecv {
			return string(s.region.Bytes()[1024 : 1024+wc.ByteLen()])
		}
	}
}

// connected makes two ids that are connected with each other, on one channel.
func connected(t testing.TB, c *rdmacm.EventChannel) (client, server *side) {
	t.Helper()
	l := listen(t, c, rdmacm.PortSpaceTCP)
	client = equip(t, resolved(t, c, rdmacm.PortSpaceTCP, l.LocalAddr()))
	require.NoError(t, client.id.Connect(rdmacm.DefaultConnParam()))
	server = equip(t, next(t, l, rdmacm.EventConnectRequest).ID)
	require.NoError(t, server.id.Accept(rdmacm.DefaultConnParam()))
	next(t, client.id, rdmacm.EventEstablished)
	next(t, server.id, rdmacm.EventEstablished)
	return client, server
}

// routed says whether this host has a route to the address.
func routed(t testing.TB, to netip.Addr) bool {
	t.Helper()
	conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, 9)))
	if err != nil {
		return false
	}
	require.NoError(t, conn.Close())
	return true
}
