//go:build cgo && linux && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

/* Completions: polling them, and making them as a test says. */

#include "fakedev.h"

void fd_cq_push(struct fd_cq *cq, const struct ibv_wc *wc, uint64_t qp, bool solicited)
{
	struct fd_device *d = cq->o.ctx->dev;
	struct fd_cqe **end = &cq->first, *e;

	if (cq->queued == cq->ibv.cqe) {
		cq->overrun = !d->config.silent_overrun;
		fd_raise(cq->o.ctx, IBV_EVENT_CQ_ERR, &cq->o, 0);
		return;
	}
	e = calloc(1, sizeof(*e));
	if (!e)
		abort();
	e->wc = *wc;
	e->qp = qp;
	while (*end)
		end = &(*end)->next;
	*end = e;
	cq->queued++;
	if (cq->armed && (!cq->solicited_only || solicited || wc->status != IBV_WC_SUCCESS)) {
		cq->armed = false;
		fd_notify(cq);
	}
}

void fd_cq_purge(struct fd_cq *cq, uint64_t qp)
{
	for (struct fd_cqe **p = &cq->first; *p;) {
		struct fd_cqe *e = *p;

		if (e->qp != qp) {
			p = &e->next;
			continue;
		}
		*p = e->next;
		cq->queued--;
		free(e);
	}
}

void fd_cq_clear(struct fd_cq *cq)
{
	while (cq->first) {
		struct fd_cqe *e = cq->first;

		cq->first = e->next;
		free(e);
	}
	free(cq->null.entries);
}

/* After an overrun the completions that fitted come first. */
static int poll_cq(struct ibv_cq *ibv, int most, struct ibv_wc *wc)
{
	struct fd_cq *cq = fd_of(ibv, fd_cq);
	FD_LOCKED(cq->o.ctx->dev);
	int n = 0, rc;

	if (fd_fails(cq->o.ctx->dev, FD_poll_cq, &rc))
		return rc;
	for (; n < most && cq->first; n++) {
		struct fd_cqe *e = cq->first;

		wc[n] = e->wc;
		cq->first = e->next;
		cq->queued--;
		free(e);
	}
	return n == 0 && cq->overrun ? -1 : n;
}

static int req_notify_cq(struct ibv_cq *ibv, int solicited_only)
{
	struct fd_cq *cq = fd_of(ibv, fd_cq);
	FD_LOCKED(cq->o.ctx->dev);
	int rc;

	if (fd_fails(cq->o.ctx->dev, FD_req_notify_cq, &rc))
		return rc;
	/* Arming for any completion is not taken back by arming for less. */
	cq->solicited_only = solicited_only && (!cq->armed || cq->solicited_only);
	cq->armed = true;
	return 0;
}

void fd_set_cq_ops(struct ibv_context_ops *ops)
{
	ops->poll_cq = poll_cq;
	ops->req_notify_cq = req_notify_cq;
}

static struct fd_queue *find_queue(struct fd_device *d, struct fd_name name, struct fd_qp **qp)
{
	struct fd_obj *o = fd_find(d, name.kind, name.number);

	*qp = NULL;
	if (!o)
		return NULL;
	if (name.kind == FD_SRQ)
		return &((struct fd_srq *)o)->rq;
	*qp = (struct fd_qp *)o;
	return name.send ? &(*qp)->sq : &(*qp)->rq;
}

static struct fd_wr **nth(struct fd_queue *q, uint32_t i)
{
	struct fd_wr **p = &q->first;

	while (*p && i--)
		p = &(*p)->next;
	return p;
}

/* What a failed completion does not define is filled with this, to be caught. */
#define GARBAGE 0xa5a5a5a5u

static struct ibv_wc wc_of(const struct fd_wr *w, bool send, enum ibv_wc_status status, uint32_t qpn)
{
	struct ibv_wc wc = { .wr_id = w->wr.wr_id, .status = status, .qp_num = qpn };

	if (status == IBV_WC_SUCCESS) {
		wc.opcode = send ? fd_wc_opcode(w->wr.opcode) : IBV_WC_RECV;
		wc.byte_len = send ? w->length : 0;
		return wc;
	}
	wc.opcode = wc.byte_len = wc.wc_flags = wc.src_qp = wc.imm_data = GARBAGE;
	return wc;
}

