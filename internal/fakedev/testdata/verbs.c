/*
 * Calls the verbs of a fake device that Go does not reach one by one. It ends with
 * status 0, or names the line where a fake verb did not answer as the real one.
 */
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>

#include "../fakedev.h"

#define CHECK(what)                                                                                        \
	do {                                                                                               \
		if (!(what)) {                                                                             \
			fprintf(stderr, "%s:%d: not so: %s (errno %d)\n", __FILE__, __LINE__, #what, errno); \
			exit(1);                                                                           \
		}                                                                                          \
	} while (0)
#define FAILS(what, err) CHECK((errno = 0, !(what)) && errno == (err))

static struct fd_device *device(unsigned int features)
{
	struct fd_config c = { .name = "fake", .node_type = IBV_NODE_CA, .comp_vectors = 1, .max_inline = 64, .features = features };
	struct ibv_device_attr *a = &c.attr.orig_attr;

	a->max_mr_size = 1 << 30;
	a->max_qp = a->max_cq = a->max_mr = a->max_pd = a->max_srq = a->max_ah = a->max_mw = 100;
	a->max_qp_wr = a->max_cqe = a->max_srq_wr = 100;
	a->max_sge = a->max_srq_sge = 4;
	a->phys_port_cnt = 1;
	a->device_cap_flags = features ? IBV_DEVICE_SRQ_RESIZE : 0;
	c.attr.odp_caps.general_caps = features ? IBV_ODP_SUPPORT : 0;
	c.ports[0].attr.state = IBV_PORT_ACTIVE;
	c.ports[0].attr.link_layer = IBV_LINK_LAYER_ETHERNET;
	c.ports[0].attr.pkey_tbl_len = 1;
	c.ports[0].ngids = 2;
	for (int i = 0; i < 2; i++)
		c.ports[0].gids[i] = (struct ibv_gid_entry){ .gid.raw = { [10] = 0xff, 0xff, 10, 0, 0, i + 1 },
							     .gid_index = i,
							     .port_num = 1,
							     .gid_type = IBV_GID_TYPE_ROCE_V2 };
	return fd_add(&c);
}

static struct ibv_context *open_fake(struct fd_device *d)
{
	int n = 0;
	struct ibv_device **list = ibv_get_device_list(&n);
	struct ibv_context *ctx = NULL;

	CHECK(list && n >= 1 && !list[n]);
	for (int i = 0; i < n; i++)
		if (list[i] == &d->ibv)
			ctx = ibv_open_device(list[i]);
	CHECK(ctx);
	ibv_free_device_list(list);
	return ctx;
}

static void queries(struct ibv_context *ctx)
{
	struct ibv_device_attr attr;
	struct ibv_port_attr port;
	union ibv_gid gid;
	struct ibv_gid_entry entry, table[4];
	__be16 pkey;

	CHECK(ibv_query_device(ctx, &attr) == 0 && attr.max_sge == 4);
	CHECK(ibv_query_port(ctx, 1, &port) == 0 && port.state == IBV_PORT_ACTIVE);
	CHECK(ibv_query_port(ctx, 2, &port) == EINVAL);
	CHECK(ibv_query_gid(ctx, 1, 1, &gid) == 0 && gid.raw[15] == 2);
	FAILS(ibv_query_gid(ctx, 1, 2, &gid) == 0, EINVAL);
	CHECK(ibv_query_gid_ex(ctx, 1, 1, &entry, 0) == 0 && entry.gid.raw[15] == 2);
	CHECK(ibv_query_gid_ex(ctx, 1, 3, &entry, 0) == ENODATA);
	CHECK(ibv_query_gid_table(ctx, table, 4, 0) == 2);
	CHECK(ibv_query_gid_table(ctx, table, 1, 0) == 1);
	CHECK(ibv_query_pkey(ctx, 1, 0, &pkey) == 0 && pkey == 0xffff);
	FAILS(ibv_query_pkey(ctx, 1, 1, &pkey) == 0, EINVAL);
	CHECK(ibv_get_pkey_index(ctx, 1, 0xffff) == 0);
}

static void regions(struct fd_device *d, struct ibv_pd *pd, bool has)
{
	static char memory[4096];
	struct ibv_mr *mr = ibv_reg_mr_iova(pd, memory, 1024, 0x5000, IBV_ACCESS_LOCAL_WRITE), *dma;
	uint32_t lkey = mr->lkey;
	struct ibv_sge sge = { .addr = 0x5000, .length = 1024, .lkey = lkey };

	CHECK(mr && mr->addr == memory && mr->length == 1024 && mr->pd == pd);
	FAILS(ibv_reg_mr(pd, memory, 1024, IBV_ACCESS_REMOTE_WRITE), EINVAL);
	CHECK(ibv_dealloc_pd(pd) == EBUSY);
	if (!has) {
		FAILS(ibv_reg_mr(pd, memory, 1024, IBV_ACCESS_ON_DEMAND), EOPNOTSUPP);
		FAILS(ibv_reg_dmabuf_mr(pd, 0, 1024, 0x5000, 3, 0), EOPNOTSUPP);
		FAILS(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, 0) == 0, EOPNOTSUPP);
		CHECK(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &sge, 1) == EOPNOTSUPP);
		CHECK(ibv_dereg_mr(mr) == 0);
		return;
	}
	CHECK(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &sge, 1) == 0);
	sge.length++;
	CHECK(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &sge, 1) == EFAULT);
	sge.lkey++;
	CHECK(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &sge, 1) == ENOENT);

	struct ibv_pd *other = ibv_alloc_pd(pd->context);

	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD | IBV_REREG_MR_CHANGE_TRANSLATION, other, memory + 8, 2048, 0) == 0);
	CHECK(mr->pd == other && mr->addr == memory + 8 && mr->length == 2048 && mr->lkey != lkey);
	CHECK(ibv_dealloc_pd(other) == EBUSY);
	CHECK(fd_set_raw_fault(d, "ibv_rereg_mr", IBV_REREG_MR_ERR_DO_FORK_OLD, EINVAL, 1) == 0);
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, 0) == IBV_REREG_MR_ERR_DO_FORK_OLD);
	CHECK(fd_set_fault(d, "ibv_rereg_mr", ENOMEM, 1) == 0);
	FAILS(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, 0) != IBV_REREG_MR_ERR_CMD, ENOMEM);
	CHECK(ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(other) == 0);

	mr = ibv_reg_mr(pd, memory, 1024, IBV_ACCESS_ON_DEMAND);
	dma = ibv_reg_dmabuf_mr(pd, 64, 1024, 0x5000, 3, IBV_ACCESS_LOCAL_WRITE);
	CHECK(mr && dma && dma->length == 1024 && dma->lkey != mr->lkey);
	CHECK(ibv_dereg_mr(mr) == 0 && ibv_dereg_mr(dma) == 0);
}

