package exampletest_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/goverbs/goverbs/internal/examples/exampletest"
)

func TestLines(t *testing.T) {
	assert.Equal(t, 3, exampletest.Lines("// f is short.\nfunc f() {\n\t// why\n\tif x {\n\t\tg()\n\t}\n\n}\n"))
	assert.Equal(t, 3, exampletest.Lines("if err := g(a{\n\tb,\n}); err != nil {\n"))
}

func TestBetween(t *testing.T) {
	const src = "one two three two four"
	assert.Equal(t, "two three ", exampletest.Between(t, src, "two", "two"))
	assert.Equal(t, "three two four", exampletest.Between(t, src, "three", ""))
}
