//go:build cgo && linux && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package cq_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/goverbs/goverbs/cq"
	"github.com/goverbs/goverbs/internal/cverbs"
)

func TestEnumsHaveCsValues(t *testing.T) {
	c := cverbs.Constants()
	for name, value := range map[string]int64{
		"IBV_WC_SUCCESS":            int64(cq.StatusSuccess),
		"IBV_WC_LOC_LEN_ERR":        int64(cq.StatusLocLenErr),
		"IBV_WC_LOC_QP_OP_ERR":      int64(cq.StatusLocQPOpErr),
		"IBV_WC_LOC_EEC_OP_ERR":     int64(cq.StatusLocEECOpErr),
		"IBV_WC_LOC_PROT_ERR":       int64(cq.StatusLocProtErr),
		"IBV_WC_WR_FLUSH_ERR":       int64(cq.StatusWRFlushErr),
		"IBV_WC_MW_BIND_ERR":        int64(cq.StatusMWBindErr),
		"IBV_WC_BAD_RESP_ERR":       int64(cq.StatusBadRespErr),
		"IBV_WC_LOC_ACCESS_ERR":     int64(cq.StatusLocAccessErr),
		"IBV_WC_REM_INV_REQ_ERR":    int64(cq.StatusRemInvReqErr),
		"IBV_WC_REM_ACCESS_ERR":     int64(cq.StatusRemAccessErr),
		"IBV_WC_REM_OP_ERR":         int64(cq.StatusRemOpErr),
		"IBV_WC_RETRY_EXC_ERR":      int64(cq.StatusRetryExcErr),
		"IBV_WC_RNR_RETRY_EXC_ERR":  int64(cq.StatusRNRRetryExcErr),
		"IBV_WC_LOC_RDD_VIOL_ERR":   int64(cq.StatusLocRDDViolErr),
		"IBV_WC_REM_INV_RD_REQ_ERR": int64(cq.StatusRemInvRDReqErr),
		"IBV_WC_REM_ABORT_ERR":      int64(cq.StatusRemAbortErr),
		"IBV_WC_INV_EECN_ERR":       int64(cq.StatusInvEECNErr),
		"IBV_WC_INV_EEC_STATE_ERR":  int64(cq.StatusInvEECStateErr),
		"IBV_WC_FATAL_ERR":          int64(cq.StatusFatalErr),
		"IBV_WC_RESP_TIMEOUT_ERR":   int64(cq.StatusRespTimeoutErr),
		"IBV_WC_GENERAL_ERR":        int64(cq.StatusGeneralErr),
		"IBV_WC_TM_ERR":             int64(cq.StatusTMErr),
		"IBV_WC_TM_RNDV_INCOMPLETE": int64(cq.StatusTMRndvIncomplete),
		"IBV_WC_SEND":               int64(cq.OpSend) - 1,
		"IBV_WC_RDMA_WRITE":         int64(cq.OpRDMAWrite) - 1,
		"IBV_WC_RDMA_READ":          int64(cq.OpRDMARead) - 1,
		"IBV_WC_COMP_SWAP":          int64(cq.OpCompSwap) - 1,
		"IBV_WC_FETCH_ADD":          int64(cq.OpFetchAdd) - 1,
		"IBV_WC_BIND_MW":            int64(cq.OpBindMW) - 1,
		"IBV_WC_LOCAL_INV":          int64(cq.OpLocalInv) - 1,
		"IBV_WC_RECV":               int64(cq.OpRecv) - 1,
		"IBV_WC_RECV_RDMA_WITH_IMM": int64(cq.OpRecvRDMAWithImm) - 1,
	} {
		want, ok := c[name]
		assert.True(t, ok, name)
		assert.Equal(t, want, value, name)
	}
}
