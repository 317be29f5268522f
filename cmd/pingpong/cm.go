package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/goverbs/goverbs/cmd/pingpong/internal/report"
	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/rdmacm"
)

// cmFlags are those that go with --cm. All else is the connection manager's to decide, or
// not in rping's protocol.
var cmFlags = []string{"cm", "verbose", "port", "size", "iters", "events", "chk", "timeout", "json"}

// settleCM fills in rping's defaults, and refuses what does not go with it.
func (o *options) settleCM(flags *pflag.FlagSet) (err error) {
	if !o.cm {
		if o.verbose {
			return errors.New("--verbose is for --cm, whose data is text")
		}
		return nil
	}
	flags.Visit(func(f *pflag.Flag) {
		if !slices.Contains(cmFlags, f.Name) {
			err = fmt.Errorf("--%s does not go with --cm: it is the connection manager's to decide, or not in rping's protocol", f.Name)
		}
	})
	client := o.isClient()
	if !flags.Changed("port") {
		o.port = 7174
	}
	switch {
	case err != nil:
		return err
	case !flags.Changed("size") && client:
		o.sizes = []uint32{64}
	case !flags.Changed("size"):
		o.sizes = []uint32{maxPing}
	case o.sizes[0] < minPing || o.sizes[0] > maxPing:
		return fmt.Errorf("--size %d: with --cm it is %d to %d, as rping has it", o.sizes[0], minPing, maxPing)
	}
	if !client && !flags.Changed("iters") {
		o.iters = 0 // until the client disconnects
	}
	return nil
}

// pingCM runs one side over the connection manager.
func pingCM(ctx context.Context, opts options, rep *report.Report, stdout, stderr io.Writer) (err error) {
	p := newPinger(opts, stdout)
	if opts.json {
		p.stdout = stderr
	}
	err = p.connect(ctx, stderr)
	if p.conn != nil {
		defer func() { err = errors.Join(err, p.conn.Close()) }()
	}
	switch {
	case err == nil:
	case ctx.Err() != nil:
		return context.Cause(ctx)
	default:
		return err
	}
	if rep.Setup, err = p.report(); err != nil {
		return err
	}
	stop := progress(stderr, "iterations", &p.moves)
	used := cpuTime()
	err = p.play(ctx)
	counted := report.Count{
		Iterations: p.done, Complete: err == nil, Ways: 2, Elapsed: p.elapsed, CPU: cpuTime() - used, Times: p.times,
	}
	stop()
	if p.done > 0 {
		counted.Size = uint32(p.transferred / p.done / 2)
		rep.Results = []report.Result{counted.Result()}
	}
	return tell(ctx, &opts, rep, stdout, err)
}

// connect connects to the server, or waits for a client however long that takes. One that cannot
// be accepted is told of, and does not end the wait.
func (p *pinger) connect(ctx context.Context, stderr io.Writer) (err error) {
	cfg := rdmacm.Config{Cap: ibv.QPCap{MaxSendWR: pingSends, MaxRecvWR: pingRecvs, MaxSendSGE: 1, MaxRecvSGE: 1}}
	if p.isClient() {
		if p.timeout > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, p.timeout)
			defer cancel()
		}
		host := strings.Trim(p.server, "[]") // as IPv6 addresses are written beside ports
		p.conn, err = rdmacm.Dial(ctx, net.JoinHostPort(host, strconv.Itoa(int(p.port))), cfg, p.setup)
		return err
	}
	l, err := rdmacm.Listen(net.JoinHostPort("", strconv.Itoa(int(p.port))), cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	fmt.Fprintf(stderr, "pingpong: waiting for a client on port %d\n", l.Addr().Port())
	for {
		p.conn, err = l.Accept(ctx, p.setup)
		if !errors.As(err, new(*rdmacm.AcceptError)) {
			return err
		}
		fmt.Fprintf(stderr, "pingpong: %s; waiting for another client\n", oneLine(err))
	}
}

// report describes the connection for the report.
func (p *pinger) report() (*report.Setup, error) {
	qp, dev := p.conn.QP(), p.conn.PD().Context()
	attr, err := qp.Query(ibv.AttrPort | ibv.AttrPathMTU)
	if err != nil {
		return nil, err
	}
	return &report.Setup{
		Side: p.role(), Type: typeRC, Operation: "rping",
		Device: dev.Name(), Driver: driver(dev.Name()), Software: dev.Software(), Port: attr.Port, MTU: attr.PathMTU.Bytes(),
		QueuePairs: 1, Depth: 1, SignalEvery: 1, RxDepth: pingRecvs,
		Wait: p.waits(), Checked: p.check,
	}, nil
}
