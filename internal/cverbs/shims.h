/*
 * One static inline function for each verb: many verbs are macros or inlines
 * themselves, which cgo cannot call, and their ways to report an error differ.
 * Here a call that makes something returns NULL and leaves errno, and any other
 * returns 0 or a positive errno, where its own comment does not say otherwise.
 */
#ifndef GOVERBS_SHIMS_H
#define GOVERBS_SHIMS_H

#include <errno.h>
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

static inline int gv_close_device(struct ibv_context *ctx) { return GV_RC(ibv_close_device(ctx)); }
static inline int gv_dealloc_pd(struct ibv_pd *pd) { return GV_RC(ibv_dealloc_pd(pd)); }
static inline int gv_dereg_mr(struct ibv_mr *mr) { return GV_RC(ibv_dereg_mr(mr)); }
static inline int gv_destroy_cq(struct ibv_cq *cq) { return GV_RC(ibv_destroy_cq(cq)); }
static inline int gv_destroy_qp(struct ibv_qp *qp) { return GV_RC(ibv_destroy_qp(qp)); }

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

/* The number of completions, or a negative number without a meaning. */
static inline int gv_poll_cq(uintptr_t cq, uintptr_t wc, int n)
{
	return ibv_poll_cq((struct ibv_cq *)cq, n, (struct ibv_wc *)wc);
}

#endif
