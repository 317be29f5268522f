/*
 * A static inline function for each verb that is a macro or an inline itself, which
 * cgo cannot call, or that reports an error in a way of its own.
 * Here a call that makes something returns NULL and leaves errno, and any other
 * returns 0 or a positive errno, where its own comment does not say otherwise.
 */
#ifndef GOVERBS_SHIMS_H
#define GOVERBS_SHIMS_H

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <infiniband/verbs.h>

/*
 * Providers return errno, or -errno, or -1 and errno. One that leaves none must not
 * be given EIO, which says that the device was removed.
 */
static inline int gv_errno(int rc)
{
	if (rc == -1)
		return errno ? errno : EPROTO;
	return rc < 0 ? -rc : rc;
}

#define GV_RC(call) (errno = 0, gv_errno(call))

static inline int gv_query_device(struct ibv_context *ctx, struct ibv_device_attr_ex *attr)
{
	memset(attr, 0, sizeof(*attr));
	return GV_RC(ibv_query_device_ex(ctx, NULL, attr));
}

static inline int gv_query_port(struct ibv_context *ctx, uint8_t port, struct ibv_port_attr *attr)
{
	memset(attr, 0, sizeof(*attr));
	return GV_RC(ibv_query_port(ctx, port, attr));
}

static inline int gv_query_pkey(struct ibv_context *ctx, uint8_t port, int index, uint16_t *pkey)
{
	__be16 be = 0;
	int rc = GV_RC(ibv_query_pkey(ctx, port, index, &be));

	*pkey = be16toh(be);
	return rc;
}

/* The number of entries, or a negative errno. */
static inline ssize_t gv_query_gid_table(struct ibv_context *ctx, struct ibv_gid_entry *entries, size_t max)
{
	errno = 0;
	ssize_t n = ibv_query_gid_table(ctx, entries, max, 0);

	return n == -1 && errno ? -errno : n;
}

static inline struct ibv_mr *gv_reg_mr(struct ibv_pd *pd, uintptr_t addr, size_t length, unsigned int access)
{
	return ibv_reg_mr(pd, (void *)addr, length, access);
}

static inline struct ibv_mr *gv_reg_mr_iova(struct ibv_pd *pd, uintptr_t addr, size_t length, uint64_t iova,
					    unsigned int access)
{
	return ibv_reg_mr_iova(pd, (void *)addr, length, iova, access);
}

/* Returns C's own result code; *err is what the failed call left in errno, or 0. */
static inline int gv_rereg_mr(struct ibv_mr *mr, int flags, struct ibv_pd *pd, uintptr_t addr, size_t length,
			      unsigned int access, int *err)
{
	errno = 0;
	int code = ibv_rereg_mr(mr, flags, pd, (void *)addr, length, access);

	*err = errno;
	return code;
}

static inline struct ibv_mw *gv_alloc_mw(struct ibv_pd *pd, int type)
{
	errno = 0;
	return ibv_alloc_mw(pd, type);
}

static inline int gv_dealloc_mw(struct ibv_mw *mw) { return GV_RC(ibv_dealloc_mw(mw)); }

static inline int gv_bind_mw(struct ibv_qp *qp, struct ibv_mw *mw, uint64_t wr_id, unsigned int flags,
			     struct ibv_mr *mr, uint64_t addr, uint64_t length, unsigned int access)
{
	struct ibv_mw_bind bind = {
		.wr_id = wr_id,
		.send_flags = flags,
		.bind_info = { .mr = mr, .addr = addr, .length = length, .mw_access_flags = access },
	};

	return GV_RC(ibv_bind_mw(qp, mw, &bind));
}

static inline int gv_close_device(struct ibv_context *ctx) { return GV_RC(ibv_close_device(ctx)); }
static inline int gv_dealloc_pd(struct ibv_pd *pd) { return GV_RC(ibv_dealloc_pd(pd)); }
static inline int gv_dereg_mr(struct ibv_mr *mr) { return GV_RC(ibv_dereg_mr(mr)); }
static inline int gv_destroy_cq(struct ibv_cq *cq) { return GV_RC(ibv_destroy_cq(cq)); }
static inline int gv_destroy_qp(struct ibv_qp *qp) { return GV_RC(ibv_destroy_qp(qp)); }

