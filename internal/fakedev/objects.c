//go:build cgo && linux && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

/* Protection domains, memory regions and windows, address handles. */

#include "fakedev.h"

#undef ibv_reg_mr
#undef ibv_reg_mr_iova

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
	if (!fd_owns(context))
		return FD_NEXT(ibv_alloc_pd)(context);
	struct fd_ctx *ctx = fd_ctx_of(context);
	FD_LOCKED(ctx->dev);
	struct fd_pd *pd = fd_make(ctx, ctx->dev, FD_alloc_pd, FD_PD, sizeof(*pd));

	if (!pd)
		return NULL;
	pd->ibv.context = context;
	pd->ibv.handle = pd->o.number;
	return &pd->ibv;
}

int ibv_dealloc_pd(struct ibv_pd *ibv)
{
	if (!fd_owns(ibv->context))
		return FD_NEXT(ibv_dealloc_pd)(ibv);
	struct fd_pd *pd = fd_of(ibv, fd_pd);
	FD_LOCKED(pd->o.ctx->dev);
	int rc = fd_may_destroy(&pd->o, FD_dealloc_pd);

	if (!rc)
		fd_free(&pd->o);
	return rc;
}

/* The rights that a region cannot have, as the kernel sees it. */
static bool bad_access(unsigned int access)
{
	return (access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)) && !(access & IBV_ACCESS_LOCAL_WRITE);
}

static int check_region(struct fd_device *d, size_t length, unsigned int access)
{
	if (length > d->config.attr.orig_attr.max_mr_size || bad_access(access))
		return EINVAL;
	if ((access & IBV_ACCESS_ON_DEMAND) && !(d->config.attr.odp_caps.general_caps & IBV_ODP_SUPPORT))
		return EOPNOTSUPP;
	return 0;
}

static void set_keys(struct fd_mr *mr)
{
	/* As on hardware: an index, and a byte that changes with each use of it. */
	mr->ibv.lkey = mr->o.number << 8 | ((mr->ibv.lkey + 1) & 0xff);
	mr->ibv.rkey = mr->ibv.lkey | 0x80000000;
}

static struct ibv_mr *reg(struct ibv_pd *pd, enum fd_verb verb, void *addr, size_t length, uint64_t iova,
			  unsigned int access, bool host)
{
	struct fd_ctx *ctx = fd_ctx_of(pd->context);
	FD_LOCKED(ctx->dev);
	int err = check_region(ctx->dev, length, access);
	struct fd_mr *mr = fd_make(ctx, ctx->dev, verb, FD_MR, sizeof(*mr));

	if (!mr)
		return NULL;
	if (!err && !host && !(ctx->dev->config.features & FD_HAS_DMABUF))
		err = EOPNOTSUPP;
	if (err) {
		fd_free(&mr->o);
		errno = err;
		return NULL;
	}
	mr->ibv.context = pd->context;
	mr->ibv.pd = pd;
	mr->ibv.addr = addr;
	mr->ibv.length = length;
	mr->ibv.handle = mr->o.number;
	mr->iova = access & IBV_ACCESS_ZERO_BASED ? 0 : iova;
	mr->access = access;
	mr->host = host;
	set_keys(mr);
	fd_of(pd, fd_pd)->o.users++;
	return &mr->ibv;
}

struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
	if (!fd_owns(pd->context))
		return FD_NEXT(ibv_reg_mr)(pd, addr, length, access);
	return reg(pd, FD_reg_mr, addr, length, (uintptr_t)addr, access, true);
}

struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, int access)
{
	if (!fd_owns(pd->context))
		return FD_NEXT(ibv_reg_mr_iova)(pd, addr, length, iova, access);
	return reg(pd, FD_reg_mr, addr, length, iova, access, true);
}

struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, unsigned int access)
{
	if (!fd_owns(pd->context))
		return FD_NEXT(ibv_reg_mr_iova2)(pd, addr, length, iova, access);
	return reg(pd, FD_reg_mr, addr, length, iova, access, true);
}

struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access)
{
	if (!fd_owns(pd->context))
		return FD_NEXT(ibv_reg_dmabuf_mr)(pd, offset, length, iova, fd, access);
	return reg(pd, FD_reg_dmabuf_mr, (void *)(uintptr_t)offset, length, iova, access, false);
}

