//go:build cgo && linux && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

/*
 * The null provider: what a fast provider in C does besides talking to hardware.
 * One thread at a time posts to the queues of a CQ, and one polls it. No lock, no
 * record, no check of what a work request asks for.
 */

#include "fakedev.h"

int fd_null_init(struct fd_null_ring *r, uint32_t entries)
{
	uint32_t size = 1;

	while (size < entries)
		size <<= 1;
	r->entries = calloc(size, sizeof(*r->entries));
	r->mask = size - 1;
	return r->entries ? 0 : -1;
}

static const uint32_t wc_opcode[] = {
	[IBV_WR_RDMA_WRITE] = IBV_WC_RDMA_WRITE,
	[IBV_WR_RDMA_WRITE_WITH_IMM] = IBV_WC_RDMA_WRITE,
	[IBV_WR_SEND] = IBV_WC_SEND,
	[IBV_WR_SEND_WITH_IMM] = IBV_WC_SEND,
	[IBV_WR_RDMA_READ] = IBV_WC_RDMA_READ,
	[IBV_WR_ATOMIC_CMP_AND_SWP] = IBV_WC_COMP_SWAP,
	[IBV_WR_ATOMIC_FETCH_AND_ADD] = IBV_WC_FETCH_ADD,
	[IBV_WR_LOCAL_INV] = IBV_WC_LOCAL_INV,
	[IBV_WR_BIND_MW] = IBV_WC_BIND_MW,
	[IBV_WR_SEND_WITH_INV] = IBV_WC_SEND,
};

uint32_t fd_wc_opcode(uint32_t wr_opcode)
{
	return wr_opcode < sizeof(wc_opcode) / sizeof(*wc_opcode) ? wc_opcode[wr_opcode] : IBV_WC_SEND;
}

static int null_post_send(struct ibv_qp *ibv, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	struct fd_qp *qp = fd_of(ibv, fd_qp);
	struct fd_null_ring *r = qp->null_send;
	uint32_t head = r->head, tail = __atomic_load_n(&r->tail, __ATOMIC_ACQUIRE);
	int rc = 0;

	for (; wr; wr = wr->next) {
		if (!qp->signal_all && !(wr->send_flags & IBV_SEND_SIGNALED))
			continue;
		if (head - tail > r->mask) {
			*bad = wr;
			rc = ENOMEM;
			break;
		}
		struct fd_null_entry *e = &r->entries[head++ & r->mask];

		e->wr_id = wr->wr_id;
		e->qp_num = ibv->qp_num;
		e->opcode = wc_opcode[wr->opcode];
	}
	__atomic_store_n(&r->head, head, __ATOMIC_RELEASE);
	return rc;
}

static int null_post_recv(struct ibv_qp *ibv, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	struct fd_null_ring *r = fd_of(ibv, fd_qp)->null_recv;
	uint32_t head = r->head, tail = __atomic_load_n(&r->tail, __ATOMIC_ACQUIRE);
	int rc = 0;

	for (; wr; wr = wr->next) {
		if (head - tail > r->mask) {
			*bad = wr;
			rc = ENOMEM;
			break;
		}
		struct fd_null_entry *e = &r->entries[head++ & r->mask];

		e->wr_id = wr->wr_id;
		e->qp_num = ibv->qp_num;
		e->opcode = IBV_WC_RECV;
	}
	__atomic_store_n(&r->head, head, __ATOMIC_RELEASE);
	return rc;
}

static int null_poll_cq(struct ibv_cq *ibv, int most, struct ibv_wc *wc)
{
	struct fd_null_ring *r = &fd_of(ibv, fd_cq)->null;
	uint32_t tail = r->tail, head = __atomic_load_n(&r->head, __ATOMIC_ACQUIRE);
	int n = 0;

	for (; n < most && tail != head; n++, tail++) {
		struct fd_null_entry *e = &r->entries[tail & r->mask];

		wc[n] = (struct ibv_wc){
			.wr_id = e->wr_id,
			.status = IBV_WC_SUCCESS,
			.opcode = e->opcode,
			.qp_num = e->qp_num,
		};
	}
	__atomic_store_n(&r->tail, tail, __ATOMIC_RELEASE);
	return n;
}

void fd_set_null_ops(struct ibv_context_ops *ops)
{
	ops->post_send = null_post_send;
	ops->post_recv = null_post_recv;
	ops->poll_cq = null_poll_cq;
}
