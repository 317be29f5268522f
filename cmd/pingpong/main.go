// Pingpong bounces messages between two programs over RDMA, or works on the peer's
// memory, and times it. Either side may be C's ibv_rc_pingpong, ibv_uc_pingpong,
// ibv_ud_pingpong or ibv_srq_pingpong: the options, the exchange of addresses over TCP
// and the two lines with the result are the same. With --cm either side may be C's
// rping. What it writes and says beyond them is described in FORMATS.md.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/pflag"

	"github.com/goverbs/goverbs/cmd/pingpong/internal/plot"
	"github.com/goverbs/goverbs/cmd/pingpong/internal/report"
)

const (
	exitFailure     = 1
	exitUsage       = 2
	exitInterrupted = 130 // as a shell reports a command that SIGINT ended
)

func main() { os.Exit(command()) }

func command() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the process at once
	if runtime.GOMAXPROCS(0) == 1 && os.Getenv("GOMAXPROCS") == "" {
		// Where there is but one, the runtime's monitor takes it away from each call into C that lasts
		// over 20 us, as a post does with a software device, and is woken when it ends.
		runtime.GOMAXPROCS(2)
	}
	return run(ctx, os.Args[1:], os.Stdout, os.Stderr)
}

// run runs the command until it is done or ctx ends, and returns the exit status.
// Whatever it opened is closed then.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	opts, err := parse(args)
	asJSON := opts.json || err != nil && (slices.Contains(args, "--json") || slices.Contains(args, "--json=true"))
	rep := &report.Report{Program: "pingpong", Format: 1}
	switch {
	case errors.Is(err, pflag.ErrHelp):
		asJSON = false
		_, err = io.WriteString(stdout, help())
	case err != nil:
	case opts.refused != nil:
		err = opts.refused
	case opts.cm:
		err = pingCM(ctx, opts, rep, stdout, stderr)
	default:
		err = pingpong(ctx, opts, rep, stdout, stderr)
	}
	rep.Interrupted = err != nil && ctx.Err() != nil
	if asJSON {
		err = errors.Join(err, writeJSON(rep, err, stdout))
	}
	if err == nil {
		return 0
	}
	fmt.Fprintln(stderr, "pingpong:", oneLine(err))
	switch {
	case errors.As(err, new(*usageError)):
		return exitUsage
	case ctx.Err() != nil:
		return exitInterrupted
	}
	return exitFailure
}

// oneLine is the text of an error, also where a failed Close joins it.
func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

func writeJSON(rep *report.Report, err error, stdout io.Writer) error {
	if err != nil {
		text := oneLine(err)
		rep.Error = &text
	}
	return rep.WriteJSON(stdout)
}

// pingpong runs one side and puts what it measured into rep. The result and what
// qualifies it go to stdout, last in the lines of C's programs; the rest to stderr.
func pingpong(ctx context.Context, opts options, rep *report.Report, stdout, stderr io.Writer) (err error) {
	if opts.plot != "" {
		if err := claim(opts.plot); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, draw(opts.plot, shown(ctx, &opts, rep, err))) }()
	}
	s, err := open(opts)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	rep.Setup = s.setup()
	notes := stdout
	if opts.json {
		notes = stderr
	}
	c, err := s.connect(ctx, notes, stderr)
	if err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return err
	}
	if c != nil {
		defer func() { c.close(err) }()
	}
	rep.Results, err = s.play(ctx, c, stderr)
	return tell(ctx, &opts, rep, stdout, err)
}

// tell writes what was measured until an error, or without one.
func tell(ctx context.Context, opts *options, rep *report.Report, stdout io.Writer, err error) error {
	rep.Describe()
	if some := shown(ctx, opts, rep, err); !opts.json && len(some.Results) > 0 {
		err = errors.Join(err, some.WriteText(stdout))
	}
	return err
}

// shown is the report with the results that can be taken for some. What a failure has cut short is
// none, for the wait for it is in its time; what Ctrl-C or lost messages have is.
func shown(ctx context.Context, opts *options, rep *report.Report, err error) *report.Report {
	if err == nil || ctx.Err() != nil || opts.isLossy() {
		return rep
	}
	some := *rep
	some.Results = slices.DeleteFunc(slices.Clone(rep.Results), func(one report.Result) bool { return !one.Complete })
	return &some
}

// claim fails where no picture can be written, before a long run. What is there stays until
// there is another.
func claim(picture string) error {
	f, err := os.OpenFile(picture, os.O_WRONLY|os.O_CREATE, 0o666)
	if err != nil {
		return err
	}
	return f.Close()
}

// draw draws what was measured; where that is nothing it leaves no empty picture.
func draw(picture string, rep *report.Report) error {
	var svg bytes.Buffer
	var err error
	if len(rep.Results) > 0 {
		if err = plot.Write(&svg, rep); err == nil {
			return os.WriteFile(picture, svg.Bytes(), 0o666)
		}
	}
	if info, failed := os.Stat(picture); failed == nil && info.Size() == 0 {
		err = errors.Join(err, os.Remove(picture))
	}
	return err
}
