// Manpage writes a manual page made of what a command prints for --help.
//
//	manpage COMMAND >COMMAND.1
//
// It runs COMMAND --help, and for each line of the section "Commands:" there
// COMMAND WORD --help, so that help and manual page are one text. That text has the
// form of these commands' help:
//
//	The first sentence says what it does. More about it.
//
//	Usage: command [flags]
//
//	Flags:
//	  -f, --flag VALUE   what it is for,
//	                     on as many lines as it takes
//
//	Another section: text.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "manpage:", err)
		os.Exit(1)
	}
}

func run(args []string, out io.Writer) error {
	if len(args) != 1 {
		return errors.New("usage: manpage COMMAND >COMMAND.1")
	}
	command, err := filepath.Abs(args[0])
	if err != nil {
		return err
	}
	text, err := help(command)
	if err != nil {
		return err
	}
	main, err := parse(text)
	if err != nil {
		return fmt.Errorf("%s --help: %w", args[0], err)
	}
	var subcommands []page
	for _, word := range main.commands() {
		text, err := help(command, word)
		if err != nil {
			return err
		}
		sub, err := parse(text)
		if err != nil {
			return fmt.Errorf("%s %s --help: %w", args[0], word, err)
		}
		sub.name = filepath.Base(command) + " " + word
		subcommands = append(subcommands, sub)
	}
	main.name = filepath.Base(command)
	_, err = io.WriteString(out, roff(main, subcommands))
	return err
}

func help(command string, args ...string) (string, error) {
	cmd := exec.Command(command, append(args, "--help")...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%v: %w", cmd.Args, err)
	}
	return string(out), nil
}
