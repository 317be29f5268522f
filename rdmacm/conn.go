package rdmacm

import (
	"cmp"
	"context"
	"errors"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/cq"
	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/fdwait"
)

// closePatience is how long Close waits for the peer: long enough for the kernel to ask again
// where its first message was lost, which some do after 6.4 s, and newer ones after 4.9. Then
// it gives up, and a peer that heard nothing is never told.
const closePatience = 8 * time.Second

// Conn is a connection: an RC queue pair, and an event channel of its own. Its methods may be
// called from several goroutines.
//
// It is no net.Conn: a queue pair carries messages and reaches memory, where a net.Conn is a
// stream of bytes; and the device works on the program's own buffers, which no deadline can
// take back from it.
//
// While it is open a goroutine waits for its end, parked on the runtime's poller. When the
// peer disconnects, or the device goes, it notes why for Err, closes Done, and takes the queue
// pair to ERR: what is posted completes as flushed, so that a program that waits for
// completions finds out by these. A peer whose program is killed is disconnected too, by its
// kernel, but what is in flight may fail before, with cq.StatusRemOpErr or
// cq.StatusRemAccessErr: see the package's documentation. Nothing tells of a
// host that crashed or was cut off: sends in flight fail in the end with cq.StatusRetryExcErr,
// and a side that only receives needs a deadline of its own.
//
// Close it when done. One that is dropped is closed as every dropped object is, and reported: hold
// on to it as long as the connection is in use, since its queue pair does not.
type Conn struct{ s *connState }

// connState is what the goroutine has. It does not hold the Conn: when that is dropped the
// goroutine ends, and then nothing holds what the connection is made of.
type connState struct {
	channel *EventChannel
	id      *ID
	peer    atomic.Pointer[ConnParam] // nil until it is known
	qp      *ibv.QP
	pd      *ibv.PD
	ownPD   bool
	cq      *cq.CQ      // its own, or nil
	wakes   *cq.Channel // where that tells of completions

	established chan struct{} // closed when it is
	unwatch     context.CancelFunc
	watched     sync.WaitGroup
	hangingUp   atomic.Bool
	over        sync.Once
	ended       chan struct{} // closed when err is set
	err         error

	closing sync.Mutex // also covers unwatch
}

func newConnState() (*connState, error) {
	channel, err := CreateEventChannel()
	if err != nil {
		return nil, err
	}
	return &connState{channel: channel, established: make(chan struct{}), ended: make(chan struct{})}, nil
}

// prepare makes the queue pair, in INIT, and what it needs, and has setup add to that.
func (s *connState) prepare(cfg *Config, setup func(*Conn) error) (*Conn, error) {
	if err := s.createQP(cfg); err != nil {
		return nil, err
	}
	c := &Conn{s}
	if setup != nil {
		if err := setup(c); err != nil {
			return nil, &setupError{err}
		}
	}
	return c, nil
}

// setupError is an error of the program's own.
type setupError struct{ error }

func (e *setupError) Unwrap() error { return e.error }

func (s *connState) createQP(cfg *Config) error {
	if cfg.PD == nil && cfg.Queues != (ibv.QPQueues{}) {
		return s.id.s.fail("rdma_create_qp", syscall.EINVAL, "Config.Queues without Config.PD: queues of the program's own go with its protection domain")
	}
	if s.pd = cfg.PD; s.pd == nil {
		ctx, err := s.id.Context()
		if err != nil {
			return err
		}
		if s.pd, err = ctx.AllocPD(); err != nil {
			return err
		}
		s.ownPD = true
	}
	init, queues := cfg.qp(), cfg.Queues
	if queues.Send == nil && queues.Recv == nil {
		if err := s.createCQ(mostInFlight(init.Cap, queues.SRQ)); err != nil {
			return err
		}
		queues.Send, queues.Recv = s.cq, s.cq
	}
	var err error
	if s.qp, err = s.id.CreateQP(s.pd, init, queues); err != nil || s.cq == nil {
		return err
	}
	// Some devices grant more than was asked for.
	if entries := mostInFlight(s.qp.Cap(), queues.SRQ); entries > s.cq.Entries() {
		return s.cq.Resize(entries)
	}
	return nil
}

// mostInFlight is how many completions a queue pair's own completion queue must hold.
func mostInFlight(limits ibv.QPCap, srq *ibv.SRQ) int {
	receives := limits.MaxRecvWR
	if srq != nil {
		receives = srq.Cap().MaxWR
	}
	return int(limits.MaxSendWR) + int(receives)
}

func (s *connState) createCQ(entries int) (err error) {
	ctx := s.pd.Context()
	if s.wakes, err = cq.NewChannel(ctx); err == nil {
		s.cq, err = cq.Create(ctx, cq.InitAttr{Entries: entries, Channel: s.wakes})
	}
	return err
}

// watch begins to wait for the end of the connection. What setup has left running may have
// closed it already, or be about to.
func (c *Conn) watch() {
	s := c.s
	s.closing.Lock()
	defer s.closing.Unlock()
	ctx, cancel := context.WithCancel(context.Background())
	s.unwatch = cancel
	s.watched.Go(func() { s.end(s.untilEnd(ctx)) })
	runtime.AddCleanup(c, func(cancel context.CancelFunc) { cancel() }, cancel)
}

// untilEnd returns why the connection has ended. Any event can come at any time.
func (s *connState) untilEnd(ctx context.Context) error {
	for {
		e, err := s.channel.GetEvent(ctx)
		switch {
		case err != nil:
			return err
		case e.Type == EventEstablished:
			s.establish()
		case e.Err() != nil:
			return e.failure()
		}
	}
}

