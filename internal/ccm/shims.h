/* dup3 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

/*
 * One static inline function for each call of librdmacm, which all return -1 and leave
 * errno. Here a call that makes something returns NULL and leaves errno, and any other
 * returns 0 or a positive errno.
 */
#ifndef GOVERBS_CM_SHIMS_H
#define GOVERBS_CM_SHIMS_H

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

/* Some calls set errno and return it, or fail without leaving any. */
static inline int gv_cm_errno(int rc)
{
	if (rc == 0)
		return 0;
	if (rc > 0)
		return rc;
	return errno ? errno : EPROTO;
}

#define GV_CM_RC(call) (errno = 0, gv_cm_errno(call))

/* An IP address and port; family is 0 where there is none. */
struct gv_addr {
	int family;
	uint8_t ip[16];
	uint16_t port; /* in host order */
	uint32_t scope;
};

static inline struct sockaddr *gv_to_sockaddr(const struct gv_addr *a, struct sockaddr_storage *s)
{
	struct sockaddr_in *in = (struct sockaddr_in *)s;
	struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)s;

	memset(s, 0, sizeof(*s));
	s->ss_family = a->family;
	switch (a->family) {
	case AF_INET:
		in->sin_port = htons(a->port);
		memcpy(&in->sin_addr, a->ip, 4);
		break;
	case AF_INET6:
		in6->sin6_port = htons(a->port);
		in6->sin6_scope_id = a->scope;
		memcpy(&in6->sin6_addr, a->ip, 16);
		break;
	default:
		return NULL;
	}
	return (struct sockaddr *)s;
}

static inline void gv_from_sockaddr(const struct sockaddr *s, struct gv_addr *a)
{
	const struct sockaddr_in *in = (const struct sockaddr_in *)s;
	const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)s;

	memset(a, 0, sizeof(*a));
	if (!s)
		return;
	switch (s->sa_family) {
	case AF_INET:
		a->family = AF_INET;
		a->port = ntohs(in->sin_port);
		memcpy(a->ip, &in->sin_addr, 4);
		break;
	case AF_INET6:
		a->family = AF_INET6;
		a->port = ntohs(in6->sin6_port);
		a->scope = in6->sin6_scope_id;
		memcpy(a->ip, &in6->sin6_addr, 16);
		break;
	}
}

/* What an id is bound to. verbs is NULL while it has no device. */
struct gv_info {
	struct ibv_context *verbs;
	uint8_t port;
	struct gv_addr local, peer;
};

static inline void gv_id_info(struct rdma_cm_id *id, struct gv_info *info)
{
	info->verbs = id->verbs;
	info->port = id->port_num;
	gv_from_sockaddr(rdma_get_local_addr(id), &info->local);
	gv_from_sockaddr(rdma_get_peer_addr(id), &info->peer);
}

static inline struct rdma_event_channel *gv_create_event_channel(void)
{
	errno = 0;
	return rdma_create_event_channel();
}

static inline struct ibv_context **gv_get_devices(int *n)
{
	errno = 0;
	return rdma_get_devices(n);
}

static inline int gv_create_id(struct rdma_event_channel *ch, int ps, struct rdma_cm_id **id)
{
	return GV_CM_RC(rdma_create_id(ch, id, NULL, ps));
}

static inline int gv_destroy_id(struct rdma_cm_id *id) { return GV_CM_RC(rdma_destroy_id(id)); }

static inline int gv_migrate_id(struct rdma_cm_id *id, struct rdma_event_channel *ch)
{
	return GV_CM_RC(rdma_migrate_id(id, ch));
}

static inline int gv_bind_addr(struct rdma_cm_id *id, const struct gv_addr *addr, struct gv_info *info)
{
	struct sockaddr_storage s;
	int rc = GV_CM_RC(rdma_bind_addr(id, gv_to_sockaddr(addr, &s)));

	gv_id_info(id, info);
	return rc;
}

static inline int gv_resolve_addr(struct rdma_cm_id *id, const struct gv_addr *src, const struct gv_addr *dst,
				  int timeout_ms)
{
	struct sockaddr_storage s, d;

	return GV_CM_RC(rdma_resolve_addr(id, gv_to_sockaddr(src, &s), gv_to_sockaddr(dst, &d), timeout_ms));
}

static inline int gv_resolve_route(struct rdma_cm_id *id, int timeout_ms)
{
	return GV_CM_RC(rdma_resolve_route(id, timeout_ms));
}

static inline int gv_listen(struct rdma_cm_id *id, int backlog, struct gv_info *info)
{
	int rc = GV_CM_RC(rdma_listen(id, backlog));

	gv_id_info(id, info);
	return rc;
}

/* The fields of rdma_conn_param, the private data apart. */
struct gv_conn_param {
	uint8_t responder_resources, initiator_depth, flow_control, retry_count, rnr_retry_count, srq;
	uint32_t qp_num;
};

static inline struct rdma_conn_param gv_param(const struct gv_conn_param *p, const void *data, uint8_t len)
{
	struct rdma_conn_param c = {
		.private_data = len ? data : NULL,
		.private_data_len = len,
		.responder_resources = p->responder_resources,
		.initiator_depth = p->initiator_depth,
		.flow_control = p->flow_control,
		.retry_count = p->retry_count,
		.rnr_retry_count = p->rnr_retry_count,
		.srq = p->srq,
		.qp_num = p->qp_num,
	};

	return c;
}

static inline int gv_connect(struct rdma_cm_id *id, const struct gv_conn_param *p, const void *data, uint8_t len)
{
	struct rdma_conn_param c = gv_param(p, data, len);

	return GV_CM_RC(rdma_connect(id, &c));
}

