package main

import (
	"errors"
	"fmt"
	"slices"

	"github.com/goverbs/goverbs/cmd/pingpong/internal/report"
	"github.com/goverbs/goverbs/cq"
	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/mr"
)

// session is one side and what it has open.
type session struct {
	options
	dev     *ibv.Context
	portAt  ibv.PortAttr
	mtu     ibv.MTU // of the path; for UD of the port
	pd      *ibv.PD
	channel *cq.Channel // nil without --events; held, for what is dropped is reported
	cq      *cq.CQ
	srq     *ibv.SRQ // nil where queue pairs have receive queues of their own
	lanes   []*lane
	alike   bool // the peer is a pingpong, and has what both must have alike

	memory
	recvs []ibv.RecvWR // all that are posted at a time; the wr_id is the index
	spent []ibv.RecvWR // those that have completed and are not posted again
	peer  ibv.RemoteRange
}

// maxQPs is how many addresses ibv_srq_pingpong exchanges, of which one stays unused.
const maxQPs = 256

// grhSize is the room that a receive of UD has before the data.
const grhSize = 40

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
	if err = s.checkPort(); err != nil {
		return s, err
	}
	if err = s.checkLimits(); err != nil {
		return s, err
	}
	if s.pd, err = s.dev.AllocPD(); err != nil {
		return s, err
	}
	if err = s.makeMemory(); err != nil {
		return s, err
	}
	if err = s.makeQueues(); err != nil {
		return s, err
	}
	s.makeRequests()
	return s, nil
}

func (s *session) close() error {
	if s.dev == nil {
		return nil
	}
	return s.dev.CloseAll()
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
	switch {
	case s.options.mtu > active:
		return fmt.Errorf("--mtu %v is more than the path MTU %v that %s takes now: %s", s.options.mtu, active, s.portName(), s.mtuRemedy())
	case s.typ == typeUD && s.maxSize() > uint32(active.Bytes()):
		return fmt.Errorf("--size %d is more than a datagram, which is one packet of at most %v bytes on %s now: %s", s.maxSize(), active, s.portName(), s.mtuRemedy())
	case s.typ == typeUD:
		s.mtu = active
	case s.options.mtu == 0:
		s.mtu = min(ibv.MTU1024, active)
	default:
		s.mtu = s.options.mtu
	}
	if s.gidIndex != nil {
		_, err = s.dev.ChooseGID(ibv.GIDRequest{Port: s.ibPort, Index: s.gidIndex})
	}
	return err
}

// mtuRemedy says what bounds the port's MTU.
func (s *session) mtuRemedy() string {
	table, err := s.dev.GIDTable()
	at := slices.IndexFunc(table, func(e ibv.GIDEntry) bool { return e.Port == s.ibPort && e.Netdev != "" })
	if err != nil || at < 0 {
		return "give less"
	}
	netdev := table[at].Netdev
	return fmt.Sprintf("give less, or raise the MTU of the netdev (ip link set %s mtu BYTES, which must hold the headers too)", netdev)
}

// checkLimits refuses what does not fit this host or the device, in the words of
// the flags.
func (s *session) checkLimits() error {
	attr, err := s.dev.QueryDevice()
	if err != nil {
		return err
	}
	s.memory = s.layOut()
	sends := min(attr.MaxQPWR, (attr.MaxCQE-1)/int(s.numQP)) // on each queue pair, beside a receive
	most := min(attr.MaxQPWR, attr.MaxCQE-s.sendQueue()*int(s.numQP))
	const odp, odpSendRecv, odpSendSRQ = 1, 3, 1 | 1<<5 // IBV_ODP_SUPPORT; IBV_ODP_SUPPORT_SEND with _RECV or _SRQ_RECV
	needs := uint32(odpSendRecv)
	if s.typ == typeSRQ {
		needs, most = odpSendSRQ, min(most, attr.MaxSRQWR)
	}
	have := availableMemory(procMeminfo)
	switch {
	case s.odp && (attr.ODPGeneralCaps&odp == 0 || attr.ODPCapsRC&needs != needs):
		return fmt.Errorf("-o: %s has no on-demand paging for SEND and RECV over RC; without it pingpong locks the memory", s.dev.Name())
	case s.whole > have:
		return fmt.Errorf("--size %d takes %d bytes of memory to lock, and this host has %d to spare", s.maxSize(), s.whole, have)
	case s.maxSize() > s.portAt.MaxMsgSize:
		return fmt.Errorf("--size %d is more than the largest message of %s, %d bytes", s.maxSize(), s.portName(), s.portAt.MaxMsgSize)
	case s.sendQueue() > sends:
		return fmt.Errorf("--depth %d with --signal-every %d takes room for %d sends on a queue pair, and %s has room for %d",
			s.depth, s.signalEvery, s.sendQueue(), s.dev.Name(), sends)
	case uint64(s.rxDepth) > uint64(most):
		return fmt.Errorf("--rx-depth %d is more than the %d receives that %s can hold", s.rxDepth, most, s.dev.Name())
	case s.op.atomic() && attr.AtomicCap == ibv.AtomicNone:
		return fmt.Errorf("--op %s: %s has no atomics", s.op, s.dev.Name())
	}
	return nil
}

