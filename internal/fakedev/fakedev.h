/*
 * The state of the fake devices, and what the Go side calls.
 *
 * A fake object holds the struct that libibverbs' callers see. Everything of one
 * device is under its mutex; the null provider alone takes no lock.
 */
#ifndef GOVERBS_FAKEDEV_H
#define GOVERBS_FAKEDEV_H

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <infiniband/verbs.h>

/* Each verb that can be made to fail, and how it tells an error. */
#define FD_VERBS(X)                    \
	X(open_device, FD_NULL)        \
	X(close_device, FD_ERRNO)      \
	X(query_device_ex, FD_ERRNO)   \
	X(query_port, FD_ERRNO)        \
	X(query_pkey, FD_MINUS_ONE)    \
	X(query_gid, FD_MINUS_ONE)     \
	X(query_gid_table, FD_NEGATIVE) \
	X(alloc_pd, FD_NULL)           \
	X(dealloc_pd, FD_ERRNO)        \
	X(reg_mr, FD_NULL)             \
	X(reg_dmabuf_mr, FD_NULL)      \
	X(rereg_mr, FD_REREG)          \
	X(advise_mr, FD_ERRNO)         \
	X(dereg_mr, FD_ERRNO)          \
	X(alloc_mw, FD_NULL)           \
	X(bind_mw, FD_ERRNO)           \
	X(dealloc_mw, FD_ERRNO)        \
	X(create_ah, FD_NULL)          \
	X(init_ah_from_wc, FD_MINUS_ONE) \
	X(destroy_ah, FD_ERRNO)        \
	X(create_comp_channel, FD_NULL) \
	X(destroy_comp_channel, FD_ERRNO) \
	X(create_cq, FD_NULL)          \
	X(resize_cq, FD_ERRNO)         \
	X(modify_cq, FD_ERRNO)         \
	X(poll_cq, FD_MINUS_ONE)       \
	X(req_notify_cq, FD_ERRNO)     \
	X(get_cq_event, FD_MINUS_ONE)  \
	X(destroy_cq, FD_ERRNO)        \
	X(create_srq, FD_NULL)         \
	X(modify_srq, FD_ERRNO)        \
	X(query_srq, FD_ERRNO)         \
	X(destroy_srq, FD_ERRNO)       \
	X(create_qp, FD_NULL)          \
	X(modify_qp, FD_ERRNO)         \
	X(query_qp, FD_ERRNO)          \
	X(destroy_qp, FD_ERRNO)        \
	X(get_async_event, FD_MINUS_ONE)

enum fd_convention { FD_NULL, FD_ERRNO, FD_MINUS_ONE, FD_NEGATIVE, FD_REREG };

enum fd_verb {
#define X(verb, convention) FD_##verb,
	FD_VERBS(X)
#undef X
	FD_NVERBS
};

/* In the order in which Go names them. */
enum fd_kind { FD_CTX, FD_PD, FD_MR, FD_MW, FD_AH, FD_CHANNEL, FD_CQ, FD_SRQ, FD_QP, FD_NKINDS };

enum fd_feature {
	FD_HAS_REREG = 1 << 0,
	FD_HAS_DMABUF = 1 << 1,
	FD_HAS_ADVISE = 1 << 2,
	FD_HAS_RESIZE_CQ = 1 << 3,
	FD_HAS_MW = 1 << 4,
	FD_HAS_MODERATION = 1 << 5,
};

#define FD_MAX_PORTS 4
#define FD_MAX_GIDS 32

struct fd_port {
	struct ibv_port_attr attr;
	struct ibv_gid_entry gids[FD_MAX_GIDS];
	int ngids;
};

struct fd_config {
	char name[IBV_SYSFS_NAME_MAX];
	int node_type, transport;
	struct ibv_device_attr_ex attr;
	struct fd_port ports[FD_MAX_PORTS]; /* attr.orig_attr.phys_port_cnt of them */
	int comp_vectors;
	uint32_t max_inline;
	unsigned int features;
	bool null;	     /* contexts have the null provider's data path */
	bool complete;	     /* sends complete at the post */
	bool keep;	     /* completions stay when their QP is destroyed or reset */
	bool round_up;	     /* grant powers of two */
	bool silent_overrun; /* a poll does not tell of an overrun */
};

