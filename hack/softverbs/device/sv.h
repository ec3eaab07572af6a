/*
 * A verbs device in user space for the processes of one host. README.md says what it is for.
 *
 * All processes map one sparse file, the domain: a page of slots, and a window for each slot with
 * every object of the process in it. A QP number and the process that has it are one number, so
 * that nothing is looked up, and what a dead process leaves behind is one hole to be punched.
 *
 * Whoever posts a request carries it out, in the thread that posts: it copies between the two
 * processes, and writes the completions of both ends. Nobody works on behalf of an idle process.
 *
 * Order of locks: sq of a QP (in the process), rx of a QP (in the domain), an SRQ's, a CQ's.
 * At most one sq and one rx are held at a time.
 */
#ifndef SV_H
#define SV_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#define SV_EXPORT __attribute__((visibility("default")))
#define SV_LINE __attribute__((aligned(64)))

enum {
	SV_SLOTS = 128,
	SV_INDEX_BITS = 13, /* QPs, CQs: number = slot, turn (QPs: 4 bits), index */
	SV_TURN_BITS = 4,
	SV_SLOT_SHIFT = SV_INDEX_BITS + SV_TURN_BITS,
	SV_OBJECTS = 1 << SV_INDEX_BITS,
	SV_REGIONS = 1 << 16, /* a key: mark of the process, index, variant (8 bits) */
	SV_SGES = 30,
	SV_INLINE = 1024,
	SV_QUEUE = 1 << 15, /* requests of a queue */
	SV_CQES = 1 << 20,
	SV_READS = 16, /* outstanding RDMA reads and atomics */
	SV_DATAGRAM = 4096,
	SV_GRH = 40,
	SV_NAMES = 4, /* GIDs */
	SV_VECTORS = 2,
};
#define SV_MESSAGE (1u << 30)
#define SV_NO_NODE UINT32_MAX

/* ---- the domain ---- */

/* A lock has its holder's slot + 1, so that it can be taken from a dead one. */
typedef uint32_t sv_lock_t;

/* A pipe of some process: its number there, and its inode, by which a later one is told apart. */
struct sv_pipe {
	uint64_t inode; /* 0: none */
	int32_t fd;
	uint32_t slot;
};

struct sv_slot {
	uint32_t alive;
	int32_t pid;
	uint32_t births; /* processes that have had this slot */
	uint32_t node;   /* the number by which faults name it */
	uint32_t cut;    /* it reaches nobody, and nobody reaches it */
	uint32_t next_qp;
} SV_LINE;

struct sv_cqe {
	struct ibv_wc wc;
	uint32_t seq;    /* written last */
	uint32_t credit; /* of a send: how many of its queue are done */
	uint64_t due_ns; /* not to be seen before; 0: at once */
};

struct sv_cq_shared {
	sv_lock_t lock; /* of who adds */
	uint32_t added, room, mask, lost;
	uint64_t ring;
	struct sv_pipe channel, async;
	uint32_t number;
	uint32_t arm SV_LINE; /* SV_ARM_* */
	uint32_t taken SV_LINE;
};
enum { SV_ARM_NONE, SV_ARM_SOLICITED, SV_ARM_ANY };

struct sv_wqe {
	uint64_t wr_id;
	uint32_t seq, sges;
	struct ibv_sge sge[];
};

/* Receives, of a QP or of an SRQ. */
struct sv_rq {
	uint64_t ring;
	uint32_t room, mask, sges, stride;
	uint32_t taken, limit;
	uint32_t added SV_LINE;
};

struct sv_srq_shared {
	sv_lock_t lock;
	uint32_t number, pd;
	struct sv_pipe async;
	struct sv_rq rq;
};

