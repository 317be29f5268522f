package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/goverbs/goverbs/ibv"
)

// Where a flag is given that C has nothing for, the exchange is another one, which
// FORMATS.md describes: each side says hello with what it runs with and its addresses,
// and the connection stays, for word of the other's end or failure.

// greeting begins the hello. It is no address of C's.
const greeting = "goverbs-pingpong/1 "

// maxHello bounds the line that a peer says hello with.
const maxHello = 1 << 16

// hello is the first line of each side.
type hello struct {
	Params    params          `json:"params"`
	Endpoints []ibv.Endpoint  `json:"endpoints"`
	GIDType   string          `json:"gid_type"`
	Memory    ibv.RemoteRange `json:"memory"` // what --op works on
	Error     string          `json:"error,omitempty"`
}

// params is what both sides must have alike.
type params struct {
	Type          string        `json:"type"`
	Op            operation     `json:"op"`
	Sizes         []uint32      `json:"sizes"`
	Iters         uint32        `json:"iters"`
	Duration      time.Duration `json:"duration_ns"`
	Warmup        uint32        `json:"warmup"`
	Depth         uint32        `json:"depth"`
	SignalEvery   uint32        `json:"signal_every"`
	Bidirectional bool          `json:"bidirectional"`
	Check         bool          `json:"chk"`
	NumQP         uint32        `json:"num_qp"`
	MTU           int           `json:"mtu"`
}

func (s *session) hello() hello {
	return hello{Params: s.agreed(), GIDType: s.lanes[0].local.Choice.Entry.Type.String()}
}

func (s *session) agreed() params {
	return params{
		Type: s.typ, Op: s.op, Sizes: s.sizes, Iters: s.iters, Duration: s.duration, Warmup: s.warmup, Depth: s.depth,
		SignalEvery: s.signalEvery, Bidirectional: s.bidirectional, Check: s.check, NumQP: s.numQP, MTU: s.mtu.Bytes(),
	}
}

// mismatch names the flags that the peer has otherwise, and both values.
func (p params) mismatch(peer params, whose string) error {
	var differ []string
	for _, f := range []struct {
		flag      string
		own, peer any
	}{
		{"--type", p.Type, peer.Type}, {"--op", p.Op, peer.Op}, {"--size", sizesText(p.Sizes), sizesText(peer.Sizes)},
		{"--iters", p.Iters, peer.Iters}, {"--duration", p.Duration, peer.Duration}, {"--warmup", p.Warmup, peer.Warmup},
		{"--depth", p.Depth, peer.Depth}, {"--signal-every", p.SignalEvery, peer.SignalEvery},
		{"--bidirectional", p.Bidirectional, peer.Bidirectional}, {"--chk", p.Check, peer.Check},
		{"--num-qp", p.NumQP, peer.NumQP}, {"--mtu", p.MTU, peer.MTU},
	} {
		if f.own != f.peer && (f.flag != "--mtu" || p.Type != typeUD) {
			differ = append(differ, fmt.Sprintf("%s is %v here and %v at the %s", f.flag, f.own, f.peer, whose))
		}
	}
	if differ == nil {
		return nil
	}
	return errors.New(strings.Join(differ, ", ") + ": give both sides the same")
}

func sizesText(sizes []uint32) string {
	switch len(sizes) {
	case 0:
		return "none"
	case 1:
		return fmt.Sprint(sizes[0])
	}
	return fmt.Sprintf("%d:%d", sizes[0], sizes[len(sizes)-1])
}

func (s *session) peerName() string {
	if s.isClient() {
		return "server"
	}
	return "client"
}

// negotiate says hello, compares, and connects the queue pairs. The server answers when
// its own are connected.
func (s *session) negotiate(conn net.Conn, local []ibv.Endpoint) (*control, []ibv.Endpoint, error) {
	own := s.hello()
	own.Endpoints, own.Memory = local, s.target()
	in := bufio.NewReaderSize(conn, maxHello)
	if s.isClient() {
		if err := sendHello(conn, own); err != nil {
			return nil, nil, err
		}
	}
	if err := s.awaitGreeting(in); err != nil {
		if !s.isClient() { // too short for an address: at a whole hello C's client would not end
			err = errors.Join(err, send(conn, []byte(greeting+"\n"), "that it is of another kind"))
		}
		return nil, nil, err
	}
	peer, err := s.receiveHello(in)
	if err == nil {
		err = s.accord(own, peer)
	}
	if err == nil {
		s.peer = peer.Memory
		err = s.connectQPs(peer.Endpoints)
	}
	if !s.isClient() {
		if err != nil {
			own.Error = oneLine(err)
		}
		err = errors.Join(err, sendHello(conn, own))
	}
	if err != nil {
		return nil, nil, err
	}
	if err := conn.SetDeadline(time.Time{}); err != nil {
		return nil, nil, err
	}
	return newControl(conn, in, s.peerName()), peer.Endpoints, nil
}

// compare refuses a pingpong whose flags are others, of which the exchange of C's programs says
// nothing. It comes when that is over: C's programs have hung up, or are about to and read no
// more. So the server says hello, and a client that gets one answers.
func (s *session) compare(conn net.Conn) error {
	own := s.hello()
	if !s.isClient() {
		_ = sendHello(conn, own) // to nobody, as a rule, where the client is C's
	}
	wait := time.Second // for a peer that neither hangs up nor says more
	if s.timeout > 0 {
		wait = min(wait, s.timeout)
	}
	if err := conn.SetReadDeadline(time.Now().Add(wait)); err != nil {
		return err
	}
	in := bufio.NewReaderSize(conn, maxHello)
	if head, _ := in.Peek(len(greeting)); string(head) != greeting {
		return nil
	}
	peer, err := s.receiveHello(in)
	if err != nil {
		return err
	}
	if s.isClient() {
		_ = sendHello(conn, own)
	}
	// These may differ.
	peer.Params.MTU, peer.Params.Check = own.Params.MTU, own.Params.Check
	if err := s.accord(own, peer); err != nil {
		return err
	}
	s.alike = true
	return nil
}

