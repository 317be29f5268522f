// Ibvinfo shows the RDMA devices of this host, their ports and their GIDs, which GID the
// library would choose, the counters of the ports, and what is wrong.
//
// It reads sysfs, opens no device and needs neither rights nor libibverbs. What only an
// opened device tells comes from the program ibvinfo-verbs, which is linked with libibverbs.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/pflag"
	"golang.org/x/term"

	"github.com/goverbs/goverbs/internal/gidchoice"
	"github.com/goverbs/goverbs/internal/sysfs"
)

const (
	exitFailure = 1
	exitUsage   = 2
)

// host is where the command looks.
type host struct {
	sysfs.FS
	root  string // of the other files, as etc and proc
	verbs string // the program ibvinfo-verbs
	route gidchoice.Route
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the process at once
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr, thisHost(beside("ibvinfo-verbs")), showsColour(os.Stdout)))
}

// showsColour reports whether what is written to f reaches a person who wants colours.
func showsColour(f *os.File) bool {
	return term.IsTerminal(int(f.Fd())) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
}

func thisHost(verbs string) host {
	return host{FS: sysfs.Host, root: "/", verbs: verbs, route: gidchoice.KernelRoute}
}

// beside returns the path of a program in the folder of this one.
func beside(name string) string {
	self, err := os.Executable()
	if err != nil { // without /proc
		self = os.Args[0]
	}
	return filepath.Join(filepath.Dir(self), name)
}

// run runs the command on host h until it is done or ctx ends, and returns the exit status.
func run(ctx context.Context, args []string, stdout, stderr io.Writer, h host, colour bool) int {
	r := &reply{ctx: ctx, host: h, out: bufio.NewWriter(stdout), colour: colour}
	c, args := pick(args)
	r.doc.Command = c.name
	opts, err := c.parse(args)
	r.json = opts.json
	switch {
	case errors.Is(err, pflag.ErrHelp):
		r.json = false
		fmt.Fprint(r.out, c.help)
	case err != nil: // in JSON too, if the part that was not read asks for it
		r.json = r.json || slices.Contains(args, "--json") || slices.Contains(args, "--json=true")
		r.fail(exitUsage, fmt.Errorf("%w (see %s --help)", err, c.program()))
	default:
		c.run(r, opts)
	}
	if r.json {
		r.writeJSON()
	}
	if err := r.out.Flush(); err != nil {
		r.fail(exitFailure, err)
	}
	io.WriteString(stderr, r.notes.String()) //nolint:errcheck // nowhere left to tell
	return r.status
}

// reply collects what one run prints.
type reply struct {
	ctx    context.Context
	host   host
	out    *bufio.Writer   // for stdout
	notes  strings.Builder // for stderr, after that
	status int
	colour bool
	json   bool
	doc    document
}

func (r *reply) note(text string) {
	fmt.Fprintln(&r.notes, "ibvinfo:", text)
	r.doc.Notes = append(r.doc.Notes, text)
}

func (r *reply) fail(status int, err error) {
	fmt.Fprintln(&r.notes, "ibvinfo:", err)
	r.doc.Errors = append(r.doc.Errors, err.Error())
	r.status = status
}

// printf prints what is not for --json.
func (r *reply) printf(format string, args ...any) {
	if !r.json {
		fmt.Fprintf(r.out, format, args...)
	}
}

func (r *reply) writeJSON() {
	if r.doc.streamed { // it has begun, and had the samples
		rest, _ := json.Marshal(r.doc)
		fmt.Fprintf(r.out, "],%s\n", strings.TrimPrefix(string(rest), "{"))
		return
	}
	e := json.NewEncoder(r.out)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	e.Encode(r.doc) //nolint:errcheck // plain values; and Flush tells what the writer refuses
}

// paint puts text in the terminal's colour of that number.
func (r *reply) paint(colour int, text string) string {
	if !r.colour {
		return text
	}
	return fmt.Sprintf("\x1b[%dm%s\x1b[0m", colour, text)
}

const (
	red    = 31
	green  = 32
	yellow = 33
)
