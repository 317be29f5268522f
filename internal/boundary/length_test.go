package boundary

import (
	"bytes"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/assert"
)

// maxLines is where a file has stopped being about one thing.
const maxLines = 600

func TestFileLength(t *testing.T) {
	noneOf(t, longFiles(t, root))
}

// longFiles returns the files with too many lines, golden files aside.
func longFiles(t *testing.T, fsys fs.FS) []string {
	t.Helper()
	var long []string
	walk(t, fsys, func(name string, text []byte) {
		if strings.Contains(name, "testdata/") || path.Base(name) == "go.sum" {
			return
		}
		if lines := bytes.Count(text, []byte("\n")); lines > maxLines {
			long = append(long, fmt.Sprintf("%s: %d lines", name, lines))
		}
	})
	return long
}

func TestFileLengthCanFail(t *testing.T) {
	lines := func(n int) *fstest.MapFile { return &fstest.MapFile{Data: bytes.Repeat([]byte("x\n"), n)} }
	assert.Equal(t, []string{"b/long.md: 601 lines"}, longFiles(t, fstest.MapFS{
		"a.go":             lines(600),
		"b/long.md":        lines(601),
		"b/testdata/x.txt": lines(601),
		"build/log":        lines(601),
		"go.sum":           lines(601),
	}))
}
