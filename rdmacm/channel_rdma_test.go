//go:build rdma

package rdmacm_test

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/cq"
	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/life"
	"github.com/goverbs/goverbs/internal/rdmatest"
	"github.com/goverbs/goverbs/mr"
	"github.com/goverbs/goverbs/rdmacm"
)

// 64 ids connect to one listener at once. All ids of a side share a channel, a completion
// queue and a shared receive queue.
func TestManyClientsAtOnce(t *testing.T) {
	const clients = 64
	serverChannel, clientChannel := channel(t), channel(t)
	l := listen(t, serverChannel, rdmacm.PortSpaceTCP)
	shared := newSharedQueues(t, l)

	done := make(chan error, 1)
	ctx := within(t)
	go func() { done <- serve(ctx, serverChannel, shared, clients) }()

	var all sync.WaitGroup
	for range clients {
		all.Go(func() {
			id, err := clientChannel.CreateID(rdmacm.PortSpaceTCP)
			if !assert.NoError(t, err) {
				return
			}
			assert.NoError(t, connectTo(ctx, id, l, shared))
		})
	}
	all.Wait()
	require.NoError(t, <-done)

	wcs := make([]cq.WC, clients)
	for got := 0; got < clients; { // each client sends one message
		n, err := shared.cq.Wait(ctx, wcs)
		require.NoError(t, err)
		for _, wc := range wcs[:n] {
			require.Equal(t, cq.StatusSuccess, wc.Status, "%v", wc)
			if wc.WRID == idRecv {
				got++
			}
		}
	}
	require.NoError(t, clientChannel.CloseAll())
	require.NoError(t, serverChannel.CloseAll())
}

// sharedQueues are what many ids have in common.
type sharedQueues struct {
	pd     *ibv.PD
	cq     *cq.CQ
	srq    *ibv.SRQ
	region *mr.Region
	ids    sync.Map // which the program must hold
}

func newSharedQueues(t *testing.T, id *rdmacm.ID) *sharedQueues {
	t.Helper()
	ctx, err := id.Context()
	require.NoError(t, err)
	s := new(sharedQueues)
	s.pd, err = ctx.AllocPD()
	require.NoError(t, err)
	ch, err := cq.NewChannel(ctx)
	require.NoError(t, err)
	s.cq, err = cq.Create(ctx, cq.InitAttr{Entries: 4096, Channel: ch})
	require.NoError(t, err)
	s.srq, err = s.pd.CreateSRQ(ibv.SRQInitAttr{MaxWR: 256, MaxSGE: 1})
	require.NoError(t, err)
	s.region, err = mr.AllocRegion(s.pd, 4096, ibv.AccessLocalWrite)
	require.NoError(t, err)
	for range 128 {
		_, err := s.srq.PostRecv([]ibv.RecvWR{ibv.Recv(idRecv, s.region.SGE(1024, 64))})
		require.NoError(t, err)
	}
	t.Cleanup(func() {
		require.NoError(t, s.srq.Close())
		require.NoError(t, s.cq.Close())
		require.NoError(t, ch.Close())
		require.NoError(t, s.region.Close())
		require.NoError(t, s.pd.Close())
	})
	return s
}

func (s *sharedQueues) createQP(id *rdmacm.ID) (*ibv.QP, error) {
	init := rdmatest.DefaultInit()
	init.Cap.MaxRecvWR = 0
	return id.CreateQP(s.pd, init, ibv.QPQueues{Send: s.cq, Recv: s.cq, SRQ: s.srq})
}

// serve accepts n connections on the events of one channel.
func serve(ctx context.Context, c *rdmacm.EventChannel, shared *sharedQueues, n int) error {
	for established := 0; established < n; {
		e, err := c.GetEvent(ctx)
		if err != nil {
			return err
		}
		switch e.Type {
		case rdmacm.EventConnectRequest:
			if _, err := shared.createQP(e.ID); err != nil {
				return err
			}
			if err := e.ID.Accept(rdmacm.DefaultConnParam()); err != nil {
				return err
			}
			shared.ids.Store(e.ID, true)
		case rdmacm.EventEstablished:
			established++
		default:
			return errors.Join(e.Err(), errors.New(e.String()))
		}
	}
	return nil
}

