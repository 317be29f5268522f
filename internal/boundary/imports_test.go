package boundary

import (
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const module = "github.com/goverbs/goverbs"

// root is the module's folder, where all paths below begin.
var root = os.DirFS("../..")

// mayImport lists, for each package, the packages of this module and of others
// that its files may import, tests aside. The standard library is free, but for
// C and unsafe. Every package must be here, so that where a new one stands among
// the others is decided on purpose.
var mayImport = map[string][]string{
	"ibv": {"internal/core", "internal/cverbs", "internal/fdwait", "internal/gidchoice", "internal/inflight", "internal/life", "internal/sysfs"},
	"cq":  {"ibv", "internal/core", "internal/cverbs", "internal/fdwait", "internal/inflight", "internal/life"},
	"mr":  {"ibv", "internal/core", "internal/cverbs", "internal/inflight", "internal/life", "golang.org/x/sys/unix"},

	"rdmacm": {"ibv", "cq", "internal/ccm", "internal/fdwait", "internal/life", "golang.org/x/sys/unix"},

	// Ibvinfo is linked with no C library; what needs libibverbs is ibvinfo-verbs.
	"cmd/ibvinfo":                 {"cmd/ibvinfo/internal/doctor", "cmd/internal/attributes", "internal/gidchoice", "internal/sysfs", "github.com/spf13/pflag", "golang.org/x/term"},
	"cmd/ibvinfo/internal/doctor": {"cmd/internal/attributes", "internal/sysfs", "golang.org/x/sys/unix"},
	"cmd/ibvinfo-verbs":           {"cmd/internal/devinfo"},
	"cmd/internal/attributes":     {},
	"cmd/internal/devinfo":        {"cmd/internal/attributes", "ibv", "internal/sysfs", "github.com/spf13/pflag"},
	"internal/gidchoice":          {},

	// The commands use the public packages as any other program does.
	"cmd/pingpong": {
		"ibv", "cq", "mr", "rdmacm", "cmd/pingpong/internal/plot", "cmd/pingpong/internal/report",
		"github.com/HdrHistogram/hdrhistogram-go", "github.com/spf13/pflag", "golang.org/x/term",
	},
	"cmd/pingpong/internal/plot": {
		"cmd/pingpong/internal/report",
		"gonum.org/v1/plot", "gonum.org/v1/plot/plotter", "gonum.org/v1/plot/vg", "gonum.org/v1/plot/vg/draw", "gonum.org/v1/plot/vg/vgsvg",
	},
	"cmd/pingpong/internal/report": {"github.com/HdrHistogram/hdrhistogram-go"},
	"internal/examples/connect":    {"ibv", "cq", "mr", "rdmacm"},
	"internal/examples/exchange":   {"ibv", "cq", "mr"},
	"internal/examples/publish":    {"ibv", "cq", "mr", "rdmacm"},
	"internal/examples/remote":     {"ibv", "cq", "mr"},
	"internal/examples/requests":   {"ibv", "cq", "mr"},
	"internal/examples/window":     {"ibv", "cq", "mr"},

	"internal/core":     {"internal/cverbs", "internal/fdwait", "internal/inflight", "internal/life"},
	"internal/ccm":      {"internal/cverbs"},
	"internal/cverbs":   {},
	"internal/fdwait":   {"golang.org/x/sys/unix"},
	"internal/inflight": {"internal/fdwait"},
	"internal/life":     {},
	"internal/sysfs":    {"golang.org/x/sys/unix"},

	// For tests and for work on this module.
	"docker/lab":                    {"golang.org/x/sys/unix"},
	"internal/boundary":             {},
	"internal/cmd/genstub":          {},
	"internal/cmd/greet":            {"ibv", "cq", "mr"},
	"internal/cmd/manpage":          {},
	"internal/cmd/parley":           {"ibv", "cq", "mr", "rdmacm"},
	"internal/cmd/testsum":          {},
	"internal/fakedev":              {},
	"internal/fakedev/fakedevtest":  {"ibv", "cq", "mr", "internal/fakedev", "internal/rdmatest", "github.com/stretchr/testify/require"},
	"internal/alone":                {"github.com/stretchr/testify/require"},
	"internal/rdmatest":             {"ibv", "cq", "mr", "internal/life", "github.com/stretchr/testify/require", "go.uber.org/goleak"},
	"internal/sysfs/sysfstest":      {"internal/sysfs", "github.com/rogpeppe/go-internal/txtar"},
	"internal/bench":                {},
	"internal/cmd/benchratio":       {"golang.org/x/perf/benchfmt"},
	"internal/examples/exampletest": {"github.com/stretchr/testify/require"},
}

// mayUseC are the packages that may import "C".
var mayUseC = []string{"internal/ccm", "internal/cverbs", "internal/fakedev"}

// mayUseUnsafe are the files outside those packages, tests aside, that may import
// unsafe.
var mayUseUnsafe = map[string]string{
	"mr/region.go": "the device is given the address of the memory that is registered",
}

// source is a Go file's imports.
type source struct {
	name    string // relative to the module
	imports []string
}

func (s source) pkg() string  { return path.Dir(s.name) }
func (s source) isTest() bool { return strings.HasSuffix(s.name, "_test.go") }

// goFiles returns all Go files of a module, whatever their build constraints.
func goFiles(t *testing.T, fsys fs.FS) []source {
	t.Helper()
	var sources []source
	walk(t, fsys, func(name string, text []byte) {
		if path.Ext(name) != ".go" || strings.Contains(name, "testdata/") {
			return
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, text, parser.ImportsOnly)
		require.NoError(t, err)
		s := source{name: name}
		for _, spec := range f.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			require.NoError(t, err)
			s.imports = append(s.imports, imported)
		}
		sources = append(sources, s)
	})
	return sources
}