static inline int gv_destroy_ah(struct ibv_ah *ah) { return GV_RC(ibv_destroy_ah(ah)); }
static inline int gv_destroy_srq(struct ibv_srq *srq) { return GV_RC(ibv_destroy_srq(srq)); }

static inline int gv_init_ah_from_wc(struct ibv_context *ctx, uint8_t port, const void *wc, const void *grh,
				     struct ibv_ah_attr *attr)
{
	struct ibv_wc own_wc;
	struct ibv_grh own_grh;

	memcpy(&own_wc, wc, sizeof(own_wc));
	memcpy(&own_grh, grh, sizeof(own_grh));
	memset(attr, 0, sizeof(*attr));
	return GV_RC(ibv_init_ah_from_wc(ctx, port, &own_wc, &own_grh, attr));
}

static inline int gv_modify_srq(struct ibv_srq *srq, struct ibv_srq_attr *attr, int mask)
{
	return GV_RC(ibv_modify_srq(srq, attr, mask));
}

static inline int gv_query_srq(struct ibv_srq *srq, struct ibv_srq_attr *attr)
{
	memset(attr, 0, sizeof(*attr));
	return GV_RC(ibv_query_srq(srq, attr));
}

static inline int gv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	return GV_RC(ibv_modify_qp(qp, attr, mask));
}

static inline int gv_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask,
			      struct ibv_qp_init_attr *init)
{
	memset(attr, 0, sizeof(*attr));
	memset(init, 0, sizeof(*init));
	return GV_RC(ibv_query_qp(qp, attr, mask, init));
}

static inline int gv_mcast(struct ibv_qp *qp, const uint8_t *raw, uint16_t lid, int attach)
{
	union ibv_gid gid;

	memcpy(gid.raw, raw, sizeof(gid.raw));
	return attach ? GV_RC(ibv_attach_mcast(qp, &gid, lid)) : GV_RC(ibv_detach_mcast(qp, &gid, lid));
}

static inline struct ibv_comp_channel *gv_create_comp_channel(struct ibv_context *ctx)
{
	errno = 0;
	return ibv_create_comp_channel(ctx);
}

static inline int gv_destroy_comp_channel(struct ibv_comp_channel *ch) { return GV_RC(ibv_destroy_comp_channel(ch)); }

static inline int gv_get_cq_event(struct ibv_comp_channel *ch, uintptr_t *cq)
{
	struct ibv_cq *named;
	void *cq_context;
	int rc = GV_RC(ibv_get_cq_event(ch, &named, &cq_context));

	*cq = rc ? 0 : (uintptr_t)named;
	return rc;
}

static inline int gv_req_notify_cq(struct ibv_cq *cq, int solicited_only)
{
	return GV_RC(ibv_req_notify_cq(cq, solicited_only));
}

static inline int gv_resize_cq(struct ibv_cq *cq, int entries) { return GV_RC(ibv_resize_cq(cq, entries)); }

static inline int gv_moderate_cq(struct ibv_cq *cq, uint16_t count, uint16_t period)
{
	struct ibv_modify_cq_attr attr = {
		.attr_mask = IBV_CQ_ATTR_MODERATE,
		.moderate = { .cq_count = count, .cq_period = period },
	};

	return GV_RC(ibv_modify_cq(cq, &attr));
}

/*
 * Data path. Addresses come as integers, so that cgo has no pointer to check. A
 * post returns the errno in the high half and in the low half the index of the
 * bad WR, or GV_NONE if the provider named none of this chain.
 */
#define GV_NONE 0xffffffffu

static inline uint64_t gv_pack(int rc, uintptr_t bad, uintptr_t first, size_t size, uint32_t n)
{
	uint64_t index = GV_NONE;

	if (bad >= first && (bad - first) / size < n && (bad - first) % size == 0)
		index = (bad - first) / size;
	return (uint64_t)(uint32_t)rc << 32 | index;
}

static inline uint64_t gv_post_send(uintptr_t qp, uintptr_t wr, uint32_t n)
{
	struct ibv_send_wr *bad = NULL;
	int rc = GV_RC(ibv_post_send((struct ibv_qp *)qp, (struct ibv_send_wr *)wr, &bad));

	return gv_pack(rc, (uintptr_t)bad, wr, sizeof(*bad), n);
}

