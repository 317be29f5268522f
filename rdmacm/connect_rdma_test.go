//go:build rdma

package rdmacm_test

import (
	"net"
	"net/netip"
	"strings"
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

func TestConnectTransferDisconnect(t *testing.T) {
	client, server := connected(t, channel(t))
	assert.Equal(t, client.id.LocalAddr(), server.id.PeerAddr())
	assert.Equal(t, server.id.LocalAddr(), client.id.PeerAddr())
	assert.Equal(t, rdmatest.Device(t), client.id.Device())
	assert.NotZero(t, client.id.Port())
	exchange(t, client, server)

	client.receive(t)
	server.receive(t)
	require.NoError(t, client.id.Disconnect())
	next(t, server.id, rdmacm.EventDisconnected)
	require.NoError(t, server.id.Disconnect())
	next(t, client.id, rdmacm.EventDisconnected)
	for _, s := range []*side{client, server} {
		wc := s.completion(t)
		for wc.WRID != idRecv {
			wc = s.completion(t)
		}
		assert.Equal(t, cq.StatusWRFlushErr, wc.Status, "%v", wc)
	}
}

// exchange sends a message each way.
func exchange(t *testing.T, client, server *side) {
	t.Helper()
	client.send(t, "ping")
	assert.Equal(t, "ping", server.received(t))
	server.send(t, "pong")
	assert.Equal(t, "pong", client.received(t))
}

// Link-local addresses have a zone, which is a name here and a number in C.
func TestLinkLocalAddress(t *testing.T) {
	c := channel(t)
	addr := linkLocal(t)
	l, err := c.CreateID(rdmacm.PortSpaceTCP)
	require.NoError(t, err)
	require.NoError(t, l.BindAddr(netip.AddrPortFrom(addr, 0)))
	require.NoError(t, l.Listen(0))
	assert.Equal(t, addr, l.LocalAddr().Addr())
	client := equip(t, resolved(t, c, rdmacm.PortSpaceTCP, l.LocalAddr()))
	assert.Equal(t, l.LocalAddr(), client.id.PeerAddr())
	require.NoError(t, client.id.Connect(rdmacm.DefaultConnParam()))
	server := equip(t, next(t, l, rdmacm.EventConnectRequest).ID)
	assert.Equal(t, addr.WithZone(""), server.id.PeerAddr().Addr().WithZone(""), "the kernel does not say the zone")
	require.NoError(t, server.id.Accept(rdmacm.DefaultConnParam()))
	next(t, client.id, rdmacm.EventEstablished)
	exchange(t, client, server)
}

// linkLocal returns the link-local address of the network interface of the device under test.
func linkLocal(t *testing.T) netip.Addr {
	t.Helper()
	interfaces, err := net.Interfaces()
	require.NoError(t, err)
	for _, ifc := range interfaces {
		addrs, err := ifc.Addrs()
		require.NoError(t, err)
		found, own := netip.Addr{}, false
		for _, a := range addrs {
			prefix, err := netip.ParsePrefix(a.String())
			require.NoError(t, err)
			own = own || prefix.Addr() == rdmatest.Addr(t)
			if prefix.Addr().Is6() && prefix.Addr().IsLinkLocalUnicast() {
				found = prefix.Addr().WithZone(ifc.Name)
			}
		}
		if own && found.IsValid() {
			return found
		}
	}
	require.Fail(t, "the device's network interface has no link-local address")
	return netip.Addr{}
}

// What Accept grants and Connect asks for is what the queue pairs have.
func TestConnParam(t *testing.T) {
	c := channel(t)
	l := listen(t, c, rdmacm.PortSpaceTCP)
	client := equip(t, resolved(t, c, rdmacm.PortSpaceTCP, l.LocalAddr()))
	ask := rdmacm.DefaultConnParam()
	ask.ResponderResources, ask.InitiatorDepth, ask.PrivateData = 3, 5, []byte("hello")
	ask.RNRRetryCount, ask.RetryCount = 4, 5
	require.NoError(t, client.id.Connect(ask))

	request := next(t, l, rdmacm.EventConnectRequest)
	assert.Same(t, l, request.Listener)
	assert.Len(t, request.PrivateData, 56)
	assert.Equal(t, "hello", strings.TrimRight(string(request.PrivateData), "\x00"))
	assert.Equal(t, uint8(5), request.Conn.ResponderResources, "what the peer sends at once")
	assert.Equal(t, uint8(3), request.Conn.InitiatorDepth)
	assert.Equal(t, client.qp.Num(), request.Conn.QPNum)

	server := equip(t, request.ID)
	grant := rdmacm.DefaultConnParam()
	grant.PrivateData = []byte("welcome")
	grant.RNRRetryCount, grant.ResponderResources = 2, 2
	require.NoError(t, server.id.Accept(grant))
	established := next(t, client.id, rdmacm.EventEstablished)
	assert.Len(t, established.PrivateData, 196)
	assert.Equal(t, "welcome", strings.TrimRight(string(established.PrivateData), "\x00"))
	next(t, server.id, rdmacm.EventEstablished)

	attr := func(qp *ibv.QP) ibv.QPAttr {
		a, err := qp.Query(ibv.AttrState | ibv.AttrMaxRdAtomic | ibv.AttrMaxDestRdAtomic | ibv.AttrRetryCount | ibv.AttrRNRRetry)
		require.NoError(t, err)
		assert.Equal(t, ibv.QPStateRTS, a.State)
		return a
	}
	a, b := attr(client.qp), attr(server.qp)
	assert.Equal(t, []uint8{2, 2}, []uint8{a.MaxRdAtomic, b.MaxDestRdAtomic}, "five were asked for, and two granted")
	for _, n := range []uint8{b.MaxRdAtomic, a.MaxDestRdAtomic} {
		assert.Contains(t, []uint8{3, 4}, n, "rdma_rxe rounds it up to a power of two")
	}
	assert.Equal(t, uint8(5), a.RetryCount)
	assert.Equal(t, []uint8{2, 4}, []uint8{a.RNRRetry, b.RNRRetry}, "each takes what the other says")
	exchange(t, client, server)

	client.read(t, server)
	server.read(t, client)
}

// read reads memory of the peer by RDMA.
func (s *side) read(t *testing.T, from *side) {
	t.Helper()
	remote, err := mr.AllocRegion(from.pd, 64, ibv.AccessLocalWrite|ibv.AccessRemoteRead)
	require.NoError(t, err)
	copy(remote.Bytes(), "read me")
	s.post(t, ibv.Read(idSend, 0, remote.Remote(), s.region.SGE(0, 64)))
	for wc := s.completion(t); ; wc = s.completion(t) {
		require.Equal(t, cq.StatusSuccess, wc.Status, "%v", wc)
		if wc.Opcode() == cq.OpRDMARead {
			break
		}
	}
	assert.Equal(t, "read me", string(s.region.Bytes()[:7]))
	require.NoError(t, remote.Close())
}

func TestIDReject(t *testing.T) {
	c := channel(t)
	l := listen(t, c, rdmacm.PortSpaceTCP)
	for _, tc := range []struct {
		reject func(*rdmacm.ID) error
		reason rdmacm.RejectReason
		data   string
	}{
		{func(id *rdmacm.ID) error { return id.Reject([]byte("go away")) }, rdmacm.RejectConsumerDefined, "go away"},
		{func(id *rdmacm.ID) error { return id.RejectECE([]byte("other")) }, rdmacm.RejectVendorOption, "other"},
		{(*rdmacm.ID).Close, rdmacm.RejectConsumerDefined, ""},
	} {
		client := equip(t, resolved(t, c, rdmacm.PortSpaceTCP, l.LocalAddr()))
		require.NoError(t, client.id.Connect(rdmacm.DefaultConnParam()))
		request := next(t, l, rdmacm.EventConnectRequest)
		require.NoError(t, tc.reject(request.ID))
		require.NoError(t, request.ID.Close())
		e := next(t, client.id, rdmacm.EventRejected)
		assert.Equal(t, tc.reason, rdmacm.RejectReason(e.Status))
		assert.Len(t, e.PrivateData, 148)
		assert.Equal(t, tc.data, strings.TrimRight(string(e.PrivateData), "\x00"))
		require.ErrorIs(t, e.Err(), syscall.ECONNREFUSED)
		assert.ErrorContains(t, e.Err(), "rdma_connect on CM id")
		assert.Equal(t, cq.StatusWRFlushErr, client.completion(t).Status, "its receive is flushed")
	}
}

func TestNobodyListens(t *testing.T) {
	c := channel(t)
	l := listen(t, c, rdmacm.PortSpaceTCP)
	addr := l.LocalAddr()
	require.NoError(t, l.Close())
	client := equip(t, resolved(t, c, rdmacm.PortSpaceTCP, addr))
	require.NoError(t, client.id.Connect(rdmacm.DefaultConnParam()))
	e := next(t, client.id, rdmacm.EventRejected)
	require.ErrorIs(t, e.Err(), syscall.ECONNREFUSED)
	assert.ErrorContains(t, e.Err(), addr.String()+": nobody listens there")
}

// resolveFails returns why an address cannot be resolved, at once or by an event.
func resolveFails(t *testing.T, c *rdmacm.EventChannel, to netip.AddrPort) error {
	t.Helper()
	id, err := c.CreateID(rdmacm.PortSpaceTCP)
	require.NoError(t, err)
	defer func() { require.NoError(t, id.Close()) }()
	if err := id.ResolveAddr(netip.AddrPort{}, to, patience); err != nil {
		return err
	}
	return next(t, id, rdmacm.EventAddrError).Err()
}

func TestAddressesThatLeadNowhere(t *testing.T) {
	c := channel(t)
	if other := netip.MustParseAddr("203.0.113.7"); !routed(t, other) {
		err := resolveFails(t, c, netip.AddrPortFrom(other, 7471))
		require.ErrorIs(t, err, syscall.ENETUNREACH)
		require.ErrorContains(t, err, "to 203.0.113.7:7471: there is no route to the address")
	}
	addr := ownNetdev(t, "gvdummy8", netip.MustParseAddr("198.51.100.8"))
	for _, to := range []netip.Addr{addr, addr.Next()} {
		err := resolveFails(t, c, netip.AddrPortFrom(to, 7471))
		require.ErrorContains(t, err, "rdma_resolve_addr on CM id")
		require.ErrorContains(t, err, to.String()+":7471: ")
		require.ErrorIs(t, err, syscall.ENODEV)
		require.ErrorContains(t, err, "leads through no RDMA device")
	}
	id, err := c.CreateID(rdmacm.PortSpaceTCP)
	require.NoError(t, err)
	err = id.BindAddr(netip.AddrPortFrom(addr, 0))
	require.ErrorIs(t, err, ibv.ErrNoDevice)
	require.ErrorContains(t, err, "rdma_bind_addr on CM id")
	require.ErrorContains(t, err, addr.String()+" is not an address of an RDMA device")
	require.ErrorIs(t, id.BindAddr(netip.MustParseAddrPort("203.0.113.7:0")), ibv.ErrNoDevice)
}

// Calls that come too early or get nonsense are refused before C looks at what is not there.
func TestRefusals(t *testing.T) {
	c := channel(t)
	id, err := c.CreateID(rdmacm.PortSpaceTCP)
	require.NoError(t, err)
	refused := func(err error, text string) {
		t.Helper()
		require.ErrorIs(t, err, syscall.EINVAL)
		assert.ErrorContains(t, err, text)
	}
	const early = "the id is bound to no device"
	refused(id.ResolveRoute(patience), early)
	refused(id.Connect(rdmacm.DefaultConnParam()), early)
	refused(id.Accept(rdmacm.DefaultConnParam()), early)
	_, err = id.CreateQP(nil, rdmatest.DefaultInit(), ibv.QPQueues{})
	refused(err, early)
	_, _, err = id.InitQPAttr(ibv.QPStateInit)
	refused(err, early)
	_, err = id.Context()
	refused(err, early)
	refused(id.Disconnect(), "invalid argument")
	refused(id.ResolveAddr(netip.AddrPort{}, netip.AddrPort{}, patience), "no address is given")
	refused(id.ResolveAddr(netip.AddrPort{}, netip.MustParseAddrPort("192.0.2.1:1"), 0), "a timeout of 0s")
	refused(id.ResolveAddr(netip.MustParseAddrPort("192.0.2.1:0"), netip.MustParseAddrPort("[2001:db8::1]:1"), patience), "one is of IPv4")
	refused(id.BindAddr(netip.MustParseAddrPort("[fe80::1%none]:1")), "no network interface")
	refused(id.BindAddr(netip.MustParseAddrPort("[fe80::1]:1")), "needs its zone")
	refused(id.Listen(-1), "backlog -1")
	refused(id.SetAckTimeout(0), "acknowledgement timeout")
	refused(id.SetLocalECE(rdmacm.ECE{}), "no VendorID")

	require.NoError(t, id.BindAddr(netip.AddrPortFrom(rdmatest.Addr(t), 0)))
	_, err = id.CreateQP(nil, rdmatest.DefaultInit(), ibv.QPQueues{})
	refused(err, "no PD is given")
	s := equip(t, id)
	_, err = id.CreateQP(s.pd, rdmatest.DefaultInit(), ibv.QPQueues{Send: s.cq, Recv: s.cq})
	refused(err, "has QP")
	init := rdmatest.DefaultInit()
	init.Type = ibv.QPTypeUD
	_, err = id.CreateQP(s.pd, init, ibv.QPQueues{Send: s.cq, Recv: s.cq})
	refused(err, "of port space TCP ids have RC")
	p := rdmacm.DefaultConnParam()
	p.RetryCount = 8
	refused(id.Connect(p), "RetryCount is 8")
	p = rdmacm.DefaultConnParam()
	p.PrivateData = make([]byte, 256)
	refused(id.Connect(p), "256 bytes of private data")

	l := listen(t, c, rdmacm.PortSpaceTCP)
	to := equip(t, resolved(t, c, rdmacm.PortSpaceTCP, l.LocalAddr()))
	p.PrivateData = make([]byte, 57)
	refused(to.id.Connect(p), "57 bytes of private data, where the message has room for 56")
	p.PrivateData = nil
	refused(id.Connect(p), "it comes once, after ROUTE_RESOLVED")
	p.ResponderResources = 254
	refused(to.id.Connect(p), "ResponderResources is 254, above the device's max_qp_rd_atom")
	refused(to.id.Accept(rdmacm.DefaultConnParam()), "not made by a CONNECT_REQUEST")
	refused(to.id.Migrate(nil), "no channel is given")
	require.NoError(t, to.qp.Close())
	refused(to.id.Connect(rdmacm.DefaultConnParam()), "there is no queue pair")
}

// A queue pair may be closed before its id, and another made.
func TestQPBeforeID(t *testing.T) {
	client, server := connected(t, channel(t))
	require.NoError(t, client.qp.Close())
	assert.Nil(t, client.id.QP())
	require.NoError(t, client.id.Disconnect())
	next(t, server.id, rdmacm.EventDisconnected)
	require.ErrorIs(t, (&rdmacm.Event{Type: rdmacm.EventDisconnected, ID: server.id}).Err(), syscall.ECONNRESET)
	qp, err := client.id.CreateQP(client.pd, rdmatest.DefaultInit(), ibv.QPQueues{Send: client.cq, Recv: client.cq})
	if err == nil {
		assert.Same(t, qp, client.id.QP())
	}
	require.NoError(t, client.id.Close(), "with its queue pair")
	_, err = client.qp.State()
	require.ErrorIs(t, err, ibv.ErrClosed)
	require.ErrorIs(t, client.id.Disconnect(), ibv.ErrClosed)
	require.NoError(t, client.id.Close())
}

// An accept whose peer is gone meanwhile says so: there was no event that could.
func TestAcceptWhenThePeerIsGone(t *testing.T) {
	c := channel(t)
	l := listen(t, c, rdmacm.PortSpaceTCP)
	client := equip(t, resolved(t, c, rdmacm.PortSpaceTCP, l.LocalAddr()))
	require.NoError(t, client.id.Connect(rdmacm.DefaultConnParam()))
	server := equip(t, next(t, l, rdmacm.EventConnectRequest).ID)
	require.NoError(t, client.id.Close())
	require.Eventually(t, func() bool { // the peer's word takes its way
		_, _, err := server.id.InitQPAttr(ibv.QPStateRTR)
		return err != nil
	}, patience, time.Millisecond)
	err := server.id.Accept(rdmacm.DefaultConnParam())
	require.ErrorIs(t, err, syscall.EINVAL)
	assert.ErrorContains(t, err, "rdma_accept on CM id")
	assert.ErrorContains(t, err, "the peer is gone or has given up")
	assert.Equal(t, cq.StatusWRFlushErr, server.completion(t).Status, "its receive is flushed")
}

// The enhancements that the sides name reach the other.
func TestECE(t *testing.T) {
	c := channel(t)
	l := listen(t, c, rdmacm.PortSpaceTCP)
	client := equip(t, resolved(t, c, rdmacm.PortSpaceTCP, l.LocalAddr()))
	require.NoError(t, client.id.SetLocalECE(rdmacm.ECE{VendorID: 0x1234, Options: 7}))
	require.NoError(t, client.id.Connect(rdmacm.DefaultConnParam()))
	request := next(t, l, rdmacm.EventConnectRequest)
	want := rdmacm.ECE{VendorID: 0x1234, Options: 7}
	assert.Equal(t, want, request.ECE)
	got, err := request.ID.RemoteECE()
	require.NoError(t, err)
	assert.Equal(t, want, got)
	server := equip(t, request.ID)
	require.NoError(t, server.id.SetLocalECE(rdmacm.ECE{VendorID: 0x1234, Options: 3}))
	require.NoError(t, server.id.Accept(rdmacm.DefaultConnParam()))
	e := next(t, client.id, rdmacm.EventEstablished)
	assert.Equal(t, rdmacm.ECE{VendorID: 0x1234, Options: 3}, e.ECE)
}

func TestDatagrams(t *testing.T) {
	c := channel(t)
	l := listen(t, c, rdmacm.PortSpaceUDP)
	client := equip(t, resolved(t, c, rdmacm.PortSpaceUDP, l.LocalAddr()))
	p := rdmacm.DefaultConnParam()
	p.PrivateData = make([]byte, 180)
	p.PrivateData[179] = 9
	require.NoError(t, client.id.Connect(p))
	request := next(t, l, rdmacm.EventConnectRequest)
	require.Len(t, request.PrivateData, 180)
	assert.Equal(t, byte(9), request.PrivateData[179])
	server := equip(t, request.ID)
	require.NoError(t, server.id.Accept(rdmacm.DefaultConnParam()))
	e := next(t, client.id, rdmacm.EventEstablished)
	assert.Equal(t, server.qp.Num(), e.UD.QPNum)
	client.sendTo(t, e.UD, "datagram")
	assert.Equal(t, "datagram", server.received(t)[40:])
}

func TestDatagramsRejected(t *testing.T) {
	c := channel(t)
	l := listen(t, c, rdmacm.PortSpaceUDP)
	client := equip(t, resolved(t, c, rdmacm.PortSpaceUDP, l.LocalAddr()))
	require.NoError(t, client.id.Connect(rdmacm.DefaultConnParam()))
	request := next(t, l, rdmacm.EventConnectRequest)
	require.NoError(t, request.ID.Reject(nil))
	e := next(t, client.id, rdmacm.EventUnreachable)
	require.ErrorIs(t, e.Err(), syscall.EHOSTUNREACH)
}

// A queue pair that the program makes and moves itself.
func TestExternalQP(t *testing.T) {
	c := channel(t)
	l := listen(t, c, rdmacm.PortSpaceTCP)
	client := external(t, resolved(t, c, rdmacm.PortSpaceTCP, l.LocalAddr()))
	p := rdmacm.DefaultConnParam()
	p.QPNum = client.qp.Num()
	require.NoError(t, client.id.Connect(p))
	_, _, err := client.id.InitQPAttr(ibv.QPStateRTS)
	require.ErrorContains(t, err, "has not got so far")

	server := external(t, next(t, l, rdmacm.EventConnectRequest).ID)
	server.follow(t, ibv.QPStateInit, ibv.QPStateRTR, ibv.QPStateRTS)
	p.QPNum = server.qp.Num()
	require.NoError(t, server.id.Accept(p))
	e := next(t, client.id, rdmacm.EventConnectResponse)
	assert.Equal(t, server.qp.Num(), e.Conn.QPNum)
	client.follow(t, ibv.QPStateInit, ibv.QPStateRTR, ibv.QPStateRTS)
	require.NoError(t, client.id.Establish())
	next(t, server.id, rdmacm.EventEstablished)
	exchange(t, client, server)
	require.ErrorIs(t, server.id.Notify(ibv.EventCommEst), syscall.EISCONN)

	require.NoError(t, client.id.Disconnect())
	next(t, server.id, rdmacm.EventDisconnected)
	state, err := client.qp.State()
	require.NoError(t, err)
	assert.Equal(t, ibv.QPStateRTS, state, "it is the program's to end")
}

// external is equip with a queue pair that the id does not know.
func external(t *testing.T, id *rdmacm.ID) *side {
	t.Helper()
	s := equipped(t, id)
	qp, err := s.pd.CreateQP(rdmatest.DefaultInit(), ibv.QPQueues{Send: s.cq, Recv: s.cq})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, qp.Close()) })
	s.qp = qp
	s.follow(t, ibv.QPStateInit)
	s.receive(t)
	return s
}

func (s *side) follow(t *testing.T, states ...ibv.QPState) {
	t.Helper()
	for _, state := range states {
		attr, mask, err := s.id.InitQPAttr(state)
		require.NoError(t, err)
		require.NoError(t, s.qp.Modify(attr, mask))
	}
}
