//go:build linux

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// stopLimit is how long the command has to end after a signal.
const stopLimit = 5 * time.Second

// notifyEnd returns a channel of the signals that ask the command to end. Those
// that the caller ignores, as nohup does, stay ignored.
func notifyEnd() <-chan os.Signal {
	signals := make(chan os.Signal, 8)
	for _, s := range []os.Signal{unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT} {
		if !signal.Ignored(s) {
			signal.Notify(signals, s)
		}
	}
	return signals
}

// killedBy is the exit status that stands for a signal.
func killedBy(s os.Signal) int { return 128 + int(s.(syscall.Signal)) }

// lookCommand finds the command's program. When there is none, it returns the
// status that a shell has then.
func lookCommand(name string) (path string, status int, err error) {
	path, err = exec.LookPath(name)
	switch {
	case err == nil, errors.Is(err, exec.ErrDot): // shells take "." in PATH as well
		return path, 0, nil
	case errors.Is(err, os.ErrPermission):
		return "", 126, fmt.Errorf("%s: permission denied", name)
	default:
		return "", 127, fmt.Errorf("%s: command not found", name)
	}
}

// become replaces this program by the command. It returns if that fails.
func become(args, env []string) (int, error) {
	path, status, err := lookCommand(args[0])
	if err == nil {
		status, err = 126, fmt.Errorf("%s: %w", path, syscall.Exec(path, args, env))
	}
	say("%v", err)
	return status, nil
}

// runCommand runs the command as a child and returns its status.
func runCommand(args, env []string, signals <-chan os.Signal) (int, error) {
	path, status, err := lookCommand(args[0])
	if err != nil {
		say("%v", err)
		return status, nil
	}
	cmd := &exec.Cmd{
		Path: path, Args: args, Env: env, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		SysProcAttr: &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL},
	}
	if err := cmd.Start(); err != nil {
		say("%v", err)
		return 126, nil
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait() // its result is in cmd
	}()
	var stopped os.Signal
	var limit <-chan time.Time
	for {
		select {
		case <-ended:
			return exitStatus(cmd.ProcessState.Sys().(syscall.WaitStatus)), nil
		case s := <-signals:
			if stopped == nil {
				stopped, limit = s, time.After(stopLimit)
				if !fromTerminal(s) {
					_ = cmd.Process.Signal(s)
				}
				continue
			}
			_ = cmd.Process.Kill()
			return killedBy(s), nil
		case <-limit:
			_ = cmd.Process.Kill()
			return killedBy(stopped), nil
		}
	}
}

// exitStatus is a status as a shell gives it.
func exitStatus(ws syscall.WaitStatus) int {
	if ws.Signaled() {
		return killedBy(ws.Signal())
	}
	return ws.ExitStatus()
}

// fromTerminal tells whether the terminal has sent the signal, and with that to
// the command too.
func fromTerminal(s os.Signal) bool {
	if s != unix.SIGINT && s != unix.SIGQUIT {
		return false
	}
	tty, err := os.Open("/dev/tty")
	if err != nil {
		return false
	}
	defer tty.Close()
	group, err := unix.IoctlGetInt(int(tty.Fd()), unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}
