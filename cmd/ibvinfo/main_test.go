package main

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/internal/sysfs"
	"github.com/goverbs/goverbs/internal/sysfs/sysfstest"
)

// In scripts, ibvinfo's host is the tree in the current directory.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"ibvinfo": func() {
			os.Exit(run(os.Args[1:], os.Stdout, os.Stderr, sysfs.FS{Sys: "sys", Dev: "dev"}))
		},
	})
}

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		RequireExplicitExec: true,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			// tree NAME makes a host like that tree of package sysfstest.
			"tree": func(ts *testscript.TestScript, _ bool, args []string) {
				_, err := sysfstest.Build(ts.MkAbs("."), args[0])
				ts.Check(err)
			},
		},
	})
}

func TestWidth(t *testing.T) {
	for _, tree := range []string{"infiniband", "roce-two-ports", "roce-two-devices", "soft", "iwarp"} {
		t.Run(tree, func(t *testing.T) {
			host, err := sysfstest.Build(t.TempDir(), tree)
			require.NoError(t, err)
			host.Dev = "/dev/absent" // the lines that tell what to do as well
			var out bytes.Buffer
			require.Zero(t, run(nil, &out, &out, host))
			for line := range strings.Lines(out.String()) {
				line = strings.TrimSuffix(line, "\n")
				assert.LessOrEqual(t, len(line), 100, line)
				assert.Equal(t, strings.TrimRight(line, " "), line, "trailing spaces")
			}
		})
	}
}

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }

func TestOutputFails(t *testing.T) {
	var stderr bytes.Buffer
	assert.Equal(t, 1, run([]string{"--help"}, fullDisk{}, &stderr, sysfs.FS{}))
	assert.Equal(t, "ibvinfo: no space left on device\n", stderr.String())
}
