package boundary

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// publicPackages are those that other modules import.
var publicPackages = []string{"ibv", "cq", "mr", "rdmacm"}

// mayShow are the exported names whose types may hold a uintptr or an
// unsafe.Pointer: where the user hands over memory that is not Go's.
var mayShow = map[string]string{}

func TestPublicSignatures(t *testing.T) {
	unused := map[string]bool{}
	for name := range mayShow {
		unused[name] = true
	}
	for _, pkg := range loadPublic(t) {
		for _, leak := range leaks(pkg) {
			if mayShow[leak.name] == "" {
				t.Errorf("%s shows %s, which is not for a public signature", leak.name, leak.what)
			}
			delete(unused, leak.name)
		}
	}
	for name := range unused {
		t.Errorf("%s may show a pointer, but does not", name)
	}
}

// loadPublic returns the public packages that there are, from what the compiler
// exported.
func loadPublic(t *testing.T) []*types.Package {
	t.Helper()
	args := []string{"list", "-export", "-deps", "-json=ImportPath,Export"}
	var names []string
	for _, name := range publicPackages {
		if entries, err := os.ReadDir("../../" + name); err == nil && len(entries) > 0 {
			names = append(names, name)
			args = append(args, "../../"+name)
		}
	}
	require.NotEmpty(t, names)
	cmd := exec.Command("go", args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	list, err := cmd.Output()
	require.NoError(t, err, "%s", &stderr)

	exports := map[string]string{}
	for d := json.NewDecoder(bytes.NewReader(list)); ; {
		var p struct{ ImportPath, Export string }
		err := d.Decode(&p)
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		exports[p.ImportPath] = p.Export
	}
	imp := importer.ForCompiler(token.NewFileSet(), "gc", func(path string) (io.ReadCloser, error) {
		return os.Open(exports[path])
	})
	var pkgs []*types.Package
	for _, name := range names {
		pkg, err := imp.Import(module + "/" + name)
		require.NoError(t, err)
		pkgs = append(pkgs, pkg)
	}
	return pkgs
}

// leak is an exported name whose type shows what it should not.
type leak struct{ name, what string }

// leaks returns the leaks of a package's exported names: functions, constants
// and variables, and of types the exported fields and methods.
func leaks(pkg *types.Package) []leak {
	var found []leak
	add := func(name string, t types.Type) {
		if what := shows(t); what != "" {
			found = append(found, leak{pkg.Name() + "." + name, what})
		}
	}
	scope := pkg.Scope()
	for _, name := range scope.Names() {
		obj := scope.Lookup(name)
		if !obj.Exported() {
			continue
		}
		named, ok := obj.Type().(*types.Named)
		if _, isType := obj.(*types.TypeName); !isType || !ok {
			add(name, obj.Type())
			continue
		}
		add(name, named.Underlying())
		for m := range named.Methods() {
			if m.Exported() {
				add(name+"."+m.Name(), m.Type())
			}
		}
	}
	return found
}

// shows returns the first C type, unsafe.Pointer or uintptr that a user of the
// type t can see without leaving its declaration, or "".
func shows(t types.Type) string {
	switch t := t.(type) {
	case *types.Basic:
		if t.Kind() == types.UnsafePointer || t.Kind() == types.Uintptr {
			return t.String()
		}
	case *types.Named:
		// Other types of the public packages are checked where they are declared.
		if strings.HasPrefix(t.Obj().Name(), "_C") {
			return t.String()
		}
		for arg := range t.TypeArgs().Types() {
			if what := shows(arg); what != "" {
				return what
			}
		}
	case *types.Alias:
		return shows(types.Unalias(t))
	case *types.Map:
		return first(shows(t.Key()), shows(t.Elem()))
	case interface{ Elem() types.Type }: // pointer, slice, array, channel
		return shows(t.Elem())
	case *types.Signature:
		return first(shows(t.Params()), shows(t.Results()))
	case *types.Tuple:
		for v := range t.Variables() {
			if what := shows(v.Type()); what != "" {
				return what
			}
		}
	case *types.Struct:
		for f := range t.Fields() {
			if f.Exported() {
				if what := shows(f.Type()); what != "" {
					return what
				}
			}
		}
	case *types.Interface:
		for m := range t.Methods() {
			if m.Exported() {
				if what := shows(m.Type()); what != "" {
					return what
				}
			}
		}
	}
	return ""
}

func first(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

func TestSignaturesCanFail(t *testing.T) {
	const text = `package p
import "unsafe"

type _Ctype_int int32

type Fine struct { n uintptr; p *_Ctype_int }
func (Fine) hidden(unsafe.Pointer) {}
func fine(uintptr) {}
type FineToo interface{ hidden() *_Ctype_int }
type Far struct { F *Fine }

type Field struct { A int; P unsafe.Pointer }
func (*Field) Method(n []uintptr) {}
func Param(a, b map[string]*_Ctype_int) {}
func Result() (func() chan uintptr, error) { return nil, nil }
type Func func([2]_Ctype_int)
type Interface interface { M(uintptr) }
type Alias = unsafe.Pointer
var Var = uintptr(1)
const Const uintptr = 1
type Is uintptr
`
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, "p.go", text, 0)
	require.NoError(t, err)
	pkg, err := (&types.Config{Importer: importer.Default()}).Check("p", fset, []*ast.File{f}, nil)
	require.NoError(t, err)

	var got []string
	for _, l := range leaks(pkg) {
		got = append(got, fmt.Sprintf("%s: %s", l.name, l.what))
	}
	slices.Sort(got)
	assert.Equal(t, []string{
		"p.Alias: unsafe.Pointer",
		"p.Const: uintptr",
		"p.Field.Method: uintptr",
		"p.Field: unsafe.Pointer",
		"p.Func: p._Ctype_int",
		"p.Interface: uintptr",
		"p.Is: uintptr",
		"p.Param: p._Ctype_int",
		"p.Result: uintptr",
		"p.Var: uintptr",
	}, got)
}