struct fd_device;
struct fd_ctx;

/* What every object begins with. */
struct fd_obj {
	struct fd_obj *next;
	struct fd_ctx *ctx;
	uint32_t number;	    /* the QP number, or the handle */
	uint32_t users;		    /* children that are open */
	uint32_t reported, acked;   /* asynchronous events */
	enum fd_kind kind;
};

struct fd_event {
	struct fd_event *next;
	struct fd_obj *on; /* NULL for a port or the device */
	struct ibv_async_event async;
};

/* Events that wait for a reader. The eventfd counts them. */
struct fd_events {
	int fd;
	struct fd_event *first;
};

struct fd_ctx {
	struct fd_obj o;
	struct fd_device *dev;
	struct fd_events async;
	struct verbs_context v;
};

struct fd_pd {
	struct fd_obj o;
	struct ibv_pd ibv;
};

struct fd_mr {
	struct fd_obj o;
	struct ibv_mr ibv;
	uint64_t iova;
	unsigned int access;
	bool host; /* ibv.addr is memory of this process */
};

struct fd_mw {
	struct fd_obj o;
	struct ibv_mw ibv;
	struct fd_mr *bound;
	uint32_t key; /* with which it is bound; ibv.rkey may be ahead */
	int posting;  /* calls that post a bind of it, and are not over */
};

struct fd_ah {
	struct fd_obj o;
	struct ibv_ah ibv;
	struct ibv_ah_attr attr;
};

struct fd_channel {
	struct fd_obj o;
	struct ibv_comp_channel ibv;
	struct fd_events comp;
};

struct fd_cqe {
	struct fd_cqe *next;
	struct ibv_wc wc;
	uint64_t qp; /* the unique id of the QP, 0 for none */
};

struct fd_null_entry {
	uint64_t wr_id;
	uint32_t qp_num;
	uint32_t opcode;
};

/* One poster and one poller: each end writes its own index. */
struct fd_null_ring {
	struct fd_null_entry *entries;
	uint32_t mask;
	uint32_t head __attribute__((aligned(64)));
	uint32_t tail __attribute__((aligned(64)));
};

struct fd_cq {
	struct fd_obj o;
	struct ibv_cq ibv;
	struct fd_cqe *first;
	int queued;
	bool armed, solicited_only, overrun;
	uint16_t moderate_count, moderate_period;
	uint32_t comp_reported, comp_acked;
	struct fd_null_ring null;
};

struct fd_wr {
	struct fd_wr *next;
	struct ibv_send_wr wr; /* of a receive only what the two have in common */
	bool signaled;
	struct ibv_sge *sges;
	uint8_t *data; /* inline */
	size_t length;
};

enum fd_bad_wr { FD_BAD_NAMED, FD_BAD_UNTOUCHED, FD_BAD_OUTSIDE };
enum fd_taken { FD_TAKEN_BEFORE, FD_TAKEN_NONE, FD_TAKEN_ALL };

struct fd_refusal {
	uint32_t index; /* among the WRs posted from now on */
	int rc;
	int err; /* errno at the return, or -1 to leave it */
	enum fd_bad_wr bad;
	enum fd_taken taken;
};

struct fd_queue {
	struct fd_wr *first;
	uint32_t posted;
	uint32_t max_wr, max_sge, max_inline;
	bool send, refuses;
	struct fd_refusal refusal;
};

struct fd_srq {
	struct fd_obj o;
	struct ibv_srq ibv;
	uint32_t limit;
	struct fd_queue rq;
};

struct fd_qp {
	struct fd_obj o;
	struct ibv_qp ibv;
	uint64_t id; /* never used twice */
	enum ibv_qp_state state;
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	struct fd_queue sq, rq;
	struct fd_null_ring *null_send, *null_recv;
	bool signal_all;
};

