//go:build cgo && linux && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

/* The list of devices, and opening one. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

#include "fakedev.h"

#undef ibv_get_device_list
#undef ibv_query_port

static pthread_mutex_t registry = PTHREAD_MUTEX_INITIALIZER;
static struct fd_device *devices; /* the oldest first */

/* All that a test calls may be faked: this has the linker keep the real library all the same. */
const char *(*const fd_real_library)(enum ibv_node_type) = ibv_node_type_str;

/* dlsym takes the default version, which is the one that the header declares. */
void *fd_next(const char *symbol)
{
	void *f = dlsym(RTLD_NEXT, symbol);

	if (!f) {
		fprintf(stderr, "fakedev: libibverbs has no %s\n", symbol);
		abort();
	}
	return f;
}

static void mark(struct ibv_context *ctx) { (void)ctx; }

bool fd_owns_device(const struct ibv_device *device) { return device->_ops._dummy2 == mark; }

static struct fd_device *device_of(struct ibv_device *device) { return (struct fd_device *)device; }

struct fd_device *fd_add(const struct fd_config *config)
{
	struct fd_device *d = calloc(1, sizeof(*d));
	struct fd_device **end = &devices;

	if (!d)
		return NULL;
	pthread_mutex_init(&d->mu, NULL);
	pthread_cond_init(&d->let_go, NULL);
	d->config = *config;
	d->ibv._ops._dummy2 = mark;
	d->ibv.node_type = config->node_type;
	d->ibv.transport_type = config->transport;
	memcpy(d->ibv.name, config->name, sizeof(d->ibv.name));
	pthread_mutex_lock(&registry);
	while (*end)
		end = &(*end)->next;
	*end = d;
	pthread_mutex_unlock(&registry);
	return d;
}

/* A device with open contexts is only taken out of the list: they still use it. */
void fd_remove(struct fd_device *d)
{
	static struct fd_device *leaked;
	struct fd_device **p = &devices;

	pthread_mutex_lock(&registry);
	while (*p != d)
		p = &(*p)->next;
	*p = d->next;
	if (d->objects[FD_CTX]) {
		d->next = leaked;
		leaked = d;
		d = NULL;
	}
	pthread_mutex_unlock(&registry);
	if (d) {
		pthread_cond_destroy(&d->let_go);
		pthread_mutex_destroy(&d->mu);
		free(d);
	}
}

/*
 * The list is an array that ends in NULL, as the real one. The real list stands
 * in the word before it, to be freed with it.
 */
struct ibv_device **ibv_get_device_list(int *num_devices)
{
	int real = 0, fake = 0, n = 0;
	struct ibv_device **theirs = FD_NEXT(ibv_get_device_list)(&real), **list;
	int err = errno;

	pthread_mutex_lock(&registry);
	for (struct fd_device *d = devices; d; d = d->next)
		fake++;
	list = calloc((theirs ? real : 0) + fake + 2, sizeof(*list));
	if (list) {
		*list++ = (struct ibv_device *)theirs;
		for (; theirs && n < real; n++)
			list[n] = theirs[n];
		for (struct fd_device *d = devices; d; d = d->next)
			list[n++] = &d->ibv;
	}
	pthread_mutex_unlock(&registry);
	if (!list)
		err = ENOMEM;
	if (!list || (!theirs && !fake)) {
		if (list)
			free(list - 1);
		if (theirs)
			FD_NEXT(ibv_free_device_list)(theirs);
		if (num_devices)
			*num_devices = 0;
		errno = err;
		return NULL;
	}
	if (num_devices)
		*num_devices = n;
	return list;
}

void ibv_free_device_list(struct ibv_device **list)
{
	struct ibv_device **theirs = (struct ibv_device **)list[-1];

	if (theirs)
		FD_NEXT(ibv_free_device_list)(theirs);
	free(list - 1);
}

const char *ibv_get_device_name(struct ibv_device *device)
{
	return fd_owns_device(device) ? device->name : FD_NEXT(ibv_get_device_name)(device);
}

int ibv_get_device_index(struct ibv_device *device)
{
	return fd_owns_device(device) ? -1 : FD_NEXT(ibv_get_device_index)(device);
}

__be64 ibv_get_device_guid(struct ibv_device *device)
{
	if (!fd_owns_device(device))
		return FD_NEXT(ibv_get_device_guid)(device);
	return device_of(device)->config.attr.orig_attr.node_guid;
}

static int query_device_ex(struct ibv_context *ctx, const struct ibv_query_device_ex_input *input,
			   struct ibv_device_attr_ex *attr, size_t size)
{
	struct fd_device *d = fd_dev_of(ctx);
	FD_LOCKED(d);
	int rc;