/* Invalidates the window that has the key, if there is one. */
static void invalidate(struct fd_device *d, uint32_t rkey)
{
	for (struct fd_obj *o = d->objects[FD_MW]; o; o = o->next)
		if (((struct fd_mw *)o)->key == rkey)
			fd_bind((struct fd_mw *)o, NULL);
}

static void take_effect(struct fd_device *d, const struct ibv_send_wr *wr)
{
	if (wr->opcode == IBV_WR_LOCAL_INV)
		invalidate(d, wr->invalidate_rkey);
	if (wr->opcode == IBV_WR_BIND_MW) {
		const struct ibv_mw_bind_info *info = &wr->bind_mw.bind_info;

		struct fd_mw *mw = fd_of(wr->bind_mw.mw, fd_mw);

		fd_bind(mw, info->mr && info->length ? fd_of(info->mr, fd_mr) : NULL);
		mw->key = wr->bind_mw.rkey;
	}
}

/* Takes the WR out, and on a send queue the unsignaled ones before it. */
static void release(struct fd_queue *q, const struct fd_wr *w)
{
	struct fd_wr **p = &q->first;

	while (*p != w)
		if (!q->send || (*p)->signaled)
			p = &(*p)->next;
		else
			fd_wr_drop(q, p);
	fd_wr_drop(q, p);
}

static void flush_queue(struct fd_queue *q, struct fd_qp *qp)
{
	struct fd_cq *cq = fd_of(q->send ? qp->ibv.send_cq : qp->ibv.recv_cq, fd_cq);

	while (q->first) {
		struct ibv_wc wc = wc_of(q->first, q->send, IBV_WC_WR_FLUSH_ERR, qp->o.number);

		fd_wr_drop(q, &q->first);
		fd_cq_push(cq, &wc, qp->id, false);
	}
}

void fd_flush(struct fd_qp *qp)
{
	flush_queue(&qp->sq, qp);
	flush_queue(&qp->rq, qp);
}

/* A device that completes by itself does so at the post: sends, and all in ERR. */
void fd_posted_wr(struct fd_queue *q, struct fd_qp *qp)
{
	if (!qp || !qp->o.ctx->dev->config.complete)
		return;
	if (qp->state == IBV_QPS_ERR)
		flush_queue(q, qp);
	while (q->send && qp->state == IBV_QPS_RTS && q->first) {
		struct fd_wr *w = q->first;
		struct ibv_wc wc = wc_of(w, true, IBV_WC_SUCCESS, qp->o.number);
		bool signaled = w->signaled;

		take_effect(qp->o.ctx->dev, &w->wr);
		fd_wr_drop(q, &q->first);
		if (signaled)
			fd_cq_push(fd_of(qp->ibv.send_cq, fd_cq), &wc, qp->id, false);
	}
}

/* Copies between the memory of a WR and bytes: 0, ERANGE past its end, EFAULT where no region allows it. */
static int copy(struct fd_device *d, const struct fd_wr *w, size_t off, void *bytes, size_t length, bool write)
{
	uint8_t *b = bytes;

	if (off > w->length || length > w->length - off)
		return ERANGE;
	if (w->data) {
		if (write)
			return EFAULT;
		memcpy(b, w->data + off, length);
		return 0;
	}
	for (const struct ibv_sge *s = w->sges; length; s++) {
		if (off >= s->length) {
			off -= s->length;
			continue;
		}
		struct fd_mr *mr = fd_mr_by_lkey(d, s->lkey);
		uint64_t at = mr ? s->addr - mr->iova : 0;
		size_t n = s->length - off < length ? s->length - off : length;

		if (!mr || !mr->host || at > mr->ibv.length || s->length > mr->ibv.length - at ||
		    (write && !(mr->access & IBV_ACCESS_LOCAL_WRITE)))
			return EFAULT;
		uint8_t *host = (uint8_t *)mr->ibv.addr + at + off;

		memcpy(write ? host : b, write ? b : host, n);
		b += n;
		length -= n;
		off = 0;
	}
	return 0;
}

