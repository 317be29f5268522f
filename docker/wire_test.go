//go:build lab

package docker_test

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/ibv"
)

// packet is what RoCE v2 packets have in front of their data.
type packet struct {
	from         byte // host, the last byte of its address
	dscp, ecn    byte
	sport, dport uint16
	opcode       byte
	qpn          uint32 // destination
}

// Opcodes of the base transport header.
const (
	rcSendOnly byte = 0x04
	rcAck      byte = 0x11
	ucSendOnly byte = 0x24
)

// TestWire looks at the packets between two hosts that each send one message, by RC and
// then by UC, with a flow label and a traffic class of their own.
func TestWire(t *testing.T) {
	type side struct {
		label uint32
		class byte
	}
	rc := []side{{0x00001, 0x68}, {0xabcde, 0xb9}}
	uc := []side{{0xfffff, 0x02}, {0x54321, 0xff}}
	for _, series := range []string{"6.1", "6.12"} {
		t.Run(series, func(t *testing.T) {
			l := newTwoHosts(t, "RXE_KERNEL="+series)
			file := filepath.Join(t.TempDir(), "pcap")
			greet := l.programs("./internal/cmd/greet") + "/greet"
			script := func(n int, first, peer string) string {
				return fmt.Sprintf("set -e; %s -label %#x -class %#x %s; ", greet, rc[n].label, rc[n].class, peer) +
					fmt.Sprintf(first+" %s -uc -label %#x -class %#x %s", greet, uc[n].label, uc[n].class, peer)
			}
			server, client := script(0, "", ""), script(1, "until", "$RXE_PEER")+"; do sleep 0.1; done"
			out, errs, status := l.run("--capture", file, "sh", "-c", server, "--", "sh", "-c", client)
			require.Zero(t, status, "%s%s", out, errs)

			// Each host has printed its own and its peer's endpoint, by RC and then by UC.
			var qpns []uint32
			for _, m := range regexp.MustCompile(`qpn=(0x\w+)`).FindAllStringSubmatch(of("server", out), -1) {
				var n uint32
				_, err := fmt.Sscanf(m[1], "%v", &n)
				require.NoError(t, err)
				qpns = append(qpns, n)
			}
			require.Len(t, qpns, 4)
			want := func(n int, s side, opcode byte, qpns []uint32) packet {
				return packet{
					from: byte(1 + n), dscp: s.class >> 2, ecn: s.class & 3,
					sport: ibv.FlowLabelToUDPSport(s.label), dport: 4791, opcode: opcode, qpn: qpns[1-n],
				}
			}
			var all []packet
			for n := range 2 {
				all = append(all,
					want(n, rc[n], rcSendOnly, qpns[:2]), want(n, rc[n], rcAck, qpns[:2]),
					want(n, uc[n], ucSendOnly, qpns[2:]))
			}
			var seen []packet
			for _, p := range readRoCE(t, file) {
				// On a slow machine RC sends again what was not acknowledged in time.
				if p.opcode == ucSendOnly || !slices.Contains(seen, p) {
					seen = append(seen, p)
				}
			}
			assert.ElementsMatch(t, all, seen)
		})
	}
}

// readRoCE returns the UDP packets over IPv4 of a pcap file, all of which must be RoCE.
func readRoCE(t *testing.T, file string) (packets []packet) {
	t.Helper()
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	le, be := binary.LittleEndian, binary.BigEndian
	require.GreaterOrEqual(t, len(b), 24)
	require.Equal(t, uint32(0xa1b23c4d), le.Uint32(b), "pcap, times in nanoseconds")
	require.Equal(t, uint32(1), le.Uint32(b[20:]), "Ethernet")
	for b = b[24:]; len(b) > 0; {
		require.GreaterOrEqual(t, len(b), 16, "the last packet is whole")
		n := int(le.Uint32(b[8:]))
		require.GreaterOrEqual(t, len(b), 16+n, "the last packet is whole")
		frame := b[16:][:n]
		b = b[16+n:]
		const ipv4, udp = 0x0800, 17
		if be.Uint16(frame[12:]) != ipv4 || frame[14+9] != udp {
			continue
		}
		ip := frame[14:]
		require.Equal(t, byte(0x45), ip[0], "IPv4 without options")
		u, bth := ip[20:], ip[28:]
		packets = append(packets, packet{
			from: ip[15], dscp: ip[1] >> 2, ecn: ip[1] & 3,
			sport: be.Uint16(u), dport: be.Uint16(u[2:]), opcode: bth[0], qpn: be.Uint32(bth[4:]) & 0xffffff,
		})
	}
	return packets
}
