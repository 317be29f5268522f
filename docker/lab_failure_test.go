//go:build lab

package docker_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// hang is the end of a stub that does nothing for ever, but can still be found
// by its arguments.
const hang = `exec -a "$*" sleep 1000`

// For the scripts of tests: stub NAME SCRIPT puts a program before others in PATH.
const stubs = `
	bin=$(mktemp -d)
	trap 'rm -rf "$bin"' EXIT
	PATH=$bin:$PATH
	stub() { echo "#!/bin/sh"$'\n'"$2" >"$bin/$1"; chmod +x "$bin/$1"; }`

// The same with a cache that has no kernel, and with packages to choose from.
const emptyCache = stubs + `
	export GOVERBS_CACHE=$GOVERBS_CACHE/empty
	stub apt-cache '
		for v in 6.12.9+deb12-amd64 6.1.0-9-amd64 6.1.0-10-amd64 6.1.0-11-rt-amd64 6.1.0-11-cloud-amd64 6.1.0-11-amd64-dbg; do
			echo linux-image-$v
		done'
	stub sudo 'shift; exec "$@"'
`

const download = `cannot download Debian's kernel 6\.1 \(check the network and apt's sources, and run apt-get update\): `

// TestFailures checks that whatever goes wrong ends soon, with one line that
// says what to do.
func TestFailures(t *testing.T) {
	for _, c := range []struct {
		name   string
		env    []string
		stub   string // of QEMU
		script string // that calls with-rxe, instead of a plain call
		want   string
	}{
		{name: "way", env: []string{"RXE_VIA=usb"}, want: `RXE_VIA=usb: want host, module, kvm or tcg`},
		{name: "kernel", env: []string{"RXE_KERNEL=new"}, want: `RXE_KERNEL=new: want 6\.1 or 6\.12`},
		{name: "kernel of no VM", env: []string{"RXE_KERNEL=5.4"}, want: `RXE_KERNEL=5\.4: want 6\.1 or 6\.12`},
		{name: "flag", env: []string{"RXE_ICOUNT=yes"}, want: `RXE_ICOUNT=yes: want 0 or 1`},
		{name: "icount with kvm", env: []string{"RXE_ICOUNT=1", "RXE_VIA=kvm"}, want: `RXE_ICOUNT=1 needs a VM without KVM: .*`},
		{name: "memory", env: []string{"RXE_MEM=4G"}, want: `RXE_MEM=4G: want MiB, 512 or more`},
		{name: "boot timeout", env: []string{"RXE_BOOT_TIMEOUT=-1"}, want: `RXE_BOOT_TIMEOUT=-1: want seconds, 1 or more`},
		{name: "no command", script: `docker/with-rxe`, want: `usage: docker/with-rxe CMD \[ARG\.\.\.\]`},
		{name: "no go", script: stubs + `
			cp -r docker go.mod "$bin"
			ln -s "$(command -v dirname)" "$bin"
			PATH=$bin /bin/sh "$bin/docker/with-rxe" true`,
			want: `no go in PATH, which builds docker/lab: install Go \(https://go\.dev/dl\)`},
		{name: "no module", env: []string{"RXE_VIA=module"}, script: stubs + `
			stub modprobe 'echo not permitted; exit 1'
			stub ip 'echo not permitted; exit 1'
			docker/with-rxe true`,
			want: `RXE_VIA=module: (only root can load a module|(modprobe|ip) .*: exit status 1: not permitted): .*`},
		{name: "no qemu", script: `
			RXE_VIA=usb docker/with-rxe true 2>/dev/null # builds it
			PATH=/nowhere "$PWD/build/lab" with-rxe true`,
			want: `no qemu-system-x86_64 in PATH: run docker/setup \(package qemu-system-x86\)`},
		{name: "qemu fails", stub: `exit 1`, want: `the VM ended by itself: see /\S+/console\.log`},
		{name: "boot hangs", env: []string{"RXE_BOOT_TIMEOUT=1"}, stub: hang,
			want: `the VM did not boot within 1s: see /\S+/console\.log, or raise RXE_BOOT_TIMEOUT on a slow machine`},
		{name: "kvm hangs", env: []string{"RXE_BOOT_TIMEOUT=1", "RXE_VIA=kvm"}, stub: hang,
			want: `RXE_VIA=kvm: no KVM that works: .+`},
		{name: "cache is a file", env: []string{"GOVERBS_CACHE=/dev/null"},
			want: `cannot write to /dev/null: make it writable, or point GOVERBS_CACHE to a folder that is`},
		{name: "no cache", script: `env -u HOME -u XDG_CACHE_HOME -u GOVERBS_CACHE docker/with-rxe true`,
			want: `no folder for the cache: set HOME or GOVERBS_CACHE \(.*\)`},
		{name: "no network", script: emptyCache + `
			stub apt-get 'echo E: no route >&2; exit 1'
			docker/with-rxe true`,
			want: download + `E: no route`},
		{name: "no sudo", script: emptyCache + `
			stub id 'echo 1000'
			stub apt-cache 'exit 0'
			stub sudo 'echo sudo: a password is required >&2; exit 1'
			docker/with-rxe true`,
			want: download + `sudo: a password is required`},
		{name: "no space", script: emptyCache + `
			stub apt-get 'trap "" XFSZ; head -c 1000000 /dev/zero >"$GOVERBS_CACHE/linux.deb"'
			ulimit -f 100 # writing fails as on a full disk
			docker/with-rxe true`,
			want: download + `.*: File too large`},
		{name: "broken package", script: emptyCache + `
			stub apt-get 'echo junk >linux.deb'
			docker/with-rxe true`,
			want: `cannot unpack the kernel in \S+: dpkg-deb: .*`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t, c.env...)
			if c.stub != "" {
				l.stub("qemu-system-x86_64", c.stub)
			}
			if c.script == "" {
				c.script = "docker/with-rxe true"
			}
			var out, errs strings.Builder
			cmd := l.command()
			cmd.Path, cmd.Args = "/bin/bash", []string{"bash", "-c", c.script}
			cmd.Stdout, cmd.Stderr = &out, &errs
			start := time.Now()
			assert.Equal(t, 125, exitStatus(t, cmd.Run()))
			assert.Less(t, time.Since(start), 20*time.Second)
			assert.Empty(t, out.String())
			lines := regexp.MustCompile(`(?m)^with-rxe: downloading .*\n`).ReplaceAllString(errs.String(), "")
			assert.Regexp(t, `\Awith-rxe: `+c.want+`\n\z`, lines)
			l.requireNoProcesses()
		})
	}
}

