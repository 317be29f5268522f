package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/stretchr/testify/assert"

	"github.com/goverbs/goverbs/internal/rdmatest"
)

// The test binary is also the command, under the name pingpong in the tests' PATH.
func TestMain(m *testing.M) {
	testscript.Main(rdmatest.Checked(m.Run), map[string]func(){
		"pingpong": func() { os.Exit(rdmatest.Checked(command).Run()) },
	})
}

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{Dir: "testdata", RequireExplicitExec: true})
}

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }

func TestOutputFails(t *testing.T) {
	var stderr bytes.Buffer
	assert.Equal(t, exitFailure, run(context.Background(), []string{"--help"}, fullDisk{}, &stderr))
	assert.Equal(t, "pingpong: no space left on device\n", stderr.String())
}
