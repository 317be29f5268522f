package rdmacm

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"time"

	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/fdwait"
)

// resolvePatience is how long the kernel may look for the way to a peer.
const resolvePatience = 5 * time.Second

// Dial connects to a listener at "host:port", and returns when the connection is established.
// A host name's addresses are tried in turn. ctx bounds all of it; without a deadline the
// kernel may take minutes to give up on a host that does not answer. Whatever the error,
// nothing is left behind.
//
// setup, if not nil, is called with the queue pair in INIT, before the peer can send: it
// registers memory and posts receives, which must not come later. Its error ends Dial, which
// returns it. For a host name with several addresses it may be called more than once, each time
// with another Conn; of one that has failed Err says why.
//
// Dial fails with a *RejectError if the peer has rejected the connection; with an error that
// matches ECONNREFUSED if nobody listens there, too; EHOSTUNREACH or ENETUNREACH if there is
// no route; ibv.ErrNoDevice if the route leads through no RDMA device;
// os.ErrDeadlineExceeded if the time is over, the kernel's or that of ctx.
func Dial(ctx context.Context, address string, cfg Config, setup func(*Conn) error) (*Conn, error) {
	targets, err := resolve(ctx, address)
	if err != nil {
		return nil, err
	}
	if targets[0].Addr().IsUnspecified() {
		return nil, &net.AddrError{Err: "no host to connect to", Addr: address}
	}
	var errs []error
	for _, to := range targets {
		c, err := dial(ctx, to, &cfg, setup)
		if err == nil {
			return c, nil
		}
		errs = append(errs, err)
		if ctx.Err() != nil || errors.As(err, new(*setupError)) {
			break
		}
	}
	return nil, errors.Join(errs...)
}

func dial(ctx context.Context, to netip.AddrPort, cfg *Config, setup func(*Conn) error) (c *Conn, err error) {
	s, err := newConnState()
	if err != nil {
		return nil, err
	}
	defer func() {
		if c == nil { // also where setup panics
			err = s.giveUp(err)
		}
	}()
	return s.dial(ctx, to, cfg, setup)
}

func (s *connState) dial(ctx context.Context, to netip.AddrPort, cfg *Config, setup func(*Conn) error) (*Conn, error) {
	var err error
	if s.id, err = s.channel.CreateID(PortSpaceTCP); err != nil {
		return nil, err
	}
	if err := cfg.control(s.id); err != nil {
		return nil, err
	}
	from := netip.AddrPortFrom(cfg.Local, 0)
	if err := s.id.ResolveAddr(from, to, resolvePatience); err != nil {
		return nil, err
	}
	if _, err := s.await(ctx, "rdma_resolve_addr", EventAddrResolved); err != nil {
		return nil, err
	}
	if err := s.id.ResolveRoute(resolvePatience); err != nil {
		return nil, err
	}
	if _, err := s.await(ctx, "rdma_resolve_route", EventRouteResolved); err != nil {
		return nil, err
	}
	c, err := s.prepare(cfg, setup)
	if err != nil {
		return nil, err
	}
	if err := s.id.Connect(cfg.param()); err != nil {
		return nil, err
	}
	e, err := s.await(ctx, "rdma_connect", EventEstablished)
	if err != nil {
		return nil, err
	}
	s.knows(e)
	s.establish()
	c.watch()
	return c, nil
}

// await waits for the event that op brings.
func (s *connState) await(ctx context.Context, op string, want EventType) (*Event, error) {
	for {
		if ctx.Err() != nil {
			return nil, &ibv.OpError{Op: op, Object: s.id.String(), Err: fdwait.Cause(ctx), Reason: "there was no answer yet"}
		}
		e, err := s.channel.GetEvent(ctx)
		switch {
		case err != nil && ctx.Err() != nil:
			continue
		case err != nil:
			return nil, err
		case e.Type == want:
			return e, nil
		case e.Err() != nil:
			return nil, e.failure()
		}
	}
}
