//go:build cgo && linux && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package ccm

// #include "shims.h"
import "C"

// Constants returns the headers' values by their C names, for tests that hold the literals
// of rdmacm and this package against them.
func Constants() map[string]int64 {
	return map[string]int64{
		"RDMA_CM_EVENT_ADDR_RESOLVED":           C.RDMA_CM_EVENT_ADDR_RESOLVED,
		"RDMA_CM_EVENT_ADDR_ERROR":              C.RDMA_CM_EVENT_ADDR_ERROR,
		"RDMA_CM_EVENT_ROUTE_RESOLVED":          C.RDMA_CM_EVENT_ROUTE_RESOLVED,
		"RDMA_CM_EVENT_ROUTE_ERROR":             C.RDMA_CM_EVENT_ROUTE_ERROR,
		"RDMA_CM_EVENT_CONNECT_REQUEST":         C.RDMA_CM_EVENT_CONNECT_REQUEST,
		"RDMA_CM_EVENT_CONNECT_RESPONSE":        C.RDMA_CM_EVENT_CONNECT_RESPONSE,
		"RDMA_CM_EVENT_CONNECT_ERROR":           C.RDMA_CM_EVENT_CONNECT_ERROR,
		"RDMA_CM_EVENT_UNREACHABLE":             C.RDMA_CM_EVENT_UNREACHABLE,
		"RDMA_CM_EVENT_REJECTED":                C.RDMA_CM_EVENT_REJECTED,
		"RDMA_CM_EVENT_ESTABLISHED":             C.RDMA_CM_EVENT_ESTABLISHED,
		"RDMA_CM_EVENT_DISCONNECTED":            C.RDMA_CM_EVENT_DISCONNECTED,
		"RDMA_CM_EVENT_DEVICE_REMOVAL":          C.RDMA_CM_EVENT_DEVICE_REMOVAL,
		"RDMA_CM_EVENT_MULTICAST_JOIN":          C.RDMA_CM_EVENT_MULTICAST_JOIN,
		"RDMA_CM_EVENT_MULTICAST_ERROR":         C.RDMA_CM_EVENT_MULTICAST_ERROR,
		"RDMA_CM_EVENT_ADDR_CHANGE":             C.RDMA_CM_EVENT_ADDR_CHANGE,
		"RDMA_CM_EVENT_TIMEWAIT_EXIT":           C.RDMA_CM_EVENT_TIMEWAIT_EXIT,
		"RDMA_PS_IPOIB":                         C.RDMA_PS_IPOIB,
		"RDMA_PS_TCP":                           C.RDMA_PS_TCP,
		"RDMA_PS_UDP":                           C.RDMA_PS_UDP,
		"RDMA_PS_IB":                            C.RDMA_PS_IB,
		"RDMA_MAX_RESP_RES":                     C.RDMA_MAX_RESP_RES,
		"RDMA_MAX_INIT_DEPTH":                   C.RDMA_MAX_INIT_DEPTH,
		"RDMA_MC_JOIN_FLAG_FULLMEMBER":          C.RDMA_MC_JOIN_FLAG_FULLMEMBER,
		"RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER": C.RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER,
		"RDMA_OPTION_ID":                        C.RDMA_OPTION_ID,
		"RDMA_OPTION_IB":                        C.RDMA_OPTION_IB,
		"RDMA_OPTION_ID_TOS":                    C.RDMA_OPTION_ID_TOS,
		"RDMA_OPTION_ID_REUSEADDR":              C.RDMA_OPTION_ID_REUSEADDR,
		"RDMA_OPTION_ID_AFONLY":                 C.RDMA_OPTION_ID_AFONLY,
		"RDMA_OPTION_ID_ACK_TIMEOUT":            C.RDMA_OPTION_ID_ACK_TIMEOUT,
		"RDMA_OPTION_IB_PATH":                   C.RDMA_OPTION_IB_PATH,
		"RAI_PASSIVE":                           C.RAI_PASSIVE,
		"RAI_NUMERICHOST":                       C.RAI_NUMERICHOST,
		"RAI_NOROUTE":                           C.RAI_NOROUTE,
		"RAI_FAMILY":                            C.RAI_FAMILY,
	}
}
