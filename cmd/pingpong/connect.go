package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goverbs/goverbs/ibv"
)

// connect finds the peer, exchanges addresses with it and connects the queue pairs. It
// returns the connection to a peer with which more is agreed, and nil where C's exchange
// is over.
func (s *session) connect(ctx context.Context, notes, stderr io.Writer) (*control, error) {
	start := time.Now()
	conn, err := s.reach(ctx, stderr)
	if err != nil {
		return nil, err
	}
	if !s.isClient() {
		start = time.Now() // a server waits for its client without a limit
	}
	if s.timeout > 0 {
		if err := conn.SetDeadline(start.Add(s.timeout)); err != nil {
			return nil, errors.Join(err, conn.Close())
		}
	}
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	c, err := s.exchange(conn, notes, stderr)
	if c == nil {
		conn.Close()
	}
	return c, err
}

func (s *session) exchange(conn net.Conn, notes, stderr io.Writer) (c *control, err error) {
	if err := s.initQPs(conn, stderr); err != nil {
		return nil, err
	}
	if err := s.postRecv(s.recvs); err != nil {
		return nil, err
	}
	var local []ibv.Endpoint
	for _, l := range s.lanes {
		local = append(local, l.local.Endpoint)
	}
	if err := printAddresses(notes, "local address:  ", local); err != nil {
		return nil, err
	}
	var remote []ibv.Endpoint
	switch {
	case s.isOwn():
		c, remote, err = s.negotiate(conn, local)
	case s.isClient():
		if remote, err = exchangeAsClient(conn, s.padded(local)); err == nil {
			err = s.connectQPs(remote)
		}
	default:
		remote, err = exchangeAsServer(conn, s.padded(local), s.connectQPs)
	}
	if err != nil {
		return c, err
	}
	if err := printAddresses(notes, "remote address: ", remote[:len(local)]); err != nil || c != nil {
		return c, err
	}
	return nil, s.compare(conn)
}

// padded adds the addresses that C's srq program exchanges for queue pairs it has not.
func (s *session) padded(all []ibv.Endpoint) []ibv.Endpoint {
	if s.typ == typeSRQ {
		all = append(all, make([]ibv.Endpoint, maxQPs-len(all))...)
	}
	return all
}

func printAddresses(w io.Writer, whose string, all []ibv.Endpoint) error {
	for _, e := range all {
		if _, err := fmt.Fprintf(w, "  %sLID 0x%04x, QPN 0x%06x, PSN 0x%06x, GID %v\n", whose, e.LID, e.QPN, e.PSN, e.GID); err != nil {
			return err
		}
	}
	return nil
}

// reach connects to the server, or waits for a client.
func (s *session) reach(ctx context.Context, stderr io.Writer) (net.Conn, error) {
	if s.isClient() {
		host := strings.Trim(s.server, "[]") // as IPv6 addresses are written beside ports
		return dial(ctx, net.JoinHostPort(host, strconv.Itoa(int(s.port))), s.timeout)
	}
	return accept(ctx, net.JoinHostPort("", strconv.Itoa(int(s.port))), stderr)
}

func dial(ctx context.Context, addr string, timeout time.Duration) (net.Conn, error) {
	d := net.Dialer{Timeout: timeout}
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("no server at %s: %w", addr, err)
	}
	return conn, nil
}

// accept takes one client, however long it is in coming.
func accept(ctx context.Context, addr string, stderr io.Writer) (net.Conn, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	defer context.AfterFunc(ctx, func() { l.Close() })()
	fmt.Fprintf(stderr, "pingpong: waiting for a client on port %d\n", addrPort(l.Addr()).Port())
	return l.Accept()
}

func addrPort(a net.Addr) netip.AddrPort {
	p := a.(*net.TCPAddr).AddrPort()
	return netip.AddrPortFrom(p.Addr().Unmap(), p.Port())
}

// initQPs takes the queue pairs to INIT on a GID, and says which: that of --gid-idx, or
// else the one with the TCP connection's own address, or else the one on the route to
// the peer.
func (s *session) initQPs(conn net.Conn, stderr io.Writer) error {
	req := ibv.GIDRequest{Port: s.ibPort, Index: s.gidIndex}
	own, peer := addrPort(conn.LocalAddr()).Addr(), addrPort(conn.RemoteAddr()).Addr()
	if s.gidIndex == nil {
		req.Peer = peer
		table, err := s.dev.GIDTable()
		if err != nil {
			return err
		}
		if slices.ContainsFunc(table, func(e ibv.GIDEntry) bool { return e.Port == s.ibPort && e.GID.Addr() == own.WithZone("") }) {
			req.Local = own
		}
	}
	for _, l := range s.lanes {
		if err := s.initQP(l, req); err != nil {
			return err
		}
	}
	switch choice := s.lanes[0].local.Choice; {
	case s.gidIndex != nil:
	case s.isRoCE():
		fmt.Fprintf(stderr, "pingpong: for TCP from %v to %v: %v\n", own, peer, choice)
	default:
		// InfiniBand reaches a peer by its LID, and C's programs without -g take no GID.
		for _, l := range s.lanes {
			l.local.GID = ibv.GID{}
		}
		fmt.Fprintf(stderr, "pingpong: no GID: %s is %v, where a LID is enough\n", s.portName(), s.portAt.LinkLayer)
	}
	return nil
}

