package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The sample's checked-in stub is the golden file; it must also compile in place
// of the files that it stands for.
func TestSample(t *testing.T) {
	assert.NoError(t, run("testdata/sample", true))

	vet := exec.Command("go", "vet", "./testdata/sample")
	vet.Env = append(os.Environ(), "CGO_ENABLED=0")
	output, err := vet.CombinedOutput()
	assert.NoError(t, err, "%s", output)
}

func TestCheckedInStub(t *testing.T) {
	assert.NoError(t, run("../../cverbs", true))
}

func TestWriteAndCheck(t *testing.T) {
	dir := t.TempDir()
	stub := filepath.Join(dir, stubName)
	source := filepath.Join(dir, "a.go")
	write := func(name, text string) {
		t.Helper()
		require.NoError(t, os.WriteFile(name, []byte(text), 0o644))
	}

	write(source, "//go:build cgo\n\npackage a\n\nfunc F() int { return 1 }\n")
	assert.EqualError(t, run(dir, true), stub+" is not up to date: run go generate in its folder")
	require.NoError(t, run(dir, false))
	assert.NoError(t, run(dir, true))

	write(source, "//go:build cgo\n\npackage a\n\nfunc F() int { return 2 }\n")
	assert.NoError(t, run(dir, true), "a body is no part of the stub")

	write(source, "//go:build cgo\n\npackage a\n\nfunc F() bool { return true }\n")
	assert.ErrorContains(t, run(dir, true), "not up to date")
}

func TestRefused(t *testing.T) {
	const head = "//go:build cgo && linux\n\npackage a\n\nimport \"C\"\n\n"
	for _, tt := range []struct {
		name  string
		files map[string]string
		want  string
	}{
		{"C in a signature", map[string]string{"a.go": head + "func F(n C.int) {}\n"},
			"a.go:7:1: F has a C type in its signature"},
		{"C pointer in a result", map[string]string{"a.go": head + "func F() *C.struct_x { return nil }\n"},
			"a.go:7:1: F has a C type in its signature"},
		{"C value in a type", map[string]string{"a.go": head + "type T struct{ n C.int }\n"},
			"a.go:7:6: type T has a C type other than a pointer"},
		{"C value in a type that is only named", map[string]string{"a.go": head + "type T struct{ u u }\n\ntype u struct{ n [4]C.char }\n"},
			"a.go:9:6: type u has a C type other than a pointer"},
		{"constant from C", map[string]string{"a.go": head + "const Size = C.sizeof_int\n"},
			"a.go:7:1: an exported constant or variable needs C for its value"},
		{"generic", map[string]string{"a.go": head + "func F[T any](t T) {}\n"},
			"a.go:7:1: F is generic"},
		{"two constraints", map[string]string{"a.go": head, "b.go": "//go:build cgo && amd64\n\npackage a\n"},
			`b.go: its go:build line "cgo && amd64" differs from "cgo && linux"`},
		{"one name for two imports", map[string]string{
			"a.go": head + "import \"crypto/rand\"\n", "b.go": head + "import \"math/rand\"\n"},
			"b.go:7:8: rand stands for two imports, crypto/rand and math/rand"},
		{"no cgo file", map[string]string{"a.go": "package a\n", "b.go": "//go:build !cgo\n\npackage a\n",
			"c_test.go": head, "d.go": "//go:build cgo || linux\n\npackage a\n"},
			"no file has a go:build line that needs cgo"},
		{"not Go", map[string]string{"a.go": "//go:build cgo\n\npackage"},
			"a.go:3:8: expected 'IDENT'"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			for name, text := range tt.files {
				require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
			}
			err := run(dir, false)
			assert.ErrorContains(t, err, tt.want)
			assert.NoFileExists(t, filepath.Join(dir, stubName))
		})
	}
}
