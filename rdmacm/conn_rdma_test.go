//go:build rdma

package rdmacm_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/goverbs/goverbs/cq"
	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/life"
	"github.com/goverbs/goverbs/internal/rdmatest"
	"github.com/goverbs/goverbs/rdmacm"
)

// echo answers messages until the peer has disconnected.
func (p *peer) echo(ctx context.Context) error {
	for {
		text, err := p.next(ctx)
		if err == nil {
			err = p.send(ctx, text)
		}
		switch {
		case errors.Is(p.Err(), rdmacm.ErrDisconnected):
			return p.Close()
		case err != nil:
			return errors.Join(err, p.Close())
		}
	}
}

// ask sends a message and expects it back.
func (p *peer) ask(ctx context.Context, text string) error {
	if err := p.send(ctx, text); err != nil {
		return err
	}
	answer, err := p.next(ctx)
	if err == nil && answer != text {
		err = fmt.Errorf("the answer to %q is %q", text, answer)
	}
	return err
}

// serveEchoes accepts peers, and echoes to all of them at once, until the listener is closed.
func serveEchoes(l *rdmacm.Listener) error {
	var conns errgroup.Group
	for {
		p, err := accepted(context.Background(), l)
		if errors.Is(err, ibv.ErrClosed) {
			return conns.Wait()
		}
		if err != nil {
			return errors.Join(err, l.Close(), conns.Wait())
		}
		conns.Go(func() error {
			ctx, cancel := context.WithTimeout(context.Background(), 3*patience)
			defer cancel()
			return p.echo(ctx)
		})
	}
}

// clients has n connections made and used at once, rounds times each.
func clients(t *testing.T, l *rdmacm.Listener, n, rounds int) {
	t.Helper()
	var all errgroup.Group
	for i := range n {
		all.Go(func() error {
			for round := range rounds {
				ctx, cancel := context.WithTimeout(t.Context(), 3*patience)
				p, err := dialed(ctx, l)
				if err == nil {
					err = errors.Join(p.ask(ctx, fmt.Sprintf("client %d, round %d", i, round)), p.Close())
				}
				cancel()
				if err != nil {
					return fmt.Errorf("client %d, round %d: %w", i, round, err)
				}
			}
			return nil
		})
	}
	require.NoError(t, all.Wait())
}

func TestDialAllAtOnce(t *testing.T) {
	l := listenAt(t, rdmacm.Config{})
	var server errgroup.Group
	server.Go(func() error { return serveEchoes(l) })
	clients(t, l, 64, 1)
	require.NoError(t, l.Close())
	require.NoError(t, server.Wait())
}

func TestManyConnectionsLeaveNothingBehind(t *testing.T) {
	other := listenAt(t, rdmacm.Config{}) // keeps the device open
	client, server := pair(t, other)
	require.NoError(t, client.Close())
	require.NoError(t, server.Close())
	before, fds, goroutines := rdmatest.Resources(t), rdmatest.OpenFDs(t), runtime.NumGoroutine()

	l := listenAt(t, rdmacm.Config{})
	var echoes errgroup.Group
	echoes.Go(func() error { return serveEchoes(l) })
	clients(t, l, 4, rdmatest.Rounds(20, 250))
	require.NoError(t, l.Close())
	require.NoError(t, echoes.Wait())
	require.EventuallyWithT(t, func(c *assert.CollectT) { assert.Equal(c, before, rdmatest.Resources(t)) }, patience, 10*time.Millisecond)
	require.Equal(t, fds, rdmatest.OpenFDs(t))
	for deadline := time.Now().Add(patience); runtime.NumGoroutine() > goroutines; runtime.Gosched() {
		require.True(t, time.Now().Before(deadline), "%d goroutines, %d before", runtime.NumGoroutine(), goroutines)
	}
	threads, err := os.ReadDir("/proc/self/task")
	require.NoError(t, err)
	t.Logf("%d threads, %d goroutines, %d file descriptors, %v", len(threads), goroutines, fds, before)
}