// qkey is that of ibv_ud_pingpong.
const qkey = 0x11111111

func (s *session) initQP(l *lane, req ibv.GIDRequest) (err error) {
	if s.typ != typeUD {
		l.local, err = l.qp.Init(req, s.peerAccess())
		return err
	}
	if l.local.Choice, err = s.dev.ChooseGID(req); err != nil {
		return err
	}
	l.local.Endpoint = ibv.Endpoint{
		QPN: l.qp.Num(), PSN: ibv.RandomPSN(), GID: l.local.Choice.Entry.GID, LID: s.portAt.LID, MTU: s.portAt.ActiveMTU,
	}
	return l.qp.Modify(ibv.QPAttr{State: ibv.QPStateInit, Port: s.ibPort, QKey: qkey},
		ibv.AttrState|ibv.AttrPKeyIndex|ibv.AttrPort|ibv.AttrQKey)
}

func (s *session) isRoCE() bool { return s.portAt.LinkLayer == ibv.LinkLayerEthernet }

// connectQPs connects each queue pair to its peer; remote may have more than there are.
func (s *session) connectQPs(remote []ibv.Endpoint) error {
	for i, l := range s.lanes {
		if remote[i].QPN == 0 && s.typ == typeSRQ {
			return fmt.Errorf("the peer has %d queue pairs and this side %d: give both the same --num-qp", i, len(s.lanes))
		}
		if s.isRoCE() && remote[i].GID.IsZero() {
			return errors.New("the peer sent no GID, which RoCE cannot do without: give it its -g")
		}
		connect := l.connect
		if s.typ == typeUD {
			connect = l.address
		}
		if err := connect(s, remote[i]); err != nil {
			return err
		}
	}
	if len(remote) > len(s.lanes) && remote[len(s.lanes)].QPN != 0 {
		return fmt.Errorf("the peer has more queue pairs than the %d of this side: give both the same --num-qp", len(s.lanes))
	}
	return nil
}

func (l *lane) connect(s *session, remote ibv.Endpoint) error {
	return l.qp.Connect(l.local, remote, s.params)
}

func (s *session) params(p *ibv.ConnectParams) {
	p.PathMTU = s.mtu
	p.SL, p.TrafficClass, p.FlowLabel = s.sl, s.tclass, s.flowLabel
	p.RetryCount = 6 // to rdma_rxe 7 is for ever, so that it never tells of a dead peer
	p.RNRRetry = 6   // receives are posted ahead of what the peer may send, so that one that has none never will
	if !s.op.bounces() && s.depth > 1 {
		p.MaxRdAtomic = uint8(min(s.depth, 16, uint32(p.MaxDestRdAtomic)))
	}
}

// address takes a UD queue pair to RTS and resolves the way to the peer.
func (l *lane) address(s *session, remote ibv.Endpoint) error {
	if remote.QPN == 0 {
		return errors.New("the peer sent the QP number 0, which takes no datagrams of ours")
	}
	if err := l.qp.Modify(ibv.QPAttr{State: ibv.QPStateRTR}, ibv.AttrState); err != nil {
		return err
	}
	if err := l.qp.Modify(ibv.QPAttr{State: ibv.QPStateRTS, SQPSN: l.local.PSN}, ibv.AttrState|ibv.AttrSQPSN); err != nil {
		return err
	}
	attr := ibv.AHAttr{DLID: remote.LID, SL: s.sl, Port: s.ibPort}
	if !remote.GID.IsZero() {
		attr.IsGlobal = true
		attr.GRH = ibv.GRH{
			DGID: remote.GID, SGIDIndex: uint8(l.local.Choice.Entry.Index), HopLimit: 64,
			TrafficClass: s.tclass, FlowLabel: s.flowLabel,
		}
	}
	ah, err := s.pd.CreateAH(attr)
	l.to = ibv.Datagram{AH: ah, QPN: remote.QPN, QKey: qkey}
	return err
}