	(void)input;
	if (fd_fails(d, FD_query_device_ex, &rc))
		return rc;
	memset(attr, 0, size);
	memcpy(attr, &d->config.attr, size < sizeof(*attr) ? size : sizeof(*attr));
	return 0;
}

static int query_port(struct ibv_context *ctx, uint8_t port, struct ibv_port_attr *attr, size_t size)
{
	struct fd_device *d = fd_dev_of(ctx);
	FD_LOCKED(d);
	int rc;

	if (fd_fails(d, FD_query_port, &rc))
		return rc;
	if (port < 1 || port > d->config.attr.orig_attr.phys_port_cnt)
		return EINVAL;
	memset(attr, 0, size);
	memcpy(attr, &d->config.ports[port - 1].attr, size < sizeof(*attr) ? size : sizeof(*attr));
	return 0;
}

struct ibv_context *ibv_open_device(struct ibv_device *device)
{
	if (!fd_owns_device(device))
		return FD_NEXT(ibv_open_device)(device);
	struct fd_device *d = device_of(device);
	FD_LOCKED(d);
	struct fd_ctx *ctx = fd_make(NULL, d, FD_open_device, FD_CTX, sizeof(*ctx));

	if (!ctx)
		return NULL;
	ctx->o.ctx = ctx;
	ctx->dev = d;
	fd_events_init(&ctx->async);
	ctx->v.sz = sizeof(ctx->v);
	ctx->v.query_device_ex = query_device_ex;
	ctx->v.query_port = query_port;
	ctx->v.modify_cq = fd_modify_cq;
	ctx->v.context.device = device;
	ctx->v.context.cmd_fd = -1;
	ctx->v.context.async_fd = ctx->async.fd;
	ctx->v.context.num_comp_vectors = d->config.comp_vectors;
	ctx->v.context.abi_compat = __VERBS_ABI_IS_EXTENDED;
	pthread_mutex_init(&ctx->v.context.mutex, NULL);
	fd_set_ops(ctx);
	return &ctx->v.context;
}

int ibv_close_device(struct ibv_context *context)
{
	if (!fd_owns(context))
		return FD_NEXT(ibv_close_device)(context);
	struct fd_ctx *ctx = fd_ctx_of(context);
	struct fd_device *d = ctx->dev;
	FD_LOCKED(d);

	/* The kernel has freed the objects with the device, and so the program could not. */
	if (d->unplugged)
		fd_free_all(ctx);
	int rc = fd_may_destroy(&ctx->o, FD_close_device);

	if (!rc)
		fd_free(&ctx->o);
	return rc;
}

int ibv_query_device(struct ibv_context *ctx, struct ibv_device_attr *attr)
{
	struct ibv_device_attr_ex ex;

	if (!fd_owns(ctx))
		return FD_NEXT(ibv_query_device)(ctx, attr);
	int rc = query_device_ex(ctx, NULL, &ex, sizeof(ex));

	if (!rc)
		*attr = ex.orig_attr;
	return rc;
}

/* The old form, which ends before port_cap_flags2. */
int ibv_query_port(struct ibv_context *ctx, uint8_t port, struct _compat_ibv_port_attr *attr)
{
	if (!fd_owns(ctx))
		return FD_NEXT(ibv_query_port)(ctx, port, attr);
	return query_port(ctx, port, (struct ibv_port_attr *)attr, offsetof(struct ibv_port_attr, port_cap_flags2));
}

int ibv_query_pkey(struct ibv_context *ctx, uint8_t port, int index, __be16 *pkey)
{
	if (!fd_owns(ctx))
		return FD_NEXT(ibv_query_pkey)(ctx, port, index, pkey);
	struct fd_device *d = fd_dev_of(ctx);
	FD_LOCKED(d);
	int rc;

	if (fd_fails(d, FD_query_pkey, &rc))
		return rc;
	if (port < 1 || port > d->config.attr.orig_attr.phys_port_cnt || index < 0 ||
	    index >= d->config.ports[port - 1].attr.pkey_tbl_len) {
		errno = EINVAL;
		return -1;
	}
	*pkey = index == 0 ? htobe16(0xffff) : 0;
	return 0;
}

int ibv_get_pkey_index(struct ibv_context *ctx, uint8_t port, __be16 pkey)
{
	if (!fd_owns(ctx))
		return FD_NEXT(ibv_get_pkey_index)(ctx, port, pkey);
	(void)port;
	errno = EINVAL;
	return pkey == htobe16(0xffff) ? 0 : -1;
}

/* Called with the device's mutex held. */
static struct ibv_gid_entry *gid_at(struct fd_device *d, uint32_t port, uint32_t index)
{
	if (port < 1 || port > d->config.attr.orig_attr.phys_port_cnt)
		return NULL;
	struct fd_port *p = &d->config.ports[port - 1];