struct sv_qp_shared {
	sv_lock_t rx; /* of who brings something in, and of who changes the state */
	uint32_t number; /* 0: none */
	uint32_t state, type, peer;
	uint32_t pd, access, qkey;
	uint32_t send_cq, recv_cq, srq; /* indices; srq 0: none */
	uint32_t rnr_timer;
	struct sv_pipe async;
	struct sv_rq rq;
	uint32_t credit SV_LINE; /* sends whose end the program has seen */
} SV_LINE;

struct sv_region {
	uint32_t key; /* 0: not valid */
	uint32_t pd, access;
	uint32_t window_of; /* the QP that may use a memory window */
	uint64_t iova, bytes, addr;
	uint64_t shared; /* where addr is in the domain; 0: nowhere */
} SV_LINE;

#define SV_HEAD (1ull << 20)
#define SV_WINDOW (2ull << 30)
#define SV_ARENA (32ull << 20) /* rings, in a window */
#define SV_FILE (SV_HEAD + SV_SLOTS * SV_WINDOW)

struct sv_head {
	uint64_t magic;
	uint32_t next_slot;
	uint64_t unreceived SV_LINE; /* messages that met no receive */
	sv_lock_t words[64] SV_LINE; /* of atomics, by address */
	struct sv_slot slot[SV_SLOTS];
};

struct sv_window {
	struct sv_qp_shared qp[SV_OBJECTS];
	struct sv_cq_shared cq[SV_OBJECTS];
	struct sv_srq_shared srq[SV_OBJECTS];
	struct sv_region region[SV_REGIONS];
};
_Static_assert(sizeof(struct sv_window) <= SV_ARENA, "the arena begins behind the tables");
_Static_assert(sizeof(struct sv_head) <= SV_HEAD, "the windows begin behind the head");

/* ---- this process ---- */

struct sv_process {
	struct sv_head *head;
	struct sv_window *own;
	int fd;
	uint32_t slot;
	uint32_t mark; /* upper bits of its keys */
	/* settings */
	bool infiniband, share;
	uint64_t wire_ns, memlock;
	int rnr_counter;
	uint64_t charged; /* bytes that count against the limit of locked memory */
	uint32_t waiting; /* QPs with requests that wait */
};
extern struct sv_process sv;

struct sv_context {
	struct verbs_context v;
	struct sv_pipe async;
	uint32_t users;
};

struct sv_pd {
	struct ibv_pd pd;
	uint32_t id, users;
};

struct sv_channel {
	struct ibv_comp_channel c;
	struct sv_pipe pipe;
};

struct sv_cq {
	struct ibv_cq_ex ex; /* begins as a struct ibv_cq */
	struct sv_cq_shared *x;
	struct sv_cqe *ring;
	uint32_t taken, lock;
	uint32_t events, async_events; /* handed out */
	uint32_t users;
	struct ibv_wc now; /* of the extended calls */
	struct sv_cq *next_alarm;
	uint64_t alarm_ns; /* 0: none */
};

struct sv_srq {
	struct ibv_srq srq;
	struct sv_srq_shared *x;
	uint32_t lock, async_events, users;
};

/* A request that waits, with copies of what it points at behind it. */
struct sv_waiting {
	struct sv_waiting *next;
	struct ibv_send_wr wr;
	uint32_t credit;
};

struct sv_qp {
	struct ibv_qp_ex ex; /* begins as a struct ibv_qp */
	struct sv_qp_shared *x;
	struct sv_qp *next; /* of all */
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;
	uint32_t rq_lock, async_events;
	uint32_t sq SV_LINE;
	uint32_t posted;
	struct sv_waiting *first, **last;
	uint32_t rnr_tries;
	uint64_t retry_ns, give_up_ns; /* give_up 0: no attempt yet */
	struct sv_qp *next_waiting;
	bool listed;
	struct sv_builder *builder; /* of ibv_wr_*; NULL: not asked for */
};

struct sv_mr {
	struct ibv_mr mr;
	struct sv_region *x;
	struct sv_pins *pins;
	uint64_t charged;
};

struct sv_mw {
	struct ibv_mw mw;
	struct sv_region *x;
};

