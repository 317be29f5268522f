package rdmatest

import (
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/cq"
	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/mr"
)

// Device returns the name of the device under test.
func Device(t testing.TB) string {
	t.Helper()
	name := os.Getenv("RXE_DEV")
	require.NotEmpty(t, name, "RXE_DEV names no device to test: run this through docker/with-rxe")
	return name
}

// Addr returns an IP address of the device under test.
func Addr(t testing.TB) netip.Addr {
	t.Helper()
	addr, err := netip.ParseAddr(os.Getenv("RXE_ADDR"))
	require.NoError(t, err, "RXE_ADDR")
	return addr
}

// Rounds returns how often to repeat what a test repeats: long where GOVERBS_LONG asks
// for full counts.
func Rounds(short, long int) int {
	if os.Getenv("GOVERBS_LONG") == "1" {
		return long
	}
	return short
}

// Limit is how long a test may take, with all that it closes.
func Limit() time.Duration { return time.Duration(Rounds(4, 30)) * time.Minute }

// Open opens the device under test until the test ends, which has a limit of time from then
// on: whatever hangs, the closing too, is seen.
func Open(t testing.TB) *ibv.Context {
	t.Helper()
	Watchdog(t, Limit())
	ctx, err := ibv.Open(Device(t))
	require.NoError(t, err)
	closeAtEnd(t, ctx.Close)
	return ctx
}

func closeAtEnd(t testing.TB, close func() error) {
	t.Cleanup(func() { require.NoError(t, close()) })
}

// PD allocates a protection domain until the test ends.
func PD(t testing.TB, ctx *ibv.Context) *ibv.PD {
	t.Helper()
	pd, err := ctx.AllocPD()
	require.NoError(t, err)
	closeAtEnd(t, func() error {
		for _, r := range regions[pd] {
			require.NoError(t, r.Close())
		}
		delete(regions, pd)
		return pd.Close()
	})
	return pd
}

// regions are those that Region made. They are closed with their PD, after the queue
// pairs whose receives still use them. Tests of a device run one after another.
var regions = map[*ibv.PD][]*mr.Region{}

// CQ creates a completion queue, with a channel of its own, until the test ends.
func CQ(t testing.TB, ctx *ibv.Context, entries int) *cq.CQ {
	t.Helper()
	return CQOn(t, Channel(t, ctx), ctx, entries)
}

// Channel creates a completion channel until the test ends.
func Channel(t testing.TB, ctx *ibv.Context) *cq.Channel {
	t.Helper()
	ch, err := cq.NewChannel(ctx)
	require.NoError(t, err)
	closeAtEnd(t, ch.Close)
	return ch
}

// CQOn creates a completion queue on a channel until the test ends.
func CQOn(t testing.TB, ch *cq.Channel, ctx *ibv.Context, entries int) *cq.CQ {
	t.Helper()
	q, err := cq.Create(ctx, cq.InitAttr{Entries: entries, Channel: ch})
	require.NoError(t, err)
	closeAtEnd(t, q.Close)
	return q
}

// Region allocates and registers memory for local use, and what access adds, until the
// test ends. The PD is one that PD made.
func Region(t testing.TB, pd *ibv.PD, size int, access ...ibv.AccessFlags) *mr.Region {
	t.Helper()
	all := ibv.AccessLocalWrite
	for _, a := range access {
		all |= a
	}
	r, err := mr.AllocRegion(pd, size, all)
	require.NoError(t, err)
	regions[pd] = append(regions[pd], r)
	return r
}

// Side is one side of a Pair.
type Side struct {
	QP     *ibv.QP
	CQ     *cq.CQ // of sends and receives
	Region *mr.Region
	Local  ibv.LocalEndpoint
}

// Pair is two queue pairs of one device that are connected to each other.
type Pair struct {
	Ctx    *ibv.Context
	PD     *ibv.PD
	A, B   Side
	Access ibv.AccessFlags // that each queue pair gives to the other
}

// RemoteAccess are all rights that a peer can have.
const RemoteAccess = ibv.AccessRemoteRead | ibv.AccessRemoteWrite | ibv.AccessRemoteAtomic

// DefaultInit is a small RC queue pair whose every send is signaled.
func DefaultInit() ibv.QPInitAttr {
	return ibv.QPInitAttr{
		Type:      ibv.QPTypeRC,
		SignalAll: true,
		Cap:       ibv.QPCap{MaxSendWR: 16, MaxRecvWR: 16, MaxSendSGE: 4, MaxRecvSGE: 4, MaxInlineData: 64},
	}
}

// NewSide makes a queue pair in RESET with a completion queue and 64 KiB of memory.
func NewSide(t testing.TB, pd *ibv.PD, init ibv.QPInitAttr) Side {
	t.Helper()
	return NewSideOn(t, pd, init, CQ(t, pd.Context(), int(init.Cap.MaxSendWR+init.Cap.MaxRecvWR)+64))
}

// NewSideOn is NewSide with a completion queue that there is already.
func NewSideOn(t testing.TB, pd *ibv.PD, init ibv.QPInitAttr, q *cq.CQ) Side {
	t.Helper()
	qp, err := pd.CreateQP(init, ibv.QPQueues{Send: q, Recv: q})
	require.NoError(t, err)
	closeAtEnd(t, qp.Close)
	return Side{QP: qp, CQ: q, Region: Region(t, pd, 1<<16)}
}

// NewPair makes two queue pairs and connects them; change edits both connections.
func NewPair(t testing.TB, init ibv.QPInitAttr, change ...func(*ibv.ConnectParams)) *Pair {
	t.Helper()
	ctx := Open(t)
	p := &Pair{Ctx: ctx, PD: PD(t, ctx), Access: RemoteAccess}
	p.A, p.B = NewSide(t, p.PD, init), NewSide(t, p.PD, init)
	p.Connect(t, change...)
	return p
}

// Connect takes both sides from RESET to RTS.
func (p *Pair) Connect(t testing.TB, change ...func(*ibv.ConnectParams)) {
	t.Helper()
	for _, s := range []*Side{&p.A, &p.B} {
		var err error
		s.Local, err = s.QP.Init(ibv.GIDRequest{Local: Addr(t)}, p.access())
		require.NoError(t, err)
	}
	require.NoError(t, p.A.QP.Connect(p.A.Local, p.B.Local.Endpoint, change...))
	require.NoError(t, p.B.QP.Connect(p.B.Local, p.A.Local.Endpoint, change...))
}

// access is what the transport type has of p.Access.
func (p *Pair) access() ibv.AccessFlags {
	if p.A.QP.Type() == ibv.QPTypeUC {
		return p.Access & ibv.AccessRemoteWrite
	}
	return p.Access
}

// Wait polls until n completions are there, and fails the test after ten seconds.
func (s *Side) Wait(t testing.TB, n int) []cq.WC {
	t.Helper()
	wcs := make([]cq.WC, n)
	got := 0
	for deadline := time.Now().Add(10 * time.Second); got < n; {
		k, err := s.CQ.Poll(wcs[got:])
		require.NoError(t, err)
		got += k
		require.True(t, time.Now().Before(deadline), "%d of %d completions after ten seconds", got, n)
	}
	return wcs
}