func TestDialIPv6(t *testing.T) {
	rdmatest.Watchdog(t, rdmatest.Limit())
	for _, at := range []string{"[2001:db8::1]:0", "[::]:0", ":0"} {
		t.Run(at, func(t *testing.T) {
			l, err := rdmacm.Listen(at, rdmacm.Config{})
			require.NoError(t, err)
			defer func() { require.NoError(t, l.Close()) }()
			var server errgroup.Group
			server.Go(func() error { return serveEchoes(l) })
			addrs := []netip.Addr{netip.MustParseAddr("2001:db8::1")}
			if at != "[2001:db8::1]:0" {
				addrs = append(addrs, rdmatest.Addr(t))
			}
			for _, addr := range addrs {
				p := new(peer)
				p.Conn, err = rdmacm.Dial(within(t), netip.AddrPortFrom(addr, l.Addr().Port()).String(), rdmacm.Config{Local: addr}, p.setup)
				require.NoError(t, err)
				require.NoError(t, p.ask(within(t), "hello"))
				assert.Equal(t, addr, p.LocalAddr().Addr())
				assert.Equal(t, addr, p.RemoteAddr().Addr())
				require.NoError(t, p.Close())
			}
			require.NoError(t, l.Close())
			require.NoError(t, server.Wait())
		})
	}
}

// The zone of a link-local address is not lost on the way.
func TestDialLinkLocal(t *testing.T) {
	rdmatest.Watchdog(t, rdmatest.Limit())
	addr := netip.AddrPortFrom(linkLocal(t), 0)
	l, err := rdmacm.Listen(addr.String(), rdmacm.Config{})
	require.NoError(t, err)
	defer func() { require.NoError(t, l.Close()) }()
	assert.Equal(t, addr.Addr(), l.Addr().Addr())
	client, _ := pair(t, l)
	assert.Equal(t, l.Addr(), client.RemoteAddr())

	found, err := rdmacm.GetAddrInfo(within(t), addr.Addr().String(), "0", rdmacm.AddrInfo{Passive: true})
	require.NoError(t, err)
	assert.Equal(t, addr, found[0].Src)
	_, err = rdmacm.Dial(within(t), "[fe80::1%nonesuch]:7471", rdmacm.Config{}, nil)
	require.ErrorContains(t, err, "no network interface")
}

// Several connections use one protection domain, completion queue and shared receive queue,
// of a device that the program has opened.
func TestConnectionsShareQueues(t *testing.T) {
	const n = 4
	ctx := rdmatest.Open(t)
	pd, q := rdmatest.PD(t, ctx), rdmatest.CQ(t, ctx, 256)
	srq, err := pd.CreateSRQ(ibv.SRQInitAttr{MaxWR: 2 * n, MaxSGE: 1})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, srq.Close()) })
	region := rdmatest.Region(t, pd, 2*n*room)
	for i := range 2 * n {
		_, err := srq.PostRecv([]ibv.RecvWR{ibv.Recv(uint64(i), region.SGE(i*room, room))})
		require.NoError(t, err)
	}
	l := listenAt(t, rdmacm.Config{PD: pd, Queues: ibv.QPQueues{Send: q, Recv: q, SRQ: srq}})
	for i := range n {
		var client *peer
		var other errgroup.Group
		other.Go(func() (err error) {
			client, err = dialed(within(t), l)
			return err
		})
		server, err := l.Accept(within(t), nil)
		require.NoError(t, err)
		require.NoError(t, other.Wait())
		require.Nil(t, server.CQ(), "it has no own")
		require.Same(t, pd, server.PD())
		require.NoError(t, client.send(within(t), fmt.Sprint("from ", i)))
		var wc [1]cq.WC
		for got := 0; got == 0; {
			got, err = q.Poll(wc[:])
			require.NoError(t, err)
		}
		require.NoError(t, wc[0].Err())
		require.Equal(t, server.QP().Num(), wc[0].QPNum)
		require.Equal(t, fmt.Sprint("from ", i), string(region.Bytes()[wc[0].WRID*room:][:wc[0].ByteLen()]))
		require.NoError(t, server.Close())
		require.NoError(t, client.Close())
	}
	// What Close leaves, and what of another device it does not take.
	_, err = srq.Query()
	require.NoError(t, err)
	_, err = rdmacm.Dial(within(t), l.Addr().String(), rdmacm.Config{Queues: ibv.QPQueues{Send: q, Recv: q}}, nil)
	require.ErrorContains(t, err, "Config.PD")
}

// Close ends what others do with the connection.
func TestCloseOfAConnectionInUse(t *testing.T) {
	l := listenAt(t, rdmacm.Config{})
	for range rdmatest.Rounds(10, 100) {
		client, server := pair(t, l)
		var users sync.WaitGroup
		// Not of the memory, which goes with the connection.
		await := func(p *peer) error {
			var wc [1]cq.WC
			_, err := p.CQ().Wait(within(t), wc[:])
			return errors.Join(err, wc[0].Err())
		}
		users.Go(func() {
			for await(client) == nil {
			}
		})
		users.Go(func() {
			for {
				_, err := server.QP().PostSend([]ibv.SendWR{{Opcode: ibv.OpSend, Flags: ibv.SendSignaled, Inline: []byte("hello")}})
				if err != nil || await(server) != nil {
					return
				}
			}
		})
		require.NoError(t, client.Established(within(t)))
		for range 2 {
			users.Go(func() { assert.NoError(t, client.Close()) })
			users.Go(func() { assert.NoError(t, server.Close()) })
		}
		users.Wait()
		require.Error(t, client.Err())
		require.Error(t, server.Err())
		_, err := client.QP().PostSend([]ibv.SendWR{ibv.Send(1, 0)})
		require.ErrorIs(t, err, ibv.ErrClosed)
	}
}