static struct ibv_qp *queue_pair(struct ibv_pd *pd, struct ibv_cq *cq, struct ibv_srq *srq, enum ibv_qp_type type)
{
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .srq = srq, .qp_type = type, .sq_sig_all = 1,
					 .cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 } };
	struct ibv_qp *qp = ibv_create_qp(pd, &init);

	CHECK(qp && init.cap.max_recv_wr == (srq ? 0 : 4));
	return qp;
}

static struct fd_name send_queue(struct ibv_qp *qp)
{
	return (struct fd_name){ .kind = FD_QP, .number = qp->qp_num, .send = true };
}

static void windows(struct fd_device *d, struct ibv_pd *pd, struct ibv_cq *cq)
{
	static char memory[4096];
	struct ibv_qp *qp = queue_pair(pd, cq, NULL, IBV_QPT_RC);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
	struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
	struct ibv_mw_bind bind = { .wr_id = 5, .bind_info = { mr, (uintptr_t)memory, 64, IBV_ACCESS_REMOTE_READ } };
	struct fd_completion done = { .index = 0 };
	struct fd_view v;
	struct ibv_wc wc;
	uint32_t rkey = mw->rkey;

	CHECK(fd_set_fault(d, "ibv_bind_mw", ENOMEM, 1) == 0 && ibv_bind_mw(qp, mw, &bind) == ENOMEM && mw->rkey == rkey);
	CHECK(ibv_bind_mw(qp, mw, &bind) == 0 && mw->rkey == ibv_inc_rkey(rkey));
	CHECK(fd_view(d, send_queue(qp), 0, &v) == 0 && v.opcode == IBV_WR_BIND_MW && v.mw_handle == mw->handle);
	CHECK(v.mw_rkey == mw->rkey && v.mw_lkey == mr->lkey && v.mw_length == 64 && v.mw_access == IBV_ACCESS_REMOTE_READ);
	free(v.sges);
	CHECK(fd_complete(d, send_queue(qp), &done, NULL, 0) == 0);
	CHECK(ibv_poll_cq(cq, 1, &wc) == 1 && wc.opcode == IBV_WC_BIND_MW && wc.wr_id == 5);
	CHECK(ibv_dereg_mr(mr) == EINVAL);
	struct ibv_send_wr inv, *bad;

	memset(&inv, 0, sizeof(inv));
	inv.opcode = IBV_WR_LOCAL_INV;
	inv.invalidate_rkey = mw->rkey;
	CHECK(ibv_post_send(qp, &inv, &bad) == 0 && ibv_dereg_mr(mr) == EINVAL);
	CHECK(fd_complete(d, send_queue(qp), &done, NULL, 0) == 0 && ibv_bind_mw(qp, mw, &bind) == 0);
	CHECK(fd_complete(d, send_queue(qp), &done, NULL, 0) == 0 && ibv_dereg_mr(mr) == EINVAL);
	bind.bind_info.length = 0;
	CHECK(ibv_bind_mw(qp, mw, &bind) == 0 && fd_complete(d, send_queue(qp), &done, NULL, 0) == 0);
	CHECK(ibv_dereg_mr(mr) == 0 && ibv_dealloc_mw(mw) == 0 && ibv_destroy_qp(qp) == 0);
}

