package main

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/goverbs/goverbs/cq"
	"github.com/goverbs/goverbs/ibv"
)

// Transports, which the words of --type name.
const (
	typeRC  = "rc"
	typeUC  = "uc"
	typeUD  = "ud"
	typeSRQ = "srq" // RC with a shared receive queue
)

var types = []string{typeRC, typeUC, typeUD, typeSRQ}

type options struct {
	server   string // host to connect to; empty to be the server
	typ      string
	port     uint16 // TCP
	device   string // empty for the only one
	ibPort   uint8
	gidIndex *uint32 // nil to choose
	sizes    []uint32
	mtu      ibv.MTU // 0 for the default
	rxDepth  uint32
	numQP    uint32
	iters    uint32
	sl       uint8
	events   bool
	spin     time.Duration
	hold     time.Duration
	check    bool
	odp      bool
	timeout  time.Duration // 0 for none
	cm       bool
	verbose  bool

	inline    *uint32 // nil for what the device grants unasked
	tclass    uint8
	flowLabel uint32
	json      bool
	plot      string

	op            operation
	depth         uint32
	signalEvery   uint32
	bidirectional bool
	duration      time.Duration // 0 to count to iters
	warmup        uint32

	own     []string // the flags given that ibv_*_pingpong cannot be the peer of
	refused error    // a flag that is not supported
}

// operation is a value of --op.
type operation string

const (
	opSend     operation = "send"
	opWrite    operation = "write"
	opWriteImm operation = "write-imm"
	opRead     operation = "read"
	opFetchAdd operation = "fetch-add"
	opCmpSwap  operation = "cmp-swap"
)

var operations = []operation{opSend, opWrite, opWriteImm, opRead, opFetchAdd, opCmpSwap}

// bounces reports whether the peer answers, instead of taking no part.
func (op operation) bounces() bool { return op == opSend || op == opWriteImm }
func (op operation) atomic() bool  { return op == opFetchAdd || op == opCmpSwap }

const atomicSize = 8

func defaults() options {
	return options{
		typ: typeRC, port: 18515, ibPort: 1, sizes: []uint32{4096}, rxDepth: 500, numQP: 1, iters: 1000,
		op: opSend, depth: 1, signalEvery: 1,
		hold:    time.Millisecond,
		timeout: 3 * time.Second, // so that whatever goes wrong is told within five
	}
}

func (o *options) isClient() bool { return o.server != "" }

// role and waits are as the report has them.
func (o *options) role() string {
	if o.isClient() {
		return "client"
	}
	return "server"
}

// held is for how long a sleep holds its thread.
func (o *options) held() time.Duration {
	if o.events {
		return o.hold
	}
	return 0
}

func (o *options) waits() string {
	switch {
	case o.spin > 0:
		return "mixed"
	case o.events:
		return "events"
	}
	return "polling"
}

// isOwn reports whether the peer must be a pingpong, with which more is agreed than addresses.
func (o *options) isOwn() bool { return len(o.own) > 0 }

// isLossy reports whether a message may be lost without anybody's being told.
func (o *options) isLossy() bool { return o.typ == typeUC || o.typ == typeUD }

func (o *options) maxSize() uint32 { return slices.Max(o.sizes) }

// window is how many messages to each side may be on their way on a queue pair.
func (o *options) window() uint32 {
	if o.bidirectional && o.op.bounces() {
		return 2 * o.depth
	}
	return o.depth
}

// usageError is a command line that cannot be run.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() + " (see pingpong --help)" }
func (e *usageError) Unwrap() error { return e.err }

// ownFlags are those that C's programs have nothing for.
var ownFlags = []string{"op", "depth", "signal-every", "bidirectional", "sizes", "duration", "warmup"}