func (s *connState) establish() {
	select {
	case <-s.established:
	default:
		close(s.established)
	}
}

// end is told why before the work requests are flushed, so that who sees one flushed can ask.
func (s *connState) end(why error) {
	if s.hangingUp.Load() {
		why = ibv.ErrClosed
	}
	s.finish(why)
	_ = s.id.Disconnect() // it answers the peer; what has failed altogether cannot
}

// knows keeps what an event tells of the peer.
func (s *connState) knows(e *Event) {
	peer := e.Conn
	peer.PrivateData = e.PrivateData
	s.peer.Store(&peer)
}

// finish has Err say why, unless it says so already.
func (s *connState) finish(why error) {
	s.over.Do(func() {
		s.err = why
		close(s.ended)
	})
}

// giveUp closes what has not become a connection. Where setup did not return there is no why.
func (s *connState) giveUp(why error) error {
	s.finish(cmp.Or(why, ibv.ErrClosed))
	return errors.Join(why, s.close())
}

// Established waits until the peer knows that it is connected: a connection that Dial has
// returned is. One of Accept becomes it when the peer has answered, and sends that are posted
// before may have to be repeated by the device. Who answers messages of the peer need not ask.
// It fails with Err if the connection ends before, and with the cause of ctx: give that a
// deadline, since the kernel asks for a minute or more before it gives up on a peer that has
// gone.
func (c *Conn) Established(ctx context.Context) error {
	defer runtime.KeepAlive(c)
	return c.s.awaitEstablished(ctx)
}

func (s *connState) awaitEstablished(ctx context.Context) error {
	select {
	case <-s.established:
		return nil
	default:
	}
	select {
	case <-s.established:
		return nil
	case <-s.ended:
		return s.err
	case <-ctx.Done():
		return fdwait.Cause(ctx)
	}
}

// Done is closed when the connection has ended.
func (c *Conn) Done() <-chan struct{} { return c.s.ended }

// Err returns nil while the connection lasts, and then why it has ended: an error that matches
// ErrDisconnected if the peer has ended it, ibv.ErrClosed if Close has, ibv.ErrNoDevice if the
// device was removed; and if it never was established, what Dial says or would say.
func (c *Conn) Err() error {
	select {
	case <-c.s.ended:
		return c.s.err
	default:
		return nil
	}
}

// QP returns the queue pair, to post to. The connection closes it.
func (c *Conn) QP() *ibv.QP { return c.s.qp }

// PD returns the protection domain: register memory there. If it is the connection's own it
// is closed with it, and so is the memory.
func (c *Conn) PD() *ibv.PD { return c.s.pd }

// CQ returns the completion queue that the connection made for both directions, with a channel
// for its Wait; or nil if Config.Queues has others. The connection closes it.
func (c *Conn) CQ() *cq.CQ { return c.s.cq }

// ID returns the id of the connection manager, for what is not to be had here.
func (c *Conn) ID() *ID { return c.s.id }

// Peer returns what the peer has asked for or granted, seen from this side, with its private
// data, which the transport has filled up with zeros. To the setup of Dial nothing is known yet.
func (c *Conn) Peer() ConnParam {
	if p := c.s.peer.Load(); p != nil {
		return *p
	}
	return ConnParam{}
}

// LocalAddr returns the own address.
func (c *Conn) LocalAddr() netip.AddrPort { return c.s.id.LocalAddr() }

// RemoteAddr returns the peer's address.
func (c *Conn) RemoteAddr() netip.AddrPort { return c.s.id.PeerAddr() }

// String names the connection's ends.
func (c *Conn) String() string { return c.s.id.String() }

// Close disconnects, waits for the peer's answer for at most eight seconds, and closes the queue
// pair, whose work requests it discards, and all that the connection has made. Calls of others
// that wait on its completion queue end with ibv.ErrClosed. Memory of a PD of the connection's
// own is unmapped: nobody may touch it any more. Completions that shall not be lost
// let ibv.QP.Drain flush before.
//
// What cannot be closed, as a queue pair with a memory window bound to it in a PD of the
// program's own, the error names; the rest is closed, and Close can be called again. Closing
// again returns nil.
func (c *Conn) Close() error {
	defer runtime.KeepAlive(c)
	return c.s.close()
}

func (s *connState) close() error {
	s.closing.Lock()
	defer s.closing.Unlock()
	if s.unwatch != nil {
		s.hangUp()
	}
	s.finish(ibv.ErrClosed)
	var errs []error
	try := func(close func() error) { errs = append(errs, close()) }
	if s.ownPD {
		try(s.pd.CloseAll)
	}
	if s.id != nil {
		try(s.id.Close)
	}
	if s.cq != nil {
		try(s.cq.Close)
	}
	if s.wakes != nil {
		try(s.wakes.Close)
	}
	try(s.channel.Close)
	return errors.Join(errs...)
}

// hangUp disconnects and has nobody wait for events any more.
func (s *connState) hangUp() {
	s.hangingUp.Store(true)
	ctx, cancel := context.WithTimeout(context.Background(), closePatience)
	defer cancel()
	// Before it is established the kernel would tell the peer nothing, and say that it has.
	if s.awaitEstablished(ctx) == nil && s.id.Disconnect() == nil {
		select {
		case <-s.ended:
		case <-ctx.Done():
		}
	}
	s.unwatch()
	s.watched.Wait()
}