// connectTo connects an id to the listener, and sends a message.
func connectTo(ctx context.Context, id, l *rdmacm.ID, shared *sharedQueues) error {
	await := func(want rdmacm.EventType, err error) error {
		if err != nil {
			return err
		}
		e, err := id.GetEvent(ctx)
		if err == nil && e.Type != want {
			err = errors.Join(e.Err(), errors.New(e.String()))
		}
		return err
	}
	if err := await(rdmacm.EventAddrResolved, id.ResolveAddr(netip.AddrPort{}, l.LocalAddr(), patience)); err != nil {
		return err
	}
	if err := await(rdmacm.EventRouteResolved, id.ResolveRoute(patience)); err != nil {
		return err
	}
	qp, err := shared.createQP(id)
	if err != nil {
		return err
	}
	if err := await(rdmacm.EventEstablished, id.Connect(rdmacm.DefaultConnParam())); err != nil {
		return err
	}
	shared.ids.Store(id, true)
	_, err = qp.PostSend([]ibv.SendWR{ibv.Send(idSend, 0, shared.region.SGE(0, 16))})
	return err
}

// A wait ends with its context, and loses no event.
func TestCancelledWait(t *testing.T) {
	c := channel(t)
	l := listen(t, c, rdmacm.PortSpaceTCP)
	id, err := c.CreateID(rdmacm.PortSpaceTCP)
	require.NoError(t, err)
	cause := errors.New("no longer wanted")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	_, err = id.GetEvent(ctx)
	require.ErrorIs(t, err, cause)
	_, err = c.GetEvent(ctx)
	require.ErrorIs(t, err, cause)
	short, stop := context.WithTimeout(t.Context(), time.Millisecond)
	defer stop()
	_, err = id.GetEvent(short)
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)

	require.NoError(t, id.ResolveAddr(netip.AddrPort{}, l.LocalAddr(), patience))
	e, err := c.GetEvent(within(t))
	require.NoError(t, err)
	assert.Equal(t, rdmacm.EventAddrResolved, e.Type)
	assert.Same(t, id, e.ID)
}

// Close ends the waits, whatever events are unread, also of an id whose connecting is under way.
func TestCloseWithUnreadEvents(t *testing.T) {
	c := channel(t)
	l := listen(t, c, rdmacm.PortSpaceTCP)
	err := c.Close()
	require.ErrorIs(t, err, ibv.ErrBusy)
	assert.ErrorContains(t, err, "still used by CM id")

	waiting := make(chan error)
	go func() {
		id, err := c.CreateID(rdmacm.PortSpaceTCP)
		if err == nil {
			go func() { waiting <- id.Close() }()
			_, err = id.GetEvent(within(t))
		}
		waiting <- err
	}()
	for range 2 {
		if err := <-waiting; err != nil {
			require.ErrorIs(t, err, ibv.ErrClosed)
		}
	}

	for _, state := range []string{"resolving", "connecting", "requested"} {
		var id *rdmacm.ID
		if state == "resolving" {
			id, err = c.CreateID(rdmacm.PortSpaceTCP)
			require.NoError(t, err)
			require.NoError(t, id.ResolveAddr(netip.AddrPort{}, l.LocalAddr(), patience))
		} else {
			id = equip(t, resolved(t, c, rdmacm.PortSpaceTCP, l.LocalAddr())).id
			require.NoError(t, id.Connect(rdmacm.DefaultConnParam()))
		}
		if state == "requested" {
			request := next(t, l, rdmacm.EventConnectRequest)
			for request.ID.PeerAddr() != id.LocalAddr() { // one of before
				request = next(t, l, rdmacm.EventConnectRequest)
			}
			require.NoError(t, equip(t, request.ID).id.Accept(rdmacm.DefaultConnParam()))
		}
		require.NoError(t, id.Close(), state)
	}
	require.NoError(t, l.Close(), "with requests that nobody has read")
	require.NoError(t, c.CloseAll())
	_, err = c.GetEvent(t.Context())
	require.ErrorIs(t, err, ibv.ErrClosed)
	_, err = c.CreateID(rdmacm.PortSpaceTCP)
	require.ErrorIs(t, err, ibv.ErrClosed)
	require.NoError(t, c.Close())
}

// A request that was taken with other events and that nobody has asked for goes with its
// listener, and connections stay when it is closed.
func TestListenerClosed(t *testing.T) {
	c := channel(t)
	l := listen(t, c, rdmacm.PortSpaceTCP)
	client := equip(t, resolved(t, c, rdmacm.PortSpaceTCP, l.LocalAddr()))
	require.NoError(t, client.id.Connect(rdmacm.DefaultConnParam()))
	server := equip(t, next(t, l, rdmacm.EventConnectRequest).ID)
	require.NoError(t, server.id.Accept(rdmacm.DefaultConnParam()))
	next(t, client.id, rdmacm.EventEstablished)
	next(t, server.id, rdmacm.EventEstablished)

	late := equip(t, resolved(t, c, rdmacm.PortSpaceTCP, l.LocalAddr()))
	require.NoError(t, late.id.Connect(rdmacm.DefaultConnParam()))
	require.Eventually(t, func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		_, err := late.id.GetEvent(ctx) // which takes the request
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		return strings.Count(strings.Join(life.Report(), "\n"), "CM id") == 5
	}, patience, time.Millisecond)
	require.NoError(t, l.Close())
	require.ErrorContains(t, next(t, late.id, rdmacm.EventRejected).Err(), "rejected")
	exchange(t, client, server)
}