func sendHello(conn net.Conn, h hello) error {
	text, err := json.Marshal(h)
	if err != nil {
		return err
	}
	return send(conn, append(append([]byte(greeting), text...), '\n'), "its parameters")
}

// awaitGreeting refuses a peer that does not say hello.
func (s *session) awaitGreeting(in *bufio.Reader) error {
	head, err := in.Peek(len(greeting))
	needs := strings.Join(s.own, " ") + " needs pingpong on both sides with the same flags"
	if err != nil {
		return fmt.Errorf("%w; %s", exchangeFailed(err, len(head), len(greeting)), needs)
	}
	if string(head) != greeting {
		return fmt.Errorf("the %s speaks as C's programs do, and %s", s.peerName(), needs)
	}
	return nil
}

// receiveHello reads what begins with the greeting.
func (s *session) receiveHello(in *bufio.Reader) (h hello, err error) {
	line, err := in.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		return h, fmt.Errorf("the %s says hello in more than %d bytes", s.peerName(), maxHello)
	}
	if err != nil {
		return h, exchangeFailed(err, len(line), maxHello)
	}
	if err := json.Unmarshal(line[len(greeting):], &h); err != nil {
		return h, fmt.Errorf("the %s says hello in a form that this version does not know: %w", s.peerName(), err)
	}
	return h, nil
}

// accord refuses a peer with which this side cannot play.
func (s *session) accord(own, peer hello) error {
	if peer.Params.Type != "" { // what both sides can see each says in its own words
		if err := own.Params.mismatch(peer.Params, s.peerName()); err != nil {
			return err
		}
		if s.isRoCE() && own.GIDType != peer.GIDType {
			return fmt.Errorf("the GID of this side is of type %s and that of the %s of type %s, which do not reach each other: choose with --gid-idx", own.GIDType, s.peerName(), peer.GIDType)
		}
	}
	switch need := own.Memory.Length; {
	case peer.Error != "":
		return fmt.Errorf("the %s refused: %s", s.peerName(), peer.Error)
	case len(peer.Endpoints) != len(own.Endpoints):
		return fmt.Errorf("the %s sent %d addresses and not %d", s.peerName(), len(peer.Endpoints), len(own.Endpoints))
	case peer.Memory.Length < need:
		return fmt.Errorf("the %s offers %d bytes of memory, and --op %s needs %d", s.peerName(), peer.Memory.Length, s.op, need)
	}
	return nil
}

// refuseOwn is for a side without the flags that its peer has. It lets the peer know.
func refuseOwn(conn net.Conn) error {
	err := errors.New("the peer runs with flags that C's programs do not have: give this side the same ones")
	// What is unread when a connection closes takes what was sent with it.
	_, _ = bufio.NewReaderSize(conn, maxHello).ReadSlice('\n')
	_ = sendHello(conn, hello{Error: "it runs without the flags for which both sides must be pingpong: give it the same ones"})
	return err
}

// control is the connection to a peer that is a pingpong too. Its goroutine reads what the
// peer says until the connection ends.
type control struct {
	conn  net.Conn
	whose string
	words chan word // at most two, that the client begins and is done, before this side answers
	gone  chan struct{}
	err   error // why the connection ended, once gone is closed
	once  sync.Once
}

// word is a line that one side tells the other: the client before each measurement, with
// nothing in it; each when a measurement is over for it; and when it fails.
type word struct {
	Iterations uint64        `json:"iterations"`
	Lost       uint64        `json:"lost"`
	Elapsed    time.Duration `json:"elapsed_ns"`
	CPU        time.Duration `json:"cpu_ns"`
	Error      string        `json:"error,omitempty"`
}

func newControl(conn net.Conn, in io.Reader, whose string) *control {
	c := &control{conn: conn, whose: whose, words: make(chan word, 2), gone: make(chan struct{})}
	go func() {
		defer close(c.gone)
		c.err = c.read(json.NewDecoder(in))
	}()
	return c
}

func (c *control) read(in *json.Decoder) error {
	for {
		var w word
		err := in.Decode(&w)
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return fmt.Errorf("the %s hung up", c.whose)
		case err != nil:
			return fmt.Errorf("the connection to the %s: %w", c.whose, err)
		case w.Error != "":
			return fmt.Errorf("the %s failed: %s", c.whose, w.Error)
		}
		select {
		case c.words <- w:
		default:
			return fmt.Errorf("the %s says more than it should", c.whose)
		}
	}
}

func (c *control) send(w word) error {
	text, err := json.Marshal(w)
	if err != nil {
		return err
	}
	return send(c.conn, append(text, '\n'), "how it goes")
}

// receive waits for the peer's next word.
func (c *control) receive(ctx context.Context) (word, error) {
	select {
	case w := <-c.words:
		return w, nil
	case <-c.gone:
	case <-ctx.Done():
		return word{}, context.Cause(ctx)
	}
	select { // the last word may have come with the end
	case w := <-c.words:
		return w, nil
	default:
		return word{}, c.err
	}
}

// close hangs up; where err is not nil the peer is told.
func (c *control) close(errs ...error) {
	c.once.Do(func() {
		if i := slices.IndexFunc(errs, func(err error) bool { return err != nil }); i >= 0 {
			_ = c.conn.SetWriteDeadline(time.Now().Add(time.Second))
			_ = c.send(word{Error: oneLine(errs[i])})
		}
		c.conn.Close()
		<-c.gone
	})
}
