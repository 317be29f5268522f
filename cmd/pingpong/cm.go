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
	"time"

	"github.com/spf13/pflag"

	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/rdmacm"
)

// cmFlags are those that go with --cm. All else is the connection manager's to decide, or
// not in rping's protocol.
var cmFlags = []string{"cm", "verbose", "port", "size", "iters", "events", "chk", "timeout"}

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
		o.size = 64
	case !flags.Changed("size"):
		o.size = maxPing
	case o.size < minPing || o.size > maxPing:
		return fmt.Errorf("--size %d: with --cm it is %d to %d, as rping has it", o.size, minPing, maxPing)
	}
	if !client && !flags.Changed("iters") {
		o.iters = 0 // until the client disconnects
	}
	return nil
}

// pingCM runs one side over the connection manager.
func pingCM(ctx context.Context, opts options, stdout, stderr io.Writer) (err error) {
	p := &pinger{options: opts, stdout: stdout}
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
	used := cpuTime()
	err = p.play(ctx)
	if p.done > 0 && (err == nil || ctx.Err() != nil) {
		err = errors.Join(err, p.write(stdout, cpuTime()-used))
	}
	return err
}

// connect connects to the server, or waits for a client however long that takes.
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
	p.conn, err = l.Accept(ctx, p.setup)
	return err
}

// write prints what was measured, and last two lines as they are without --cm.
func (p *pinger) write(w io.Writer, cpu time.Duration) error {
	ctx := p.conn.PD().Context()
	waiting, check, software := "busy polling", "", ""
	if p.events {
		waiting = "sleeping until an event"
	}
	if p.check {
		check = ", the checking of data included"
	}
	if ctx.Software() {
		software = "software device: not a measure of RDMA hardware\n"
	}
	done, size := float64(p.done), p.transferred/p.done/2
	_, err := fmt.Fprintf(w, `measured: iterations of rping's protocol over RC from %v to %v on %s: the server
          reads %d bytes of the client and writes them back; two messages each way
          one work request at a time; %s
          %.2f usec/iter of CPU time on this side%s
%s%d bytes in %.2f seconds = %.2f Mbit/sec
%d iters in %.2f seconds = %.2f usec/iter
`,
		p.conn.LocalAddr(), p.conn.RemoteAddr(), ctx.Name(), size, waiting, usec(cpu)/done, check, software,
		p.transferred, p.elapsed.Seconds(), float64(p.transferred)*8/usec(p.elapsed),
		p.done, p.elapsed.Seconds(), usec(p.elapsed)/done)
	return err
}