int fd_complete(struct fd_device *d, struct fd_name name, const struct fd_completion *c, const void *payload, size_t length)
{
	FD_LOCKED(d);
	struct fd_qp *qp;
	struct fd_queue *q = find_queue(d, name, &qp);

	if (name.kind == FD_SRQ)
		qp = (struct fd_qp *)fd_find(d, FD_QP, c->wc.qp_num);
	if (!q || !qp)
		return ENOENT;
	struct fd_wr *w = *nth(q, c->index);

	if (!w)
		return ESRCH;
	int rc = length ? copy(d, w, 0, (void *)payload, length, true) : 0;

	if (rc)
		return rc;
	struct ibv_wc wc = wc_of(w, q->send, c->wc.status, qp->o.number);

	if (c->has_wr_id)
		wc.wr_id = c->wc.wr_id;
	if (c->has_opcode)
		wc.opcode = c->wc.opcode;
	if (c->has_byte_len)
		wc.byte_len = c->wc.byte_len;
	else if (!q->send && wc.status == IBV_WC_SUCCESS)
		wc.byte_len = length;
	if (wc.status == IBV_WC_SUCCESS) {
		wc.wc_flags = c->wc.wc_flags;
		wc.imm_data = c->wc.imm_data;
		wc.src_qp = c->wc.src_qp;
		wc.slid = c->wc.slid;
		wc.sl = c->wc.sl;
		if (q->send)
			take_effect(d, &w->wr);
		else if (wc.wc_flags & IBV_WC_WITH_INV)
			invalidate(d, wc.invalidated_rkey);
	}
	wc.vendor_err = c->wc.vendor_err;
	release(q, w);
	fd_cq_push(fd_of(q->send ? qp->ibv.send_cq : qp->ibv.recv_cq, fd_cq), &wc, qp->id, c->solicited);
	return 0;
}

int fd_copy(struct fd_device *d, struct fd_name name, uint32_t index, size_t off, void *bytes, size_t length, bool write)
{
	FD_LOCKED(d);
	struct fd_qp *qp;
	struct fd_queue *q = find_queue(d, name, &qp);
	struct fd_wr *w = q ? *nth(q, index) : NULL;

	if (!w)
		return q ? ESRCH : ENOENT;
	return copy(d, w, off, bytes, length, write);
}

int fd_flush_qp(struct fd_device *d, uint32_t qpn)
{
	FD_LOCKED(d);
	struct fd_qp *qp = (struct fd_qp *)fd_find(d, FD_QP, qpn);

	if (!qp)
		return ENOENT;
	fd_flush(qp);
	return 0;
}

int fd_set_qp_state(struct fd_device *d, uint32_t qpn, int state)
{
	FD_LOCKED(d);
	struct fd_qp *qp = (struct fd_qp *)fd_find(d, FD_QP, qpn);

	if (!qp)
		return ENOENT;
	qp->state = state;
	if (state == IBV_QPS_ERR && d->config.complete)
		fd_flush(qp);
	return 0;
}

int fd_push(struct fd_device *d, uint32_t number, const struct ibv_wc *wc)
{
	FD_LOCKED(d);
	struct fd_cq *cq = (struct fd_cq *)fd_find(d, FD_CQ, number);

	if (!cq)
		return ENOENT;
	fd_cq_push(cq, wc, 0, false);
	return 0;
}

int fd_queued(struct fd_device *d, uint32_t number)
{
	FD_LOCKED(d);
	struct fd_cq *cq = (struct fd_cq *)fd_find(d, FD_CQ, number);

	return cq ? cq->queued : -1;
}

int fd_break_cq(struct fd_device *d, uint32_t number)
{
	FD_LOCKED(d);
	struct fd_cq *cq = (struct fd_cq *)fd_find(d, FD_CQ, number);

	if (!cq)
		return ENOENT;
	cq->overrun = !d->config.silent_overrun;
	fd_raise(cq->o.ctx, IBV_EVENT_CQ_ERR, &cq->o, 0);
	return 0;
}