static inline int gv_accept(struct rdma_cm_id *id, const struct gv_conn_param *p, const void *data, uint8_t len)
{
	struct rdma_conn_param c = gv_param(p, data, len);

	return GV_CM_RC(rdma_accept(id, &c));
}

static inline int gv_reject(struct rdma_cm_id *id, int ece, const void *data, uint8_t len)
{
	return ece ? GV_CM_RC(rdma_reject_ece(id, data, len)) : GV_CM_RC(rdma_reject(id, data, len));
}

static inline int gv_establish(struct rdma_cm_id *id) { return GV_CM_RC(rdma_establish(id)); }
static inline int gv_disconnect(struct rdma_cm_id *id) { return GV_CM_RC(rdma_disconnect(id)); }
static inline int gv_notify(struct rdma_cm_id *id, int event) { return GV_CM_RC(rdma_notify(id, event)); }

static inline int gv_init_qp_attr(struct rdma_cm_id *id, int state, struct ibv_qp_attr *attr, int *mask)
{
	memset(attr, 0, sizeof(*attr));
	attr->qp_state = state;
	return GV_CM_RC(rdma_init_qp_attr(id, attr, mask));
}

static inline int gv_set_option(struct rdma_cm_id *id, int level, int name, const void *value, size_t len)
{
	return GV_CM_RC(rdma_set_option(id, level, name, (void *)value, len));
}

static inline int gv_set_local_ece(struct rdma_cm_id *id, uint32_t vendor, uint32_t options)
{
	struct ibv_ece ece = { .vendor_id = vendor, .options = options };

	return GV_CM_RC(rdma_set_local_ece(id, &ece));
}

static inline int gv_join_multicast(struct rdma_cm_id *id, const struct gv_addr *group, uint32_t flags, uintptr_t cookie)
{
	struct sockaddr_storage s;
	struct rdma_cm_join_mc_attr_ex attr = {
		.comp_mask = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS,
		.join_flags = flags,
		.addr = gv_to_sockaddr(group, &s),
	};

	return GV_CM_RC(rdma_join_multicast_ex(id, &attr, (void *)cookie));
}

static inline int gv_leave_multicast(struct rdma_cm_id *id, const struct gv_addr *group)
{
	struct sockaddr_storage s;

	return GV_CM_RC(rdma_leave_multicast(id, gv_to_sockaddr(group, &s)));
}

/* An event, copied: its addresses are only numbers once it is acknowledged. */
struct gv_event {
	int type, status, is_ud;
	uintptr_t id, listener; /* listener is 0 but for connect requests */
	uintptr_t cookie;	/* of multicast events: what gv_join_multicast was given */
	struct gv_conn_param conn;
	struct ibv_ah_attr ah;
	uint32_t qp_num, qkey; /* of datagrams */
	struct ibv_ece ece;
	uint8_t data[256];
	uint8_t data_len;
	struct gv_info info;
};

/* Takes one event, copies it and acknowledges it. */
static inline int gv_take_event(struct rdma_event_channel *ch, struct gv_event *out)
{
	struct rdma_cm_event *e;
	const void *data;
	int multicast, rc = GV_CM_RC(rdma_get_cm_event(ch, &e));

	if (rc)
		return rc;
	memset(out, 0, sizeof(*out));
	out->type = e->event;
	/* Where librdmacm itself has failed over an event, its own result stands in the status. */
	out->status = e->status == -1 && errno ? -errno : e->status;
	out->id = (uintptr_t)e->id;
	if (e->event == RDMA_CM_EVENT_CONNECT_REQUEST)
		out->listener = (uintptr_t)e->listen_id;
	multicast = e->event == RDMA_CM_EVENT_MULTICAST_JOIN || e->event == RDMA_CM_EVENT_MULTICAST_ERROR;
	out->is_ud = multicast || e->id->qp_type == IBV_QPT_UD;
	if (out->is_ud) {
		out->ah = e->param.ud.ah_attr;
		out->qp_num = e->param.ud.qp_num;
		out->qkey = e->param.ud.qkey;
		data = e->param.ud.private_data;
		out->data_len = e->param.ud.private_data_len;
	} else {
		out->conn.responder_resources = e->param.conn.responder_resources;
		out->conn.initiator_depth = e->param.conn.initiator_depth;
		out->conn.flow_control = e->param.conn.flow_control;
		out->conn.retry_count = e->param.conn.retry_count;
		out->conn.rnr_retry_count = e->param.conn.rnr_retry_count;
		out->conn.srq = e->param.conn.srq;
		out->conn.qp_num = e->param.conn.qp_num;
		data = e->param.conn.private_data;
		out->data_len = e->param.conn.private_data_len;
	}
	if (multicast) {
		out->cookie = (uintptr_t)data;
		out->data_len = 0;
	} else if (data) {
		memcpy(out->data, data, out->data_len);
	} else {
		out->data_len = 0;
	}
	if (e->event == RDMA_CM_EVENT_CONNECT_REQUEST || e->event == RDMA_CM_EVENT_CONNECT_RESPONSE)
		(void)rdma_get_remote_ece(e->id, &out->ece);
	gv_id_info(e->id, &out->info);
	rdma_ack_cm_event(e);
	return 0;
}

/*
 * librdmacm never closes a device that it has opened, and the kernel does not let go of
 * one that was removed while it is open. This gives back the descriptors of one that no id
 * uses any more; closing them later closes what stands in their place.
 */
static inline int gv_abandon(uintptr_t context)
{
	struct ibv_context *verbs = (struct ibv_context *)context;
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);
	int rc = 0;

	if (null < 0)
		return errno;
	if (dup3(null, verbs->async_fd, O_CLOEXEC) < 0 || dup3(null, verbs->cmd_fd, O_CLOEXEC) < 0)
		rc = errno;
	close(null);
	return rc;
}

#endif
