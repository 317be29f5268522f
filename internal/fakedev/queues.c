//go:build cgo && linux && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

/* Completion queues, shared receive queues and queue pairs: making, changing, destroying. */

#include "fakedev.h"

/* What is granted of what was asked for. */
static uint32_t grant(struct fd_device *d, uint32_t ask, int most)
{
	uint32_t n = 1;

	if (!d->config.round_up || !ask)
		return ask;
	while (n < ask)
		n <<= 1;
	return n < (uint32_t)most ? n : (uint32_t)most;
}

struct ibv_cq *ibv_create_cq(struct ibv_context *context, int cqe, void *cq_context, struct ibv_comp_channel *channel,
			     int vector)
{
	if (!fd_owns(context))
		return FD_NEXT(ibv_create_cq)(context, cqe, cq_context, channel, vector);
	struct fd_ctx *ctx = fd_ctx_of(context);
	struct fd_device *d = ctx->dev;
	FD_LOCKED(d);

	if (cqe < 1 || cqe > d->config.attr.orig_attr.max_cqe || vector < 0 || vector >= d->config.comp_vectors) {
		errno = EINVAL;
		return NULL;
	}
	struct fd_cq *cq = fd_make(ctx, d, FD_create_cq, FD_CQ, sizeof(*cq));

	if (!cq)
		return NULL;
	cq->ibv.context = context;
	cq->ibv.channel = channel;
	cq->ibv.cq_context = cq_context;
	cq->ibv.handle = cq->o.number;
	cq->ibv.cqe = grant(d, cqe, d->config.attr.orig_attr.max_cqe);
	if (d->config.null && fd_null_init(&cq->null, cq->ibv.cqe)) {
		fd_free(&cq->o);
		errno = ENOMEM;
		return NULL;
	}
	if (channel) {
		fd_of(channel, fd_channel)->o.users++;
		channel->refcnt++;
	}
	return &cq->ibv;
}

int ibv_resize_cq(struct ibv_cq *ibv, int cqe)
{
	if (!fd_owns(ibv->context))
		return FD_NEXT(ibv_resize_cq)(ibv, cqe);
	struct fd_cq *cq = fd_of(ibv, fd_cq);
	struct fd_device *d = cq->o.ctx->dev;
	FD_LOCKED(d);
	int rc;

	if (!(d->config.features & FD_HAS_RESIZE_CQ) || d->config.null)
		return EOPNOTSUPP;
	if (fd_fails(d, FD_resize_cq, &rc))
		return rc;
	if (cqe < 1 || cqe < cq->queued || cqe > d->config.attr.orig_attr.max_cqe)
		return EINVAL;
	ibv->cqe = grant(d, cqe, d->config.attr.orig_attr.max_cqe);
	return 0;
}

int fd_modify_cq(struct ibv_cq *ibv, struct ibv_modify_cq_attr *attr)
{
	struct fd_cq *cq = fd_of(ibv, fd_cq);
	struct fd_device *d = cq->o.ctx->dev;
	FD_LOCKED(d);
	int rc;

	if (!(d->config.features & FD_HAS_MODERATION))
		return EOPNOTSUPP;
	if (fd_fails(d, FD_modify_cq, &rc))
		return rc;
	if (attr->attr_mask != IBV_CQ_ATTR_MODERATE)
		return EINVAL;
	cq->moderate_count = attr->moderate.cq_count;
	cq->moderate_period = attr->moderate.cq_period;
	return 0;
}

int fd_moderation(struct fd_device *d, uint32_t number, uint16_t *count, uint16_t *period)
{
	FD_LOCKED(d);
	struct fd_cq *cq = (struct fd_cq *)fd_find(d, FD_CQ, number);

	if (!cq)
		return ENOENT;
	*count = cq->moderate_count;
	*period = cq->moderate_period;
	return 0;
}

int ibv_destroy_cq(struct ibv_cq *ibv)
{
	if (!fd_owns(ibv->context))
		return FD_NEXT(ibv_destroy_cq)(ibv);
	struct fd_cq *cq = fd_of(ibv, fd_cq);
	struct fd_device *d = cq->o.ctx->dev;
	FD_LOCKED(d);
	int rc = fd_may_destroy(&cq->o, FD_destroy_cq);

	if (rc)
		return rc;
	if (cq->comp_reported != cq->comp_acked) {
		fd_misused(d, "ibv_destroy_cq of %#x would wait for ever: of %u completion events %u were acknowledged",
			   cq->o.number, cq->comp_reported, cq->comp_acked);
		return EBUSY;
	}
	if (ibv->channel) {
		struct fd_channel *ch = fd_of(ibv->channel, fd_channel);

		fd_events_drop(&ch->comp, &cq->o);
		ch->o.users--;
		ch->ibv.refcnt--;
	}
	fd_free(&cq->o);
	return 0;
}

struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *init)
{
	if (!fd_owns(pd->context))
		return FD_NEXT(ibv_create_srq)(pd, init);
	struct fd_ctx *ctx = fd_ctx_of(pd->context);
	struct fd_device *d = ctx->dev;
	struct ibv_device_attr *limits = &d->config.attr.orig_attr;
	FD_LOCKED(d);

	if (init->attr.max_wr < 1 || init->attr.max_wr > (uint32_t)limits->max_srq_wr ||
	    init->attr.max_sge > (uint32_t)limits->max_srq_sge) {
		errno = EINVAL;
		return NULL;
	}
	struct fd_srq *srq = fd_make(ctx, d, FD_create_srq, FD_SRQ, sizeof(*srq));

	if (!srq)
		return NULL;
	srq->ibv.context = pd->context;
	srq->ibv.srq_context = init->srq_context;
	srq->ibv.pd = pd;
	srq->ibv.handle = srq->o.number;
	init->attr.max_wr = grant(d, init->attr.max_wr, limits->max_srq_wr);
	srq->rq.max_wr = init->attr.max_wr;
	srq->rq.max_sge = init->attr.max_sge;
	fd_of(pd, fd_pd)->o.users++;
	return &srq->ibv;
}

int ibv_modify_srq(struct ibv_srq *ibv, struct ibv_srq_attr *attr, int mask)
{
	if (!fd_owns(ibv->context))
		return FD_NEXT(ibv_modify_srq)(ibv, attr, mask);
	struct fd_srq *srq = fd_of(ibv, fd_srq);
	struct fd_device *d = srq->o.ctx->dev;
	FD_LOCKED(d);
	int rc;

	if (fd_fails(d, FD_modify_srq, &rc))
		return rc;
	uint32_t max = mask & IBV_SRQ_MAX_WR ? attr->max_wr : srq->rq.max_wr;

	if ((mask & IBV_SRQ_MAX_WR) &&
	    (!(d->config.attr.orig_attr.device_cap_flags & IBV_DEVICE_SRQ_RESIZE) || max < srq->rq.posted ||
	     max > (uint32_t)d->config.attr.orig_attr.max_srq_wr))
		return EINVAL;
	if ((mask & IBV_SRQ_LIMIT) && attr->srq_limit > max)
		return EINVAL;
	srq->rq.max_wr = max;
	if (mask & IBV_SRQ_LIMIT)
		srq->limit = attr->srq_limit;
	return 0;
}

int ibv_query_srq(struct ibv_srq *ibv, struct ibv_srq_attr *attr)
{
	if (!fd_owns(ibv->context))
		return FD_NEXT(ibv_query_srq)(ibv, attr);
	struct fd_srq *srq = fd_of(ibv, fd_srq);
	struct fd_device *d = srq->o.ctx->dev;
	FD_LOCKED(d);
	int rc;

	if (fd_fails(d, FD_query_srq, &rc))
		return rc;
	*attr = (struct ibv_srq_attr){ .max_wr = srq->rq.max_wr, .max_sge = srq->rq.max_sge, .srq_limit = srq->limit };
	return 0;
}

int ibv_destroy_srq(struct ibv_srq *ibv)
{
	if (!fd_owns(ibv->context))
		return FD_NEXT(ibv_destroy_srq)(ibv);
	struct fd_srq *srq = fd_of(ibv, fd_srq);
	FD_LOCKED(srq->o.ctx->dev);
	int rc = fd_may_destroy(&srq->o, FD_destroy_srq);

	if (rc)
		return rc;
	fd_of(ibv->pd, fd_pd)->o.users--;
	fd_free(&srq->o);
	return 0;
}

