package devinfo

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/ibv"
)

func TestSnake(t *testing.T) {
	for name, want := range map[string]string{
		"MaxQPWR": "max_qp_wr", "MaxSRQSGE": "max_srq_sge", "SMLID": "sm_lid",
		"NodeGUID": "node_guid", "MaxMRSize": "max_mr_size", "CapFlagsEx": "cap_flags_ex", "MaxQPRdAtom": "max_qp_rd_atom",
		"MaxRawIPv6QP": "max_raw_ipv6_qp", "TSOSupportedQPTs": "tso_supported_qpts", "MaxPKeys": "max_pkeys",
		"LocalCAAckDelay": "local_ca_ack_delay", "ODPCapsRC": "odp_caps_rc", "LID": "lid", "CapFlags2": "cap_flags2",
		"QKeyViolCounter": "qkey_viol_counter",
	} {
		assert.Equal(t, want, snake(name))
	}
}

func TestValues(t *testing.T) {
	device := values(everything.attr)
	assert.Equal(t, "506b:4b03:00c1:2d3e", device["node_guid"])
	assert.Equal(t, uint64(0xffffffffffffffff), device["max_mr_size"])
	port := values(everything.ports[0].attr)
	assert.Equal(t, "PORT_ACTIVE", port["state"])
	assert.Equal(t, 4096, port["max_mtu"])
	assert.Equal(t, "Ethernet", port["link_layer"])
	assert.Len(t, values(ibv.PortAttr{}), len(port), "no two fields have one name")
	text, err := json.Marshal(device)
	require.NoError(t, err)
	assert.Contains(t, string(text), `"max_mr_size":18446744073709551615`)
}
