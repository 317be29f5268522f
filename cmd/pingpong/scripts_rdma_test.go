//go:build rdma

package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/stretchr/testify/require"
)

var updateScripts = flag.Bool("update", false, "write what the scripts expect anew")

// TestDeviceScripts runs the scripts that need a device, one after another. They have one
// command more:
//
//	play SERVER-FLAG... -- CLIENT-FLAG...
//
// plays and leaves what the sides printed in server.out, server.err, client.out and
// client.err, with "exit status" last in those of stderr, and without what differs
// from run to run.
func TestDeviceScripts(t *testing.T) {
	l := newLab(t)
	scripts, err := filepath.Glob("testdata/device/*.txtar")
	require.NoError(t, err)
	require.NotEmpty(t, scripts)
	for _, script := range scripts {
		t.Run(filepath.Base(script), func(t *testing.T) { // which waits for what Run leaves to run in parallel
			testscript.Run(t, testscript.Params{
				Files:               []string{script},
				RequireExplicitExec: true,
				UpdateScripts:       *updateScripts,
				Setup: func(env *testscript.Env) error {
					env.Setenv("DEV", l.device)
					env.Setenv("GID", l.gid)
					return nil
				},
				Cmds: map[string]func(*testscript.TestScript, bool, []string){"play": l.play},
			})
		})
	}
}

func (l lab) play(ts *testscript.TestScript, _ bool, args []string) {
	at := slices.Index(args, "--")
	if at < 0 {
		ts.Fatalf("play has no --")
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	command := func(args ...string) (cmd *exec.Cmd, stdout, stderr *output) {
		cmd, stdout, stderr = exec.CommandContext(ctx, ours, args...), &output{}, &output{}
		cmd.Dir, cmd.Stdout, cmd.Stderr = ts.MkAbs("."), stdout, stderr
		return cmd, stdout, stderr
	}
	server, serverOut, serverErr := command(append([]string{"-d", l.device, "-p", "0"}, args[:at]...)...)
	ts.Check(server.Start())
	ended := make(chan struct{})
	go func() {
		_ = server.Wait() // the states say how both ended
		close(ended)
	}()
	var port []string
	for port == nil {
		select {
		case <-ended:
			ts.Fatalf("the server ended before it had a client: %v\n%s", server.ProcessState, serverErr)
		case <-time.After(5 * time.Millisecond):
			port = regexp.MustCompile(`waiting for a client on port (\d+)`).FindStringSubmatch(serverErr.String())
		}
	}
	client, clientOut, clientErr := command(append(append([]string{"-d", l.device, "-p", port[1]}, args[at+1:]...), l.addr)...)
	_ = client.Run()
	<-ended
	for name, text := range map[string]string{
		"server.out": serverOut.String(), "server.err": fmt.Sprintf("%s%v\n", serverErr, server.ProcessState),
		"client.out": clientOut.String(), "client.err": fmt.Sprintf("%s%v\n", clientErr, client.ProcessState),
	} {
		ts.Check(os.WriteFile(ts.MkAbs(name), []byte(mask(text)), 0o666))
	}
}

var masks = []struct {
	re *regexp.Regexp
	by string
}{
	{regexp.MustCompile(`(?m)^(pingpong: (waiting for|for TCP from)|  (local|remote) address:).*\n`), ""},
	{regexp.MustCompile(`\b\d+\.\d+(e[-+]\d+)?`), "N"},
	{regexp.MustCompile(`max, of \d+`), "max, of N"}, // a server's last message has no answer
	{regexp.MustCompile(`(QP|vendor_err) 0x[0-9a-f]+`), "$1 X"},
	{regexp.MustCompile(`("(seconds|mpps|min|mean|max|p\d+(_9)?|\w+_per_\w+)": )\d+`), "${1}N"},
	{regexp.MustCompile(`(\S) {2,}`), "$1 "}, // columns are as wide as what is in them
}

// mask takes out what differs from run to run.
func mask(text string) string {
	for _, m := range masks {
		text = m.re.ReplaceAllString(text, m.by)
	}
	return text
}

func TestMask(t *testing.T) {
	require.Equal(t, "N usec, N p90, of 5 on QP X\n",
		mask("pingpong: waiting for a client on port 7\n1.50 usec, 25.2 p90, of 5 on QP 0x1f\n"))
}
