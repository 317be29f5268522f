package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/cmd/internal/devinfo"
	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/sysfs"
	"github.com/goverbs/goverbs/internal/sysfs/sysfstest"
	"github.com/goverbs/goverbs/mr"
)

// treeHost is the host of the tree in a directory. Its routes are those of the trees' addresses.
func treeHost(dir string) host {
	return host{
		FS:   sysfs.FS{Sys: filepath.Join(dir, "sys"), Dev: filepath.Join(dir, "dev")},
		root: dir,
		route: func(peer netip.Addr) (netip.Addr, error) {
			for network, source := range map[string]string{
				"10.77.0.0/24": "10.77.0.1", "10.77.1.0/24": "10.77.1.1", "192.168.20.0/24": "192.168.20.5", "10.99.0.0/24": "10.99.0.1",
			} {
				if netip.MustParsePrefix(network).Contains(peer) {
					return netip.MustParseAddr(source), nil
				}
			}
			return netip.Addr{}, errors.New("network is unreachable")
		},
	}
}

// In scripts, ibvinfo's host is the tree in the current directory, or with HOST=this the real
// one, with the ibvinfo-verbs that VERBS names.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"ibvinfo": func() {
			h := treeHost(".")
			h.verbs = os.Getenv("VERBS")
			if os.Getenv("HOST") == "this" {
				h = thisHost(h.verbs)
			}
			os.Exit(run(context.Background(), os.Args[1:], os.Stdout, os.Stderr, h, os.Getenv("COLOUR") != ""))
		},
		"ibvinfo-verbs": func() { os.Exit(devinfo.Run(os.Args[1:], os.Stdout, os.Stderr)) },
		"register": func() { // a MiB of memory with a device
			err := register(os.Args[1], 1<<20)
			if err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
		},
	})
}

func register(device string, size int) error {
	ctx, err := ibv.Open(device)
	if err != nil {
		return err
	}
	defer ctx.CloseAll()
	pd, err := ctx.AllocPD()
	if err != nil {
		return err
	}
	_, err = mr.AllocRegion(pd, size, ibv.AccessLocalWrite)
	return err
}

func TestScripts(t *testing.T) {
	schema := loadSchema(t)
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		RequireExplicitExec: true,
		UpdateScripts:       os.Getenv("UPDATE") != "",
		Setup: func(env *testscript.Env) error {
			verbs, err := exec.LookPath("ibvinfo-verbs")
			if err != nil {
				return err
			}
			env.Setenv("VERBS", verbs)
			return programs(env.WorkDir)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			// tree NAME makes a host like that tree of package sysfstest.
			"tree": func(ts *testscript.TestScript, _ bool, args []string) {
				_, err := sysfstest.Build(ts.MkAbs("."), args[0])
				ts.Check(err)
			},
			// put FILE TEXT replaces a file of the tree; a TEXT of - removes it.
			"put": func(ts *testscript.TestScript, _ bool, args []string) {
				name := ts.MkAbs(args[0])
				ts.Check(os.RemoveAll(name))
				if args[1] != "-" {
					ts.Check(os.MkdirAll(filepath.Dir(name), 0o755))
					ts.Check(os.WriteFile(name, []byte(args[1]+"\n"), 0o644))
				}
			},
			// schema FILE: the file is one JSON document of the published form.
			"schema": func(ts *testscript.TestScript, _ bool, args []string) {
				doc, err := jsonschema.UnmarshalJSON(strings.NewReader(ts.ReadFile(args[0])))
				ts.Check(err)
				ts.Check(schema.Validate(doc))
			},
		},
	})
}

// programs puts some of each kind below dir: linked with libibverbs dynamically, as this test
// is, and statically, and without it.
func programs(dir string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if err := os.Symlink(self, filepath.Join(dir, "dynamic")); err != nil {
		return err
	}
	// What tells the other two is what no dynamic section names.
	header := append([]byte("\x7fELF\x02\x01\x01"), make([]byte, 57)...)
	header[16], header[18], header[20], header[52], header[54], header[58] = 2, 62, 1, 64, 56, 64
	static := append(bytes.Clone(header), "libibverbs: Warning: no driver"...)
	return errors.Join(os.WriteFile(filepath.Join(dir, "static"), static, 0o644), os.WriteFile(filepath.Join(dir, "without"), header, 0o644))
}

func loadSchema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	schema, err := jsonschema.NewCompiler().Compile("schema.json")
	require.NoError(t, err)
	return schema
}

func TestWidth(t *testing.T) {
	for _, tree := range []string{"infiniband", "roce-two-ports", "roce-two-devices", "roce-mlx5", "soft", "iwarp"} {
		for args, width := range map[string]int{"": 100, "gids": 125, "gids --for 10.77.0.2": 120, "counters": 110} {
			t.Run(tree+" "+args, func(t *testing.T) {
				dir := t.TempDir()
				_, err := sysfstest.Build(dir, tree)
				require.NoError(t, err)
				h := treeHost(dir)
				h.Dev = "/dev/absent" // the lines that tell what to do as well
				var out bytes.Buffer
				run(t.Context(), strings.Fields(args), &out, io.Discard, h, false)
				for line := range strings.Lines(out.String()) {
					line = strings.TrimSuffix(line, "\n")
					if !strings.Contains(line, ": RoCE v2, and ") { // the reason of the choice is a sentence
						assert.LessOrEqual(t, len(line), width, line)
					}
					assert.Equal(t, strings.TrimRight(line, " "), line, "trailing spaces")
				}
			})
		}
	}
}