// walk calls visit for every file that belongs to the project.
func walk(t *testing.T, fsys fs.FS, visit func(name string, text []byte)) {
	t.Helper()
	require.NoError(t, fs.WalkDir(fsys, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (name == "build" || name == ".git") {
			return fs.SkipDir
		}
		if !d.Type().IsRegular() {
			return nil
		}
		text, err := fs.ReadFile(fsys, name)
		if err != nil {
			return err
		}
		visit(name, text)
		return nil
	}))
}

// noneOf fails once for each broken rule.
func noneOf(t *testing.T, broken []string) {
	t.Helper()
	for _, b := range broken {
		t.Error(b)
	}
}

func TestImports(t *testing.T) {
	noneOf(t, strayImports(goFiles(t, root), mayImport))
}

// strayImports returns what sources import against the table, and what the table
// has and nothing uses.
func strayImports(sources []source, table map[string][]string) []string {
	var stray []string
	used := map[string][]string{}
	for _, s := range sources {
		if s.isTest() {
			continue
		}
		pkg := s.pkg()
		allowed, known := table[pkg]
		if !known {
			stray = append(stray, s.name+": its package is not in the table mayImport")
			continue
		}
		used[pkg] = append(used[pkg], "")
		for _, imported := range s.imports {
			host, _, _ := strings.Cut(imported, "/")
			short := strings.TrimPrefix(imported, module+"/")
			used[pkg] = append(used[pkg], short)
			if strings.Contains(host, ".") && !slices.Contains(allowed, short) {
				stray = append(stray, fmt.Sprintf("%s: imports %s", s.name, short))
			}
		}
	}
	for pkg, allowed := range table {
		if used[pkg] == nil {
			stray = append(stray, pkg+": in the table mayImport, but there is no such package")
			continue
		}
		for _, imported := range allowed {
			if !slices.Contains(used[pkg], imported) {
				stray = append(stray, fmt.Sprintf("%s: may import %s, but does not", pkg, imported))
			}
		}
	}
	slices.Sort(stray)
	return stray
}

func TestCAndUnsafe(t *testing.T) {
	noneOf(t, strayC(goFiles(t, root), mayUseC, mayUseUnsafe))
}

// strayC returns the files that import C or unsafe and may not, and the
// exceptions that nothing uses.
func strayC(sources []source, c []string, unsafe map[string]string) []string {
	var stray []string
	unused := maps.Clone(unsafe)
	for _, s := range sources {
		if slices.Contains(c, s.pkg()) {
			continue
		}
		if slices.Contains(s.imports, "C") {
			stray = append(stray, s.name+": imports C")
		}
		if slices.Contains(s.imports, "unsafe") && !s.isTest() {
			if unsafe[s.name] == "" {
				stray = append(stray, s.name+": imports unsafe")
			}
			delete(unused, s.name)
		}
	}
	for name := range unused {
		stray = append(stray, name+": may import unsafe, but does not")
	}
	slices.Sort(stray)
	return stray
}

func TestRulesCanFail(t *testing.T) {
	file := func(imports string) *fstest.MapFile {
		return &fstest.MapFile{Data: []byte("package p\n" + imports)}
	}
	sources := goFiles(t, fstest.MapFS{
		"ibv/qp.go":            file(`import ("fmt"; "github.com/goverbs/goverbs/cq"; "example.org/x")`),
		"ibv/qp_test.go":       file(`import "github.com/goverbs/goverbs/cq"; import "unsafe"`),
		"ibv/c_test.go":        file(`import "C"`),
		"cq/cq.go":             file(`import "github.com/goverbs/goverbs/ibv"; import "unsafe"`),
		"cq/listed.go":         file(`import "unsafe"`),
		"internal/c/shim.go":   file("//go:build never\n\nimport \"C\"\nimport \"unsafe\""),
		"new/new.go":           file(`import "C"`),
		"new/testdata/x/x.go":  file(`import "C"`),
		"build/generated/x.go": file(`import "C"`),
	})
	table := map[string][]string{"ibv": {}, "cq": {"ibv", "mr"}, "internal/c": {}, "gone": {"ibv"}}

	assert.Equal(t, []string{
		"cq: may import mr, but does not",
		"gone: in the table mayImport, but there is no such package",
		"ibv/qp.go: imports cq",
		"ibv/qp.go: imports example.org/x",
		"new/new.go: its package is not in the table mayImport",
	}, strayImports(sources, table))

	assert.Equal(t, []string{
		"cq/cq.go: imports unsafe",
		"cq/gone.go: may import unsafe, but does not",
		"ibv/c_test.go: imports C",
		"new/new.go: imports C",
	}, strayC(sources, []string{"internal/c"}, map[string]string{"cq/listed.go": "why", "cq/gone.go": "why"}))
}
