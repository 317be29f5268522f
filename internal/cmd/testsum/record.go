package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
)

func runRecord(stdout, stderr io.Writer, module string, args []string) int {
	flags := flag.NewFlagSet("testsum record", flag.ContinueOnError)
	flags.SetOutput(stderr)
	verbose := flags.Bool("v", false, "print all that the tests print")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	if flags.NArg() < 2 {
		fmt.Fprintln(stderr, "usage: testsum record [-v] RESULTS CMD [ARG...]")
		return 2
	}
	status, err := record(stdout, stderr, module, flags.Arg(0), flags.Args()[1:], *verbose)
	if err != nil {
		fmt.Fprintln(stderr, "testsum:", err)
	}
	return status
}

// record runs a command, writes the results that it prints to a file, and
// returns its exit status as a shell does, or 1 if only the results tell of a
// failure.
func record(stdout, stderr io.Writer, module, file string, command []string, verbose bool) (int, error) {
	f, err := os.Create(file)
	if err != nil {
		return 1, err
	}
	defer f.Close()
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stderr = stderr
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return 1, err
	}
	if err := cmd.Start(); err != nil {
		return 1, err
	}
	defer outlive(cmd)()
	p := progress{w: stdout, prefix: module + "/", verbose: verbose, failed: map[string]bool{}}
	lines := bufio.NewScanner(pipe)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		if _, err := fmt.Fprintf(f, "%s\n", lines.Bytes()); err != nil {
			return 1, err
		}
		p.show(lines.Bytes())
	}
	readErr := lines.Err()
	if readErr != nil {
		_, _ = io.Copy(io.Discard, pipe) // so that the command can end
	}
	status, why := exitStatus(cmd.Wait())
	if status != 0 && len(p.failed) == 0 {
		name := strings.Join(command, " ")
		last, err := json.Marshal(map[string]string{"Action": "output", "Package": name, "Output": why + "\n"})
		if err != nil {
			return status, err
		}
		// Without a result after it, this "package" counts as a failure.
		if _, err := fmt.Fprintf(f, "%s\n", last); err != nil {
			return status, err
		}
		fmt.Fprintf(stdout, "FAIL  %s: %s\n", name, why)
	}
	if status == 0 && len(p.failed) > 0 {
		status = 1
	}
	return status, errors.Join(readErr, f.Close())
}

// outlive keeps signals from ending us before the command, which gets a
// terminal's Ctrl-C by itself, until the function that it returns is called.
func outlive(cmd *exec.Cmd) (stop func()) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	go func() {
		for s := range signals {
			if s == syscall.SIGTERM {
				_ = cmd.Process.Signal(s)
			}
		}
	}()
	return func() {
		signal.Stop(signals)
		close(signals)
	}
}

func exitStatus(err error) (status int, why string) {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0, ""
	case !errors.As(err, &exit):
		return 1, err.Error()
	}
	if ws, ok := exit.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return 128 + int(ws.Signal()), exit.Error()
	}
	return exit.ExitCode(), exit.Error()
}

// progress prints events for a person who waits.
type progress struct {
	w       io.Writer
	prefix  string // of the module's packages
	verbose bool
	failed  map[string]bool // packages
}

func (p *progress) show(line []byte) {
	var e event
	if json.Unmarshal(line, &e) != nil {
		fmt.Fprintf(p.w, "%s\n", line)
		return
	}
	path := strings.TrimPrefix(e.Package, p.prefix)
	switch e.Action {
	case "output", "build-output":
		if p.verbose || e.Action == "build-output" {
			fmt.Fprint(p.w, e.Output)
		}
	case "fail":
		p.failed[e.Package] = true
		if e.Test != "" {
			fmt.Fprintf(p.w, "FAIL  %s/%s\n", path, e.Test)
			return
		}
		fmt.Fprintf(p.w, "FAIL  %s  %.1fs\n", path, e.Elapsed)
	case "pass":
		if e.Test == "" {
			fmt.Fprintf(p.w, "ok    %s  %.1fs\n", path, e.Elapsed)
		}
	}
}