/* The order of checks, and that the call may change each of three things alone, are the verb's. */
int ibv_rereg_mr(struct ibv_mr *ibv, int flags, struct ibv_pd *pd, void *addr, size_t length, int access)
{
	if (!fd_owns(ibv->context))
		return FD_NEXT(ibv_rereg_mr)(ibv, flags, pd, addr, length, access);
	struct fd_mr *mr = fd_of(ibv, fd_mr);
	struct fd_device *d = mr->o.ctx->dev;
	FD_LOCKED(d);
	bool moves = flags & IBV_REREG_MR_CHANGE_TRANSLATION;
	int rc;

	if ((flags & ~IBV_REREG_MR_FLAGS_SUPPORTED) || (moves && (!length || !addr))) {
		errno = EINVAL;
		return IBV_REREG_MR_ERR_INPUT;
	}
	if (!(d->config.features & FD_HAS_REREG)) {
		errno = EOPNOTSUPP;
		return IBV_REREG_MR_ERR_INPUT;
	}
	if (fd_fails(d, FD_rereg_mr, &rc))
		return rc;
	errno = check_region(d, moves ? length : ibv->length, flags & IBV_REREG_MR_CHANGE_ACCESS ? (unsigned)access : mr->access);
	if (errno)
		return IBV_REREG_MR_ERR_CMD;
	fd_check_unused(d, &mr->o);
	if (flags & IBV_REREG_MR_CHANGE_PD) {
		fd_of(ibv->pd, fd_pd)->o.users--;
		fd_of(pd, fd_pd)->o.users++;
		ibv->pd = pd;
	}
	if (moves) {
		ibv->addr = addr;
		ibv->length = length;
		mr->iova = (uintptr_t)addr;
	}
	if (flags & IBV_REREG_MR_CHANGE_ACCESS)
		mr->access = access;
	set_keys(mr);
	return 0;
}

int ibv_dereg_mr(struct ibv_mr *ibv)
{
	if (!fd_owns(ibv->context))
		return FD_NEXT(ibv_dereg_mr)(ibv);
	struct fd_mr *mr = fd_of(ibv, fd_mr);
	struct fd_device *d = mr->o.ctx->dev;
	FD_LOCKED(d);
	int rc = fd_may_destroy(&mr->o, FD_dereg_mr);

	if (rc == EBUSY && mr->o.users)
		return EINVAL; /* what Linux says of a region with bound windows */
	if (rc)
		return rc;
	fd_check_unused(d, &mr->o);
	fd_of(ibv->pd, fd_pd)->o.users--;
	fd_free(&mr->o);
	return 0;
}

struct fd_mr *fd_mr_by_lkey(struct fd_device *d, uint32_t lkey)
{
	for (struct fd_obj *o = d->objects[FD_MR]; o; o = o->next)
		if (((struct fd_mr *)o)->ibv.lkey == lkey)
			return (struct fd_mr *)o;
	return NULL;
}

static int advise_mr(struct ibv_pd *pd, enum ibv_advise_mr_advice advice, uint32_t flags, struct ibv_sge *sges, uint32_t n)
{
	struct fd_device *d = fd_dev_of(pd->context);
	FD_LOCKED(d);
	int rc;

	(void)advice, (void)flags;
	if (fd_fails(d, FD_advise_mr, &rc))
		return rc;
	for (uint32_t i = 0; i < n; i++) {
		struct fd_mr *mr = fd_mr_by_lkey(d, sges[i].lkey);
		uint64_t off = mr ? sges[i].addr - mr->iova : 0;

		if (!mr)
			return ENOENT;
		if (mr->ibv.pd != pd || off > mr->ibv.length || sges[i].length > mr->ibv.length - off)
			return EFAULT;
	}
	return 0;
}

static struct ibv_mw *alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type)
{
	struct fd_ctx *ctx = fd_ctx_of(pd->context);
	FD_LOCKED(ctx->dev);
	struct fd_mw *mw = fd_make(ctx, ctx->dev, FD_alloc_mw, FD_MW, sizeof(*mw));

