package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/internal/sysfs/sysfstest"
)

// build builds the programs as they are installed.
func build(t *testing.T) (bin string) {
	t.Helper()
	bin = t.TempDir()
	for _, args := range [][]string{
		{"CGO_ENABLED=0", "go", "build", "-o", bin + "/", "."},
		{"CGO_ENABLED=1", "go", "build", "-o", bin + "/", "../ibvinfo-verbs"},
	} {
		out, err := exec.Command("env", args...).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	return bin
}

// The program that opens devices, when the loader does not find what it is linked with: a
// library, and then the loader itself. Their names are changed for that.
func TestLoaderFails(t *testing.T) {
	verbs := filepath.Join(build(t), "ibvinfo-verbs")
	text, err := os.ReadFile(verbs)
	require.NoError(t, err)
	dir := t.TempDir()
	_, err = sysfstest.Build(dir, "soft")
	require.NoError(t, err)
	h := treeHost(dir)
	h.verbs = verbs
	for _, tt := range []struct{ from, to, says string }{
		{"libibverbs.so.1", "libibverbs.so.9", `^ibvinfo: libibverbs.so.9 is not installed here, and without it no device can be opened ` +
			`\(Debian: apt-get install libibverbs1 ibverbs-providers\); without --verbose ibvinfo needs /sys alone\n$`},
		{"/ld-linux", "/ld-minix", `^ibvinfo: cannot open devices: .*: the program, or the dynamic loader that it needs, is not here; without --verbose`},
	} {
		changed := bytes.ReplaceAll(text, []byte(tt.from), []byte(tt.to))
		require.NotEqual(t, text, changed, tt.from)
		require.NoError(t, os.Remove(verbs))
		require.NoError(t, os.WriteFile(verbs, changed, 0o755))
		var stdout, stderr bytes.Buffer
		assert.Equal(t, 1, run(t.Context(), []string{"-v"}, &stdout, &stderr, h, false))
		assert.Empty(t, stdout.String())
		assert.Regexp(t, tt.says, stderr.String())
	}
}

// emptyRoot is a root of their own for the programs, that has all libraries but libibverbs,
// and the tree of a soft device for /sys.
func emptyRoot(t *testing.T) (root string) {
	t.Helper()
	root = t.TempDir()
	bin := filepath.Join(root, "bin")
	require.NoError(t, os.Rename(build(t), bin))
	libs, err := exec.Command("ldd", filepath.Join(bin, "ibvinfo-verbs")).Output()
	require.NoError(t, err)
	require.Contains(t, string(libs), "libibverbs.so.1", "it is linked with what is to be missing")
	for _, lib := range regexp.MustCompile(`/\S+`).FindAllString(string(libs), -1) {
		if filepath.Base(lib) != "libibverbs.so.1" {
			text, err := os.ReadFile(lib)
			require.NoError(t, err)
			require.NoError(t, os.MkdirAll(filepath.Dir(root+lib), 0o755))
			require.NoError(t, os.WriteFile(root+lib, text, 0o755))
		}
	}
	_, err = sysfstest.Build(root, "soft")
	require.NoError(t, err)
	return root
}

// in runs a command in a root.
func in(root string, args ...string) (stdout, stderr string, status int) {
	var out, notes bytes.Buffer
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = "/", &out, &notes
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root}
	if err := cmd.Run(); cmd.ProcessState == nil {
		return "", err.Error(), -1
	}
	return out.String(), notes.String(), cmd.ProcessState.ExitCode()
}

// Without libibverbs everything that sysfs tells is told, and what needs it says so in a line.
func TestLibibverbsMissing(t *testing.T) {
	if os.Getuid() != 0 {
		t.Log("only root may chroot; what the loader says is tested by TestLoaderFails")
		return
	}
	root := emptyRoot(t)
	for _, tt := range []struct {
		args           []string
		status         int
		stdout, stderr string
	}{
		{[]string{"-l"}, 0, `^rxe0\n$`, `^$`},
		{[]string{}, 0, `(?m)^rxe0 +1 +ACTIVE `, `^$`},
		{[]string{"gids"}, 0, `(?m)^rxe0 +1 +1 .* 10.77.0.1 `, `^$`},
		{[]string{"counters"}, 0, `(?m)^2004 +sent_pkts `, `^$`},
		{[]string{"doctor"}, 1, `(?m)^failed  libibverbs: libibverbs.so.1 is in no folder that the loader looks into; Debian: apt-get install `, `^$`},
		{[]string{"-v"}, 1, `^$`, `^ibvinfo: libibverbs.so.1 is not installed here, and without it no device can be opened ` +
			`\(Debian: apt-get install libibverbs1 ibverbs-providers\); without --verbose ibvinfo needs /sys alone\n$`},
		{[]string{"-v", "--json"}, 1, `"libibverbs.so.1 is not installed here, `, `^ibvinfo: libibverbs.so.1 is not installed here`},
	} {
		stdout, stderr, status := in(root, append([]string{"/bin/ibvinfo"}, tt.args...)...)
		assert.Equal(t, tt.status, status, "%v", tt.args)
		assert.Regexp(t, tt.stdout, stdout, "%v", tt.args)
		assert.Regexp(t, tt.stderr, stderr, "%v", tt.args)
	}
}
