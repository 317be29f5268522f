//go:build cgo && linux && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

/* Posting: work requests are recorded, and refused as a test orders. */

#include "fakedev.h"

static void wr_free(struct fd_wr *w)
{
	free(w->sges);
	free(w->data);
	free(w);
}

void fd_queue_clear(struct fd_queue *q)
{
	while (q->first)
		fd_wr_drop(q, &q->first);
}

void fd_wr_drop(struct fd_queue *q, struct fd_wr **at)
{
	struct fd_wr *w = *at;

	*at = w->next;
	q->posted--;
	wr_free(w);
}

static bool all_zero(const void *p, size_t n)
{
	const uint8_t *b = p;

	while (n--)
		if (*b++)
			return false;
	return true;
}

/* Whether a field that the operation does not use is set: some providers refuse that. */
static bool is_stale(const struct ibv_send_wr *wr, bool ud)
{
	struct ibv_send_wr c = *wr;

	switch (wr->opcode) {
	case IBV_WR_SEND_WITH_IMM:
	case IBV_WR_RDMA_WRITE_WITH_IMM:
		c.imm_data = 0;
		break;
	case IBV_WR_SEND_WITH_INV:
	case IBV_WR_LOCAL_INV:
		c.invalidate_rkey = 0;
		break;
	default:
		break;
	}
	switch (wr->opcode) {
	case IBV_WR_RDMA_WRITE:
	case IBV_WR_RDMA_WRITE_WITH_IMM:
	case IBV_WR_RDMA_READ:
		memset(&c.wr.rdma, 0, sizeof(c.wr.rdma));
		break;
	case IBV_WR_ATOMIC_CMP_AND_SWP:
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		memset(&c.wr.atomic, 0, sizeof(c.wr.atomic));
		break;
	case IBV_WR_BIND_MW:
		memset(&c.bind_mw, 0, sizeof(c.bind_mw));
		break;
	default:
		if (ud)
			memset(&c.wr.ud, 0, sizeof(c.wr.ud));
	}
	return !all_zero(&c.imm_data, sizeof(c.imm_data)) || !all_zero(&c.wr, sizeof(c.wr)) ||
	       !all_zero(&c.qp_type, sizeof(c.qp_type)) || !all_zero(&c.bind_mw, sizeof(c.bind_mw));
}

/* The part that work requests of all queues begin with. */
static struct ibv_recv_wr head_of(const void *wr)
{
	struct ibv_recv_wr h;

	memcpy(&h, wr, sizeof(h));
	return h;
}

/* Queues one work request, or returns the errno that a careful provider would. */
static int queue_wr(struct fd_queue *q, struct fd_qp *qp, const void *wr)
{
	struct ibv_recv_wr h = head_of(wr);
	struct fd_wr **end = &q->first, *w;
	size_t length = 0;

	if (q->posted == q->max_wr)
		return ENOMEM;
	if (h.num_sge < 0 || (uint32_t)h.num_sge > (q->max_sge ? q->max_sge : 1))
		return EINVAL;
	for (int i = 0; i < h.num_sge; i++)
		length += h.sg_list[i].length;
	w = calloc(1, sizeof(*w));
	if (!w)
		return ENOMEM;
	if (q->send)
		memcpy(&w->wr, wr, sizeof(w->wr));
	else
		memcpy(&w->wr, &h, sizeof(h));
	w->signaled = !q->send || qp->signal_all || (w->wr.send_flags & IBV_SEND_SIGNALED);
	w->length = length;
	w->sges = calloc(h.num_sge + 1, sizeof(*w->sges));
	if (h.num_sge)
		memcpy(w->sges, h.sg_list, h.num_sge * sizeof(*w->sges));
	if (q->send && (w->wr.send_flags & IBV_SEND_INLINE)) {
		size_t off = 0;

		if (length > q->max_inline) {
			wr_free(w);
			return EINVAL;
		}
		w->data = malloc(length + 1);
		for (int i = 0; i < h.num_sge; off += h.sg_list[i++].length)
			memcpy(w->data + off, (void *)(uintptr_t)h.sg_list[i].addr, h.sg_list[i].length);
	}
	if (q->send && is_stale(&w->wr, qp->ibv.qp_type == IBV_QPT_UD))
		fd_misused(qp->o.ctx->dev, "WR %#llx of QP %#x, opcode %d: fields of another operation are set",
			   (unsigned long long)w->wr.wr_id, qp->o.number, w->wr.opcode);
	while (*end)
		end = &(*end)->next;
	*end = w;
	q->posted++;
	fd_posted_wr(q, qp);
	return 0;
}

static uint32_t chain_length(const void *wr)
{
	uint32_t n = 0;

	for (; wr; wr = head_of(wr).next)
		n++;
	return n;
}

/* What a test ordered for this chain; *bad is untouched if nothing is to be named. */
static int refuse(struct fd_queue *q, struct fd_qp *qp, void *wr, void **bad)
{
	struct fd_refusal r = q->refusal;
	static uint64_t outside[32];
	void *named = wr;

	q->refuses = false;
	for (uint32_t i = 0; i < r.index; i++)
		named = head_of(named).next;
	if (r.taken != FD_TAKEN_NONE)
		for (void *w = wr; w && (r.taken == FD_TAKEN_ALL || w != named); w = head_of(w).next)
			if (queue_wr(q, qp, w))
				break;
	if (r.bad == FD_BAD_NAMED)
		*bad = named;
	else if (r.bad == FD_BAD_OUTSIDE)
		*bad = outside;
	if (r.err >= 0)
		errno = r.err;
	return r.rc;
}