struct sv_ah {
	struct ibv_ah ah;
	struct ibv_ah_attr attr;
};

/* ---- domain.c ---- */
int sv_attach(void);
uint64_t sv_now_ns(void);
void sv_lock(sv_lock_t *lock);
void sv_unlock(sv_lock_t *lock);
void sv_spin(uint32_t *lock); /* within the process */
void sv_unspin(uint32_t *lock);
bool sv_alive(uint32_t slot);
uint64_t sv_ring_new(uint64_t bytes); /* zeros; an offset in the domain, 0: no room */
void sv_ring_free(uint64_t at, uint64_t bytes);
int sv_pipe_new(struct sv_pipe *p, int *reader);
void sv_tell(const struct sv_pipe *p, uint64_t what);

static inline void *sv_at(uint64_t offset) { return (uint8_t *)sv.head + offset; }
static inline struct sv_window *sv_window(uint32_t slot) { return sv_at(SV_HEAD + slot * SV_WINDOW); }
static inline uint32_t sv_index(uint32_t number) { return number & (SV_OBJECTS - 1); }
static inline uint32_t sv_slot_of(uint32_t qpn) { return qpn >> SV_SLOT_SHIFT & (SV_SLOTS - 1); }
static inline struct sv_qp_shared *sv_qp_at(uint32_t qpn)
{
	return &sv_window(sv_slot_of(qpn))->qp[sv_index(qpn)];
}

/* ---- attendant.c: the thread that looks after what waits ---- */
void sv_watch(uint32_t slot); /* notice its death */
void sv_nudge(void);
void sv_alarm(struct sv_cq *q, uint64_t at_ns);
void sv_alarm_off(struct sv_cq *q);

/* ---- memory.c ---- */
struct sv_piece {
	uint64_t addr; /* of its process */
	uint64_t bytes;
	void *here; /* where this process has it; NULL: nowhere that is safe */
};
struct sv_pieces {
	struct sv_piece at[SV_SGES + 1];
	uint32_t n;
	uint64_t bytes;
};
struct ibv_mr *sv_reg_mr(struct ibv_pd *pd, void *addr, size_t bytes, uint64_t iova, unsigned int access);
struct ibv_mw *sv_alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type);
int sv_dealloc_mw(struct ibv_mw *mw);
int sv_bind(struct sv_qp *q, const struct ibv_send_wr *wr); /* a status; invalidates, too */
struct sv_region *sv_find(uint32_t slot, uint32_t key, uint32_t pd, uint64_t addr, uint64_t bytes);
bool sv_resolve(struct sv_pieces *out, uint32_t slot, uint32_t pd, const struct ibv_sge *sge, uint32_t n, unsigned int access);
int sv_copy(uint32_t to_slot, const struct sv_pieces *to, uint32_t from_slot, const struct sv_pieces *from);
struct sv_piece sv_piece_of(const struct sv_region *r, uint64_t addr, uint64_t bytes);
int sv_atomic(uint32_t slot, const struct sv_piece *word, const struct ibv_send_wr *wr, uint64_t *old);

/* ---- share.c ---- */
uint64_t sv_share(uint64_t lo, uint64_t bytes);

/* ---- pin.c ---- */
struct sv_pins {
	uint32_t n;
	uint32_t at[];
};
struct sv_pins *sv_pin(uint64_t addr, uint64_t bytes);
void sv_unpin(struct sv_pins *p);

/* ---- completion.c ---- */
void sv_complete(uint32_t slot, uint32_t cq, const struct ibv_wc *wc, uint32_t credit, bool solicited, uint64_t due_ns);
void sv_cq_lose(struct sv_cq_shared *x);
int sv_poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc);
int sv_req_notify_cq(struct ibv_cq *cq, int solicited_only);
void sv_cq_await(struct sv_cq *q); /* a moment, for what is soon due */
void sv_cq_extend(struct sv_cq *q);