func TestHelpWidth(t *testing.T) {
	for _, c := range commands {
		for line := range strings.Lines(c.help) {
			assert.LessOrEqual(t, len(strings.TrimSuffix(line, "\n")), 90, line)
		}
	}
}

// Whatever the help says of a flag is a flag, and the other way round.
func TestHelpNamesEveryFlag(t *testing.T) {
	for _, c := range commands {
		for _, flag := range []string{"--ib-dev x", "--ib-port 1", "--list", "--verbose", "--for x", "--watch 1s", "--count 1 --watch 1s", "--json", "--help"} {
			_, err := c.parse(strings.Fields(flag))
			known := err == nil || !strings.HasPrefix(err.Error(), "unknown flag")
			name, _, _ := strings.Cut(flag, " ")
			_, flags, _ := strings.Cut(c.help, "\nFlags:\n")
			flags, _, _ = strings.Cut(flags, "\n\n")
			assert.Equal(t, known, strings.Contains(flags, name+" "), "%s %s", c.name, name)
		}
	}
}

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }

func TestOutputFails(t *testing.T) {
	for _, args := range []string{"--help", "", "counters --watch 10ms", "counters --watch 10ms --json"} {
		dir := t.TempDir()
		_, err := sysfstest.Build(dir, "soft")
		require.NoError(t, err)
		var stderr bytes.Buffer
		assert.Equal(t, 1, run(t.Context(), strings.Fields(args), fullDisk{}, &stderr, treeHost(dir), false), args)
		assert.Equal(t, "ibvinfo: no space left on device\n", stderr.String(), args)
	}
}

// Ctrl-C ends a watch, and the document is whole.
func TestWatchEnds(t *testing.T) {
	dir := t.TempDir()
	_, err := sysfstest.Build(dir, "soft")
	require.NoError(t, err)
	counter := filepath.Join(dir, "sys/devices/virtual/infiniband/rxe0/ports/1/hw_counters/sent_pkts")
	ctx, cancel := context.WithCancel(t.Context())
	samples := 0
	out := &onWrite{do: func() {
		samples++
		assert.NoError(t, os.Chmod(counter, 0o644))
		assert.NoError(t, os.WriteFile(counter, fmt.Append(nil, 5000+samples), 0o644))
		if samples == 3 {
			cancel()
		}
	}}
	assert.Zero(t, run(ctx, []string{"counters", "--watch", "10ms", "--json"}, out, io.Discard, treeHost(dir), false))
	doc, err := jsonschema.UnmarshalJSON(&out.Buffer)
	require.NoError(t, err)
	require.NoError(t, loadSchema(t).Validate(doc))
	assert.Len(t, doc.(map[string]any)["samples"], 3)
}

// A device that is removed has no more changes to wait for.
func TestWatchOfARemovedDevice(t *testing.T) {
	dir := t.TempDir()
	_, err := sysfstest.Build(dir, "soft")
	require.NoError(t, err)
	out := &onWrite{do: func() { assert.NoError(t, os.RemoveAll(filepath.Join(dir, "sys/devices/virtual/infiniband"))) }}
	var stderr bytes.Buffer
	assert.Equal(t, 1, run(t.Context(), []string{"counters", "--watch", "10ms"}, out, &stderr, treeHost(dir), false))
	assert.Contains(t, stderr.String(), "there are no counters any more")
}

type onWrite struct {
	bytes.Buffer
	do func()
}

func (w *onWrite) Write(b []byte) (int, error) {
	defer w.do()
	return w.Buffer.Write(b)
}

// Whatever the host is like, every command says something that makes sense, in both forms.
func TestEveryCommandOnEveryTree(t *testing.T) {
	schema := loadSchema(t)
	for _, tree := range []string{"broken", "infiniband", "iwarp", "no-subsystem", "none", "roce-mlx5", "roce-two-devices", "roce-two-ports", "soft"} {
		dir := t.TempDir()
		_, err := sysfstest.Build(dir, tree)
		require.NoError(t, err)
		for _, args := range []string{"", "-l", "-v", "gids", "gids --for 10.77.0.2", "counters", "counters --watch 10ms --count 1", "doctor", "-d mlx5_2", "-i 9"} {
			var stdout, stderr, doc bytes.Buffer
			status := run(t.Context(), strings.Fields(args), &stdout, &stderr, treeHost(dir), false)
			assert.LessOrEqual(t, status, 1, "%s: %s", tree, args)
			assert.NotEmpty(t, stdout.String()+stderr.String(), "%s: %s", tree, args)
			assert.Equal(t, status, run(t.Context(), append(strings.Fields(args), "--json"), &doc, io.Discard, treeHost(dir), false))
			value, err := jsonschema.UnmarshalJSON(&doc)
			require.NoError(t, err, "%s: %s", tree, args)
			assert.NoError(t, schema.Validate(value), "%s: %s", tree, args)
		}
	}
}
