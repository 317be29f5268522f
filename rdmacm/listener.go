package rdmacm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"syscall"
)

// Listener waits for connections. Its methods may be called from several goroutines.
type Listener struct {
	channel *EventChannel
	id      *ID
	cfg     Config
}

// Listen begins to listen at "host:port". Without a host, as in ":7471", that is every address
// of this host on an RDMA device, of IPv6 and IPv4. With port 0 the kernel chooses one, which
// Addr tells. cfg says what the connections are made of.
//
// It fails with EADDRINUSE if somebody listens there, or with EADDRNOTAVAIL if one of the two
// listens without a host; with EADDRNOTAVAIL too if the host does not have the address, and with
// ibv.ErrNoDevice if the address is not on an RDMA device.
func Listen(address string, cfg Config) (*Listener, error) {
	param := cfg.param() // whatever becomes of the program's
	param.PrivateData = bytes.Clone(param.PrivateData)
	cfg.Param = &param
	targets, err := resolve(context.Background(), address)
	if err != nil {
		return nil, err
	}
	channel, err := CreateEventChannel()
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, at := range targets {
		l := &Listener{channel, nil, cfg}
		if err = l.listen(at); err == nil {
			return l, nil
		}
		errs = append(errs, err)
		if at.Addr().IsUnspecified() && (errors.Is(err, syscall.EADDRINUSE) || errors.Is(err, syscall.EADDRNOTAVAIL)) {
			break // or somebody would have IPv6, and this listener the rest
		}
	}
	return nil, errors.Join(append(errs, channel.CloseAll())...)
}

func (l *Listener) listen(at netip.AddrPort) (err error) {
	if l.id, err = l.channel.CreateID(PortSpaceTCP); err != nil {
		return err
	}
	if at.Addr() == netip.IPv6Unspecified() {
		err = l.id.SetAFOnly(false) // whatever net.ipv6.bindv6only says
	}
	if err == nil {
		err = l.cfg.control(l.id)
	}
	if err == nil {
		err = l.id.BindAddr(at)
	}
	if err == nil {
		err = l.id.Listen(l.cfg.Backlog)
	}
	if err != nil {
		err = errors.Join(err, l.id.Close())
	}
	return err
}

// Accept waits for a peer and accepts it. It does not wait for the peer to know, so that one
// that has gone holds up no other: Conn.Established does, and Conn.Err tells.
//
// setup, if not nil, is called with the queue pair in INIT, before the peer can send: it
// registers memory and posts receives, which must not come later. Conn.RemoteAddr and Conn.Peer
// say who asks, and with what private data. If it returns a *RejectError the peer is rejected
// with that, and Accept waits for the next.
//
// An error that is an *AcceptError is about one peer, which is rejected; Accept can be called
// again. Others are about the listener: the cause of ctx, after a deadline one that matches
// os.ErrDeadlineExceeded; ibv.ErrClosed; ibv.ErrNoDevice if the device of its address was
// removed.
func (l *Listener) Accept(ctx context.Context, setup func(*Conn) error) (*Conn, error) {
	for {
		e, err := l.id.GetEvent(ctx)
		switch {
		case err != nil:
			return nil, err
		case e.Type != EventConnectRequest:
			if err := e.Err(); err != nil {
				return nil, err
			}
			continue
		}
		c, err := accept(e, &l.cfg, setup)
		switch {
		case errors.As(err, new(*RejectError)):
		case err != nil:
			return nil, &AcceptError{Peer: e.ID.PeerAddr(), Err: err}
		default:
			return c, nil
		}
	}
}

// accept accepts a connect request, or rejects it.
func accept(e *Event, cfg *Config, setup func(*Conn) error) (c *Conn, err error) {
	s, err := newConnState()
	if err != nil {
		return nil, errors.Join(err, e.ID.Close())
	}
	s.id = e.ID
	s.knows(e)
	defer func() {
		if c == nil { // also where setup panics
			err = s.giveUp(err)
		}
	}()
	c, err = s.accept(cfg, setup)
	if why := new(RejectError); errors.As(err, &why) {
		if rejected := s.id.Reject(why.PrivateData); rejected != nil {
			err = rejected
		}
	}
	return c, err
}

func (s *connState) accept(cfg *Config, setup func(*Conn) error) (*Conn, error) {
	// On a channel of its own nothing that it tells gets among the events of others.
	if err := s.id.Migrate(s.channel); err != nil {
		return nil, err
	}
	c, err := s.prepare(cfg, setup)
	if err != nil {
		return nil, err
	}
	if err := s.id.Accept(cfg.param()); err != nil {
		return nil, err
	}
	c.watch()
	return c, nil
}

// Addr returns the address that the listener is bound to.
func (l *Listener) Addr() netip.AddrPort { return l.id.LocalAddr() }

// String names the listener.
func (l *Listener) String() string { return l.id.String() }

// Close ends the listening, and Accept with ibv.ErrClosed. Peers that nobody has accepted are
// rejected; connections live on. Closing again returns nil.
func (l *Listener) Close() error {
	defer runtime.KeepAlive(l)
	err := l.id.Close()
	if err == nil { // an Accept may just have a request, which leaves the channel or is closed
		err = closeError("rdma_destroy_event_channel", &l.channel.s.Node, l.channel.s.CloseUnused())
	}
	return err
}

// AcceptError says why a peer could not be accepted. The listener goes on.
type AcceptError struct {
	Peer netip.AddrPort
	Err  error
}

func (e *AcceptError) Error() string { return fmt.Sprintf("accepting %v: %v", e.Peer, e.Err) }
func (e *AcceptError) Unwrap() error { return e.Err }
