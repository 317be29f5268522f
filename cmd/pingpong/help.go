package main

import (
	"fmt"
	"strings"
)

const helpText = `Bounce messages between two programs over RDMA, or read and write the peer's memory,
and time it. Of each type either side may be C's program: ibv_rc_pingpong,
ibv_uc_pingpong, ibv_ud_pingpong or ibv_srq_pingpong. Both sides need the same --size
and --iters, and should have the same --mtu.

Usage: pingpong [flags] [rc|uc|ud|srq]          wait for a client, play with it and end
       pingpong [flags] [rc|uc|ud|srq] SERVER   connect to the server on the host SERVER

Flags of the C programs:
  -p, --port PORT       TCP port to exchange addresses on (18515); a server given 0
                        takes a free one and says which
  -d, --ib-dev DEV      RDMA device (the only one)
  -i, --ib-port PORT    port of the device, from 1 (1)
  -g, --gid-idx INDEX   GID of that port (the one that suits the TCP connection)
  -s, --size BYTES      size of a message (4096; with ud 1024)
  -m, --mtu BYTES       path MTU: 256, 512, 1024, 2048 or 4096 (1024, or the most
                        that the port takes if that is less); not with ud, where a
                        message is one packet
  -r, --rx-depth N      receives posted at a time (500)
  -q, --num-qp N        with srq: queue pairs that share the receive queue (16)
  -n, --iters N         round trips, or operations (1000); with srq of all queue pairs
                        together
  -l, --sl SL           service level, 0 to 15 (0)
  -e, --events          sleep until the device tells of a completion, instead of polling
  -c, --chk             check every byte that arrives, which counts into the time;
                        for a server, its client needs it too
  -o, --odp             with rc and srq: memory that the device pages in on demand and
                        does not lock

Flags that C does not have, and that work with its programs:
      --type TYPE       rc, uc, ud or srq (rc); the word before SERVER says the same
      --inline BYTES    send messages up to that size inline: with the work request, not
                        from registered memory (what the device grants unasked)
      --spin TIME       with --events: poll for so long before each sleep (0s)
      --hold TIME       with --events: sleep for so long, 0 to 10ms, with the thread held
                        as C does, before the Go runtime may use it for others (1ms)
      --tclass N        traffic class, 0 to 255: DSCP in the upper six bits, ECN in the
                        lower two (0)
      --flow-label N    flow label of 20 bits, which chooses the UDP source port (0)
      --json            one JSON document on stdout, also when it fails or is interrupted;
                        all else goes to stderr
      --plot FILE.svg   draw what was measured over the message size: percentiles of the
                        latency, or with --depth above 1 the throughput
      --timeout TIME    give up after so long without progress, 0 for never (3s); with uc
                        and ud a message without an answer is lost after a quarter to a
                        half of it, or with 0 after about a second. A server that takes
                        no part waits while its client is there
      --cm              speak the protocol of rping, over the connection manager, instead:
                        the server reads the client's data and writes it back. The port
                        is 7174, and --size 23 to 65535: the client's (64), or the most
                        that a server takes (65535). A server goes on until the client
                        disconnects; -n has it fail where that is too early. With it go
                        -p -s -n -e -c --timeout --json; --chk can be of one side
  -v, --verbose         with --cm: print the data of each iteration
  -h, --help            print this text

Flags for which both sides must be pingpong, and have the same:
      --op OP           send: bounce messages (default); write-imm: the same by RDMA WRITE
                        with immediate data; write, read, fetch-add or cmp-swap: the
                        client alone works on the server's memory. uc has no read and no
                        atomics; ud and srq have send only
      --depth N         round trips or operations in flight on a queue pair (1)
      --signal-every N  ask for a completion of one send in N (1)
      --bidirectional   both sides begin, instead of the client alone
      --sizes FROM:TO   one measurement for FROM and each of its doubles up to TO, such as
                        1:1M, instead of --size; K, M and G are powers of 1024
      --duration TIME   measure for so long, instead of --iters
      --warmup N        round trips or operations before each measurement (0)

Flags of the C programs that are not supported:
`

const helpEnd = `
What is printed says what was measured, from where to where, and what limits it. Bytes
and rates of round trips count both ways, as C does; Mbit are 10^6 bits, MiB 2^20 bytes
and Mpps 10^6 messages. Colours are never used, so that NO_COLOR changes nothing.

Exit status: 0; 1 if it failed; 2 for wrong usage; 130 after Ctrl-C or
SIGTERM, which prints what was measured so far.

JSON: share/doc/goverbs/pingpong.formats.md of the installation says what the fields
mean; beside the source it is FORMATS.md.
`

// unsupported are the flags of ibv_rc_pingpong that end the program at once.
var unsupported = []struct{ short, name, why string }{
	{"O", "iodp", "implicit on-demand paging is not in this version yet; use -o, or without both pingpong locks the memory"},
	{"P", "prefetch", "it prefetches for on-demand paging, which is not in this version yet"},
	{"t", "ts", "completion timestamps are not in this version yet; without it pingpong takes the time itself"},
	{"j", "dm", "device memory is not in this version yet; without it pingpong uses host memory"},
	{"N", "new_send", "the ibv_wr_* calls are not in this version yet; without it pingpong uses ibv_post_send"},
	{"U", "allow-cc-unprotected", "it needs a newer rdma-core than this version uses"},
}

func help() string {
	var s strings.Builder
	s.WriteString(helpText)
	for _, f := range unsupported {
		fmt.Fprintf(&s, "  -%s, --%s\n          %s\n", f.short, f.name, f.why)
	}
	s.WriteString(helpEnd)
	return s.String()
}