	if (!mw)
		return NULL;
	mw->ibv.context = pd->context;
	mw->ibv.pd = pd;
	mw->ibv.rkey = mw->o.number << 8 | 0x40000000;
	mw->ibv.handle = mw->o.number;
	mw->ibv.type = type;
	fd_of(pd, fd_pd)->o.users++;
	return &mw->ibv;
}

static int dealloc_mw(struct ibv_mw *ibv)
{
	struct fd_mw *mw = fd_of(ibv, fd_mw);
	struct fd_device *d = mw->o.ctx->dev;
	FD_LOCKED(d);
	int rc = fd_may_destroy(&mw->o, FD_dealloc_mw);

	if (rc)
		return rc;
	fd_check_unused(d, &mw->o);
	if (mw->posting)
		fd_misused(d, "window %#x goes while a call posts its bind", mw->o.number);
	fd_bind(mw, NULL);
	fd_of(ibv->pd, fd_pd)->o.users--;
	fd_free(&mw->o);
	return 0;
}

void fd_bind(struct fd_mw *mw, struct fd_mr *mr)
{
	if (mw->bound)
		mw->bound->o.users--;
	mw->bound = mr;
	if (mr)
		mr->o.users++;
}

void fd_set_object_ops(struct fd_ctx *ctx)
{
	if (ctx->dev->config.features & FD_HAS_ADVISE)
		ctx->v.advise_mr = advise_mr;
	if (ctx->dev->config.features & FD_HAS_MW) {
		ctx->v.context.ops.alloc_mw = alloc_mw;
		ctx->v.context.ops.dealloc_mw = dealloc_mw;
	}
}

struct ibv_ah *ibv_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr)
{
	if (!fd_owns(pd->context))
		return FD_NEXT(ibv_create_ah)(pd, attr);
	struct fd_ctx *ctx = fd_ctx_of(pd->context);
	struct ibv_device_attr *limits = &ctx->dev->config.attr.orig_attr;
	FD_LOCKED(ctx->dev);

	if (attr->port_num < 1 || attr->port_num > limits->phys_port_cnt ||
	    (!attr->is_global &&
	     ctx->dev->config.ports[attr->port_num - 1].attr.link_layer == IBV_LINK_LAYER_ETHERNET)) {
		errno = EINVAL;
		return NULL;
	}
	struct fd_ah *ah = fd_make(ctx, ctx->dev, FD_create_ah, FD_AH, sizeof(*ah));

	if (!ah)
		return NULL;
	ah->ibv.context = pd->context;
	ah->ibv.pd = pd;
	ah->ibv.handle = ah->o.number;
	ah->attr = *attr;
	fd_of(pd, fd_pd)->o.users++;
	return &ah->ibv;
}

struct ibv_ah *ibv_create_ah_from_wc(struct ibv_pd *pd, struct ibv_wc *wc, struct ibv_grh *grh, uint8_t port)
{
	struct ibv_ah_attr attr;

	if (!fd_owns(pd->context))
		return FD_NEXT(ibv_create_ah_from_wc)(pd, wc, grh, port);
	return ibv_init_ah_from_wc(pd->context, port, wc, grh, &attr) ? NULL : ibv_create_ah(pd, &attr);
}

/* A fake device has no multicast. */
int ibv_attach_mcast(struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid)
{
	return fd_owns(qp->context) ? EOPNOTSUPP : FD_NEXT(ibv_attach_mcast)(qp, gid, lid);
}

int ibv_detach_mcast(struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid)
{
	return fd_owns(qp->context) ? EOPNOTSUPP : FD_NEXT(ibv_detach_mcast)(qp, gid, lid);
}

int ibv_destroy_ah(struct ibv_ah *ibv)
{
	if (!fd_owns(ibv->context))
		return FD_NEXT(ibv_destroy_ah)(ibv);
	struct fd_ah *ah = fd_of(ibv, fd_ah);
	struct fd_device *d = ah->o.ctx->dev;
	FD_LOCKED(d);
	int rc = fd_may_destroy(&ah->o, FD_destroy_ah);

	if (rc)
		return rc;
	fd_check_unused(d, &ah->o);
	fd_of(ibv->pd, fd_pd)->o.users--;
	fd_free(&ah->o);
	return 0;
}
