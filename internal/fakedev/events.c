//go:build cgo && linux && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

/* Completion channels and asynchronous events, through file descriptors that can be polled. */

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "fakedev.h"

/*
 * The counter of the eventfd is always the length of the list, and both change
 * under the device's mutex only: so a read of it never blocks.
 */
void fd_events_init(struct fd_events *e)
{
	e->fd = eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC);
	if (e->fd < 0)
		abort();
}

static void events_add(struct fd_events *e, const struct fd_event *what)
{
	struct fd_event *n = malloc(sizeof(*n)), **end = &e->first;
	uint64_t one = 1;

	if (!n)
		abort();
	*n = *what;
	n->next = NULL;
	while (*end)
		end = &(*end)->next;
	*end = n;
	if (write(e->fd, &one, sizeof(one)) != sizeof(one))
		abort();
}

static void events_remove(struct fd_events *e, struct fd_event **at)
{
	struct fd_event *n = *at;
	uint64_t one;

	*at = n->next;
	free(n);
	if (read(e->fd, &one, sizeof(one)) != sizeof(one))
		abort();
}

/* Events of an object that nobody has read go with it, as the kernel has it. */
void fd_events_drop(struct fd_events *e, const struct fd_obj *on)
{
	for (struct fd_event **p = &e->first; *p;)
		if ((*p)->on == on)
			events_remove(e, p);
		else
			p = &(*p)->next;
}

void fd_events_close(struct fd_events *e)
{
	while (e->first)
		events_remove(e, &e->first);
	close(e->fd);
}

/* Waits for events as a read of the descriptor would: 0, or -1 with errno. */
static int events_wait(int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };
	int flags = fcntl(fd, F_GETFL);

	if (flags < 0)
		return -1;
	if (flags & O_NONBLOCK) {
		errno = EAGAIN;
		return -1;
	}
	return poll(&p, 1, -1) < 0 ? -1 : 0;
}

/* Takes one event if there is one, under the mutex. */
static bool events_take(struct fd_events *e, struct fd_event *out)
{
	if (!e->first)
		return false;
	*out = *e->first;
	events_remove(e, &e->first);
	return true;
}

int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event)
{
	if (!fd_owns(context))
		return FD_NEXT(ibv_get_async_event)(context, event);
	struct fd_ctx *ctx = fd_ctx_of(context);

	for (;;) {
		{
			FD_LOCKED(ctx->dev);
			struct fd_event e;
			int rc;

			if (fd_fails(ctx->dev, FD_get_async_event, &rc))
				return rc;
			if (events_take(&ctx->async, &e)) {
				if (e.on)
					e.on->reported++;
				*event = e.async;
				return 0;
			}
		}
		if (events_wait(ctx->async.fd))
			return -1;
	}
}

/* The kind of object that an event is about: FD_CTX for a port or the device. */
static enum fd_kind event_kind(enum ibv_event_type type)
{
	switch (type) {
	case IBV_EVENT_CQ_ERR:
		return FD_CQ;
	case IBV_EVENT_SRQ_ERR:
	case IBV_EVENT_SRQ_LIMIT_REACHED:
		return FD_SRQ;
	case IBV_EVENT_QP_FATAL:
	case IBV_EVENT_QP_REQ_ERR:
	case IBV_EVENT_QP_ACCESS_ERR:
	case IBV_EVENT_COMM_EST:
	case IBV_EVENT_SQ_DRAINED:
	case IBV_EVENT_PATH_MIG:
	case IBV_EVENT_PATH_MIG_ERR:
	case IBV_EVENT_QP_LAST_WQE_REACHED:
		return FD_QP;
	default:
		return FD_CTX;
	}
}

/* An event of a port or the device, and one of the real library, is not counted here. */
void ibv_ack_async_event(struct ibv_async_event *event)
{
	struct ibv_context *context = NULL;
	struct fd_obj *on = NULL;

	if (event->event_type == IBV_EVENT_WQ_FATAL && !event->element.wq)
		return; /* of a fake device, which has no work queues */
	switch (event_kind(event->event_type)) {
	case FD_CQ:
		context = event->element.cq->context;
		on = &fd_of(event->element.cq, fd_cq)->o;
		break;
	case FD_SRQ:
		context = event->element.srq->context;
		on = &fd_of(event->element.srq, fd_srq)->o;
		break;
	case FD_QP:
		context = event->element.qp->context;
		on = &fd_of(event->element.qp, fd_qp)->o;
		break;
	default:
		break;
	}
	if (!context || !fd_owns(context)) {
		FD_NEXT(ibv_ack_async_event)(event);
		return;
	}
	FD_LOCKED(on->ctx->dev);
	on->acked++;
}