// An id goes to another channel with what has come and nobody has read, and those who wait
// for it go along.
func TestMigrate(t *testing.T) {
	from, to := channel(t), channel(t)
	l := bound(t, from, rdmacm.PortSpaceTCP)
	require.NoError(t, l.Migrate(to))
	require.NoError(t, l.Listen(0))
	client := equip(t, resolved(t, from, rdmacm.PortSpaceTCP, l.LocalAddr()))
	waiting := make(chan *rdmacm.Event, 1)
	go func() {
		e, err := client.id.GetEvent(within(t))
		assert.NoError(t, err)
		waiting <- e
	}()
	require.NoError(t, client.id.Migrate(to))
	require.NoError(t, client.id.Migrate(to), "which it has")
	require.NoError(t, client.id.Connect(rdmacm.DefaultConnParam()))
	require.ErrorIs(t, to.Close(), ibv.ErrBusy)
	request := next(t, l, rdmacm.EventConnectRequest)
	require.NoError(t, request.ID.Migrate(from))
	server := equip(t, request.ID)
	require.NoError(t, server.id.Accept(rdmacm.DefaultConnParam()))
	assert.Equal(t, rdmacm.EventEstablished, (<-waiting).Type)
	require.NoError(t, server.id.Migrate(to))
	e, err := to.GetEvent(within(t))
	require.NoError(t, err)
	assert.Equal(t, rdmacm.EventEstablished, e.Type)
	assert.Same(t, server.id, e.ID)
	require.NoError(t, from.Close(), "nothing uses it any more")
	exchange(t, client, server)
	require.ErrorIs(t, server.id.Migrate(from), ibv.ErrClosed)
}

// A listener stays where it is: librdmacm drops a request that the kernel moves.
func TestMigrateListener(t *testing.T) {
	from, to := channel(t), channel(t)
	l := listen(t, from, rdmacm.PortSpaceTCP)
	client := equip(t, resolved(t, from, rdmacm.PortSpaceTCP, l.LocalAddr()))
	require.NoError(t, client.id.Connect(rdmacm.DefaultConnParam()))
	err := l.Migrate(to)
	require.ErrorIs(t, err, syscall.EINVAL)
	require.ErrorContains(t, err, "have it move before Listen")
	require.NoError(t, l.Migrate(from), "which it has")
	request := next(t, l, rdmacm.EventConnectRequest)
	require.NoError(t, request.ID.Migrate(to))
	require.NoError(t, to.CloseAll())
	require.NoError(t, l.Close())
}

// Events that stand unread in the old channel's descriptor are found without a wakeup.
func TestMigrateWithEvents(t *testing.T) {
	from, to := channel(t), channel(t)
	l := listen(t, from, rdmacm.PortSpaceTCP)
	for range 20 {
		id, err := from.CreateID(rdmacm.PortSpaceTCP)
		require.NoError(t, err)
		waiting := make(chan error, 1)
		go func() {
			e, err := to.GetEvent(within(t))
			if err == nil && e.ID != id {
				err = errors.New(e.String())
			}
			waiting <- err
		}()
		require.NoError(t, id.ResolveAddr(netip.AddrPort{}, l.LocalAddr(), patience))
		require.NoError(t, id.Migrate(to))
		require.NoError(t, <-waiting)
	}
}

// A wait of an id is never told that the channel is closed which it has left.
func TestMigrateFromAChannelThatCloses(t *testing.T) {
	from := channel(t)
	id, err := from.CreateID(rdmacm.PortSpaceTCP)
	require.NoError(t, err)
	past, end := context.WithCancel(t.Context())
	end()
	var over atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		for !over.Load() {
			if _, err := id.GetEvent(past); !assert.ErrorIs(t, err, context.Canceled) {
				return
			}
		}
	})
	for range 300 {
		to, err := rdmacm.CreateEventChannel()
		require.NoError(t, err)
		require.NoError(t, id.Migrate(to))
		require.NoError(t, from.Close())
		from = to
	}
	over.Store(true)
	wg.Wait()
	require.NoError(t, from.CloseAll())
}

