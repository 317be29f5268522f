//go:build rdma

package rdmacm_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/cq"
	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/rdmatest"
	"github.com/goverbs/goverbs/mr"
	"github.com/goverbs/goverbs/rdmacm"
)

// listenAt listens at a port of the device that the kernel chooses.
func listenAt(t testing.TB, cfg rdmacm.Config) *rdmacm.Listener {
	t.Helper()
	rdmatest.Watchdog(t, rdmatest.Limit())
	return listenTo(t, rdmatest.Addr(t), cfg)
}

func listenTo(t testing.TB, addr netip.Addr, cfg rdmacm.Config) *rdmacm.Listener {
	t.Helper()
	l, err := rdmacm.Listen(netip.AddrPortFrom(addr, 0).String(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	return l
}

// peer is one end of a connection, with receives posted of 64 bytes each.
type peer struct {
	*rdmacm.Conn
	memory *mr.Region
	early  []cq.WC // completions that nobody has waited for yet
}

const room, rooms = 64, 4

// setup is for Dial and Accept.
func (p *peer) setup(c *rdmacm.Conn) error {
	var err error
	if p.memory, err = mr.AllocRegion(c.PD(), (rooms+1)*room, ibv.AccessLocalWrite); err != nil {
		return err
	}
	for i := range rooms {
		if err := p.receive(c, i); err != nil {
			return err
		}
	}
	return nil
}

func (p *peer) receive(c *rdmacm.Conn, i int) error {
	_, err := c.QP().PostRecv([]ibv.RecvWR{{WRID: uint64(i), SGEs: []ibv.SGE{p.memory.SGE(i*room, room)}}})
	return err
}

// send sends a message and waits until it is sent.
func (p *peer) send(ctx context.Context, text string) error {
	n := copy(p.memory.Bytes()[rooms*room:], text)
	_, err := p.QP().PostSend([]ibv.SendWR{ibv.Send(rooms, ibv.SendSignaled, p.memory.SGE(rooms*room, n))})
	if err == nil {
		_, err = p.completion(ctx, false)
	}
	return err
}

// next waits for a message.
func (p *peer) next(ctx context.Context) (string, error) {
	wc, err := p.completion(ctx, true)
	if err != nil {
		return "", err
	}
	text := string(p.memory.Bytes()[wc.WRID*room:][:wc.ByteLen()])
	return text, p.receive(p.Conn, int(wc.WRID))
}

// completion waits for the next one of a receive, or of a send: which of both comes first is
// not said.
func (p *peer) completion(ctx context.Context, recv bool) (cq.WC, error) {
	for {
		if i := slices.IndexFunc(p.early, func(wc cq.WC) bool { return wc.IsRecv() == recv }); i >= 0 {
			wc := p.early[i]
			p.early = slices.Delete(p.early, i, i+1)
			return wc, nil
		}
		var wc [1]cq.WC
		_, err := p.CQ().Wait(ctx, wc[:])
		if err == nil {
			err = wc[0].Err()
		}
		if err != nil {
			return wc[0], err
		}
		p.early = append(p.early, wc[0])
	}
}

func dialed(ctx context.Context, l *rdmacm.Listener) (*peer, error) {
	p := new(peer)
	var err error
	p.Conn, err = rdmacm.Dial(ctx, l.Addr().String(), rdmacm.Config{}, p.setup)
	return p, err
}

func accepted(ctx context.Context, l *rdmacm.Listener) (*peer, error) {
	p := new(peer)
	var err error
	p.Conn, err = l.Accept(ctx, p.setup)
	return p, err
}

// pair makes a connection.
func pair(t testing.TB, l *rdmacm.Listener) (client, server *peer) {
	t.Helper()
	var wg sync.WaitGroup
	wg.Go(func() {
		var err error
		client, err = dialed(within(t), l)
		assert.NoError(t, err)
	})
	server, err := accepted(within(t), l)
	wg.Wait()
	require.NoError(t, err)
	require.False(t, t.Failed())
	require.NoError(t, server.Established(within(t)))
	t.Cleanup(func() {
		require.NoError(t, client.Close())
		require.NoError(t, server.Close())
	})
	return client, server
}

func TestDialAndAccept(t *testing.T) {
	l := listenAt(t, rdmacm.Config{})
	client, server := pair(t, l)
	assert.Equal(t, client.LocalAddr(), server.RemoteAddr())
	assert.Equal(t, l.Addr(), client.RemoteAddr())
	assert.Equal(t, l.Addr(), server.LocalAddr())
	for i := range 3 * rooms {
		text := fmt.Sprintf("message %d", i)
		require.NoError(t, client.send(within(t), text))
		got, err := server.next(within(t))
		require.NoError(t, err)
		require.Equal(t, text, got)
		require.NoError(t, server.send(within(t), "re: "+text))
		got, err = client.next(within(t))
		require.NoError(t, err)
		require.Equal(t, "re: "+text, got)
	}
	require.NoError(t, l.Close(), "connections live on")
	require.NoError(t, client.send(within(t), "still here"))
	_, err := server.next(within(t))
	require.NoError(t, err)
	require.NoError(t, client.Err())
	require.NoError(t, server.Err())

	require.NoError(t, client.Close())
	require.NoError(t, client.Close(), "closing again")
	require.ErrorIs(t, client.Err(), ibv.ErrClosed)
	// The server learns of it by its completions, and knows why by then.
	_, err = server.next(within(t))
	var failed *cq.Error
	require.ErrorAs(t, err, &failed)
	assert.Equal(t, cq.StatusWRFlushErr, failed.Status)
	require.ErrorIs(t, server.Err(), rdmacm.ErrDisconnected)
	require.ErrorIs(t, server.Err(), syscall.ECONNRESET)
	<-server.Done()
	require.NoError(t, server.Close())
	require.ErrorIs(t, server.Err(), rdmacm.ErrDisconnected, "that was before")
}

func TestDialParameters(t *testing.T) {
	param := rdmacm.DefaultConnParam()
	param.PrivateData = []byte("from the server")
	param.MinRNRTimer = 10 * time.Millisecond
	l := listenAt(t, rdmacm.Config{Param: &param})
	clear(param.PrivateData) // the listener has its own
	param.PrivateData, param.MinRNRTimer = []byte("from the client"), 0
	param.ResponderResources, param.InitiatorDepth = 4, 2 // rdma_rxe rounds up to powers of two
	param.RetryCount, param.RNRRetryCount = 4, 5
	var wg sync.WaitGroup
	var client *rdmacm.Conn
	wg.Go(func() {
		var err error
		client, err = rdmacm.Dial(within(t), l.Addr().String(), rdmacm.Config{Param: &param, SignalAll: true,
			Cap: ibv.QPCap{MaxSendWR: 3, MaxRecvWR: 2, MaxSendSGE: 2, MaxRecvSGE: 1}}, func(c *rdmacm.Conn) error {
			assert.Zero(t, c.Peer(), "it has not answered")
			wg.Go(func() { // what setup leaves running may ask
				for c.Err() == nil && c.Peer().PrivateData == nil {
					runtime.Gosched()
				}
				assert.Equal(t, "from the server", text(c.Peer().PrivateData))
			})
			return nil
		})
		assert.NoError(t, err)
	})
	server, err := l.Accept(within(t), func(c *rdmacm.Conn) error {
		assert.Equal(t, "from the client", text(c.Peer().PrivateData))
		assert.EqualValues(t, 4, c.Peer().InitiatorDepth, "what the peer takes, this side may send")
		assert.EqualValues(t, 2, c.Peer().ResponderResources)
		return nil
	})
	wg.Wait()
	require.NoError(t, err)
	defer func() { require.NoError(t, server.Close()) }()
	require.False(t, t.Failed())
	defer func() { require.NoError(t, client.Close()) }()
	assert.Equal(t, "from the server", text(client.Peer().PrivateData))

	attr, err := client.QP().Query(ibv.AttrRetryCount | ibv.AttrRNRRetry | ibv.AttrMaxRdAtomic | ibv.AttrMaxDestRdAtomic | ibv.AttrMinRNRTimer)
	require.NoError(t, err)
	assert.EqualValues(t, 4, attr.RetryCount)
	assert.EqualValues(t, 7, attr.RNRRetry, "as the server wants it")
	assert.EqualValues(t, 2, attr.MaxRdAtomic)
	assert.EqualValues(t, 4, attr.MaxDestRdAtomic)
	assert.Equal(t, 640*time.Microsecond, attr.MinRNRTimer)
	attr, err = server.QP().Query(ibv.AttrRNRRetry | ibv.AttrMaxRdAtomic | ibv.AttrMaxDestRdAtomic | ibv.AttrMinRNRTimer)
	require.NoError(t, err)
	assert.EqualValues(t, 5, attr.RNRRetry, "as the client wants it")
	assert.EqualValues(t, 4, attr.MaxRdAtomic)
	assert.EqualValues(t, 2, attr.MaxDestRdAtomic)
	assert.Equal(t, 10240*time.Microsecond, attr.MinRNRTimer)
}

// text is private data without the zeros that the transport has added.
func text(data []byte) string {
	for i, b := range data {
		if b == 0 {
			return string(data[:i])
		}
	}
	return string(data)
}

func TestAcceptRejects(t *testing.T) {
	l := listenAt(t, rdmacm.Config{})
	var wg sync.WaitGroup
	wg.Go(func() {
		_, err := rdmacm.Dial(within(t), l.Addr().String(), rdmacm.Config{}, nil)
		var rejected *rdmacm.RejectError
		if assert.ErrorAs(t, err, &rejected) {
			assert.Equal(t, rdmacm.RejectConsumerDefined, rejected.Reason)
			assert.Equal(t, "come back later", text(rejected.PrivateData))
		}
		assert.ErrorIs(t, err, syscall.ECONNREFUSED)

		_, err = rdmacm.Dial(within(t), l.Addr().String(), rdmacm.Config{}, nil)
		if assert.ErrorAs(t, err, &rejected, "an error of the server's own rejects too") {
			assert.Empty(t, text(rejected.PrivateData))
		}
	})
	mine := errors.New("my own error")
	asked := 0
	_, err := l.Accept(within(t), func(*rdmacm.Conn) error {
		if asked++; asked == 1 {
			return fmt.Errorf("busy: %w", &rdmacm.RejectError{PrivateData: []byte("come back later")})
		}
		return mine
	})
	wg.Wait()
	var failed *rdmacm.AcceptError
	require.ErrorAs(t, err, &failed)
	assert.Equal(t, rdmatest.Addr(t), failed.Peer.Addr())
	require.ErrorIs(t, err, mine)
	assert.Equal(t, 2, asked, "who is rejected is no error of the server's")
}

func TestDialFails(t *testing.T) {
	rdmatest.Watchdog(t, rdmatest.Limit())
	to := rdmatest.Addr(t)
	for name, tt := range map[string]struct {
		address string
		is      []error
		says    string
	}{
		"nobody listens":        {netip.AddrPortFrom(to, 1).String(), []error{syscall.ECONNREFUSED}, "nobody listens there"},
		"no port":               {to.String(), nil, "missing port"},
		"no host":               {":7471", nil, "no host to connect to"},
		"no such port":          {to.String() + ":nonesuch", nil, "nonesuch"},
		"no address at all":     {"256.256.256.256:7471", nil, "256.256.256.256"},
		"no route":              {"203.0.113.9:7471", []error{syscall.ENETUNREACH}, "no route"},
		"not on an RDMA device": {"127.0.0.1:7471", []error{ibv.ErrNoDevice}, "no RDMA device"},
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := rdmacm.Dial(within(t), tt.address, rdmacm.Config{}, nil)
			require.Nil(t, conn)
			for _, is := range tt.is {
				assert.ErrorIs(t, err, is)
			}
			require.ErrorContains(t, err, tt.says)
			require.NotErrorIs(t, err, context.DeadlineExceeded)
			t.Log(err)
		})
	}
}

