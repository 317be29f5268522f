package main

import (
	"bufio"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/goverbs/goverbs/internal/sysfs"
)

func TestMeaningsAreUnique(t *testing.T) {
	names, texts := map[string]bool{}, map[string]bool{}
	for _, m := range meanings {
		assert.False(t, texts[m.text], m.text)
		texts[m.text] = true
		assert.Contains(t, groups, m.group)
		for name := range strings.FieldsSeq(m.names) {
			assert.False(t, names[name], name)
			names[name] = true
		}
	}
}

// What tells of congestion and loss is known by the names of each vendor.
func TestMeaningOf(t *testing.T) {
	for names, want := range map[string]group{
		"np_cnp_sent cnpSent tx_cnp_pkts":                                                                    congestion,
		"rp_cnp_handled cnpHandled rx_cnp_pkts rp_cnp_ignored cnpIgnored":                                    congestion,
		"np_ecn_marked_roce_packets RxECNMrkd rx_ecn_marked_pkts":                                            congestion,
		"out_of_sequence out_of_seq_request oos_drop_count vport_out_of_sequence":                            loss,
		"local_ack_timeout_err to_retransmits tcpRetransSegs retrans_pkts roce_adp_retrans":                  loss,
		"rx_drops rx_roce_discards ip4InDiscards port_xmit_discards tx_roce_discards":                        loss,
		"out_of_buffer rx_out_of_buffer rnr_nak_retry_err rnr_naks_rcvd rcvd_rnr_err":                        notReady,
		"port_rcv_constraint_errors port_xmit_constraint_errors port_rcv_switch_relay_errors tx_roce_errors": failures,
		"unicast_rcv_packets unicast_xmit_packets multicast_rcv_packets multicast_xmit_packets":              traffic,
		"some_new_counter active_qps":                                                                        unexplained,
	} {
		for name := range strings.FieldsSeq(names) {
			assert.Equal(t, want, meaningOf(name).group, name)
		}
	}
	assert.Equal(t, notReady, meaningOf("RNR received").group, "irdma has spaces in its names")
}

func TestCompare(t *testing.T) {
	counters := func(sent, marks, gone uint64) []sysfs.Counter {
		return []sysfs.Counter{
			{Device: "mlx5_0", Port: 1, Name: "port_xmit_data", Value: sent},
			{Device: "mlx5_0", Port: 1, Name: "np_ecn_marked_roce_packets", Value: marks},
			{Device: "mlx5_0", Port: 1, Name: "out_of_sequence", Value: 7},
			{Device: "mlx5_0", Port: 2, Name: "port_xmit_data", Value: gone},
		}
	}
	s := compare(counters(100, 5, 9), counters(300, 6, 4), 500*time.Millisecond)
	assert.Equal(t, sample{Seconds: 0.5, Changes: []change{
		{Device: "mlx5_0", Port: 1, Name: "np_ecn_marked_roce_packets", Group: "congestion", Delta: 1, Rate: 2},
		{Device: "mlx5_0", Port: 1, Name: "port_xmit_data", Group: "traffic", Delta: 200, Rate: 400},
		{Device: "mlx5_0", Port: 2, Name: "port_xmit_data", Group: "traffic", Delta: 4, Rate: 8, Reset: true},
	}}, s)
	assert.Empty(t, compare(counters(1, 1, 1), counters(1, 1, 1), time.Second).Changes)
	assert.Empty(t, compare(counters(1, 1, 1)[1:], counters(900, 1, 1), time.Second).Changes, "what could not be read before")
}

func TestPrintSample(t *testing.T) {
	old := []sysfs.Counter{{Device: "rxe0", Port: 1, Name: "sent_pkts", Value: 10}, {Device: "rxe0", Port: 1, Name: "link_downed", Value: 3}}
	now := []sysfs.Counter{{Device: "rxe0", Port: 1, Name: "sent_pkts", Value: 25}, {Device: "rxe0", Port: 1, Name: "link_downed", Value: 1}}
	s := compare(old, now, 2*time.Second)
	s.Time = time.Date(2026, 1, 2, 3, 4, 5, 600e6, time.UTC)
	var b strings.Builder
	r := &reply{out: bufio.NewWriter(&b)}
	r.printSample(s)
	assert.NoError(t, r.out.Flush())
	assert.Equal(t, `03:04:05.600, after 2.00 s
WHERE        GROUP    COUNTER      CHANGE      PER SECOND
rxe0 port 1  errors   link_downed  +1 (reset)  0.5
rxe0 port 1  traffic  sent_pkts    +15         7.5
`, b.String())
}