// TestNewestKernel has fetch-kernel choose among packages of which several are
// not the ordinary kernel of the series.
func TestNewestKernel(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	cmd := l.command()
	cmd.Path, cmd.Args = "/bin/bash", []string{"bash", "-c", emptyCache + `
		stub apt-get 'echo "$@" >>"$GOVERBS_CACHE/../asked"; exit 1'
		docker/fetch-kernel 6.1
		docker/fetch-kernel 6.12`}
	assert.Error(t, cmd.Run())
	asked, err := os.ReadFile(filepath.Join(l.cache, "asked"))
	require.NoError(t, err)
	for _, series := range []string{"6.1", "6.12"} {
		want := map[string]string{"6.1": "linux-image-6.1.0-10-amd64", "6.12": "linux-image-6.12.9+deb12-amd64"}[series]
		assert.Contains(t, string(asked), "download "+want+" ")
	}
}

func TestSetup(t *testing.T) {
	t.Parallel()
	const known = `
		stub apt-get 'echo apt-get "$@"'
		stub dpkg-query 'case $4 in gcc|zstd) exit 1;; esac; echo installed'
	`
	for _, c := range []struct{ name, script, want string }{
		{"all there", `
			stub apt-get 'echo network'
			stub dpkg-query 'echo installed'`, `\A\z`},
		{"root", known + `stub id 'echo 0'`, `\Asetup: installing gcc zstd\napt-get .* update\n\z`},
		{"user", known + `
			stub id 'echo 1000'
			stub sudo 'echo sudo; exec "$@"'`, `\Asetup: installing gcc zstd\nsudo\napt-get .* update\n\z`},
		{"failure", known + `
			stub id 'echo 0'
			stub apt-get 'echo E: no route >&2; exit 1'`,
			`\Asetup: installing gcc zstd\nE: no route\nsetup: apt-get could not install gcc zstd: .*\n\z`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			cmd := newLab(t).command()
			cmd.Path, cmd.Args = "/bin/bash", []string{"bash", "-c", stubs + c.script + "\ndocker/setup 2>&1"}
			out, err := cmd.Output()
			assert.Equal(t, c.name == "failure", err != nil)
			assert.Regexp(t, c.want, string(out))
		})
	}
}