func TestDialSetupFails(t *testing.T) {
	l := listenAt(t, rdmacm.Config{})
	mine := errors.New("my own error")
	conn, err := rdmacm.Dial(within(t), l.Addr().String(), rdmacm.Config{}, func(c *rdmacm.Conn) error {
		_, err := mr.AllocRegion(c.PD(), 64, 0) // which goes with the connection
		return errors.Join(err, mine)
	})
	require.Nil(t, conn)
	require.ErrorIs(t, err, mine)
}

// What setup leaves running learns that there is no connection, and why; and where setup does
// not return nothing is left behind either.
func TestSetupKeepsTheConnection(t *testing.T) {
	l := listenAt(t, rdmacm.Config{})
	mine := errors.New("my own error")
	var kept *rdmacm.Conn
	keep := func(c *rdmacm.Conn) error { kept = c; return mine }
	over := func(is error) {
		t.Helper()
		select {
		case <-kept.Done():
		default:
			t.Error("it is not done")
		}
		require.ErrorIs(t, kept.Err(), is)
		require.ErrorIs(t, kept.Established(within(t)), is)
		require.NoError(t, kept.Close())
		require.ErrorIs(t, kept.Err(), is)
	}
	dial := func(setup func(c *rdmacm.Conn) error) {
		_, err := rdmacm.Dial(within(t), l.Addr().String(), rdmacm.Config{}, setup)
		require.Error(t, err)
	}
	dial(keep)
	over(mine)
	dial(func(c *rdmacm.Conn) error { kept = c; return c.Close() })
	over(ibv.ErrClosed)
	panics := func(c *rdmacm.Conn) error { kept = c; panic(mine) }
	require.Panics(t, func() { dial(panics) })
	over(ibv.ErrClosed)

	rejected := make(chan error)
	for setup, is := range map[*func(*rdmacm.Conn) error]error{&keep: mine, &panics: ibv.ErrClosed} {
		go func() {
			_, err := rdmacm.Dial(within(t), l.Addr().String(), rdmacm.Config{}, nil)
			rejected <- err
		}()
		func() {
			defer func() { _ = recover() }()
			_, err := l.Accept(within(t), *setup)
			require.Error(t, err)
		}()
		require.ErrorIs(t, <-rejected, syscall.ECONNREFUSED)
		over(is)
	}
}

