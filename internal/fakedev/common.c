//go:build cgo && linux && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

/* What all objects have in common: making, finding, destroying, ordered faults. */

#include <limits.h>
#include <stdarg.h>
#include <stdio.h>

#include "fakedev.h"

static const struct {
	const char *name;
	enum fd_convention convention;
} verbs[] = {
#define X(verb, convention) { "ibv_" #verb, convention },
	FD_VERBS(X)
#undef X
};

static int verb_named(const char *name)
{
	for (int v = 0; v < FD_NVERBS; v++)
		if (strcmp(verbs[v].name, name) == 0)
			return v;
	return -1;
}

int fd_set_raw_fault(struct fd_device *d, const char *verb, int rc, int err, int times)
{
	FD_LOCKED(d);
	int v = verb_named(verb);

	if (v < 0)
		return ENOENT;
	d->faults[v] = (struct fd_fault){ .rc = rc, .err = err, .times = times };
	return 0;
}

/* How the verb says err. */
static int told(enum fd_verb verb, int err)
{
	switch (verbs[verb].convention) {
	case FD_MINUS_ONE:
		return -1;
	case FD_NEGATIVE:
		return -err;
	case FD_REREG:
		return IBV_REREG_MR_ERR_CMD;
	default:
		return err;
	}
}

int fd_set_fault(struct fd_device *d, const char *verb, int err, int times)
{
	int v = verb_named(verb);

	return v < 0 ? ENOENT : fd_set_raw_fault(d, verb, told(v, err), err, times);
}

void fd_unplug(struct fd_device *d)
{
	FD_LOCKED(d);
	d->unplugged = true;
}

/* What still works without the device: it is done by the program alone, or by the kernel for it. */
static bool needs_device(enum fd_verb verb)
{
	switch (verb) {
	case FD_close_device:
	case FD_destroy_comp_channel:
	case FD_get_async_event:
	case FD_get_cq_event:
	case FD_poll_cq:
	case FD_req_notify_cq:
		return false;
	default:
		return true;
	}
}

const char *fd_unused_fault(struct fd_device *d)
{
	FD_LOCKED(d);
	for (int v = 0; v < FD_NVERBS; v++)
		if (d->faults[v].times > 0)
			return verbs[v].name;
	return NULL;
}

bool fd_fails(struct fd_device *d, enum fd_verb verb, int *rc)
{
	struct fd_fault *f = &d->faults[verb];

	if (d->unplugged && needs_device(verb)) {
		*rc = told(verb, EIO);
		errno = EIO;
		return true;
	}
	if (!f->times)
		return false;
	if (f->times > 0)
		f->times--;
	*rc = f->rc;
	errno = f->err;
	return true;
}

static int limit(struct fd_device *d, enum fd_kind kind)
{
	struct ibv_device_attr *a = &d->config.attr.orig_attr;

	switch (kind) {
	case FD_PD:
		return a->max_pd;
	case FD_MR:
		return a->max_mr;
	case FD_MW:
		return a->max_mw;
	case FD_AH:
		return a->max_ah;
	case FD_CQ:
		return a->max_cq;
	case FD_SRQ:
		return a->max_srq;
	case FD_QP:
		return a->max_qp;
	default:
		return INT_MAX;
	}
}

/* The lowest number that is free, so that a new QP gets that of one just destroyed. */
static uint32_t free_qpn(struct fd_device *d)
{
	uint32_t qpn = 0x11;

	while (fd_find(d, FD_QP, qpn))
		qpn++;
	return qpn;
}

void *fd_make(struct fd_ctx *ctx, struct fd_device *d, enum fd_verb verb, enum fd_kind kind, size_t size)
{
	struct fd_obj *o;
	int rc;

	if (fd_fails(d, verb, &rc))
		return NULL;
	if (d->counts[kind] >= limit(d, kind)) {
		errno = ENOMEM;
		return NULL;
	}
	o = calloc(1, size);
	if (!o)
		return NULL;
	o->kind = kind;
	o->ctx = ctx;
	o->number = kind == FD_QP ? free_qpn(d) : ++d->handles;
	o->next = d->objects[kind];
	d->objects[kind] = o;
	d->counts[kind]++;
	if (ctx)
		ctx->o.users++;
	return o;
}

void fd_misused(struct fd_device *d, const char *format, ...)
{
	struct fd_misuse *m = calloc(1, sizeof(*m)), **end = &d->misuse;
	va_list args;

	if (!m)
		abort();
	va_start(args, format);
	vsnprintf(m->text, sizeof(m->text), format, args);
	va_end(args);
	while (*end)
		end = &(*end)->next;
	*end = m;
}

