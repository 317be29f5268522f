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

	"github.com/goverbs/goverbs/cq"
	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/mr"
)

// pingpong runs one side. The result and what qualifies it go to stdout, in the
// lines of ibv_rc_pingpong and before them two of its own; the rest to stderr.
func pingpong(ctx context.Context, opts options, stdout, stderr io.Writer) (err error) {
	s, err := open(opts)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	if err := s.connect(ctx, stdout, stderr); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return err
	}
	r, err := s.play(ctx)
	if err != nil {
		return err
	}
	return r.write(stdout)
}

// session is one side and what it has open.
type session struct {
	options
	dev    *ibv.Context
	portAt ibv.PortAttr
	mtu    ibv.MTU
	region *mr.Region
	cq     *cq.CQ
	qp     *ibv.QP

	in, out []byte // where messages arrive and where they are sent from
	recvs   []ibv.RecvWR
	sends   []ibv.SendWR

	closers []io.Closer // in the order of opening
}

// open opens and makes all that needs no peer.
func open(opts options) (s *session, err error) {
	s = &session{options: opts}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	if s.dev, err = ibv.Open(opts.device); err != nil {
		return s, err
	}
	s.opened(s.dev)
	if err = s.checkPort(); err != nil {
		return s, err
	}
	if err = s.checkLimits(); err != nil {
		return s, err
	}
	pd, err := s.dev.AllocPD()
	if err != nil {
		return s, err
	}
	s.opened(pd)
	if err = s.makeMemory(pd); err != nil {
		return s, err
	}
	if err = s.makeCQ(); err != nil {
		return s, err
	}
	s.qp, err = pd.CreateQP(ibv.QPInitAttr{
		Type: ibv.QPTypeRC,
		Cap:  ibv.QPCap{MaxSendWR: 1, MaxRecvWR: s.rxDepth, MaxSendSGE: 1, MaxRecvSGE: 1},
	}, ibv.QPQueues{Send: s.cq, Recv: s.cq})
	if err != nil {
		return s, err
	}
	s.opened(s.qp)
	s.makeRequests()
	return s, nil
}

func (s *session) opened(c io.Closer) { s.closers = append(s.closers, c) }

