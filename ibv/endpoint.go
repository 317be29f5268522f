package ibv

import (
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"
	"strings"
)

// Endpoint is what one side must know of the other to connect an RC or UC queue
// pair, or to send to a UD one. Two programs exchange them by any means they
// like, for example as a line of text over TCP: Endpoint is a TextMarshaler.
type Endpoint struct {
	QPN uint32 // queue pair number, 24 bits
	PSN uint32 // first packet sequence number that this side sends, 24 bits
	GID GID    // zero on InfiniBand without a GRH
	LID uint16 // of no use on RoCE
	MTU MTU    // largest path MTU that this side takes, 0 if it does not say
}

// LocalEndpoint is an Endpoint with what only its own side needs to know. As
// text it is the Endpoint alone, so that it can be sent to the peer as it is.
type LocalEndpoint struct {
	Endpoint
	Choice GIDChoice // the own GID, its port and index, and why it was taken
}

// Exchange sends e to the peer as a line of text, reads the peer's line and returns
// its endpoint. The peer does the same at any time. Doing it again, after Connect,
// tells each side that the other is ready. The connection must buffer a line, as
// sockets do; nothing after the peer's line is read. Deadlines are the caller's to
// set on the connection.
func (e Endpoint) Exchange(conn io.ReadWriter) (Endpoint, error) {
	text, err := e.MarshalText()
	if err != nil {
		return Endpoint{}, err
	}
	if _, err := conn.Write(append(text, '\n')); err != nil {
		return Endpoint{}, fmt.Errorf("endpoint: sending to the peer: %w", err)
	}
	var line [256]byte
	for n := range line {
		if _, err := io.ReadFull(conn, line[n:n+1]); err != nil {
			return Endpoint{}, fmt.Errorf("endpoint: the peer's ended after %q: %w", line[:n], err)
		}
		if line[n] == '\n' {
			var peer Endpoint
			err := peer.UnmarshalText(line[:n])
			return peer, err
		}
	}
	return Endpoint{}, fmt.Errorf("endpoint: the peer's line is longer than %d bytes and begins with %.40q", len(line), line)
}

// RandomPSN returns a random packet sequence number of 24 bits. A number that
// differs from one connection to the next keeps late packets of an earlier one
// from being taken for the new one's.
func RandomPSN() uint32 { return rand.Uint32() & maxUint24 }

// endpointTag opens the text form, so that a peer that speaks another form or
// version is told from one that sends a bad value.
const endpointTag = "rdma-endpoint/1"

// String returns the text form: one line that says what each value is, such as
//
//	rdma-endpoint/1 qpn=0x000011 psn=0x1a2b3c gid=::ffff:10.0.0.1 lid=0x0000 mtu=1024
func (e Endpoint) String() string {
	mtu := "0"
	if e.MTU != 0 {
		mtu = e.MTU.String()
	}
	return fmt.Sprintf("%s qpn=0x%06x psn=0x%06x gid=%v lid=0x%04x mtu=%s", endpointTag, e.QPN, e.PSN, e.GID, e.LID, mtu)
}

// MarshalText implements [encoding.TextMarshaler] with the form of String. It
// fails if a value is out of its range.
func (e Endpoint) MarshalText() ([]byte, error) {
	switch {
	case e.QPN > maxUint24:
		return nil, fmt.Errorf("endpoint: QPN %#x has more than 24 bits", e.QPN)
	case e.PSN > maxUint24:
		return nil, fmt.Errorf("endpoint: PSN %#x has more than 24 bits", e.PSN)
	case e.MTU != 0 && !e.MTU.valid():
		return nil, fmt.Errorf("endpoint: %v is not a path MTU", e.MTU)
	}
	return []byte(e.String()), nil
}

// UnmarshalText implements [encoding.TextUnmarshaler]. It wants every field, in
// the order of String, and nothing else but white space. The error names the
// field; the Endpoint is then unchanged.
func (e *Endpoint) UnmarshalText(text []byte) error {
	var parsed Endpoint
	err := parseFields("endpoint", endpointTag, text, []textField{
		{"qpn", func(s string) error { return parseHex(&parsed.QPN, s, 24) }},
		{"psn", func(s string) error { return parseHex(&parsed.PSN, s, 24) }},
		{"gid", func(s string) error { return parsed.GID.UnmarshalText([]byte(s)) }},
		{"lid", func(s string) error { return parseHex(&parsed.LID, s, 16) }},
		{"mtu", func(s string) (err error) {
			if s != "0" {
				parsed.MTU, err = ParseMTU(s)
			}
			return err
		}},
	})
	if err == nil {
		*e = parsed
	}
	return err
}

func parseHex[T uint16 | uint32 | uint64](v *T, s string, bits int) error {
	digits, ok := strings.CutPrefix(s, "0x")
	n, err := strconv.ParseUint(digits, 16, bits)
	if !ok || err != nil {
		return fmt.Errorf("%.40q is not a hexadecimal number of at most %d bits, such as 0x1f", s, bits)
	}
	*v = T(n)
	return nil
}