/* ---- receive.c ---- */
struct sv_receive {
	uint64_t wr_id;
	uint32_t sges;
	struct ibv_sge sge[SV_SGES];
};
int sv_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
int sv_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
int sv_rq_new(struct sv_rq *r, uint32_t room, uint32_t sges);
void sv_rq_free(struct sv_rq *r);
void sv_rq_clear(struct sv_rq *r);
bool sv_rq_take(struct sv_qp_shared *x, uint32_t slot, struct sv_receive *out); /* under rx */
void sv_flush(struct sv_qp_shared *x, uint32_t slot, uint64_t wr_id);
void sv_fail(struct sv_qp_shared *x, uint32_t slot); /* under rx: into the error state */

/* ---- send.c ---- */
int sv_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);

/* ---- carry.c ---- */
enum { SV_NO_RECEIVE = 1000, SV_NO_ANSWER }; /* beside statuses: the request must wait */
int sv_carry(struct sv_qp *q, const struct ibv_send_wr *wr, uint32_t *bytes);

/* ---- wait.c: requests that wait ---- */
int sv_wait(struct sv_qp *q, const struct ibv_send_wr *wr, uint32_t credit, int why);
void sv_wait_drop(struct sv_qp *q); /* under sq */
void sv_wait_forget(struct sv_qp *q);
uint64_t sv_wait_retry(uint64_t now_ns); /* when to come back; UINT64_MAX: nothing waits */
void sv_finish(struct sv_qp *q, const struct ibv_send_wr *wr, uint32_t credit, int status, uint32_t bytes);
void sv_qp_error(struct sv_qp *q);

/* ---- builder.c ---- */
int sv_builder_new(struct sv_qp *q, uint64_t operations);
void sv_builder_free(struct sv_qp *q);

/* ---- objects.c: what an arriving number means ---- */
enum sv_kind { SV_KIND_QP, SV_KIND_CQ, SV_KIND_SRQ };
uint32_t sv_object_new(enum sv_kind kind, void *object); /* a number; 0: none is left. Gives a QP its x */
void *sv_object(enum sv_kind kind, uint32_t number);     /* under sv_objects */
void sv_object_free(enum sv_kind kind, uint32_t number);
void sv_each_qp(void (*f)(struct sv_qp *q));
extern pthread_mutex_t sv_objects;

/* ---- fault.c ---- */
extern bool sv_faulty; /* some fault is planted in this process */
void sv_fault_read(const char *plan);
int sv_fault_post(const struct sv_qp *q); /* an errno instead of the post */
bool sv_fault_overrun(void);              /* at this completion its CQ is lost */
uint64_t sv_due(uint32_t peer_slot); /* of what is completed now; 0: at once */

/* ---- port.c ---- */
bool sv_gid(uint32_t index, union ibv_gid *gid);
int sv_check_ah(const struct ibv_ah_attr *a);
int sv_query_port(struct ibv_context *c, uint8_t port, struct ibv_port_attr *a, size_t size);
int sv_query_device_ex(struct ibv_context *c, const struct ibv_query_device_ex_input *in, struct ibv_device_attr_ex *a, size_t size);
void sv_header(uint8_t grh[SV_GRH], const struct ibv_ah_attr *ah, uint64_t payload);

/* ---- context.c ---- */
const struct sv_pipe *sv_async(struct ibv_context *c);
bool sv_read_event(int fd, uint64_t *what);
void sv_await_acknowledged(pthread_mutex_t *m, pthread_cond_t *c, const uint32_t *completed, const uint32_t *events);

/* ---- qp.c, queues.c ---- */
struct ibv_qp *sv_create_qp_ex(struct ibv_context *c, struct ibv_qp_init_attr_ex *a);
struct ibv_cq_ex *sv_create_cq_ex(struct ibv_context *c, struct ibv_cq_init_attr_ex *a);

static inline void *sv_none(int err)
{
	errno = err;
	return NULL;
}

#endif