	for (int i = 0; i < p->ngids; i++)
		if (p->gids[i].gid_index == index)
			return &p->gids[i];
	return NULL;
}

int _ibv_query_gid_ex(struct ibv_context *ctx, uint32_t port, uint32_t index, struct ibv_gid_entry *entry,
		      uint32_t flags, size_t size)
{
	if (!fd_owns(ctx))
		return FD_NEXT(_ibv_query_gid_ex)(ctx, port, index, entry, flags, size);
	struct fd_device *d = fd_dev_of(ctx);
	FD_LOCKED(d);
	struct ibv_gid_entry *e = gid_at(d, port, index);
	int rc;

	if (fd_fails(d, FD_query_gid, &rc))
		return errno;
	if (!e)
		return ENODATA;
	memcpy(entry, e, size < sizeof(*e) ? size : sizeof(*e));
	return 0;
}

int ibv_query_gid(struct ibv_context *ctx, uint8_t port, int index, union ibv_gid *gid)
{
	if (!fd_owns(ctx))
		return FD_NEXT(ibv_query_gid)(ctx, port, index, gid);
	struct fd_device *d = fd_dev_of(ctx);
	FD_LOCKED(d);
	struct ibv_gid_entry *e = gid_at(d, port, index);
	int rc;

	if (fd_fails(d, FD_query_gid, &rc))
		return rc;
	if (!e) {
		errno = EINVAL;
		return -1;
	}
	*gid = e->gid;
	return 0;
}

ssize_t _ibv_query_gid_table(struct ibv_context *ctx, struct ibv_gid_entry *entries, size_t max, uint32_t flags,
			     size_t size)
{
	if (!fd_owns(ctx))
		return FD_NEXT(_ibv_query_gid_table)(ctx, entries, max, flags, size);
	struct fd_device *d = fd_dev_of(ctx);
	FD_LOCKED(d);
	size_t n = 0;
	int rc;

	if (fd_fails(d, FD_query_gid_table, &rc))
		return rc;
	if (size != sizeof(*entries))
		return -EOPNOTSUPP;
	for (int port = 0; port < d->config.attr.orig_attr.phys_port_cnt; port++)
		for (int i = 0; i < d->config.ports[port].ngids && n < max; i++)
			entries[n++] = d->config.ports[port].gids[i];
	return n;
}

/* A RoCE v2 packet over IPv4 has its header in the last 20 bytes of the GRH. */
static bool grh_is_ipv4(const struct ibv_grh *grh)
{
	const uint8_t *b = (const uint8_t *)grh;

	return b[0] >> 4 != 6 && b[20] == 0x45;
}

static void map_ipv4(union ibv_gid *gid, const uint8_t *addr)
{
	memset(gid, 0, sizeof(*gid));
	gid->raw[10] = gid->raw[11] = 0xff;
	memcpy(&gid->raw[12], addr, 4);
}

int ibv_init_ah_from_wc(struct ibv_context *ctx, uint8_t port, struct ibv_wc *wc, struct ibv_grh *grh,
			struct ibv_ah_attr *attr)
{
	if (!fd_owns(ctx))
		return FD_NEXT(ibv_init_ah_from_wc)(ctx, port, wc, grh, attr);
	struct fd_device *d = fd_dev_of(ctx);
	FD_LOCKED(d);
	union ibv_gid own;
	int rc;

	if (fd_fails(d, FD_init_ah_from_wc, &rc))
		return rc;
	memset(attr, 0, sizeof(*attr));
	attr->dlid = wc->slid;
	attr->sl = wc->sl;
	attr->src_path_bits = wc->dlid_path_bits;
	attr->port_num = port;
	if (!(wc->wc_flags & IBV_WC_GRH))
		return 0;
	attr->is_global = 1;
	if (grh_is_ipv4(grh)) {
		const uint8_t *ip = (const uint8_t *)grh + 20;

		attr->grh.traffic_class = ip[1];
		attr->grh.hop_limit = ip[8];
		map_ipv4(&attr->grh.dgid, ip + 12);
		map_ipv4(&own, ip + 16);
	} else {
		uint32_t flow = be32toh(grh->version_tclass_flow);

		attr->grh.traffic_class = flow >> 20;
		attr->grh.flow_label = flow & 0xfffff;
		attr->grh.hop_limit = grh->hop_limit;
		attr->grh.dgid = grh->sgid;
		own = grh->dgid;
	}
	for (uint32_t i = 0; i < FD_MAX_GIDS; i++) {
		struct ibv_gid_entry *e = gid_at(d, port, i);

		if (e && memcmp(&e->gid, &own, sizeof(own)) == 0) {
			attr->grh.sgid_index = i;
			return 0;
		}
	}
	errno = ENOENT;
	return -1;
}
