package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/goverbs/goverbs/ibv"
)

const helpText = `Bounce messages between two programs over RDMA and time them. Either side may be
ibv_rc_pingpong. Both need the same --size and --iters, and should have the same --mtu.

Usage: pingpong [flags]          wait for a client, play with it and end
       pingpong [flags] SERVER   connect to the server on the host SERVER

Flags:
  -p, --port PORT       TCP port to exchange addresses on (18515); a server given 0
                        takes a free one and says which
  -d, --ib-dev DEV      RDMA device (the only one)
  -i, --ib-port PORT    port of the device, from 1 (1)
  -g, --gid-idx INDEX   GID of that port (the one that suits the TCP connection)
  -s, --size BYTES      size of a message (4096)
  -m, --mtu BYTES       path MTU: 256, 512, 1024, 2048 or 4096 (1024, or the most
                        that the port takes if that is less)
  -r, --rx-depth N      receives posted at a time (500)
  -n, --iters N         round trips (1000)
  -l, --sl SL           service level, 0 to 15 (0)
  -e, --events          sleep until the device tells of a completion, instead of polling
      --spin TIME       with --events: poll for so long before each sleep (0s)
  -c, --chk             check every byte that arrives, which counts into the time;
                        for a server, its client needs it too
  -o, --odp             memory that the device pages in on demand and does not lock
      --timeout TIME    give up after so long without progress, 0 for never (3s)
      --cm              speak the protocol of rping, over the connection manager, instead:
                        the server reads the client's data and writes it back. The port
                        is 7174, and --size 23 to 65535: the client's (64), or the most
                        that a server takes (65535). A server goes on until the client
                        disconnects; -n has it fail where that is too early. Of the flags
                        -p -s -n -e -c --timeout go with it; --chk can be of one side
  -v, --verbose         with --cm: print the data of each iteration
  -h, --help            print this text

Flags of ibv_rc_pingpong that are not supported:
`

const helpEnd = `
Exit status: 0; 1 if it failed; 2 for wrong usage; 130 after Ctrl-C.
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

type options struct {
	server   string // host to connect to; empty to be the server
	port     uint16 // TCP
	device   string // empty for the only one
	ibPort   uint8
	gidIndex *uint32 // nil to choose
	size     uint32
	mtu      ibv.MTU // 0 for the default
	rxDepth  uint32
	iters    uint32
	sl       uint8
	events   bool
	spin     time.Duration
	check    bool
	odp      bool
	timeout  time.Duration // 0 for none
	cm       bool
	verbose  bool

	refused error // a flag that is not supported
}

func defaults() options {
	return options{
		port: 18515, ibPort: 1, size: 4096, rxDepth: 500, iters: 1000,
		timeout: 3 * time.Second, // so that whatever goes wrong is told within five
	}
}

// usageError is a command line that cannot be run.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() + " (see pingpong --help)" }
func (e *usageError) Unwrap() error { return e.err }

// parse reads the command line. Its error is pflag.ErrHelp or a *usageError.
func parse(args []string) (options, error) {
	o := defaults()
	flags := pflag.NewFlagSet("pingpong", pflag.ContinueOnError)
	flags.Usage = func() {} // run prints it
	flags.FuncP("port", "p", "", number(&o.port, 0, 65535))
	flags.StringVarP(&o.device, "ib-dev", "d", "", "")
	flags.FuncP("ib-port", "i", "", number(&o.ibPort, 1, 255))
	flags.FuncP("gid-idx", "g", "", func(s string) error {
		o.gidIndex = new(uint32)
		return number(o.gidIndex, 0, 255)(s)
	})
	flags.FuncP("size", "s", "", number(&o.size, 1, 1<<32-1))
	flags.FuncP("mtu", "m", "", func(s string) (err error) {
		o.mtu, err = ibv.ParseMTU(s)
		return err
	})
	flags.FuncP("rx-depth", "r", "", number(&o.rxDepth, 1, 1<<31-1))
	flags.FuncP("iters", "n", "", number(&o.iters, 1, 1<<32-1))
	flags.FuncP("sl", "l", "", number(&o.sl, 0, 15))
	flags.BoolVarP(&o.events, "events", "e", false, "")
	flags.DurationVar(&o.spin, "spin", 0, "")
	flags.BoolVarP(&o.check, "chk", "c", false, "")
	flags.BoolVarP(&o.odp, "odp", "o", false, "")
	flags.DurationVar(&o.timeout, "timeout", o.timeout, "")
	flags.BoolVar(&o.cm, "cm", false, "")
	flags.BoolVarP(&o.verbose, "verbose", "v", false, "")
	for _, f := range unsupported {
		flags.BoolP(f.name, f.short, false, "")
	}

	if err := flags.Parse(args); errors.Is(err, pflag.ErrHelp) {
		return o, err
	} else if err != nil {
		return o, &usageError{err}
	}
	o.server = flags.Arg(0)
	var err error
	switch {
	case flags.NArg() > 1:
		err = fmt.Errorf("unexpected argument %q: one server is enough", flags.Arg(1))
	case flags.NArg() == 1 && o.server == "":
		err = errors.New("the name of the server is empty")
	case flags.NArg() == 1 && o.port == 0:
		err = errors.New("--port 0 is for a server: a client needs the port that the server listens on")
	case flags.Changed("ib-dev") && o.device == "":
		err = errors.New("--ib-dev needs the name of a device")
	case flags.Changed("spin") && !o.events:
		err = errors.New("--spin is for --events: without it pingpong polls and never sleeps")
	case o.spin < 0:
		err = fmt.Errorf("--spin %v is negative: use 0 to sleep at once", o.spin)
	case o.timeout < 0:
		err = fmt.Errorf("--timeout %v is negative: use 0 to wait for ever", o.timeout)
	default:
		err = o.settleCM(flags)
	}
	if err != nil {
		return o, &usageError{err}
	}
	for _, f := range unsupported {
		if flags.Lookup(f.name).Value.String() == "true" {
			o.refused = fmt.Errorf("-%s: %s", f.short, f.why)
			break
		}
	}
	return o, nil
}

// number returns what reads a flag's value: in decimal, or after 0x as C allows.
func number[T uint8 | uint16 | uint32](to *T, least, most uint64) func(string) error {
	return func(s string) error {
		n, err := strconv.ParseUint(s, 0, 64)
		if err != nil || n < least || n > most {
			return fmt.Errorf("it takes a number from %d to %d", least, most)
		}
		*to = T(n)
		return nil
	}
}
