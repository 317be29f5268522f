//go:build rdma

package ibv_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/cq"
	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/rdmatest"
)

// drainShared drains a queue pair of a shared receive queue, which ends with the context
// where the device does not say that it is done.
func drainShared(t *testing.T, qp *ibv.QP) {
	t.Helper()
	wait, tells := 20*time.Second, os.Getenv("RXE_KERNEL") != "6.1"
	if !tells {
		wait = 200 * time.Millisecond
	}
	ctx, cancel := context.WithTimeout(t.Context(), wait)
	defer cancel()
	err := qp.Drain(ctx)
	if tells {
		require.NoError(t, err)
		return
	}
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "the device has not said that it is done")
}

func TestDrainOfASharedReceiveQueue(t *testing.T) {
	h := newHub(t, 2, 16, slotSize)
	h.post(t, slotSize, 0, 1, 2, 3, 4)
	mine, theirs := h.pairs[0], h.pairs[1]
	for _, p := range h.pairs {
		post(t, &p.A, ibv.Send(1, 0, p.A.Region.SGE(0, 64)))
		p.A.Wait(t, 1)
	}
	_, err := mine.B.QP.PostSend([]ibv.SendWR{{WRID: 9, Opcode: ibv.OpSend, Inline: []byte("flushed")}})
	require.NoError(t, err)
	drainShared(t, mine.B.QP)
	require.Equal(t, 3, h.srq.InFlight(), "the others still belong to the queue")
	n, err := mine.B.QP.PostSend([]ibv.SendWR{{Opcode: ibv.OpSend}})
	require.ErrorIs(t, err, ibv.ErrClosed)
	require.Zero(t, n)

	// The queue goes on for the other.
	post(t, &theirs.A, ibv.Send(2, 0, theirs.A.Region.SGE(0, 64)))
	wcs := h.in.Wait(t, 4)
	assert.Equal(t, []uint64{0}, wrIDs(wcs, mine.B.QP, true))
	assert.Equal(t, []uint64{9}, wrIDs(wcs, mine.B.QP, false))
	assert.Equal(t, []uint64{1, 2}, wrIDs(wcs, theirs.B.QP, true))

	// It can be used again, and drained again, which takes an event of its own.
	toState(t, mine.B.QP, ibv.QPStateReset)
	toState(t, mine.A.QP, ibv.QPStateReset)
	mine.Connect(t)
	post(t, &mine.A, ibv.Send(3, 0, mine.A.Region.SGE(0, 64)))
	require.NoError(t, mine.A.Wait(t, 1)[0].Err())
	drainShared(t, mine.B.QP)
	assert.Equal(t, []uint64{3}, wrIDs(h.in.Wait(t, 1), mine.B.QP, true))
	require.NoError(t, h.closeAll())
	require.Zero(t, h.region.InFlight())
}

// A queue pair is drained and closed in the middle of messages of many packets, while
// others of the same shared receive queue go on. The device writes to no receive that the
// library has given back, and what it may have taken and not finished stays owned.
func TestDrainInTheMiddleOfMessages(t *testing.T) {
	lost := 0
	for round := range rdmatest.Rounds(4, 200) {
		t.Run("", func(t *testing.T) { lost += drainMidway(t, round) })
	}
	t.Logf("%d receives were taken and never completed", lost)
}

const large = 256 << 10 // more packets than a sender has on its way at once

// stampLarge fills a large message with what only this one has.
func stampLarge(b []byte, pair, seq int) []byte {
	fill(b, pair*50+seq)
	binary.BigEndian.PutUint32(b, uint32(pair))
	binary.BigEndian.PutUint32(b[4:], uint32(seq))
	return b
}

// stream keeps two large messages of each pair on the way and receives them.
type stream struct {
	t         *testing.T
	h         *hub
	sent, got []int
	posted    map[int]bool // receives, by place
	idle      []bool       // pairs that send no more
}

var poisoned, wanted = bytes.Repeat([]byte{0xa5}, large), make([]byte, large)

func (s *stream) place(i int) []byte { return s.h.region.Bytes()[i*large:][:large] }

func (s *stream) step() {
	for i, p := range s.h.pairs {
		if s.idle[i] {
			continue
		}
		for s.sent[i]-s.got[i] < 2 {
			s.send(i)
		}
		var wcs [2]cq.WC
		_, err := p.A.CQ.Poll(wcs[:])
		require.NoError(s.t, err)
	}
	s.receive(true)
}

// send sends the next message from the half of the memory that is not in flight.
func (s *stream) send(pair int) {
	side, seq := &s.h.pairs[pair].A, s.sent[pair]
	off := seq % 2 * large
	stampLarge(side.Region.Bytes()[off:off+large], pair, seq)
	_, err := side.QP.PostSend([]ibv.SendWR{ibv.Send(uint64(seq), 0, side.Region.SGE(off, large))})
	assert.NoError(s.t, err)
	s.sent[pair]++
}