struct fd_fault {
	int rc, err;
	int times; /* negative: until told otherwise */
};

struct fd_misuse {
	struct fd_misuse *next;
	char text[256];
};

struct fd_device {
	struct ibv_device ibv;
	struct fd_device *next;
	pthread_mutex_t mu;
	struct fd_config config;
	struct fd_fault faults[FD_NVERBS];
	struct fd_obj *objects[FD_NKINDS];
	int counts[FD_NKINDS];
	uint32_t handles;
	uint64_t qp_ids;
	bool unplugged;
	bool holds_sends;
	pthread_cond_t let_go;
	struct fd_misuse *misuse;
};

#define fd_of(ptr, type) ((struct type *)((char *)(ptr) - offsetof(struct type, ibv)))
#define fd_ctx_of(ctx) ((struct fd_ctx *)((char *)(ctx) - offsetof(struct fd_ctx, v.context)))
#define fd_dev_of(ctx) (fd_ctx_of(ctx)->dev)

/* The real library's function, for what belongs to another device. */
void *fd_next(const char *symbol);
#define FD_NEXT(name) ((__typeof__(&name))fd_next(#name))

bool fd_owns_device(const struct ibv_device *device);
static inline bool fd_owns(const struct ibv_context *ctx) { return fd_owns_device(ctx->device); }

/* Holds the device's mutex until the end of the block. */
static inline void fd_unlock(pthread_mutex_t **mu) { pthread_mutex_unlock(*mu); }
static inline pthread_mutex_t *fd_lock(pthread_mutex_t *mu)
{
	pthread_mutex_lock(mu);
	return mu;
}
#define FD_LOCKED(dev) \
	__attribute__((cleanup(fd_unlock), unused)) pthread_mutex_t *fd_held = fd_lock(&(dev)->mu)

/* All of the rest is called with the device's mutex held. */

/* Whether a fault was ordered; then errno is set and *rc is what to return. */
bool fd_fails(struct fd_device *d, enum fd_verb verb, int *rc);
/* A new object, or NULL with errno for a fault or a limit. */
void *fd_make(struct fd_ctx *ctx, struct fd_device *d, enum fd_verb verb, enum fd_kind kind, size_t size);
/* Whether an object may be destroyed: 0, or what to return. */
int fd_may_destroy(struct fd_obj *o, enum fd_verb verb);
/* Takes an object out and frees its memory, so that a later use shows. */
void fd_free(struct fd_obj *o);
void fd_free_all(struct fd_ctx *ctx);
struct fd_obj *fd_find(struct fd_device *d, enum fd_kind kind, uint32_t number);
void fd_misused(struct fd_device *d, const char *format, ...) __attribute__((format(printf, 2, 3)));

void fd_events_init(struct fd_events *e);
void fd_events_close(struct fd_events *e);
void fd_events_drop(struct fd_events *e, const struct fd_obj *on);
void fd_raise(struct fd_ctx *ctx, enum ibv_event_type type, struct fd_obj *on, int port);

void fd_queue_clear(struct fd_queue *q);
void fd_wr_drop(struct fd_queue *q, struct fd_wr **at);
/* A WR was queued; qp is NULL for an SRQ. */
void fd_posted_wr(struct fd_queue *q, struct fd_qp *qp);
void fd_cq_push(struct fd_cq *cq, const struct ibv_wc *wc, uint64_t qp, bool solicited);
void fd_cq_clear(struct fd_cq *cq);
void fd_cq_purge(struct fd_cq *cq, uint64_t qp);
void fd_notify(struct fd_cq *cq);
void fd_flush(struct fd_qp *qp);
/* Whether a posted WR of the device needs the object, which is then misuse. */
void fd_check_unused(struct fd_device *d, const struct fd_obj *o);
/* Binds a window to a region, or to none. */
void fd_bind(struct fd_mw *mw, struct fd_mr *mr);
struct fd_mr *fd_mr_by_lkey(struct fd_device *d, uint32_t lkey);

