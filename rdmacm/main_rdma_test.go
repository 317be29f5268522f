//go:build rdma

package rdmacm_test

import (
	"context"
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
	l, err := c.CreateID(ps)
	require.NoError(t, err)
	require.NoError(t, l.BindAddr(netip.AddrPortFrom(rdmatest.Addr(t), 0)))
	require.NoError(t, l.Listen(0))
	require.NotZero(t, l.LocalAddr().Port())
	return l
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
	cq     *cq.CQ
	qp     *ibv.QP
	region *mr.Region
}

// equip gives an id a queue pair with a receive posted, of all but the start of 4 KiB.
func equip(t testing.TB, id *rdmacm.ID) *side {
	t.Helper()
	ctx, err := id.Context()
	require.NoError(t, err)
	s := &side{id: id}
	// Later than the channel's, of which this hangs: cleanups run backwards.
	s.pd, err = ctx.AllocPD()
	require.NoError(t, err)
	ch, err := cq.NewChannel(ctx)
	require.NoError(t, err)
	s.cq, err = cq.Create(ctx, cq.InitAttr{Entries: 64, Channel: ch})
	require.NoError(t, err)
	s.region, err = mr.AllocRegion(s.pd, 4096, ibv.AccessLocalWrite)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, id.Close())
		require.NoError(t, s.cq.Close())
		require.NoError(t, ch.Close())
		require.NoError(t, s.region.Close())
		require.NoError(t, s.pd.Close())
	})
	init := rdmatest.DefaultInit()
	if id.PortSpace() == rdmacm.PortSpaceUDP {
		init.Type = ibv.QPTypeUD
	}
	s.qp, err = id.CreateQP(s.pd, init, ibv.QPQueues{Send: s.cq, Recv: s.cq})
	require.NoError(t, err)
	s.receive(t)
	return s
}

func (s *side) receive(t testing.TB) {
	t.Helper()
	_, err := s.qp.PostRecv([]ibv.RecvWR{{WRID: 1, SGEs: []ibv.SGE{s.region.SGE(1024, 1024)}}})
	require.NoError(t, err)
}

// send sends text.
func (s *side) send(t testing.TB, text string) {
	t.Helper()
	n := copy(s.region.Bytes(), text)
	_, err := s.qp.PostSend([]ibv.SendWR{{WRID: 2, Opcode: ibv.OpSend, SGEs: []ibv.SGE{s.region.SGE(0, n)}}})
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
		if wc.WRID == 1 {
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