static void datagrams(struct fd_device *d, struct ibv_pd *pd, struct ibv_cq *cq)
{
	struct ibv_qp *qp = queue_pair(pd, cq, NULL, IBV_QPT_UD);
	struct ibv_ah_attr attr = { .port_num = 1 }, back;
	struct ibv_wc wc = { .wc_flags = IBV_WC_GRH, .sl = 3 };
	struct ibv_grh grh = { .version_tclass_flow = htobe32(6u << 28 | 0x12u << 20 | 0x34567), .hop_limit = 9 };
	uint8_t *ipv4 = (uint8_t *)&grh + 20;
	struct ibv_send_wr wr, *bad;
	struct fd_misuse *misuse;
	struct fd_view v;

	memset(&back, 0, sizeof(back));
	FAILS(ibv_create_ah(pd, &attr), EINVAL);
	CHECK(ibv_attach_mcast(qp, &back.grh.dgid, 0) == EOPNOTSUPP && ibv_detach_mcast(qp, &back.grh.dgid, 0) == EOPNOTSUPP);
	attr.is_global = 1;
	attr.grh.sgid_index = 1;

	struct ibv_ah *ah = ibv_create_ah(pd, &attr);

	CHECK(ah);
	memset(&wr, 0, sizeof(wr));
	wr.opcode = IBV_WR_SEND;
	wr.wr.ud.ah = ah;
	wr.wr.ud.remote_qpn = 7;
	wr.wr.ud.remote_qkey = 8;
	CHECK(ibv_post_send(qp, &wr, &bad) == 0);
	wr.imm_data = 1;
	CHECK(ibv_post_send(qp, &wr, &bad) == 0 && (misuse = fd_take_misuse(d)) && strstr(misuse->text, "another operation"));
	free(misuse);
	CHECK(fd_view(d, send_queue(qp), 0, &v) == 0 && v.ah == ah->handle && v.remote_qpn == 7 && v.remote_qkey == 8);
	free(v.sges);
	CHECK(ibv_destroy_ah(ah) == 0 && (misuse = fd_take_misuse(d)) && strstr(misuse->text, "address handle"));
	free(misuse);
	CHECK(ibv_destroy_qp(qp) == 0);

	memset(&grh.dgid, 0, sizeof(grh.dgid));
	grh.dgid.raw[10] = grh.dgid.raw[11] = 0xff;
	grh.dgid.raw[12] = 10;
	grh.dgid.raw[15] = 2;
	grh.sgid.raw[15] = 77;
	CHECK(ibv_init_ah_from_wc(pd->context, 1, &wc, &grh, &back) == 0);
	CHECK(back.is_global && back.grh.sgid_index == 1 && back.grh.dgid.raw[15] == 77 && back.sl == 3);
	CHECK(back.grh.flow_label == 0x34567 && back.grh.traffic_class == 0x12 && back.grh.hop_limit == 9);

	CHECK((ah = ibv_create_ah_from_wc(pd, &wc, &grh, 1)) && ibv_destroy_ah(ah) == 0);

	memset(&grh, 0, sizeof(grh));
	memcpy(ipv4, (uint8_t[]){ 0x45, 0x20, 0, 0, 0, 0, 0, 0, 11, 17, 0, 0, 10, 0, 0, 9, 10, 0, 0, 1 }, 20);
	CHECK(ibv_init_ah_from_wc(pd->context, 1, &wc, &grh, &back) == 0);
	CHECK(back.grh.sgid_index == 0 && back.grh.dgid.raw[11] == 0xff && back.grh.dgid.raw[15] == 9);
	CHECK(back.grh.traffic_class == 0x20 && back.grh.hop_limit == 11);
	ipv4[19] = 50;
	FAILS(ibv_init_ah_from_wc(pd->context, 1, &wc, &grh, &back) == 0, ENOENT);
}

