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

// built are the programs as they are installed, in a root of their own that has all libraries
// but libibverbs, and the tree of a soft device for /sys and /dev.
func built(t *testing.T) (root string) {
	t.Helper()
	root = t.TempDir()
	bin := filepath.Join(root, "bin")
	for _, args := range [][]string{
		{"CGO_ENABLED=0", "go", "build", "-o", bin + "/", "."},
		{"CGO_ENABLED=1", "go", "build", "-o", bin + "/", "../ibvinfo-verbs"},
	} {
		out, err := exec.Command("env", args...).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
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

// in runs a command in a root, as an ordinary user may do too in a namespace of one's own.
func in(root string, args ...string) (stdout, stderr string, status int) {
	var out, notes bytes.Buffer
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Path, cmd.Dir, cmd.Stdout, cmd.Stderr = args[0], "/", &out, &notes
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root}
	if os.Getuid() != 0 {
		cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
	}
	if err := cmd.Run(); cmd.ProcessState == nil {
		return "", err.Error(), -1
	}
	return out.String(), notes.String(), cmd.ProcessState.ExitCode()
}

// Without libibverbs everything that sysfs tells is told, and what needs it says so in a line.
func TestLibibverbsMissing(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the commands")
	}
	root := built(t)
	for _, tt := range []struct {
		args           []string
		status         int
		stdout, stderr string
	}{
		{[]string{"-l"}, 0, `^rxe0\n$`, `^$`},
		{[]string{}, 0, `(?m)^rxe0 +1 +ACTIVE `, `^$`},
		{[]string{"gids"}, 0, `(?m)^rxe0 +1 +1 .* 10.77.0.1 `, `^$`},
		{[]string{"counters"}, 0, `(?m)^2004 +sent_pkts `, `^$`},
		{[]string{"doctor"}, 1, `(?m)^failed  libibverbs: libibverbs.so.1 is in none of the usual folders; Debian: apt-get install `, `^$`},
		{[]string{"-v"}, 1, `^$`, `^ibvinfo: libibverbs.so.1 is not installed here, and without it no device can be opened ` +
			`\(Debian: apt-get install libibverbs1 ibverbs-providers\); without --verbose ibvinfo needs /sys alone\n$`},
		{[]string{"-v", "--json"}, 1, `"libibverbs.so.1 is not installed here, `, `^ibvinfo: libibverbs.so.1 is not installed here`},
	} {
		stdout, stderr, status := in(root, append([]string{"/bin/ibvinfo"}, tt.args...)...)
		assert.Equal(t, tt.status, status, "%v", tt.args)
		assert.Regexp(t, tt.stdout, stdout, "%v", tt.args)
		assert.Regexp(t, tt.stderr, stderr, "%v", tt.args)
	}

	// Nor is there glibc everywhere.
	require.NoError(t, os.RemoveAll(filepath.Join(root, "lib64")))
	_, stderr, status := in(root, "/bin/ibvinfo", "-v")
	assert.Equal(t, 1, status)
	assert.Regexp(t, `^ibvinfo: cannot open devices: .*: the program, or the dynamic loader that it needs, is not here; without --verbose`, stderr)
}