// The device of ids is one Context, which the program cannot close, and which is closed with
// the last id or what was made from it.
func TestBorrowedContext(t *testing.T) {
	c := channel(t)
	l := listen(t, c, rdmacm.PortSpaceTCP)
	id := resolved(t, c, rdmacm.PortSpaceTCP, l.LocalAddr())
	ctx, err := id.Context()
	require.NoError(t, err)
	same, err := l.Context()
	require.NoError(t, err)
	require.Same(t, ctx, same)
	for _, how := range []func() error{ctx.Close, ctx.CloseAll} {
		err := how()
		require.ErrorIs(t, err, ibv.ErrBusy)
		require.ErrorContains(t, err, "borrowed: the connection manager closes it")
	}
	require.NoError(t, l.Close())
	pd, err := ctx.AllocPD()
	require.NoError(t, err)
	require.NoError(t, id.Close())
	_, err = ctx.QueryPort(1)
	require.NoError(t, err, "the PD is open")
	require.NoError(t, pd.Close())
	require.NoError(t, life.Quiesce(within(t)))
	_, err = ctx.QueryPort(1)
	require.ErrorIs(t, err, ibv.ErrClosed)
	require.ErrorIs(t, func() error { _, err := id.Context(); return err }(), ibv.ErrClosed)
}

// A queue pair may be of a device that the program has opened itself.
func TestOwnContext(t *testing.T) {
	c := channel(t)
	ctx := rdmatest.Open(t)
	pd := rdmatest.PD(t, ctx)
	q := rdmatest.CQ(t, ctx, 64)
	l := listen(t, c, rdmacm.PortSpaceTCP)
	t.Cleanup(func() { require.NoError(t, c.CloseAll()) })
	client := resolved(t, c, rdmacm.PortSpaceTCP, l.LocalAddr())
	qp, err := client.CreateQP(pd, rdmatest.DefaultInit(), ibv.QPQueues{Send: q, Recv: q})
	require.NoError(t, err)
	require.NoError(t, client.Connect(rdmacm.DefaultConnParam()))
	server := equip(t, next(t, l, rdmacm.EventConnectRequest).ID)
	require.NoError(t, server.id.Accept(rdmacm.DefaultConnParam()))
	next(t, client, rdmacm.EventEstablished)
	region := rdmatest.Region(t, pd, 4096)
	_, err = qp.PostSend([]ibv.SendWR{ibv.Send(idSend, 0, region.SGE(0, copy(region.Bytes(), "own")))})
	require.NoError(t, err)
	assert.Equal(t, "own", server.received(t))
}

// An id whose handle was dropped is closed, after its queue pair, also if that is in a group.
func TestDroppedID(t *testing.T) {
	for name, member := range map[string]bool{"connection": false, "member of a group": true} {
		t.Run(name, func(t *testing.T) {
			ibv.SetLogger(nil)
			t.Cleanup(func() { ibv.SetLogger(slog.Default()) })
			c := channel(t)
			l := listen(t, c, rdmacm.PortSpaceTCP)
			dropID(t, c, l, member)
			require.NoError(t, l.Close())
			require.Eventually(t, func() bool {
				runtime.GC()
				return c.Close() == nil
			}, patience, 10*time.Millisecond)
		})
	}
}

//go:noinline
func dropID(t *testing.T, c *rdmacm.EventChannel, l *rdmacm.ID, member bool) {
	var id *rdmacm.ID
	init := rdmatest.DefaultInit()
	if member {
		var err error
		id, err = c.CreateID(rdmacm.PortSpaceUDP)
		require.NoError(t, err)
		require.NoError(t, id.BindAddr(netip.AddrPortFrom(rdmatest.Addr(t), 0)))
		init.Type = ibv.QPTypeUD
	} else {
		id = resolved(t, c, rdmacm.PortSpaceTCP, l.LocalAddr())
	}
	ctx, err := l.Context()
	require.NoError(t, err)
	pd, err := ctx.AllocPD()
	require.NoError(t, err)
	q, err := cq.Create(ctx, cq.InitAttr{Entries: 16})
	require.NoError(t, err)
	_, err = id.CreateQP(pd, init, ibv.QPQueues{Send: q, Recv: q})
	require.NoError(t, err)
	if member {
		require.NoError(t, id.JoinMulticast(netip.MustParseAddr("239.1.2.5"), rdmacm.JoinFullMember))
		next(t, id, rdmacm.EventMulticastJoin)
	}
}