static void shared_receives(struct fd_device *d, struct ibv_pd *pd, struct ibv_cq *cq, bool has)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_srq_attr attr = { .max_wr = 8, .srq_limit = 5 };
	struct ibv_srq *srq = ibv_create_srq(pd, &init);
	struct ibv_recv_wr wrs[5] = { { .wr_id = 0 } }, *bad = NULL;
	struct fd_name name = { .kind = FD_SRQ, .number = srq->handle };
	struct fd_completion done = { .index = 2 };
	struct ibv_wc wc;

	CHECK(srq && init.attr.max_wr == 4);
	CHECK(ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT) == EINVAL);
	CHECK(ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR) == (has ? 0 : EINVAL));
	attr = (struct ibv_srq_attr){ .max_wr = 4, .srq_limit = 2 };
	CHECK(ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT | (has ? IBV_SRQ_MAX_WR : 0)) == 0);
	attr = (struct ibv_srq_attr){ .max_wr = 0 };
	CHECK(ibv_query_srq(srq, &attr) == 0 && attr.max_wr == 4 && attr.max_sge == 1 && attr.srq_limit == 2);

	struct ibv_qp *qp = queue_pair(pd, cq, srq, IBV_QPT_RC);

	for (int i = 0; i < 5; i++)
		wrs[i] = (struct ibv_recv_wr){ .wr_id = i, .next = i < 4 ? &wrs[i + 1] : NULL };
	CHECK(ibv_post_srq_recv(srq, wrs, &bad) == ENOMEM && bad == &wrs[4] && fd_posted(d, name) == 4);
	done.wc.qp_num = 0x999;
	CHECK(fd_complete(d, name, &done, NULL, 0) == ENOENT);
	done.wc.qp_num = qp->qp_num;
	CHECK(fd_complete(d, name, &done, NULL, 0) == 0 && fd_posted(d, name) == 3);
	CHECK(ibv_poll_cq(cq, 1, &wc) == 1 && wc.wr_id == 2 && wc.opcode == IBV_WC_RECV && wc.qp_num == qp->qp_num);
	CHECK(ibv_destroy_srq(srq) == EBUSY);
	CHECK(ibv_destroy_qp(qp) == 0 && fd_posted(d, name) == 3 && ibv_destroy_srq(srq) == 0);
}

static bool readable(int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };

	return poll(&p, 1, 0) == 1;
}

static void completion_events(struct fd_device *d, struct ibv_context *ctx)
{
	struct ibv_comp_channel *ch = ibv_create_comp_channel(ctx);
	struct ibv_cq *cq = ibv_create_cq(ctx, 8, (void *)42, ch, 0), *on;
	struct ibv_wc wc = { .status = IBV_WC_SUCCESS };
	struct fd_misuse *misuse;
	void *context;

	CHECK(ch && cq && fcntl(ch->fd, F_SETFL, O_NONBLOCK) == 0);
	CHECK(ibv_destroy_comp_channel(ch) == EBUSY);
	CHECK(fd_push(d, cq->handle, &wc) == 0 && !readable(ch->fd)); /* not armed */
	CHECK(ibv_req_notify_cq(cq, 1) == 0 && fd_push(d, cq->handle, &wc) == 0 && !readable(ch->fd)); /* not solicited */
	CHECK(ibv_req_notify_cq(cq, 0) == 0 && ibv_req_notify_cq(cq, 1) == 0 && fd_push(d, cq->handle, &wc) == 0);
	CHECK(readable(ch->fd) && fd_push(d, cq->handle, &wc) == 0); /* one event for each time it is armed */
	CHECK(ibv_get_cq_event(ch, &on, &context) == 0 && on == cq && context == (void *)42);
	CHECK(!readable(ch->fd));
	FAILS(ibv_get_cq_event(ch, &on, &context) == 0, EAGAIN);
	CHECK(ibv_destroy_cq(cq) == EBUSY);
	CHECK((misuse = fd_take_misuse(d)) && strstr(misuse->text, "of 1 completion events 0"));
	free(misuse);
	ibv_ack_cq_events(cq, 1);
	wc.status = IBV_WC_WR_FLUSH_ERR;
	CHECK(ibv_req_notify_cq(cq, 1) == 0 && fd_push(d, cq->handle, &wc) == 0 && readable(ch->fd));
	CHECK(fd_notify_cq(d, cq->handle) == 0 && ibv_destroy_cq(cq) == 0 && !readable(ch->fd)); /* unread ones go with it */
	CHECK(ibv_destroy_comp_channel(ch) == 0);
}

