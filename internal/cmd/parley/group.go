package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/goverbs/goverbs/cq"
	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/mr"
	"github.com/goverbs/goverbs/rdmacm"
)

const (
	grh     = 40 // before each datagram
	room    = grh + 64
	rooms   = 8                      // so that what comes at once has one
	asking  = 100 * time.Millisecond // how often a member speaks: datagrams can be lost
	silence = 2 * time.Second        // after which an answer has been heard
)

// member is one who has joined a multicast group.
type member struct {
	qp     *ibv.QP
	q      *cq.CQ
	memory *mr.Region
	ah     *ibv.AH
	to     ibv.Datagram
}

// meet joins the group from the own address. Who asks speaks until somebody answers; the other
// waits for a word, and answers each until there are no more.
func meet(self, group netip.Addr, asks bool) (err error) {
	ch, err := rdmacm.CreateEventChannel()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ch.CloseAll()) }()
	id, err := ch.CreateID(rdmacm.PortSpaceUDP)
	if err != nil {
		return err
	}
	if err := id.BindAddr(netip.AddrPortFrom(self, 0)); err != nil {
		return err
	}
	dev, err := id.Context()
	if err != nil {
		return err
	}
	pd, err := dev.AllocPD()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, pd.CloseAll()) }()
	m, err := join(id, pd, group)
	if err != nil {
		return err
	}
	if asks {
		return m.ask()
	}
	return m.answer()
}

func join(id *rdmacm.ID, pd *ibv.PD, group netip.Addr) (m *member, err error) {
	m = new(member)
	if m.memory, err = mr.AllocRegion(pd, 64+rooms*room, ibv.AccessLocalWrite); err != nil {
		return nil, err
	}
	wakes, err := cq.NewChannel(pd.Context())
	if err != nil {
		return nil, err
	}
	if m.q, err = cq.Create(pd.Context(), cq.InitAttr{Entries: 32, Channel: wakes}); err != nil {
		return nil, err
	}
	init := ibv.QPInitAttr{Type: ibv.QPTypeUD, Cap: ibv.QPCap{MaxSendWR: 8, MaxRecvWR: rooms, MaxSendSGE: 1, MaxRecvSGE: 1}}
	if m.qp, err = id.CreateQP(pd, init, ibv.QPQueues{Send: m.q, Recv: m.q}); err != nil {
		return nil, err
	}
	for i := range rooms {
		if err := m.receive(i); err != nil {
			return nil, err
		}
	}
	if err := id.JoinMulticast(group, rdmacm.JoinFullMember); err != nil {
		return nil, err
	}
	limit, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	e, err := id.GetEvent(limit)
	if err == nil {
		err = e.Err()
	}
	if err != nil {
		return nil, err
	}
	if m.ah, err = pd.CreateAH(e.UD.AH); err != nil {
		return nil, err
	}
	m.to = ibv.Datagram{AH: m.ah, QPN: e.UD.QPNum, QKey: e.UD.QKey}
	return m, nil
}

func (m *member) receive(i int) error {
	_, err := m.qp.PostRecv([]ibv.RecvWR{ibv.Recv(uint64(i), m.memory.SGE(64+i*room, room))})
	return err
}

func (m *member) say(text string) error {
	wr := ibv.Send(0, ibv.SendSignaled, m.memory.SGE(0, copy(m.memory.Bytes(), text)))
	_, err := m.qp.PostSend([]ibv.SendWR{wr.To(m.to)})
	return err
}

// hear waits for a text of the group.
func (m *member) hear(patience time.Duration) (string, error) {
	limit, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		var wc [1]cq.WC
		_, err := m.q.Wait(limit, wc[:])
		if err = cmp.Or(err, wc[0].Err()); err != nil {
			return "", err
		}
		if wc[0].IsRecv() {
			i := int(wc[0].WRID)
			text := string(m.memory.Bytes()[64+i*room+grh:][:wc[0].ByteLen()-grh])
			return text, m.receive(i)
		}
	}
}

func (m *member) ask() error {
	const question = "who is there?"
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
		if err := m.say(question); err != nil {
			return err
		}
		text, err := m.hear(asking)
		for err == nil && text == question { // its own, on some kernels
			text, err = m.hear(asking)
		}
		if err == nil {
			fmt.Printf("the group says: %s\n", text)
			return nil
		}
		if !errors.Is(err, context.DeadlineExceeded) {
			return err
		}
	}
	return errors.New("nobody answers in the group")
}

func (m *member) answer() error {
	text, err := m.hear(time.Minute)
	for err == nil {
		if text == "who is there?" {
			fmt.Printf("the group asks: %s\n", text)
			if err := m.say("I am"); err != nil {
				return err
			}
		}
		text, err = m.hear(silence)
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return nil
	}
	return err
}
