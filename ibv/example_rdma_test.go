//go:build rdma

package ibv_test

import (
	"bytes"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/goverbs/goverbs/cq"
	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/rdmatest"
)

// The examples of the documentation have no device of their own. Here they get one.

func TestExampleRead(t *testing.T) {
	p := newPairOf(t, ibv.QPTypeRC)
	remote := published(t, p, 200)
	local := rdmatest.Region(t, p.PD, 100)
	fill(remote.Bytes(), 1)
	require.NoError(t, readRemote(p.A.QP, p.A.CQ, local, remote.Remote()))
	assert.Equal(t, remote.Bytes()[:100], local.Bytes())
	assert.ErrorContains(t, readRemote(p.A.QP, p.A.CQ, local, remote.Remote().Slice(101, 99)), "has 99 bytes, not 100")
	unknown := remote.Remote()
	unknown.RKey++
	err := readRemote(p.A.QP, p.A.CQ, local, unknown)
	var failed *cq.Error
	require.ErrorAs(t, err, &failed)
	assert.Equal(t, cq.StatusRemAccessErr, failed.Status)
}

func TestExamplePostSend(t *testing.T) {
	init := rdmatest.DefaultInit()
	init.SignalAll = false
	init.Cap.MaxSendWR = 31
	p := rdmatest.NewPair(t, init)
	from, to := rdmatest.Region(t, p.PD, 1000*8), published(t, p, 1000*8)
	fill(from.Bytes(), 2)
	require.NoError(t, writeWords(p.A.QP, p.A.CQ, from, to.Remote()))
	assert.True(t, bytes.Equal(from.Bytes(), to.Bytes()))
	assert.Zero(t, from.InFlight())
}

func TestExampleSendWRTo(t *testing.T) {
	p, _, toB := rdmatest.NewDatagrams(t)
	fill(p.A.Region.Bytes(), 3)
	postRecv(t, &p.A, ibv.Recv(1, p.A.Region.SGE(4000, header+100)))
	var server errgroup.Group
	server.Go(func() error { return echo(p.B.QP, p.B.CQ, p.B.Region, 1, rdmatest.QKey) })
	// A datagram that comes before the receive would be lost.
	for deadline := time.Now().Add(10 * time.Second); p.B.Region.InFlight() == 0; runtime.Gosched() {
		require.True(t, time.Now().Before(deadline), "echo posts no receive")
	}
	post(t, &p.A, ibv.Send(2, 0, p.A.Region.SGE(0, 100)).To(toB))
	done(t, &p.A, 2, cq.OpSend)
	require.NoError(t, server.Wait())
	done(t, &p.A, 1, cq.OpRecv)
	assert.Equal(t, p.A.Region.Bytes()[:100], p.A.Region.Bytes()[4000+header:][:100])
}

func TestExampleSRQ(t *testing.T) {
	const size, receives, rounds = 64, 3, 20
	ctx := rdmatest.Open(t)
	pd := rdmatest.PD(t, ctx)
	s := &shared{q: rdmatest.CQ(t, ctx, 64), region: rdmatest.Region(t, pd, receives*size), size: size}
	var err error
	s.srq, err = pd.CreateSRQ(ibv.SRQInitAttr{MaxWR: receives, MaxSGE: 1})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.srq.Close()) })
	for i := range uint64(receives) {
		require.NoError(t, s.post(i))
	}
	var clients [2]rdmatest.Side
	var servers [2]*ibv.QP
	for i := range clients {
		clients[i] = rdmatest.NewSide(t, pd, rdmatest.DefaultInit())
		servers[i], err = s.newClient()
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, servers[i].Close()) })
		request := ibv.GIDRequest{Local: rdmatest.Addr(t)}
		client, err := clients[i].QP.Init(request, 0)
		require.NoError(t, err)
		server, err := servers[i].Init(request, 0)
		require.NoError(t, err)
		require.NoError(t, servers[i].Connect(server, client.Endpoint))
		require.NoError(t, clients[i].QP.Connect(client, server.Endpoint))
	}
	for round := range rounds {
		for i := range clients {
			c := &clients[i]
			fill(c.Region.Bytes()[:size], 10*round+i)
			post(t, c, ibv.Send(1, 0, c.Region.SGE(0, size-i)))
			served := 0
			require.NoError(t, s.serve(func(qpn uint32, message []byte) {
				served++
				assert.Equal(t, servers[i].Num(), qpn)
				assert.Equal(t, c.Region.Bytes()[:size-i], message)
			}))
			require.Equal(t, 1, served)
			done(t, c, 1, cq.OpSend)
		}
	}
	assert.Equal(t, receives, s.srq.InFlight())
}

func TestExampleMW(t *testing.T) {
	p := newPairOf(t, ibv.QPTypeRC)
	region := rdmatest.Region(t, p.PD, 8192, ibv.AccessMWBind)
	var lent ibv.RemoteRange
	require.NoError(t, lend(p.B.QP, p.B.CQ, region, 4096, 64, func(r ibv.RemoteRange) error {
		lent = r
		post(t, &p.A, ibv.SendWR{WRID: 1, Opcode: ibv.OpWrite, Inline: []byte("thanks"), Remote: r})
		done(t, &p.A, 1, cq.OpRDMAWrite)
		return nil
	}))
	assert.Equal(t, "thanks", string(region.Bytes()[4096:4102]))
	require.NoError(t, region.Close(), "the window is gone")
	post(t, &p.A, ibv.SendWR{WRID: 2, Opcode: ibv.OpWrite, Inline: []byte("again"), Remote: lent})
	var failed *cq.Error
	require.ErrorAs(t, p.A.Wait(t, 1)[0].Err(), &failed)
	assert.Equal(t, cq.StatusRemAccessErr, failed.Status)
}