int fd_refuse(struct fd_device *d, struct fd_name name, const struct fd_refusal *r)
{
	FD_LOCKED(d);
	struct fd_qp *qp;
	struct fd_queue *q = find_queue(d, name, &qp);

	if (!q)
		return ENOENT;
	q->refusal = *r;
	q->refuses = true;
	return 0;
}

bool fd_refuses(struct fd_device *d, struct fd_name name)
{
	FD_LOCKED(d);
	struct fd_qp *qp;
	struct fd_queue *q = find_queue(d, name, &qp);

	return q && q->refuses;
}

int fd_posted(struct fd_device *d, struct fd_name name)
{
	FD_LOCKED(d);
	struct fd_qp *qp;
	struct fd_queue *q = find_queue(d, name, &qp);

	return q ? (int)q->posted : -1;
}

static void *dup_of(const void *p, size_t n)
{
	void *c = malloc(n + 1);

	if (!c)
		abort();
	return memcpy(c, p, n);
}

int fd_view(struct fd_device *d, struct fd_name name, uint32_t index, struct fd_view *v)
{
	FD_LOCKED(d);
	struct fd_qp *qp;
	struct fd_queue *q = find_queue(d, name, &qp);
	struct fd_wr *w = q ? *nth(q, index) : NULL;

	if (!w)
		return ENOENT;
	const struct ibv_send_wr *wr = &w->wr;

	*v = (struct fd_view){ .wr_id = wr->wr_id, .signaled = w->signaled, .nsge = wr->num_sge, .length = w->length };
	v->sges = dup_of(w->sges, wr->num_sge * sizeof(*w->sges));
	if (w->data)
		v->data = dup_of(w->data, w->length);
	if (!q->send)
		return 0;
	v->opcode = wr->opcode;
	v->flags = wr->send_flags;
	switch (wr->opcode) {
	case IBV_WR_SEND_WITH_IMM:
	case IBV_WR_RDMA_WRITE_WITH_IMM:
		v->imm = be32toh(wr->imm_data);
		break;
	case IBV_WR_SEND_WITH_INV:
	case IBV_WR_LOCAL_INV:
		v->inv_rkey = wr->invalidate_rkey;
		break;
	default:
		break;
	}
	switch (wr->opcode) {
	case IBV_WR_RDMA_WRITE:
	case IBV_WR_RDMA_WRITE_WITH_IMM:
	case IBV_WR_RDMA_READ:
		v->remote_addr = wr->wr.rdma.remote_addr;
		v->rkey = wr->wr.rdma.rkey;
		break;
	case IBV_WR_ATOMIC_CMP_AND_SWP:
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		v->remote_addr = wr->wr.atomic.remote_addr;
		v->rkey = wr->wr.atomic.rkey;
		v->compare_add = wr->wr.atomic.compare_add;
		v->swap = wr->wr.atomic.swap;
		break;
	case IBV_WR_BIND_MW:
		v->mw_handle = wr->bind_mw.mw->handle;
		v->mw_rkey = wr->bind_mw.rkey;
		v->mw_lkey = wr->bind_mw.bind_info.mr ? wr->bind_mw.bind_info.mr->lkey : 0;
		v->mw_addr = wr->bind_mw.bind_info.addr;
		v->mw_length = wr->bind_mw.bind_info.length;
		v->mw_access = wr->bind_mw.bind_info.mw_access_flags;
		break;
	default:
		if (qp->ibv.qp_type == IBV_QPT_UD && wr->wr.ud.ah) {
			v->ah = wr->wr.ud.ah->handle;
			v->remote_qpn = wr->wr.ud.remote_qpn;
			v->remote_qkey = wr->wr.ud.remote_qkey;
		}
	}
	return 0;
}

int fd_qp_info(struct fd_device *d, uint32_t qpn, struct fd_qp_info *info)
{
	FD_LOCKED(d);
	struct fd_qp *qp = (struct fd_qp *)fd_find(d, FD_QP, qpn);

	if (!qp)
		return ENOENT;
	info->state = qp->state;
	info->send_cq = qp->ibv.send_cq->handle;
	info->recv_cq = qp->ibv.recv_cq->handle;
	info->srq = qp->ibv.srq ? qp->ibv.srq->handle : 0;
	return 0;
}