// memory is the one region: where messages are sent from, where they arrive, and the
// word that the peer's atomics change.
type memory struct {
	region  *mr.Region
	whole   uint64 // bytes of the region
	out, in uint64 // offsets
	slots   uint32 // places to arrive at
	slot    uint64 // bytes of one
	word    uint64 // offset
}

// layOut divides the memory. As in C there is one buffer for both ways. With --chk each
// message that may arrive before another is checked has a place of its own: what arrives
// can be told from what was there only if that is wiped.
func (s *session) layOut() memory {
	m := memory{slots: 1, slot: uint64(s.maxSize())}
	if s.typ == typeUD {
		m.slot += grhSize
	}
	switch {
	case !s.check && s.op == opSend:
		m.whole, m.out = m.slot, m.slot-uint64(s.maxSize())
		return m
	case s.op == opWrite: // one after another to the same place
	case s.op.atomic():
		m.slots = s.depth
	case s.check && s.typ == typeSRQ:
		m.slots = s.rxDepth // they complete in any order
	case s.check:
		m.slots = s.window()
	}
	const word = 8
	aligned := func(n uint64) uint64 { return (n + word - 1) &^ (word - 1) }
	m.in = aligned(uint64(s.maxSize()))
	m.word = aligned(m.in + m.slot*uint64(m.slots))
	m.whole = m.word + word
	return m
}

func (m *memory) outBytes(size uint32) []byte { return m.region.Bytes()[m.out:][:size] }

// arrival is the place of the message that takes receive i, or of operation i.
func (m *memory) arrival(i uint64) int { return int(m.in + i%uint64(m.slots)*m.slot) }

func (s *session) makeMemory() (err error) {
	access := ibv.AccessLocalWrite | s.peerAccess()
	if s.odp {
		access |= ibv.AccessOnDemand
	}
	if s.region, err = mr.AllocRegion(s.pd, int(s.whole), access); err != nil {
		return err
	}
	if s.check {
		wipe(s.region.Bytes())
	}
	with := byte(filler)
	if s.typ == typeSRQ {
		with = 0
	}
	fill(s.outBytes(s.maxSize()), with, s.check)
	if s.op.atomic() {
		clear(s.region.Bytes()[s.word:])
	}
	return nil
}

// peerAccess is what the peer may do with the memory.
func (s *session) peerAccess() ibv.AccessFlags {
	switch s.op {
	case opWrite, opWriteImm:
		return ibv.AccessRemoteWrite
	case opRead:
		return ibv.AccessRemoteRead
	case opFetchAdd, opCmpSwap:
		return ibv.AccessRemoteAtomic
	}
	return 0
}

// target is the memory that the peer works on.
func (s *session) target() ibv.RemoteRange {
	if s.op == opSend {
		return ibv.RemoteRange{}
	}
	all := s.region.Remote()
	switch {
	case s.op.atomic():
		return all.Slice(int(s.word), atomicSize)
	case s.op == opRead:
		return all.Slice(int(s.out), int(s.maxSize()))
	}
	return all.Slice(int(s.in), int(s.slot)*int(s.slots))
}

