package main

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// command is ibvinfo itself or one of its subcommands. Its help is also its manual page.
type command struct {
	name     string
	help     string
	operands string // what they are; empty where there are none
	run      func(*reply, options)
}

// commands are all; the one that needs no name is the first.
var commands = []command{
	{name: "list", help: listHelp, run: (*reply).list},
	{name: "gids", help: gidsHelp, run: (*reply).gids},
	{name: "counters", help: countersHelp, run: (*reply).counters},
	{name: "doctor", help: doctorHelp, operands: "PROGRAM", run: (*reply).doctor},
}

// pick returns the command that the arguments begin with, and the others.
func pick(args []string) (command, []string) {
	for _, c := range commands[1:] {
		if len(args) > 0 && args[0] == c.name {
			return c, args[1:]
		}
	}
	return commands[0], args
}

func (c command) program() string {
	if c.name == commands[0].name {
		return "ibvinfo"
	}
	return "ibvinfo " + c.name
}

type options struct {
	device   string
	port     uint // 0 for all
	list     bool
	verbose  bool
	peer     string
	watch    time.Duration // 0 for once
	count    uint          // of samples; 0 for no end
	json     bool
	programs []string
}

// parse reads the flags of the command. Its error is pflag.ErrHelp or wrong usage.
func (c command) parse(args []string) (opts options, err error) {
	flags := pflag.NewFlagSet("ibvinfo", pflag.ContinueOnError)
	flags.Usage = func() {} // run prints it
	flags.BoolVar(&opts.json, "json", false, "")
	flags.StringVarP(&opts.device, "ib-dev", "d", "", "")
	if c.name != "doctor" {
		flags.UintVarP(&opts.port, "ib-port", "i", 0, "")
	}
	switch c.name {
	case "list":
		flags.BoolVarP(&opts.list, "list", "l", false, "")
		flags.BoolVarP(&opts.verbose, "verbose", "v", false, "")
	case "gids":
		flags.StringVar(&opts.peer, "for", "", "")
	case "counters":
		flags.DurationVar(&opts.watch, "watch", 0, "")
		flags.UintVar(&opts.count, "count", 0, "")
	}
	err = flags.Parse(args)
	opts.programs = flags.Args()
	switch {
	case err != nil:
	case flags.NArg() > 0 && c.operands == "":
		err = fmt.Errorf("unexpected argument %q%s", flags.Arg(0), misplaced(flags.Arg(0)))
	case flags.Changed("ib-dev") && opts.device == "":
		err = errors.New("--ib-dev needs the name of a device")
	case flags.Changed("ib-port") && (opts.port < 1 || opts.port > math.MaxUint8):
		err = fmt.Errorf("--ib-port %d is not from 1 to %d", opts.port, math.MaxUint8)
	case flags.Changed("for") && opts.peer == "":
		err = errors.New("--for needs an IP address or the name of a host")
	case flags.Changed("watch") && opts.watch < 10*time.Millisecond:
		err = fmt.Errorf("--watch %v is less than 10ms: the kernel renews most counters no more often", opts.watch)
	case flags.Changed("count") && !flags.Changed("watch"):
		err = errors.New("--count is for --watch")
	}
	return opts, err
}

// misplaced says what may be wrong with an argument that is the name of a command.
func misplaced(arg string) string {
	for _, c := range commands[1:] {
		if arg == c.name {
			return ": a command comes before the flags"
		}
	}
	names := make([]string, 0, len(commands))
	for _, c := range commands[1:] {
		names = append(names, c.name)
	}
	return ": the commands are " + strings.Join(names, ", ")
}