// receive takes what has come, and posts the receives again or leaves their memory
// poisoned.
func (s *stream) receive(again bool) {
	var wcs [8]cq.WC
	n, err := s.h.in.CQ.Poll(wcs[:])
	require.NoError(s.t, err)
	for i := range wcs[:n] {
		wc := &wcs[i]
		place, pair := int(wc.WRID), s.h.index[wc.QPNum]
		require.True(s.t, wc.IsRecv())
		require.True(s.t, s.posted[place], "receive %d was not posted", place)
		delete(s.posted, place)
		if wc.Err() == nil {
			require.True(s.t, bytes.Equal(stampLarge(wanted, pair, s.got[pair]), s.place(place)), "message %d of pair %d", s.got[pair], pair)
			s.got[pair]++
		} else {
			require.True(s.t, s.idle[pair], "%v", wc.Err())
		}
		copy(s.place(place), poisoned)
		if again {
			s.post(place)
		}
	}
}

func (s *stream) post(place int) {
	s.h.post(s.t, large, place)
	s.posted[place] = true
}

// checkFree says that what is not posted is as the program left it.
func (s *stream) checkFree() {
	s.t.Helper()
	for place := range s.h.region.Len() / large {
		if !s.posted[place] {
			require.True(s.t, bytes.Equal(poisoned, s.place(place)), "receive %d was given back and then written", place)
		}
	}
}

func drainMidway(t *testing.T, round int) (lost int) {
	const pairs, recvs = 3, 9
	s := &stream{t: t, h: newHub(t, pairs, recvs, large), posted: map[int]bool{},
		sent: make([]int, pairs), got: make([]int, pairs), idle: make([]bool, pairs)}
	for _, p := range s.h.pairs {
		p.A.Region = rdmatest.Region(t, s.h.pd, 2*large)
	}
	for place := range recvs {
		copy(s.place(place), poisoned)
		s.post(place)
	}
	until(t, "under way", func() bool { s.step(); return s.got[0] > round%4 })
	mine := s.h.pairs[0].B.QP
	s.idle[0] = true
	// A message of its has begun, and the others' go on meanwhile, into completions that
	// Drain keeps.
	for s.sent[0]-s.got[0] < 2 {
		s.send(0)
	}
	until(t, "a message begun", func() bool {
		for place := range s.posted {
			if b := s.place(place); binary.BigEndian.Uint32(b) == 0 {
				return true
			}
		}
		return false
	})
	drainShared(t, mine)
	for range recvs {
		s.receive(false)
	}
	s.checkFree()
	require.Len(t, s.posted, s.h.srq.InFlight())
	before := s.got[0]
	for place := range recvs / 2 {
		if !s.posted[place] {
			s.post(place)
		}
	}
	goal := s.got[1] + s.got[2] + 6
	until(t, "the others going on", func() bool { s.step(); return s.got[1]+s.got[2] >= goal })
	require.Equal(t, before, s.got[0], "a drained queue pair completes nothing more")
	require.NoError(t, mine.Close())
	s.checkFree()

	// One more queue pair takes the receives that are left, until there is none: what
	// is still owned then will never complete.
	for i := 1; i < pairs; i++ {
		s.idle[i] = true
	}
	until(t, "the others done", func() bool { s.receive(true); return s.sent[1] == s.got[1] && s.sent[2] == s.got[2] })
	last := s.h.add(t, func(c *ibv.ConnectParams) { c.RNRRetry, c.MinRNRTimer = 1, time.Millisecond })
	last.A.Region = s.h.pairs[0].A.Region
	s.sent, s.got, s.idle = append(s.sent, 0), append(s.got, 0), append(s.idle, true)
	for {
		stampLarge(last.A.Region.Bytes()[:large], pairs, s.got[pairs])
		post(t, &last.A, ibv.Send(0, 0, last.A.Region.SGE(0, large)))
		wc := last.A.Wait(t, 1)[0]
		if wc.Err() != nil {
			var e *cq.Error
			require.ErrorAs(t, wc.Err(), &e)
			require.Equal(t, cq.ClassRNR, e.Class())
			break
		}
		s.receive(false)
	}
	s.checkFree()
	require.Len(t, s.posted, s.h.srq.InFlight(), "what never completes is still owned")
	for _, p := range s.h.pairs[1:] {
		require.NoError(t, p.B.QP.Close())
	}
	lost = s.h.srq.InFlight()
	require.Equal(t, lost, s.h.region.InFlight())
	require.LessOrEqual(t, lost, 1, "a queue pair has one message in hand")
	require.NoError(t, s.h.srq.Close())
	require.Zero(t, s.h.region.InFlight())
	s.checkFree()
	return lost
}