// sendQueue is how many sends may be posted on a queue pair and not be known to be done:
// of any signalEvery in a row one is signaled, so that a full queue always empties.
func (s *session) sendQueue() int {
	if !s.op.bounces() {
		return int(s.depth)
	}
	return int(s.window() + s.signalEvery - 1)
}

// makeQueues makes the completion queue, with --events on a channel that can be waited
// for, and the queue pairs that report to it.
func (s *session) makeQueues() (err error) {
	attr := cq.InitAttr{Entries: int(s.rxDepth) + s.sendQueue()*int(s.numQP), Spin: s.spin, Hold: s.held()}
	if s.events {
		if s.channel, err = cq.NewChannel(s.dev); err != nil {
			return err
		}
		attr.Channel = s.channel
	}
	if s.cq, err = cq.Create(s.dev, attr); err != nil {
		return err
	}
	init := ibv.QPInitAttr{
		Type: map[string]ibv.QPType{typeRC: ibv.QPTypeRC, typeUC: ibv.QPTypeUC, typeUD: ibv.QPTypeUD, typeSRQ: ibv.QPTypeRC}[s.typ],
		Cap:  ibv.QPCap{MaxSendWR: uint32(s.sendQueue()), MaxRecvWR: s.rxDepth, MaxSendSGE: 1, MaxRecvSGE: 1},
	}
	if s.inline != nil {
		init.Cap.MaxInlineData = *s.inline
	}
	if s.typ == typeSRQ {
		if s.srq, err = s.pd.CreateSRQ(ibv.SRQInitAttr{MaxWR: s.rxDepth, MaxSGE: 1}); err != nil {
			return err
		}
		init.Cap.MaxRecvWR, init.Cap.MaxRecvSGE = 0, 0
	}
	for range s.numQP {
		qp, err := s.pd.CreateQP(init, ibv.QPQueues{Send: s.cq, Recv: s.cq, SRQ: s.srq})
		if err != nil {
			return err
		}
		s.lanes = append(s.lanes, &lane{qp: qp, room: s.sendQueue()})
	}
	return nil
}

// makeRequests makes the receives once: the loop posts them again and again. Those of a
// queue pair are taken in order, so that their places come round evenly.
func (s *session) makeRequests() {
	n := s.rxDepth
	if s.slots > 1 && s.typ != typeSRQ {
		n -= n % s.slots
	}
	s.recvs, s.spent = make([]ibv.RecvWR, n), make([]ibv.RecvWR, 0, n)
	for i := range s.recvs {
		s.recvs[i] = ibv.Recv(uint64(i), s.region.SGE(s.arrival(uint64(i)), int(s.slot)))
	}
}

// postRecv gives receives to whichever queue has them.
func (s *session) postRecv(wrs []ibv.RecvWR) (err error) {
	if s.srq != nil {
		_, err = s.srq.PostRecv(wrs)
	} else {
		_, err = s.lanes[0].qp.PostRecv(wrs)
	}
	return err
}

// sendsInline reports whether messages of a size are sent inline: by default as in C,
// where they fit what the provider grants unasked.
func (s *session) sendsInline(size uint32) bool {
	if s.op == opRead || s.op.atomic() {
		return false
	}
	most := s.lanes[0].qp.Cap().MaxInlineData
	if s.inline != nil {
		most = min(most, *s.inline)
	}
	return size <= most
}

// setup describes the session for the report.
func (s *session) setup() *report.Setup {
	return &report.Setup{
		Side: s.role(), Type: s.typ, Operation: string(s.op),
		Device: s.dev.Name(), Driver: driver(s.dev.Name()), Software: s.dev.Software(), Port: s.ibPort, MTU: s.mtu.Bytes(),
		QueuePairs: int(s.numQP), Depth: int(s.depth), SignalEvery: int(s.signalEvery), RxDepth: s.rxDepth, Bidirectional: s.bidirectional,
		Wait: s.waits(), SpinUsec: usec(s.spin), HoldUsec: usec(s.held()), Checked: s.check,
		SL: s.sl, TrafficClass: s.tclass, FlowLabel: s.flowLabel,
	}
}