void fd_raise(struct fd_ctx *ctx, enum ibv_event_type type, struct fd_obj *on, int port)
{
	struct fd_event e = { .on = on, .async.event_type = type };

	switch (on ? on->kind : FD_CTX) {
	case FD_CQ:
		e.async.element.cq = &((struct fd_cq *)on)->ibv;
		break;
	case FD_SRQ:
		e.async.element.srq = &((struct fd_srq *)on)->ibv;
		break;
	case FD_QP:
		e.async.element.qp = &((struct fd_qp *)on)->ibv;
		break;
	default:
		e.async.element.port_num = port;
	}
	events_add(&ctx->async, &e);
}

int fd_raise_event(struct fd_device *d, int type, uint32_t number)
{
	FD_LOCKED(d);
	enum fd_kind kind = event_kind(type);
	struct fd_obj *on;

	if (kind == FD_CTX) {
		for (on = d->objects[FD_CTX]; on; on = on->next)
			fd_raise((struct fd_ctx *)on, type, NULL, number);
		return 0;
	}
	on = fd_find(d, kind, number);
	if (!on)
		return ENOENT;
	fd_raise(on->ctx, type, on, 0);
	return 0;
}

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context)
{
	if (!fd_owns(context))
		return FD_NEXT(ibv_create_comp_channel)(context);
	struct fd_ctx *ctx = fd_ctx_of(context);
	FD_LOCKED(ctx->dev);
	struct fd_channel *ch = fd_make(ctx, ctx->dev, FD_create_comp_channel, FD_CHANNEL, sizeof(*ch));

	if (!ch)
		return NULL;
	fd_events_init(&ch->comp);
	ch->ibv.context = context;
	ch->ibv.fd = ch->comp.fd;
	return &ch->ibv;
}

int ibv_destroy_comp_channel(struct ibv_comp_channel *ibv)
{
	if (!fd_owns(ibv->context))
		return FD_NEXT(ibv_destroy_comp_channel)(ibv);
	struct fd_channel *ch = fd_of(ibv, fd_channel);
	FD_LOCKED(ch->o.ctx->dev);
	int rc = fd_may_destroy(&ch->o, FD_destroy_comp_channel);

	if (!rc)
		fd_free(&ch->o);
	return rc;
}

int ibv_get_cq_event(struct ibv_comp_channel *ibv, struct ibv_cq **cq, void **cq_context)
{
	if (!fd_owns(ibv->context))
		return FD_NEXT(ibv_get_cq_event)(ibv, cq, cq_context);
	struct fd_channel *ch = fd_of(ibv, fd_channel);
	struct fd_device *d = ch->o.ctx->dev;

	for (;;) {
		{
			FD_LOCKED(d);
			struct fd_event e;
			int rc;

			if (fd_fails(d, FD_get_cq_event, &rc))
				return rc;
			if (events_take(&ch->comp, &e)) {
				struct fd_cq *on = (struct fd_cq *)e.on;

				on->comp_reported++;
				*cq = &on->ibv;
				*cq_context = on->ibv.cq_context;
				return 0;
			}
		}
		if (events_wait(ch->comp.fd))
			return -1;
	}
}

void ibv_ack_cq_events(struct ibv_cq *ibv, unsigned int n)
{
	if (!fd_owns(ibv->context)) {
		FD_NEXT(ibv_ack_cq_events)(ibv, n);
		return;
	}
	struct fd_cq *cq = fd_of(ibv, fd_cq);
	FD_LOCKED(cq->o.ctx->dev);
	cq->comp_acked += n;
}

void fd_notify(struct fd_cq *cq)
{
	struct fd_event e = { .on = &cq->o };

	if (cq->ibv.channel)
		events_add(&fd_of(cq->ibv.channel, fd_channel)->comp, &e);
}

int fd_notify_cq(struct fd_device *d, uint32_t number)
{
	FD_LOCKED(d);
	struct fd_cq *cq = (struct fd_cq *)fd_find(d, FD_CQ, number);

	if (!cq)
		return ENOENT;
	if (!cq->ibv.channel)
		return EINVAL;
	fd_notify(cq);
	return 0;
}
