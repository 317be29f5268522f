// Pingpong bounces messages between two programs over RDMA and times them. Either
// side may be C's ibv_rc_pingpong: the options, the exchange of addresses over TCP
// and the two lines with the result are the same. With --cm either side may be C's rping.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"

	"github.com/spf13/pflag"
)

const (
	exitFailure     = 1
	exitUsage       = 2
	exitInterrupted = 130 // as a shell reports a command that SIGINT ended
)

func main() { os.Exit(command()) }

func command() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the process at once
	return run(ctx, os.Args[1:], os.Stdout, os.Stderr)
}

// run runs the command until it is done or ctx ends, and returns the exit status.
// Whatever it opened is closed then.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	opts, err := parse(args)
	switch {
	case errors.Is(err, pflag.ErrHelp):
		_, err = io.WriteString(stdout, help())
	case err != nil:
	case opts.refused != nil:
		err = opts.refused
	case opts.cm:
		err = pingCM(ctx, opts, stdout, stderr)
	default:
		err = pingpong(ctx, opts, stdout, stderr)
	}
	if err == nil {
		return 0
	}
	// One line, also where a failed Close joins the error.
	fmt.Fprintln(stderr, "pingpong:", strings.ReplaceAll(err.Error(), "\n", "; "))
	switch {
	case errors.As(err, new(*usageError)):
		return exitUsage
	case ctx.Err() != nil:
		return exitInterrupted
	}
	return exitFailure
}
