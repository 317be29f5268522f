//go:build cgo && linux && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package mr

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/goverbs/goverbs/internal/cverbs"
)

func TestEnumsHaveCsValues(t *testing.T) {
	c := cverbs.Constants()
	for name, value := range map[string]int64{
		"IBV_ODP_SUPPORT":                      odpSupport,
		"IBV_REREG_MR_CHANGE_TRANSLATION":      int64(ReregTranslation),
		"IBV_REREG_MR_CHANGE_PD":               int64(ReregPD),
		"IBV_REREG_MR_CHANGE_ACCESS":           int64(ReregAccess),
		"IBV_REREG_MR_ERR_INPUT":               int64(ReregErrInput),
		"IBV_REREG_MR_ERR_DONT_FORK_NEW":       int64(ReregErrDontForkNew),
		"IBV_REREG_MR_ERR_DO_FORK_OLD":         int64(ReregErrDoForkOld),
		"IBV_REREG_MR_ERR_CMD":                 int64(ReregErrCmd),
		"IBV_REREG_MR_ERR_CMD_AND_DO_FORK_NEW": int64(ReregErrCmdAndDoForkNew),
	} {
		want, ok := c[name]
		assert.True(t, ok, name)
		assert.Equal(t, want, value, name)
	}
}