// parse reads the command line. Its error is pflag.ErrHelp or a *usageError.
func parse(args []string) (options, error) {
	o := defaults()
	flags := pflag.NewFlagSet("pingpong", pflag.ContinueOnError)
	flags.Usage = func() {} // run prints it
	o.define(flags)
	if err := flags.Parse(args); errors.Is(err, pflag.ErrHelp) {
		return o, err
	} else if err != nil {
		return o, &usageError{err}
	}
	if err := o.settle(flags); err != nil {
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

func (o *options) define(flags *pflag.FlagSet) {
	flags.FuncP("port", "p", "", number(&o.port, 0, 65535))
	flags.StringVarP(&o.device, "ib-dev", "d", "", "")
	flags.FuncP("ib-port", "i", "", number(&o.ibPort, 1, 255))
	flags.FuncP("gid-idx", "g", "", optional(&o.gidIndex, 0, 255))
	flags.FuncP("size", "s", "", number(&o.sizes[0], 1, 1<<32-1))
	flags.FuncP("mtu", "m", "", func(s string) (err error) {
		o.mtu, err = ibv.ParseMTU(s)
		return err
	})
	flags.FuncP("rx-depth", "r", "", number(&o.rxDepth, 1, 1<<31-1))
	flags.FuncP("num-qp", "q", "", number(&o.numQP, 1, maxQPs-1))
	flags.FuncP("iters", "n", "", number(&o.iters, 1, 1<<32-1))
	flags.FuncP("sl", "l", "", number(&o.sl, 0, 15))
	flags.BoolVarP(&o.events, "events", "e", false, "")
	flags.BoolVarP(&o.check, "chk", "c", false, "")
	flags.BoolVarP(&o.odp, "odp", "o", false, "")

	flags.StringVar(&o.typ, "type", o.typ, "")
	flags.Func("inline", "", optional(&o.inline, 0, 1<<16))
	flags.DurationVar(&o.spin, "spin", 0, "")
	flags.DurationVar(&o.hold, "hold", o.hold, "")
	flags.Func("tclass", "", number(&o.tclass, 0, 255))
	flags.Func("flow-label", "", number(&o.flowLabel, 0, 1<<20-1))
	flags.BoolVar(&o.cm, "cm", false, "")
	flags.BoolVarP(&o.verbose, "verbose", "v", false, "")
	flags.BoolVar(&o.json, "json", false, "")
	flags.StringVar(&o.plot, "plot", "", "")
	flags.DurationVar(&o.timeout, "timeout", o.timeout, "")

	flags.StringVar((*string)(&o.op), "op", string(o.op), "")
	flags.Func("depth", "", number(&o.depth, 1, 1<<16))
	flags.Func("signal-every", "", number(&o.signalEvery, 1, 1<<16))
	flags.BoolVar(&o.bidirectional, "bidirectional", false, "")
	flags.Func("sizes", "", func(s string) (err error) {
		o.sizes, err = parseSizes(s)
		return err
	})
	flags.DurationVar(&o.duration, "duration", 0, "")
	flags.Func("warmup", "", number(&o.warmup, 0, 1<<32-1))
	for _, f := range unsupported {
		flags.BoolP(f.name, f.short, false, "")
	}
}

// settle fills in what depends on several flags, and refuses what does not go together.
func (o *options) settle(flags *pflag.FlagSet) error {
	given, words := flags.Changed, flags.Args()
	if len(words) > 0 && slices.Contains(types, words[0]) && !given("type") {
		o.typ, words = words[0], words[1:]
	}
	if len(words) > 0 {
		o.server = words[0]
	}
	for _, name := range ownFlags {
		if given(name) {
			o.own = append(o.own, "--"+name)
		}
	}
	switch {
	case o.op.atomic() && !given("size"):
		o.sizes = []uint32{atomicSize}
	case o.typ == typeUD && !given("size") && !given("sizes"):
		o.sizes = []uint32{1024}
	}
	if o.typ == typeSRQ && !given("num-qp") {
		o.numQP = 16
	}

	switch {
	case len(words) > 1:
		return fmt.Errorf("unexpected argument %q: one server is enough", words[1])
	case len(words) == 1 && o.server == "":
		return errors.New("the name of the server is empty")
	case len(words) == 1 && o.port == 0:
		return errors.New("--port 0 is for a server: a client needs the port that the server listens on")
	case given("ib-dev") && o.device == "":
		return errors.New("--ib-dev needs the name of a device")
	case !slices.Contains(types, o.typ):
		return fmt.Errorf("--type %s is none of %s", o.typ, strings.Join(types, ", "))
	case given("spin") && !o.events:
		return errors.New("--spin is for --events: without it pingpong polls and never sleeps")
	case o.spin < 0:
		return fmt.Errorf("--spin %v is negative: use 0 to sleep at once", o.spin)
	case given("hold") && !o.events:
		return errors.New("--hold is for --events: without it pingpong polls and never sleeps")
	case o.hold < 0 || o.hold > cq.MaxHold || o.hold%time.Millisecond != 0:
		return fmt.Errorf("--hold %v is not from 0 to %v in whole milliseconds", o.hold, cq.MaxHold)
	case o.timeout < 0:
		return fmt.Errorf("--timeout %v is negative: use 0 to wait for ever", o.timeout)
	case given("plot") && !strings.HasSuffix(o.plot, ".svg"):
		return fmt.Errorf("--plot %q: the name must end in .svg, which is the format", o.plot)
	}
	if err := o.settleType(given); err != nil {
		return err
	}
	if err := o.settleOp(given); err != nil {
		return err
	}
	return o.settleCM(flags)
}

func (o *options) settleType(given func(string) bool) error {
	switch {
	case o.typ == typeUD && given("mtu"):
		return errors.New("--mtu: ud has no path MTU, since a message is one packet of at most the port's MTU")
	case o.typ != typeSRQ && given("num-qp"):
		return errors.New("--num-qp is for srq: the other types have one queue pair")
	case o.odp && o.isLossy():
		return fmt.Errorf("--odp is for rc and srq, not for %s", o.typ)
	case uint64(o.rxDepth) < uint64(o.numQP)*uint64(o.window()) && o.op.bounces():
		return fmt.Errorf("--rx-depth %d is too small: there may be %d messages on the way, %d on each queue pair", o.rxDepth, o.numQP*o.window(), o.window())
	}
	return nil
}

func (o *options) settleOp(given func(string) bool) error {
	switch {
	case !slices.Contains(operations, o.op):
		return fmt.Errorf("--op %s is none of %s", o.op, strings.Trim(fmt.Sprint(operations), "[]"))
	case (o.typ == typeUD || o.typ == typeSRQ) && o.op != opSend:
		return fmt.Errorf("--op %s is not for %s, which has send only", o.op, o.typ)
	case o.typ == typeUC && (o.op == opRead || o.op.atomic()):
		return fmt.Errorf("--op %s is not for uc, which has send, write and write-imm", o.op)
	case o.op.atomic() && (given("sizes") || o.sizes[0] != atomicSize):
		return fmt.Errorf("--op %s works on %d bytes: leave --size out", o.op, atomicSize)
	case given("size") && given("sizes"):
		return errors.New("--size and --sizes: give one of them")
	case given("duration") && given("iters"):
		return errors.New("--duration and --iters: give one of them")
	case given("duration") && o.duration <= 0:
		return fmt.Errorf("--duration %v is no time to measure", o.duration)
	case o.signalEvery > o.depth && !o.op.bounces():
		return fmt.Errorf("--signal-every %d is more than --depth %d: no operation in flight would be signaled", o.signalEvery, o.depth)
	}
	return nil
}

// parseSizes reads FROM:TO and returns FROM and its doubles up to TO.
func parseSizes(s string) (sizes []uint32, err error) {
	from, to, both := strings.Cut(s, ":")
	least, err1 := parseSize(from)
	most, err2 := parseSize(to)
	if !both || err1 != nil || err2 != nil || least < 1 || least > most || most > 1<<32-1 {
		return nil, errors.New("it takes FROM:TO in bytes, such as 1:1M, from 1 to 4294967295")
	}
	for n := least; n <= most; n *= 2 {
		sizes = append(sizes, uint32(n))
	}
	return sizes, nil
}

func parseSize(s string) (uint64, error) {
	digits := strings.TrimRight(s, "KMG")
	shift, known := map[string]uint{"": 0, "K": 10, "M": 20, "G": 30}[s[len(digits):]]
	if !known {
		return 0, strconv.ErrSyntax
	}
	n, err := strconv.ParseUint(digits, 10, 32)
	return n << shift, err
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

// optional does the same for a number that has no default.
func optional(to **uint32, least, most uint64) func(string) error {
	return func(s string) error {
		*to = new(uint32)
		return number(*to, least, most)(s)
	}
}
