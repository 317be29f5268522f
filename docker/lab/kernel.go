//go:build linux

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// fetchKernel returns the folder with the VM's kernel, or a status when a signal came.
func fetchKernel(c *config, signals <-chan os.Signal) (dir string, status int, err error) {
	cmd := exec.Command(filepath.Join(c.root, "docker/fetch-kernel"), c.kernel)
	cmd.Env = append(os.Environ(), "GOVERBS_CACHE="+c.cache)
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	if err := cmd.Start(); err != nil {
		return "", 0, err
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		err = cmd.Wait()
	}()
	select {
	case <-ended:
		if err != nil {
			return "", 0, errReported
		}
		return strings.TrimSpace(out.String()), 0, nil
	case s := <-signals:
		_ = unix.Kill(-cmd.Process.Pid, unix.SIGTERM)
		<-ended
		return "", killedBy(s), nil
	}
}