// TestDialEnds has the context end at each stage, and at any time between.
func TestDialEnds(t *testing.T) {
	l := listenAt(t, rdmacm.Config{}) // which nobody reads
	ended := func(ctx context.Context, cfg rdmacm.Config, setup func(*rdmacm.Conn) error) error {
		t.Helper()
		conn, err := rdmacm.Dial(ctx, l.Addr().String(), cfg, setup)
		require.Nil(t, conn)
		require.Error(t, err)
		return err
	}
	mine := errors.New("my own cause")
	t.Run("before", func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(mine)
		require.ErrorIs(t, ended(ctx, rdmacm.Config{}, nil), mine)
	})
	t.Run("before the address is resolved", func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		err := ended(ctx, rdmacm.Config{Control: func(*rdmacm.ID) error { cancel(mine); return nil }}, nil)
		require.ErrorIs(t, err, mine)
		require.ErrorContains(t, err, "rdma_resolve_addr")
		require.ErrorContains(t, err, l.Addr().String())
	})
	t.Run("before it connects", func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		err := ended(ctx, rdmacm.Config{}, func(*rdmacm.Conn) error { cancel(mine); return nil })
		require.ErrorIs(t, err, mine)
		require.ErrorContains(t, err, "rdma_connect")
	})
	t.Run("nobody accepts", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		err := ended(ctx, rdmacm.Config{}, nil)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, "rdma_connect")
	})
	t.Run("at any time", func(t *testing.T) {
		for i := range rdmatest.Rounds(50, 500) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*100*time.Microsecond)
			require.ErrorIs(t, ended(ctx, rdmacm.Config{}, nil), context.DeadlineExceeded)
			cancel()
		}
	})
	// The listener has the requests of all that got so far; each is gone by now.
	var wg sync.WaitGroup
	wg.Go(func() {
		// It has to wait until the others are through.
		conn, err := rdmacm.Dial(t.Context(), l.Addr().String(), rdmacm.Config{Param: &rdmacm.ConnParam{PrivateData: []byte("last")}}, nil)
		if assert.NoError(t, err) {
			assert.NoError(t, conn.Close())
		}
	})
	for last := false; !last; {
		conn, err := l.Accept(within(t), func(c *rdmacm.Conn) error {
			last = text(c.Peer().PrivateData) == "last"
			return nil
		})
		if err != nil {
			require.ErrorAs(t, err, new(*rdmacm.AcceptError))
			continue
		}
		if last { // else it may take minutes until it is given up
			require.NoError(t, conn.Established(within(t)))
		}
		require.NoError(t, conn.Close())
	}
	wg.Wait()
}