static int check_qp(struct fd_device *d, struct ibv_pd *pd, const struct ibv_qp_init_attr *init)
{
	struct ibv_device_attr *limits = &d->config.attr.orig_attr;
	const struct ibv_qp_cap *cap = &init->cap;

	if (init->qp_type != IBV_QPT_RC && init->qp_type != IBV_QPT_UC && init->qp_type != IBV_QPT_UD)
		return EOPNOTSUPP;
	if (!init->send_cq || !init->recv_cq || init->send_cq->context != pd->context ||
	    init->recv_cq->context != pd->context || (init->srq && init->srq->context != pd->context))
		return EINVAL;
	if (cap->max_send_wr > (uint32_t)limits->max_qp_wr || cap->max_recv_wr > (uint32_t)limits->max_qp_wr ||
	    cap->max_send_sge > (uint32_t)limits->max_sge || cap->max_recv_sge > (uint32_t)limits->max_sge ||
	    cap->max_inline_data > d->config.max_inline)
		return EINVAL;
	return 0;
}

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *init)
{
	if (!fd_owns(pd->context))
		return FD_NEXT(ibv_create_qp)(pd, init);
	struct fd_ctx *ctx = fd_ctx_of(pd->context);
	struct fd_device *d = ctx->dev;
	FD_LOCKED(d);
	int err = check_qp(d, pd, init);

	if (err) {
		errno = err;
		return NULL;
	}
	struct fd_qp *qp = fd_make(ctx, d, FD_create_qp, FD_QP, sizeof(*qp));

	if (!qp)
		return NULL;
	init->cap.max_send_wr = grant(d, init->cap.max_send_wr, d->config.attr.orig_attr.max_qp_wr);
	init->cap.max_recv_wr = init->srq ? 0 : grant(d, init->cap.max_recv_wr, d->config.attr.orig_attr.max_qp_wr);
	qp->ibv.context = pd->context;
	qp->ibv.qp_context = init->qp_context;
	qp->ibv.pd = pd;
	qp->ibv.send_cq = init->send_cq;
	qp->ibv.recv_cq = init->recv_cq;
	qp->ibv.srq = init->srq;
	qp->ibv.handle = qp->o.number;
	qp->ibv.qp_num = qp->o.number;
	qp->ibv.qp_type = init->qp_type;
	qp->ibv.state = qp->state = IBV_QPS_RESET;
	qp->id = ++d->qp_ids;
	qp->init = *init;
	qp->attr.cap = init->cap;
	qp->signal_all = init->sq_sig_all;
	qp->sq = (struct fd_queue){ .send = true,
				    .max_wr = init->cap.max_send_wr,
				    .max_sge = init->cap.max_send_sge,
				    .max_inline = init->cap.max_inline_data };
	qp->rq = (struct fd_queue){ .max_wr = init->cap.max_recv_wr, .max_sge = init->cap.max_recv_sge };
	qp->null_send = &fd_of(init->send_cq, fd_cq)->null;
	qp->null_recv = &fd_of(init->recv_cq, fd_cq)->null;
	fd_of(pd, fd_pd)->o.users++;
	fd_of(init->send_cq, fd_cq)->o.users++;
	fd_of(init->recv_cq, fd_cq)->o.users++;
	if (init->srq)
		fd_of(init->srq, fd_srq)->o.users++;
	return &qp->ibv;
}

/* What is posted goes without a completion; what has completed may stay. */
static void discard(struct fd_qp *qp)
{
	fd_queue_clear(&qp->sq);
	fd_queue_clear(&qp->rq);
	if (qp->o.ctx->dev->config.keep)
		return;
	fd_cq_purge(fd_of(qp->ibv.send_cq, fd_cq), qp->id);
	fd_cq_purge(fd_of(qp->ibv.recv_cq, fd_cq), qp->id);
}

static bool may_move(enum ibv_qp_state from, enum ibv_qp_state to)
{
	switch (to) {
	case IBV_QPS_RESET:
	case IBV_QPS_ERR:
		return true;
	case IBV_QPS_INIT:
		return from == IBV_QPS_RESET || from == IBV_QPS_INIT;
	case IBV_QPS_RTR:
		return from == IBV_QPS_INIT;
	case IBV_QPS_RTS:
		return from == IBV_QPS_RTR || from == IBV_QPS_RTS || from == IBV_QPS_SQD || from == IBV_QPS_SQE;
	case IBV_QPS_SQD:
		return from == IBV_QPS_RTS || from == IBV_QPS_SQD;
	default:
		return false;
	}
}

