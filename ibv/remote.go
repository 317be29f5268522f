package ibv

import (
	"fmt"
	"strings"
)

// RemoteRange names memory of a peer: what RDMA reads, writes and atomics reach.
// mr.Region.Remote makes one, or a memory window, and a program sends it to its peer
// in any way it likes, for example as text: RemoteRange is a TextMarshaler. It is an
// identifier and no secret; whoever has it, or guesses its 32 bits, and has a queue
// pair to the same protection domain can use it.
type RemoteRange struct {
	Addr   uint64 // as the peer's memory region counts, which need not be a pointer
	Length uint64 // bytes
	RKey   uint32
}

// Slice returns n bytes of the range from off. It panics if they are not inside, as
// slicing does: check first what came from a peer.
func (r RemoteRange) Slice(off, n int) RemoteRange {
	if off < 0 || n < 0 || uint64(off) > r.Length || uint64(n) > r.Length-uint64(off) || r.wraps() {
		panic(fmt.Sprintf("ibv: slice of %d bytes from %d of a remote range of %d", n, off, r.Length))
	}
	return RemoteRange{Addr: r.Addr + uint64(off), Length: uint64(n), RKey: r.RKey}
}

// remoteTag opens the text form, as endpointTag does an Endpoint's.
const remoteTag = "rdma-range/1"

// String returns the text form, such as
//
//	rdma-range/1 addr=0x7f0012340000 length=0x1000 rkey=0x1a2b
func (r RemoteRange) String() string {
	return fmt.Sprintf("%s addr=%#x length=%#x rkey=%#x", remoteTag, r.Addr, r.Length, r.RKey)
}

// wraps reports a range that runs over the end of the address space.
func (r RemoteRange) wraps() bool { return r.Length > 0 && r.Addr+(r.Length-1) < r.Addr }

func (r RemoteRange) check() error {
	if r.wraps() {
		return fmt.Errorf("remote range: %#x bytes from %#x run over the end of the address space", r.Length, r.Addr)
	}
	return nil
}

// MarshalText implements [encoding.TextMarshaler] with the form of String. It refuses a
// range that runs over the end of the address space.
func (r RemoteRange) MarshalText() ([]byte, error) { return []byte(r.String()), r.check() }

// UnmarshalText implements [encoding.TextUnmarshaler]. It wants every field, in the
// order of String, and a range that does not run over the end of the address space.
// The error names the field; the RemoteRange is then unchanged.
func (r *RemoteRange) UnmarshalText(text []byte) error {
	var parsed RemoteRange
	err := parseFields("remote range", remoteTag, text, []textField{
		{"addr", func(s string) error { return parseHex(&parsed.Addr, s, 64) }},
		{"length", func(s string) error { return parseHex(&parsed.Length, s, 64) }},
		{"rkey", func(s string) error { return parseHex(&parsed.RKey, s, 32) }},
	})
	if err != nil {
		return err
	}
	if err := parsed.check(); err != nil {
		return err
	}
	*r = parsed
	return nil
}

// textField is one "name=value" of a text form.
type textField struct {
	name  string
	parse func(value string) error
}

// parseFields wants tag and then every field, in order, and nothing else but white
// space.
func parseFields(what, tag string, text []byte, fields []textField) error {
	words := strings.Fields(string(text))
	if len(words) == 0 || words[0] != tag {
		return fmt.Errorf("%s: %.40q does not begin with %s", what, text, tag)
	}
	words = words[1:]
	for i, field := range fields {
		if i == len(words) {
			return fmt.Errorf("%s: the text ends before the field %s", what, field.name)
		}
		value, ok := strings.CutPrefix(words[i], field.name+"=")
		if !ok {
			return fmt.Errorf("%s: %.40q stands where the field %s is due", what, words[i], field.name)
		}
		if err := field.parse(value); err != nil {
			return fmt.Errorf("%s: field %s: %w", what, field.name, err)
		}
	}
	if len(words) > len(fields) {
		return fmt.Errorf("%s: %.40q follows the last field", what, words[len(fields)])
	}
	return nil
}