// A connection that is dropped is closed like everything that is.
func TestDroppedConnection(t *testing.T) {
	l := listenAt(t, rdmacm.Config{})
	client, server := pair(t, l) // the device is open from then on
	require.NoError(t, client.Close())
	require.NoError(t, server.Close())
	before := life.Report()
	func() {
		var other errgroup.Group
		other.Go(func() error {
			_, err := dialed(within(t), l)
			return err
		})
		_, err := accepted(within(t), l)
		require.NoError(t, err)
		require.NoError(t, other.Wait())
	}()
	require.Eventually(t, func() bool {
		runtime.GC()
		return !slices.ContainsFunc(life.Report(), func(o string) bool { return !slices.Contains(before, o) })
	}, patience, 10*time.Millisecond)
}

// TestPeerKilled kills the process at the other end, in the middle of a transfer: both sides
// that are left end, and close.
func TestPeerKilled(t *testing.T) {
	if address := os.Getenv("RDMACM_TEST_DIAL"); address != "" {
		transferForEver(t, address)
		return
	}
	l := listenAt(t, rdmacm.Config{})
	victim := exec.Command(os.Args[0], "-test.run", "^"+t.Name()+"$")
	victim.Env = append(os.Environ(), "RDMACM_TEST_DIAL="+l.Addr().String())
	require.NoError(t, victim.Start())
	killed := sync.OnceFunc(func() {
		_ = victim.Process.Kill()
		_ = victim.Wait()
	})
	defer killed()
	busy, err := accepted(within(t), l)
	require.NoError(t, err)
	defer func() { require.NoError(t, busy.Close()) }()
	idle, err := accepted(within(t), l)
	require.NoError(t, err)
	defer func() { require.NoError(t, idle.Close()) }()
	for i := range 20 {
		require.NoError(t, busy.ask(within(t), fmt.Sprint("message ", i)))
	}
	_, err = busy.QP().PostSend([]ibv.SendWR{
		ibv.Send(1, ibv.SendSignaled, busy.memory.SGE(0, room)), ibv.Send(2, ibv.SendSignaled, busy.memory.SGE(0, room)),
	})
	require.NoError(t, err)
	killed()
	for _, p := range []*peer{busy, idle} {
		select {
		case <-p.Done():
			require.ErrorIs(t, p.Err(), rdmacm.ErrDisconnected)
		case <-within(t).Done():
			require.Fail(t, "it does not learn that its peer has gone")
		}
	}
	var wc [1]cq.WC
	for wc[0].Err() == nil {
		_, err = busy.CQ().Wait(within(t), wc[:])
		require.NoError(t, err, "what was posted ends")
	}
}

// transferForEver is the process that is killed.
func transferForEver(t *testing.T, address string) {
	ctx := within(t)
	busy, idle := new(peer), new(peer)
	for _, p := range []*peer{busy, idle} {
		var err error
		p.Conn, err = rdmacm.Dial(ctx, address, rdmacm.Config{}, p.setup)
		require.NoError(t, err)
	}
	require.NoError(t, busy.echo(ctx))
}

// A server that closes before the client has answered waits for that, since it cannot
// disconnect before, and then has the client know at once.
func TestCloseBeforeEstablished(t *testing.T) {
	l := listenAt(t, rdmacm.Config{})
	client := equip(t, resolved(t, channel(t), rdmacm.PortSpaceTCP, l.Addr()))
	require.NoError(t, client.id.Connect(rdmacm.DefaultConnParam()))
	server, err := accepted(within(t), l)
	require.NoError(t, err)
	closed := make(chan error, 1)
	go func() { closed <- server.Close() }()
	began := time.Now()
	next(t, client.id, rdmacm.EventEstablished)
	next(t, client.id, rdmacm.EventDisconnected)
	require.NoError(t, client.id.Disconnect())
	require.NoError(t, <-closed)
	assert.Less(t, time.Since(began), 5*time.Second, "the patience of Close is for peers that do not answer")
	require.ErrorIs(t, server.Err(), ibv.ErrClosed)
}