func (s *session) close() error {
	var errs []error
	for _, c := range slices.Backward(s.closers) {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

func (s *session) portName() string { return fmt.Sprintf("port %d of %s", s.ibPort, s.dev.Name()) }

// checkPort refuses a port that carries no traffic, and what was asked for that it
// does not have.
func (s *session) checkPort() (err error) {
	if s.portAt, err = s.dev.QueryPort(s.ibPort); err != nil {
		return err
	}
	if s.portAt.State != ibv.PortActive {
		return fmt.Errorf("%s is in state %v: bring its link up (for RoCE: ip link set NETDEV up)", s.portName(), s.portAt.State)
	}
	active := s.portAt.ActiveMTU
	if s.options.mtu > active {
		return fmt.Errorf("--mtu %v is more than the path MTU %v that %s takes now", s.options.mtu, active, s.portName())
	}
	if s.mtu = s.options.mtu; s.mtu == 0 {
		s.mtu = min(ibv.MTU1024, active)
	}
	if s.gidIndex != nil {
		_, err = s.dev.ChooseGID(ibv.GIDRequest{Port: s.ibPort, Index: s.gidIndex})
	}
	return err
}

// checkLimits refuses what does not fit this host or the device, in the words of
// the flags.
func (s *session) checkLimits() error {
	attr, err := s.dev.QueryDevice()
	if err != nil {
		return err
	}
	need, have := uint64(s.size), availableMemory(procMeminfo)
	if s.check {
		need *= 2
	}
	most := min(attr.MaxQPWR, attr.MaxCQE-1) // one completion is the send's
	const odp, odpSendRecv = 1, 3            // IBV_ODP_SUPPORT; IBV_ODP_SUPPORT_SEND and _RECV
	switch {
	case s.odp && (attr.ODPGeneralCaps&odp == 0 || attr.ODPCapsRC&odpSendRecv != odpSendRecv):
		return fmt.Errorf("-o: %s has no on-demand paging for SEND and RECV over RC; without it pingpong locks the memory", s.dev.Name())
	case need > have:
		return fmt.Errorf("--size %d takes %d bytes of memory to lock, and this host has %d to spare", s.size, need, have)
	case s.size > s.portAt.MaxMsgSize:
		return fmt.Errorf("--size %d is more than the largest message of %s, %d bytes", s.size, s.portName(), s.portAt.MaxMsgSize)
	case uint64(s.rxDepth) > uint64(most):
		return fmt.Errorf("--rx-depth %d is more than the %d receives that %s can hold", s.rxDepth, most, s.dev.Name())
	}
	return nil
}

// makeMemory registers the message, as in C one for both ways. With --chk there is
// one for each: what arrives can be told from what was there only if it is wiped.
func (s *session) makeMemory(pd *ibv.PD) (err error) {
	size := int(s.size)
	whole := size
	if s.check {
		whole = 2 * size
	}
	access := ibv.AccessLocalWrite
	if s.odp {
		access |= ibv.AccessOnDemand
	}
	if s.region, err = mr.AllocRegion(pd, whole, access); err != nil {
		return err
	}
	s.opened(s.region)
	s.in = s.region.Bytes()[:size]
	s.out = s.region.Bytes()[whole-size:]
	fill(s.out, s.check)
	return nil
}

// makeCQ makes the completion queue, with --events on a channel that can be waited for.
func (s *session) makeCQ() (err error) {
	attr := cq.InitAttr{Entries: int(s.rxDepth) + 1, Spin: s.spin}
	if s.events {
		if attr.Channel, err = cq.NewChannel(s.dev); err != nil {
			return err
		}
		s.opened(attr.Channel)
	}
	if s.cq, err = cq.Create(s.dev, attr); err != nil {
		return err
	}
	s.opened(s.cq)
	return nil
}

// makeRequests makes the work requests once: the loop posts them again and again.
func (s *session) makeRequests() {
	size := int(s.size)
	s.recvs = slices.Repeat([]ibv.RecvWR{{SGEs: []ibv.SGE{s.region.SGE(0, size)}}}, int(s.rxDepth))
	s.sends = []ibv.SendWR{{
		Opcode: ibv.OpSend,
		Flags:  ibv.SendSignaled,
		SGEs:   []ibv.SGE{s.region.SGE(s.region.Len()-size, size)},
	}}
	if s.inline() {
		s.sends[0].Flags |= ibv.SendInline
	}
}

// inline reports whether the message is sent inline: as in C, where it fits what
// the provider grants unasked.
func (s *session) inline() bool { return s.size <= s.qp.Cap().MaxInlineData }

func (o *options) isClient() bool { return o.server != "" }

// connect finds the peer, exchanges addresses with it and connects the queue pair.
func (s *session) connect(ctx context.Context, stdout, stderr io.Writer) error {
	start := time.Now()
	conn, err := s.reach(ctx, stderr)
	if err != nil {
		return err
	}
	defer conn.Close()
	if !s.isClient() {
		start = time.Now() // a server waits for its client without a limit
	}
	if s.timeout > 0 {
		if err := conn.SetDeadline(start.Add(s.timeout)); err != nil {
			return err
		}
	}
	defer context.AfterFunc(ctx, func() { conn.Close() })()

	local, err := s.initQP(conn, stderr)
	if err != nil {
		return err
	}
	if _, err := s.qp.PostRecv(s.recvs); err != nil {
		return err
	}
	if err := printAddress(stdout, "local address:  ", local.Endpoint); err != nil {
		return err
	}
	connectQP := func(remote ibv.Endpoint) error { return s.connectQP(local, remote) }
	var remote ibv.Endpoint
	if s.isClient() {
		if remote, err = exchangeAsClient(conn, local.Endpoint); err == nil {
			err = connectQP(remote)
		}
	} else {
		remote, err = exchangeAsServer(conn, local.Endpoint, connectQP)
	}
	if err != nil {
		return err
	}
	return printAddress(stdout, "remote address: ", remote)
}

func printAddress(w io.Writer, whose string, e ibv.Endpoint) error {
	_, err := fmt.Fprintf(w, "  %sLID 0x%04x, QPN 0x%06x, PSN 0x%06x, GID %v\n", whose, e.LID, e.QPN, e.PSN, e.GID)
	return err
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

// initQP takes the queue pair to INIT on a GID, and says which: that of --gid-idx,
// or else the one with the TCP connection's own address, or else the one on the
// route to the peer.
func (s *session) initQP(conn net.Conn, stderr io.Writer) (ibv.LocalEndpoint, error) {
	req := ibv.GIDRequest{Port: s.ibPort, Index: s.gidIndex}
	if s.gidIndex != nil {
		return s.qp.Init(req, 0)
	}
	own, peer := addrPort(conn.LocalAddr()).Addr(), addrPort(conn.RemoteAddr()).Addr()
	req.Peer = peer
	table, err := s.dev.GIDTable()
	if err != nil {
		return ibv.LocalEndpoint{}, err
	}
	if slices.ContainsFunc(table, func(e ibv.GIDEntry) bool { return e.Port == s.ibPort && e.GID.Addr() == own.WithZone("") }) {
		req.Local = own
	}
	local, err := s.qp.Init(req, 0)
	switch {
	case err != nil:
	case s.isRoCE():
		fmt.Fprintf(stderr, "pingpong: for TCP from %v to %v: %v\n", own, peer, local.Choice)
	default:
		// InfiniBand reaches a peer by its LID, and ibv_rc_pingpong without -g takes no GID.
		local.GID = ibv.GID{}
		fmt.Fprintf(stderr, "pingpong: no GID: %s is %v, where a LID is enough\n", s.portName(), s.portAt.LinkLayer)
	}
	return local, err
}

func (s *session) isRoCE() bool { return s.portAt.LinkLayer == ibv.LinkLayerEthernet }

func (s *session) connectQP(local ibv.LocalEndpoint, remote ibv.Endpoint) error {
	if s.isRoCE() && remote.GID.IsZero() {
		return errors.New("the peer sent no GID, which RoCE cannot do without: give it its -g")
	}
	return s.qp.Connect(local, remote, s.params)
}

func (s *session) params(p *ibv.ConnectParams) {
	p.PathMTU = s.mtu
	p.SL = s.sl
	p.RetryCount = 6 // to rdma_rxe 7 is for ever, so that it never tells of a dead peer
}