struct fd_misuse *fd_take_misuse(struct fd_device *d)
{
	FD_LOCKED(d);
	struct fd_misuse *m = d->misuse;

	d->misuse = NULL;
	return m;
}

int fd_may_destroy(struct fd_obj *o, enum fd_verb verb)
{
	struct fd_device *d = o->ctx->dev;
	int rc;

	if (fd_fails(d, verb, &rc))
		return rc;
	if (o->users)
		return EBUSY;
	if (o->reported != o->acked) {
		fd_misused(d, "%s of %#x would wait for ever: of %u asynchronous events %u were acknowledged",
			   verbs[verb].name, o->number, o->reported, o->acked);
		return EBUSY;
	}
	return 0;
}

static void free_queue(struct fd_obj *o, struct fd_queue *q)
{
	if (q->refuses)
		fd_misused(o->ctx->dev, "the refusal that was ordered for a queue of %#x never happened", o->number);
	fd_queue_clear(q);
}

static void free_contents(struct fd_obj *o)
{
	switch (o->kind) {
	case FD_CTX:
		fd_events_close(&((struct fd_ctx *)o)->async);
		break;
	case FD_CHANNEL:
		fd_events_close(&((struct fd_channel *)o)->comp);
		break;
	case FD_CQ:
		fd_cq_clear((struct fd_cq *)o);
		break;
	case FD_SRQ:
		free_queue(o, &((struct fd_srq *)o)->rq);
		break;
	case FD_QP:
		free_queue(o, &((struct fd_qp *)o)->sq);
		free_queue(o, &((struct fd_qp *)o)->rq);
		break;
	default:
		break;
	}
}

void fd_free(struct fd_obj *o)
{
	struct fd_device *d = o->ctx->dev;
	struct fd_obj **p = &d->objects[o->kind];
	static const size_t sizes[] = {
		[FD_CTX] = sizeof(struct fd_ctx), [FD_PD] = sizeof(struct fd_pd),	 [FD_MR] = sizeof(struct fd_mr),
		[FD_MW] = sizeof(struct fd_mw),	  [FD_AH] = sizeof(struct fd_ah),	 [FD_CHANNEL] = sizeof(struct fd_channel),
		[FD_CQ] = sizeof(struct fd_cq),	  [FD_SRQ] = sizeof(struct fd_srq), [FD_QP] = sizeof(struct fd_qp),
	};

	while (*p != o)
		p = &(*p)->next;
	*p = o->next;
	d->counts[o->kind]--;
	if (o->kind != FD_CTX) {
		fd_events_drop(&o->ctx->async, o);
		o->ctx->o.users--;
	}
	free_contents(o);
	/* A compiler may leave out a memset before free, but not this one. */
	volatile uint8_t *b = (volatile uint8_t *)o;

	for (size_t i = 0, n = sizes[o->kind]; i < n; i++)
		b[i] = 0xdd;
	free(o);
}

void fd_free_all(struct fd_ctx *ctx)
{
	for (int kind = FD_NKINDS - 1; kind > FD_CTX; kind--)
		for (struct fd_obj *o = ctx->dev->objects[kind], *next; o; o = next) {
			next = o->next;
			if (o->ctx == ctx)
				fd_free(o);
		}
}

struct fd_obj *fd_find(struct fd_device *d, enum fd_kind kind, uint32_t number)
{
	struct fd_obj *o = d->objects[kind];

	while (o && o->number != number)
		o = o->next;
	return o;
}

void fd_counts(struct fd_device *d, int counts[FD_NKINDS])
{
	FD_LOCKED(d);
	memcpy(counts, d->counts, sizeof(d->counts));
}

int fd_numbers(struct fd_device *d, enum fd_kind kind, uint32_t *numbers, int max)
{
	FD_LOCKED(d);
	int n = 0;

	for (struct fd_obj *o = d->objects[kind]; o; o = o->next, n++)
		if (n < max)
			numbers[n] = o->number;
	return n;
}

void fd_set_complete(struct fd_device *d, bool complete)
{
	FD_LOCKED(d);
	d->config.complete = complete;
}

void fd_hold_sends(struct fd_device *d, bool hold)
{
	FD_LOCKED(d);
	d->holds_sends = hold;
	pthread_cond_broadcast(&d->let_go);
}

int fd_set_port(struct fd_device *d, int port, int state)
{
	FD_LOCKED(d);
	if (port < 1 || port > d->config.attr.orig_attr.phys_port_cnt)
		return EINVAL;
	d->config.ports[port - 1].attr.state = state;
	return 0;
}