static int post(struct fd_queue *q, struct fd_qp *qp, void *wr, void **bad)
{
	if (q->refuses) {
		uint32_t n = chain_length(wr);

		if (q->refusal.index < n)
			return refuse(q, qp, wr, bad);
		q->refusal.index -= n;
	}
	for (; wr; wr = head_of(wr).next) {
		int rc = queue_wr(q, qp, wr);

		if (rc) {
			*bad = wr;
			return rc;
		}
	}
	return 0;
}

/* Counts the calls that have a bind of a window at hand. */
static void posting(const struct ibv_send_wr *wr, int n)
{
	for (; wr; wr = wr->next)
		if (wr->opcode == IBV_WR_BIND_MW)
			fd_of(wr->bind_mw.mw, fd_mw)->posting += n;
}

/* Posts sends; where a test holds them it returns long after the device has them. */
static int post_sends(struct fd_qp *qp, struct ibv_send_wr *wr, void **bad)
{
	struct fd_device *d = qp->o.ctx->dev;
	int rc;

	posting(wr, 1);
	rc = post(&qp->sq, qp, wr, bad);
	while (d->holds_sends)
		pthread_cond_wait(&d->let_go, &d->mu);
	posting(wr, -1);
	return rc;
}

static int post_send(struct ibv_qp *ibv, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	struct fd_qp *qp = fd_of(ibv, fd_qp);
	FD_LOCKED(qp->o.ctx->dev);

	return post_sends(qp, wr, (void **)bad);
}

static int post_recv(struct ibv_qp *ibv, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	struct fd_qp *qp = fd_of(ibv, fd_qp);
	FD_LOCKED(qp->o.ctx->dev);

	return post(&qp->rq, qp, wr, (void **)bad);
}

static int post_srq_recv(struct ibv_srq *ibv, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	struct fd_srq *srq = fd_of(ibv, fd_srq);
	FD_LOCKED(srq->o.ctx->dev);

	return post(&srq->rq, NULL, wr, (void **)bad);
}

/* The verb for windows of type 1: it posts a WR, and only then changes the key. */
static int bind_mw(struct ibv_qp *ibv, struct ibv_mw *mw, struct ibv_mw_bind *bind)
{
	struct fd_qp *qp = fd_of(ibv, fd_qp);
	struct fd_device *d = qp->o.ctx->dev;
	FD_LOCKED(d);
	struct ibv_send_wr wr;
	void *bad;
	int rc;

	if (fd_fails(d, FD_bind_mw, &rc))
		return rc;
	memset(&wr, 0, sizeof(wr));
	wr.wr_id = bind->wr_id;
	wr.opcode = IBV_WR_BIND_MW;
	wr.send_flags = bind->send_flags;
	wr.bind_mw.mw = mw;
	wr.bind_mw.rkey = ibv_inc_rkey(mw->rkey);
	wr.bind_mw.bind_info = bind->bind_info;
	rc = post_sends(qp, &wr, &bad);
	if (!rc)
		mw->rkey = wr.bind_mw.rkey;
	return rc;
}

void fd_set_ops(struct fd_ctx *ctx)
{
	struct ibv_context_ops *ops = &ctx->v.context.ops;

	ops->post_send = post_send;
	ops->post_recv = post_recv;
	ops->post_srq_recv = post_srq_recv;
	fd_set_cq_ops(ops);
	fd_set_object_ops(ctx);
	if (ctx->dev->config.features & FD_HAS_MW)
		ops->bind_mw = bind_mw;
	if (ctx->dev->config.null)
		fd_set_null_ops(ops);
}

/* Which queue of a device needs the object. */
static bool wr_uses(const struct fd_wr *w, bool send, const struct fd_obj *o)
{
	const struct fd_mr *mr = (const struct fd_mr *)o;

	switch (o->kind) {
	case FD_MR:
		if (send && w->wr.opcode == IBV_WR_BIND_MW && w->wr.bind_mw.bind_info.mr == &mr->ibv)
			return true;
		for (int i = 0; !w->data && i < w->wr.num_sge; i++)
			if (w->sges[i].length && w->sges[i].lkey == mr->ibv.lkey)
				return true;
		return false;
	case FD_AH:
		return send && w->wr.wr.ud.ah == &((const struct fd_ah *)o)->ibv;
	case FD_MW:
		return send && w->wr.opcode == IBV_WR_BIND_MW && w->wr.bind_mw.mw == &((const struct fd_mw *)o)->ibv;
	default:
		return false;
	}
}

static void check_queue(struct fd_device *d, const struct fd_queue *q, const struct fd_obj *owner, const struct fd_obj *o)
{
	static const char *const kinds[] = { [FD_MR] = "region", [FD_MW] = "window", [FD_AH] = "address handle" };

	for (const struct fd_wr *w = q->first; w; w = w->next)
		if (wr_uses(w, q->send, o)) {
			fd_misused(d, "%s %#x goes while WR %#llx, posted to %s %#x, uses it", kinds[o->kind], o->number,
				   (unsigned long long)w->wr.wr_id, owner->kind == FD_SRQ ? "SRQ" : "QP", owner->number);
			return;
		}
}

void fd_check_unused(struct fd_device *d, const struct fd_obj *o)
{
	for (struct fd_obj *q = d->objects[FD_QP]; q; q = q->next) {
		struct fd_qp *qp = (struct fd_qp *)q;

		check_queue(d, &qp->sq, q, o);
		check_queue(d, &qp->rq, q, o);
	}
	for (struct fd_obj *q = d->objects[FD_SRQ]; q; q = q->next)
		check_queue(d, &((struct fd_srq *)q)->rq, q, o);
}