/* The functions of a new context that callers reach through it. */
void fd_set_ops(struct fd_ctx *ctx);
void fd_set_object_ops(struct fd_ctx *ctx);
void fd_set_cq_ops(struct ibv_context_ops *ops);
int fd_modify_cq(struct ibv_cq *cq, struct ibv_modify_cq_attr *attr);
void fd_set_null_ops(struct ibv_context_ops *ops);
uint32_t fd_wc_opcode(uint32_t wr_opcode);
int fd_null_init(struct fd_null_ring *r, uint32_t entries);

/* For the Go side, which holds no lock. */

struct fd_completion {
	struct ibv_wc wc;
	uint32_t index; /* among the WRs that are posted */
	bool has_wr_id, has_opcode, has_byte_len, solicited;
};

/* A posted WR without its unions. */
struct fd_view {
	uint64_t wr_id;
	uint32_t opcode, flags, imm, inv_rkey;
	bool signaled;
	uint64_t remote_addr, compare_add, swap;
	uint32_t rkey;
	uint32_t ah, remote_qpn, remote_qkey;
	uint32_t mw_handle, mw_rkey, mw_lkey;
	uint64_t mw_addr, mw_length;
	uint32_t mw_access;
	struct ibv_sge *sges; /* to be freed by the caller, as data */
	int nsge;
	uint8_t *data;
	size_t length;
};

struct fd_device *fd_add(const struct fd_config *config);
void fd_remove(struct fd_device *d);
void fd_counts(struct fd_device *d, int counts[FD_NKINDS]);
struct fd_misuse *fd_take_misuse(struct fd_device *d);
int fd_set_fault(struct fd_device *d, const char *verb, int err, int times);
int fd_set_raw_fault(struct fd_device *d, const char *verb, int rc, int err, int times);
const char *fd_unused_fault(struct fd_device *d);
void fd_unplug(struct fd_device *d);
void fd_set_complete(struct fd_device *d, bool complete);
void fd_hold_sends(struct fd_device *d, bool hold);
int fd_set_port(struct fd_device *d, int port, int state);

/* A queue is its kind and number: FD_QP with send or not, or FD_SRQ. */
struct fd_name {
	enum fd_kind kind;
	uint32_t number;
	bool send;
};

int fd_numbers(struct fd_device *d, enum fd_kind kind, uint32_t *numbers, int max);
struct fd_qp_info {
	int state;
	uint32_t send_cq, recv_cq, srq; /* their numbers; srq 0 for none */
};

int fd_qp_info(struct fd_device *d, uint32_t qpn, struct fd_qp_info *info);
int fd_set_qp_state(struct fd_device *d, uint32_t qpn, int state);
int fd_flush_qp(struct fd_device *d, uint32_t qpn);
int fd_posted(struct fd_device *d, struct fd_name q);
int fd_view(struct fd_device *d, struct fd_name q, uint32_t index, struct fd_view *v);
int fd_refuse(struct fd_device *d, struct fd_name q, const struct fd_refusal *r);
bool fd_refuses(struct fd_device *d, struct fd_name q);
int fd_complete(struct fd_device *d, struct fd_name q, const struct fd_completion *c, const void *payload, size_t length);
/* Copies the bytes of a posted WR's SGEs, from byte off on, in or out. */
int fd_copy(struct fd_device *d, struct fd_name q, uint32_t index, size_t off, void *bytes, size_t length, bool write);
int fd_push(struct fd_device *d, uint32_t cq, const struct ibv_wc *wc);
int fd_queued(struct fd_device *d, uint32_t cq);
int fd_break_cq(struct fd_device *d, uint32_t cq);
int fd_notify_cq(struct fd_device *d, uint32_t cq);
int fd_moderation(struct fd_device *d, uint32_t cq, uint16_t *count, uint16_t *period);
int fd_raise_event(struct fd_device *d, int type, uint32_t number);

#endif
