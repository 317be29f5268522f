package main

import "strings"

// group is what a counter tells of. The groups are shown in this order.
type group string

const (
	congestion  group = "congestion"
	loss        group = "loss"
	notReady    group = "receiver not ready"
	failures    group = "errors"
	traffic     group = "traffic"
	unexplained group = "other"
)

var groups = []group{congestion, loss, notReady, failures, traffic, unexplained}

// meaning is what the counters of several names count.
type meaning struct {
	group group
	text  string
	names string // as drivers call it, with spaces between; a space in a name is _
}

// meanings are those of the drivers mlx5, irdma (both its generations), bnxt_re, rxe, efa and
// of the InfiniBand standard.
var meanings = []meaning{
	{congestion, "packets received with an ECN mark: a switch on the way was congested",
		"np_ecn_marked_roce_packets RxECNMrkd rx_ecn_marked_pkts cc_rx_ce_pkts"},
	{congestion, "CNPs sent: asked a sender to slow down", "np_cnp_sent cnpSent tx_cnp_pkts cc_tx_cnp_pkts"},
	{congestion, "CNPs handled: slowed down because a receiver asked for it", "rp_cnp_handled cnpHandled rx_cnp_pkts cc_rx_cnp_pkts"},
	{congestion, "CNPs ignored: asked to slow down and did not (congestion control off?)", "rp_cnp_ignored cnpIgnored"},
	{congestion, "slow starts after an idle time or a loss", "roce_slow_restart roce_slow_restart_trans"},
	{congestion, "CNPs sent during a slow start", "roce_slow_restart_cnps"},
	{congestion, "ticks in which data waited to be sent: no credits, or paused by the peer", "port_xmit_wait"},
	{congestion, "sends delayed to pace them", "pacing_reschedule"},

	{loss, "packets received out of sequence: some before them were lost", "out_of_sequence out_of_seq_request oos_drop_count"},
	{loss, "NAKs received: the peer missed a packet",
		"packet_seq_err rcvd_seq_err seq_err_naks_rcvd Nak_Sequence_Error"},
	{loss, "NAKs implied: an answer of READ or atomic was missed", "implied_nak_seq_err missing_resp Nak_Sequence_Error_Implied"},
	{loss, "timeouts: no acknowledgement came, so that packets were sent again",
		"local_ack_timeout_err to_retransmits roce_adp_retrans_to retrans_timeout_events"},
	{loss, "packets sent again", "roce_adp_retrans completer_retry_err tcpRetransSegs RetransSegs retrans_pkts"},
	{loss, "bytes sent again", "retrans_bytes"},
	{loss, "requests received twice: their acknowledgement was late or lost", "duplicate_request dup_req"},
	{loss, "packets dropped on receipt", "rx_drops rx_roce_discards ip4InDiscards ip6InDiscards rx_discards"},
	{loss, "packets dropped before they were sent", "port_xmit_discards tx_roce_discards"},
	{loss, "management packets dropped for want of buffers", "VL15_dropped"},
	{loss, "retries used up: the peer did not answer, and the QP failed",
		"retry_exceeded_err max_retry_exceeded req_transport_retries_exceeded unresponsive_remote_events"},
	{loss, "connections whose path went bad", "impaired_remote_conn_events"},

	{notReady, "messages that came with no receive posted here", "out_of_buffer rx_out_of_buffer"},
	{notReady, "RNR NAKs sent: no receive was posted here", "send_rnr_err RNR_sent"},
	{notReady, "RNR NAKs received: the peer had no receive posted", "rcvd_rnr_err rnr_naks_rcvd rnr_nak_retry_err RNR_received"},
	{notReady, "RNR retries used up: the peer posted no receive, and the QP failed",
		"retry_rnr_exceeded_err req_rnr_retries_exceeded"},

	{failures, "completions with an error, as requester", "req_cqe_error local_qp_op_err"},
	{failures, "completions with an error, as responder", "resp_cqe_error"},
	{failures, "work requests flushed since their QP had failed or was closed", "req_cqe_flush_error resp_cqe_flush_error"},
	{failures, "accesses refused by the peer: rkey, address or right", "req_remote_access_errors remote_access_err"},
	{failures, "accesses of the peer refused here: rkey, address or right",
		"resp_remote_access_errors res_rx_invalid_rkey res_rx_no_perm res_rx_range_err res_tx_invalid_rkey res_tx_no_perm res_tx_range_err"},
	{failures, "requests that the peer found invalid", "req_remote_invalid_request remote_invalid_req_err"},
	{failures, "failures at the peer", "remote_op_err"},
	{failures, "local memory that may not be used so: lkey, address or right", "local_protection_err"},
	{failures, "messages longer than the receive posted for them", "resp_local_length_error res_exceeds_wqe res_length_mismatch"},
	{failures, "sends that the network interface refused", "send_err"},
	{failures, "packets with a wrong checksum (ICRC)", "rx_icrc_encapsulated"},
	{failures, "packets with errors", "port_rcv_errors rx_roce_errors tx_roce_errors rxVlanErrors"},
	{failures, "bit errors on the link; it stops at its highest value", "symbol_error"},
	{failures, "times that the link went down", "link_downed"},
	{failures, "times that the link recovered from errors", "link_error_recovery local_link_integrity_errors"},
	{failures, "packets marked bad by a switch before", "port_rcv_remote_physical_errors"},
	{failures, "packets refused by the port: of a partition that is not its own, or raw", "port_rcv_constraint_errors port_xmit_constraint_errors"},
	{failures, "packets that a switch could not forward", "port_rcv_switch_relay_errors"},
	{failures, "overruns of the link's buffers", "excessive_buffer_overrun_errors"},
	{failures, "work requests that failed: READ, WRITE", "rdma_read_wr_err rdma_write_wr_err"},
	{failures, "errors of the driver's commands to the device", "cmds_err no_completion_cmds"},

	{traffic, "data sent, in units of 4 bytes", "port_xmit_data"},
	{traffic, "data received, in units of 4 bytes", "port_rcv_data"},
	{traffic, "bytes sent", "tx_bytes ip4OutOctets ip6OutOctets rdma_tx_bytes"},
	{traffic, "bytes received", "rx_bytes ip4InOctets ip6InOctets rdma_rx_bytes"},
	{traffic, "packets sent", "port_xmit_packets sent_pkts tx_pkts ip4OutPkts ip6OutPkts tcpOutSegs OutSegs TxUDP rdma_tx_packets"},
	{traffic, "packets received", "port_rcv_packets rcvd_pkts rx_pkts ip4InPkts ip6InPkts tcpInSegs InSegs RxUDP rdma_rx_packets"},
	{traffic, "packets to one receiver sent", "unicast_xmit_packets"},
	{traffic, "packets to one receiver received", "unicast_rcv_packets"},
	{traffic, "packets to a multicast group sent", "multicast_xmit_packets"},
	{traffic, "packets to a multicast group received", "multicast_rcv_packets"},
	{traffic, "SENDs", "rdma_sends send_wrs iwOutRdmaSends OutRdmaSends tx_send_req"},
	{traffic, "SENDs received", "rdma_recvs recv_wrs iwInRdmaSends InRdmaSends rx_send_req"},
	{traffic, "RDMA READs of the peer", "rx_read_requests rx_read_req iwInRdmaReads InRdmaReads"},
	{traffic, "RDMA READs", "tx_read_req rdma_read_wrs iwOutRdmaReads OutRdmaReads"},
	{traffic, "RDMA WRITEs of the peer", "rx_write_requests rx_write_req iwInRdmaWrites InRdmaWrites"},
	{traffic, "RDMA WRITEs", "tx_write_req rdma_write_wrs iwOutRdmaWrites OutRdmaWrites"},
	{traffic, "atomics of the peer", "rx_atomic_requests rx_atomic_req"},
	{traffic, "acknowledgements put off for a moment; no sign of trouble", "ack_deferred"},
}

// byName finds the meaning of a counter.
var byName = func() map[string]meaning {
	all := map[string]meaning{}
	for _, m := range meanings {
		for name := range strings.FieldsSeq(m.names) {
			all[name] = m
		}
	}
	return all
}()

// meaningOf returns what a counter counts, or that it is not known. In a switch's view of a
// virtual function mlx5 puts "vport_" before its names.
func meaningOf(name string) meaning {
	name = strings.TrimPrefix(strings.ReplaceAll(name, " ", "_"), "vport_")
	if m, ok := byName[name]; ok {
		return m
	}
	return meaning{group: unexplained}
}
