package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/cmd/pingpong/internal/report"
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

// TestCutShort has the last of the sizes cut short: by a failure, whose wait is no measurement, it
// is not shown; by Ctrl-C or lost messages it is.
func TestCutShort(t *testing.T) {
	whole := report.Count{Size: 64, Iterations: 1000, Complete: true, Ways: 2, Elapsed: time.Second}
	part := report.Count{Size: 128, Iterations: 500, Ways: 2, Elapsed: 4 * time.Second}
	why := errors.New("no progress")
	interrupted, interrupt := context.WithCancel(t.Context())
	interrupt()
	for name, c := range map[string]struct {
		ctx   context.Context
		typ   string
		err   error
		shows bool
	}{
		"failure":       {t.Context(), typeRC, why, false},
		"Ctrl-C":        {interrupted, typeRC, why, true},
		"lost messages": {t.Context(), typeUD, why, true},
	} {
		t.Run(name, func(t *testing.T) {
			opts := defaults()
			opts.typ, opts.sizes = c.typ, []uint32{64, 128}
			draws := func(counts ...report.Count) bool {
				rep := &report.Report{Setup: &report.Setup{Type: c.typ, Operation: "send"}}
				for _, one := range counts {
					rep.Results = append(rep.Results, one.Result())
				}
				var stdout bytes.Buffer
				require.ErrorIs(t, tell(c.ctx, &opts, rep, &stdout, c.err), why)
				assert.Equal(t, len(counts) > 1, bytes.Contains(stdout.Bytes(), []byte("1000")))
				assert.Equal(t, c.shows, bytes.Contains(stdout.Bytes(), []byte("500")))
				assert.Len(t, rep.Results, len(counts), "JSON has it, and says so")

				picture := filepath.Join(t.TempDir(), "a.svg")
				require.NoError(t, claim(picture))
				require.NoError(t, draw(picture, shown(c.ctx, &opts, rep, c.err)))
				_, err := os.Stat(picture)
				return err == nil
			}
			assert.True(t, draws(whole, part))
			assert.Equal(t, c.shows, draws(part))
		})
	}
}