static void async_events(struct fd_device *d, struct ibv_context *ctx, struct ibv_pd *pd, struct ibv_cq *cq)
{
	struct ibv_qp *qp = queue_pair(pd, cq, NULL, IBV_QPT_RC);
	struct ibv_async_event event;
	struct fd_misuse *misuse;

	CHECK(fcntl(ctx->async_fd, F_SETFL, O_NONBLOCK) == 0);
	FAILS(ibv_get_async_event(ctx, &event) == 0, EAGAIN);
	CHECK(fd_raise_event(d, IBV_EVENT_PORT_ERR, 1) == 0 && fd_raise_event(d, IBV_EVENT_QP_FATAL, qp->qp_num) == 0);
	CHECK(fd_raise_event(d, IBV_EVENT_QP_FATAL, 0x999) == ENOENT);
	CHECK(ibv_get_async_event(ctx, &event) == 0 && event.event_type == IBV_EVENT_PORT_ERR && event.element.port_num == 1);
	ibv_ack_async_event(&event);
	CHECK(ibv_get_async_event(ctx, &event) == 0 && event.event_type == IBV_EVENT_QP_FATAL && event.element.qp == qp);
	CHECK(!readable(ctx->async_fd) && ibv_destroy_qp(qp) == EBUSY);
	CHECK((misuse = fd_take_misuse(d)) && strstr(misuse->text, "of 1 asynchronous events 0"));
	free(misuse);
	ibv_ack_async_event(&event);
	CHECK(fd_break_cq(d, cq->handle) == 0);
	CHECK(ibv_get_async_event(ctx, &event) == 0 && event.event_type == IBV_EVENT_CQ_ERR && event.element.cq == cq);
	ibv_ack_async_event(&event);
	CHECK(fd_raise_event(d, IBV_EVENT_COMM_EST, qp->qp_num) == 0 && readable(ctx->async_fd));
	CHECK(ibv_destroy_qp(qp) == 0 && !readable(ctx->async_fd));
}

static void all(unsigned int features)
{
	struct fd_device *d = device(features);
	struct ibv_context *ctx = open_fake(d);
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	struct ibv_cq *cq = ibv_create_cq(ctx, 8, NULL, NULL, 0);

	queries(ctx);
	regions(d, pd, features);
	if (features) {
		windows(d, pd, cq);
		CHECK(ibv_resize_cq(cq, 16) == 0 && cq->cqe == 16 && ibv_resize_cq(cq, 1000) == EINVAL);
	} else {
		FAILS(ibv_alloc_mw(pd, IBV_MW_TYPE_1), EOPNOTSUPP);
		CHECK(ibv_resize_cq(cq, 16) == EOPNOTSUPP);
	}
	while (ibv_poll_cq(cq, 1, &(struct ibv_wc){ .wr_id = 0 }) > 0)
		;
	datagrams(d, pd, cq);
	shared_receives(d, pd, cq, features);
	completion_events(d, ctx);
	async_events(d, ctx, pd, cq);
	CHECK(fd_take_misuse(d) == NULL && fd_unused_fault(d) == NULL);
	CHECK(ibv_close_device(ctx) == EBUSY);
	CHECK(ibv_destroy_cq(cq) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(ctx) == 0);
	fd_remove(d);
}

/* The sanitizer must see it: the memory of a destroyed object is freed. */
static void use_after_destroy(void)
{
	struct ibv_context *ctx = open_fake(device(0));
	struct ibv_cq *cq = ibv_create_cq(ctx, 8, NULL, NULL, 0);
	struct ibv_wc wc;

	CHECK(ibv_destroy_cq(cq) == 0);
	ibv_poll_cq(cq, 1, &wc);
}

int main(int argc, char **argv)
{
	(void)argv;
	if (argc > 1)
		use_after_destroy();
	all(0);
	all(FD_HAS_REREG | FD_HAS_DMABUF | FD_HAS_ADVISE | FD_HAS_RESIZE_CQ | FD_HAS_MW);
	return 0;
}