static inline uint64_t gv_post_recv(uintptr_t qp, uintptr_t wr, uint32_t n)
{
	struct ibv_recv_wr *bad = NULL;
	int rc = GV_RC(ibv_post_recv((struct ibv_qp *)qp, (struct ibv_recv_wr *)wr, &bad));

	return gv_pack(rc, (uintptr_t)bad, wr, sizeof(*bad), n);
}

static inline uint64_t gv_post_srq_recv(uintptr_t srq, uintptr_t wr, uint32_t n)
{
	struct ibv_recv_wr *bad = NULL;
	int rc = GV_RC(ibv_post_srq_recv((struct ibv_srq *)srq, (struct ibv_recv_wr *)wr, &bad));

	return gv_pack(rc, (uintptr_t)bad, wr, sizeof(*bad), n);
}

/* The number of completions, or a negative number without a meaning. */
static inline int gv_poll_cq(uintptr_t cq, uintptr_t wc, int n)
{
	return ibv_poll_cq((struct ibv_cq *)cq, n, (struct ibv_wc *)wc);
}

/*
 * Takes one asynchronous event and acknowledges it. The element's address is only a
 * number once it is acknowledged.
 */
static inline int gv_take_async_event(struct ibv_context *ctx, int *type, uintptr_t *element, int *port)
{
	struct ibv_async_event e;
	int rc = GV_RC(ibv_get_async_event(ctx, &e));

	if (rc)
		return rc;
	*type = e.event_type;
	*element = 0;
	*port = 0;
	switch (e.event_type) {
	case IBV_EVENT_CQ_ERR:
		*element = (uintptr_t)e.element.cq;
		break;
	case IBV_EVENT_QP_FATAL:
	case IBV_EVENT_QP_REQ_ERR:
	case IBV_EVENT_QP_ACCESS_ERR:
	case IBV_EVENT_COMM_EST:
	case IBV_EVENT_SQ_DRAINED:
	case IBV_EVENT_PATH_MIG:
	case IBV_EVENT_PATH_MIG_ERR:
	case IBV_EVENT_QP_LAST_WQE_REACHED:
		*element = (uintptr_t)e.element.qp;
		break;
	case IBV_EVENT_SRQ_ERR:
	case IBV_EVENT_SRQ_LIMIT_REACHED:
		*element = (uintptr_t)e.element.srq;
		break;
	case IBV_EVENT_WQ_FATAL:
		*element = (uintptr_t)e.element.wq;
		break;
	default:
		*port = e.element.port_num;
	}
	ibv_ack_async_event(&e);
	return 0;
}

/* Where the members of ibv_send_wr's unions are, which have no names in cgo. */
enum {
	GV_IMM = offsetof(struct ibv_send_wr, imm_data),
	GV_RDMA_ADDR = offsetof(struct ibv_send_wr, wr.rdma.remote_addr),
	GV_RDMA_RKEY = offsetof(struct ibv_send_wr, wr.rdma.rkey),
	GV_ATOMIC_ADDR = offsetof(struct ibv_send_wr, wr.atomic.remote_addr),
	GV_ATOMIC_COMPARE_ADD = offsetof(struct ibv_send_wr, wr.atomic.compare_add),
	GV_ATOMIC_SWAP = offsetof(struct ibv_send_wr, wr.atomic.swap),
	GV_ATOMIC_RKEY = offsetof(struct ibv_send_wr, wr.atomic.rkey),
	GV_UD_AH = offsetof(struct ibv_send_wr, wr.ud.ah),
	GV_UD_QPN = offsetof(struct ibv_send_wr, wr.ud.remote_qpn),
	GV_UD_QKEY = offsetof(struct ibv_send_wr, wr.ud.remote_qkey),
	GV_BIND_MW = offsetof(struct ibv_send_wr, bind_mw.mw),
	GV_BIND_RKEY = offsetof(struct ibv_send_wr, bind_mw.rkey),
	GV_BIND_MR = offsetof(struct ibv_send_wr, bind_mw.bind_info.mr),
	GV_BIND_ADDR = offsetof(struct ibv_send_wr, bind_mw.bind_info.addr),
	GV_BIND_LENGTH = offsetof(struct ibv_send_wr, bind_mw.bind_info.length),
	GV_BIND_ACCESS = offsetof(struct ibv_send_wr, bind_mw.bind_info.mw_access_flags),
};

#endif