/* Keeps the attributes that the mask names. */
static void keep_attr(struct ibv_qp_attr *to, const struct ibv_qp_attr *from, int mask)
{
#define KEEP(bit, field) if (mask & (bit)) to->field = from->field
	KEEP(IBV_QP_EN_SQD_ASYNC_NOTIFY, en_sqd_async_notify);
	KEEP(IBV_QP_ACCESS_FLAGS, qp_access_flags);
	KEEP(IBV_QP_PKEY_INDEX, pkey_index);
	KEEP(IBV_QP_PORT, port_num);
	KEEP(IBV_QP_QKEY, qkey);
	KEEP(IBV_QP_AV, ah_attr);
	KEEP(IBV_QP_PATH_MTU, path_mtu);
	KEEP(IBV_QP_TIMEOUT, timeout);
	KEEP(IBV_QP_RETRY_CNT, retry_cnt);
	KEEP(IBV_QP_RNR_RETRY, rnr_retry);
	KEEP(IBV_QP_RQ_PSN, rq_psn);
	KEEP(IBV_QP_MAX_QP_RD_ATOMIC, max_rd_atomic);
	KEEP(IBV_QP_ALT_PATH, alt_ah_attr);
	KEEP(IBV_QP_ALT_PATH, alt_pkey_index);
	KEEP(IBV_QP_ALT_PATH, alt_port_num);
	KEEP(IBV_QP_ALT_PATH, alt_timeout);
	KEEP(IBV_QP_MIN_RNR_TIMER, min_rnr_timer);
	KEEP(IBV_QP_SQ_PSN, sq_psn);
	KEEP(IBV_QP_MAX_DEST_RD_ATOMIC, max_dest_rd_atomic);
	KEEP(IBV_QP_PATH_MIG_STATE, path_mig_state);
	KEEP(IBV_QP_DEST_QPN, dest_qp_num);
	KEEP(IBV_QP_RATE_LIMIT, rate_limit);
#undef KEEP
}

/* qp->state is what libibverbs keeps: the state last set or queried, not the device's. */
int ibv_modify_qp(struct ibv_qp *ibv, struct ibv_qp_attr *attr, int mask)
{
	if (!fd_owns(ibv->context))
		return FD_NEXT(ibv_modify_qp)(ibv, attr, mask);
	struct fd_qp *qp = fd_of(ibv, fd_qp);
	struct fd_device *d = qp->o.ctx->dev;
	FD_LOCKED(d);
	enum ibv_qp_state to = mask & IBV_QP_STATE ? attr->qp_state : qp->state;
	int rc;

	if (fd_fails(d, FD_modify_qp, &rc))
		return rc;
	if ((mask & IBV_QP_STATE) && !may_move(qp->state, to))
		return EINVAL;
	keep_attr(&qp->attr, attr, mask);
	if (!(mask & IBV_QP_STATE))
		return 0;
	ibv->state = qp->state = to;
	if (to == IBV_QPS_RESET)
		discard(qp);
	if (to == IBV_QPS_ERR && d->config.complete)
		fd_flush(qp);
	return 0;
}

int ibv_query_qp(struct ibv_qp *ibv, struct ibv_qp_attr *attr, int mask, struct ibv_qp_init_attr *init)
{
	if (!fd_owns(ibv->context))
		return FD_NEXT(ibv_query_qp)(ibv, attr, mask, init);
	struct fd_qp *qp = fd_of(ibv, fd_qp);
	struct fd_device *d = qp->o.ctx->dev;
	FD_LOCKED(d);
	int rc;

	if (fd_fails(d, FD_query_qp, &rc))
		return rc;
	*attr = qp->attr;
	attr->qp_state = attr->cur_qp_state = qp->state;
	*init = qp->init;
	if (mask & IBV_QP_STATE)
		ibv->state = qp->state;
	return 0;
}

int ibv_destroy_qp(struct ibv_qp *ibv)
{
	if (!fd_owns(ibv->context))
		return FD_NEXT(ibv_destroy_qp)(ibv);
	struct fd_qp *qp = fd_of(ibv, fd_qp);
	struct fd_device *d = qp->o.ctx->dev;
	FD_LOCKED(d);
	int rc = fd_may_destroy(&qp->o, FD_destroy_qp);

	if (rc)
		return rc;
	discard(qp);
	fd_of(ibv->pd, fd_pd)->o.users--;
	fd_of(ibv->send_cq, fd_cq)->o.users--;
	fd_of(ibv->recv_cq, fd_cq)->o.users--;
	if (ibv->srq)
		fd_of(ibv->srq, fd_srq)->o.users--;
	fd_free(&qp->o);
	return 0;
}
