/* C side of package verbs. Every function returns 0 or an errno, unless it says otherwise. */
#ifndef IBC_VERBS_H
#define IBC_VERBS_H

#include "ibc_library.h"

/* ---- control (ibc_control.c) ---- */

int ibc_query_port(struct ibv_context *ctx, uint8_t port, struct ibv_port_attr *out);
int ibc_query_device(struct ibv_context *ctx, struct ibv_device_attr_ex *out);
/* ENOSYS: the library cannot list GIDs, only query one by one. */
int ibc_query_gids(struct ibv_context *ctx, struct ibv_gid_entry *out, size_t cap, size_t *n);
struct ibv_mr *ibc_reg_mr(struct ibv_pd *pd, uintptr_t addr, size_t len, int access);
struct ibv_cq *ibc_create_cq(struct ibv_context *ctx, int entries, uint64_t id,
	struct ibv_comp_channel *ch, int vector);
int ibc_fork_init(void);   /* ENOSYS: the library has no such call */
int ibc_fork_status(void); /* enum ibv_fork_status; -1: the library has no such call */

/* Takes one asynchronous event, acknowledged already. EAGAIN: there is none. *overrun is the id of
 * the CQ that has lost completions, 0 where the event says something else. */
int ibc_get_async_event(struct ibv_context *ctx, uint64_t *overrun);

/* Takes up to cap completion events as ids of their CQs, acknowledged already. EAGAIN: there is
 * none. */
int ibc_get_cq_events(struct ibv_comp_channel *ch, uint64_t *ids, int cap, int *n);

/* ---- data path (ibc_datapath.c) ---- */

enum { IBC_MAX_BATCH = 32 };

enum ibc_queue { IBC_SEND, IBC_RECV, IBC_SRQ_RECV };

/* A sub-chain for one queue: first..last linked, last's own link is cut for the time of the
 * post. */
struct ibc_batch {
	void *queue; /* struct ibv_qp or struct ibv_srq */
	void *first, *last;
	uint32_t kind; /* enum ibc_queue */
	uint32_t count;
	void *bad; /* out: the request that was refused */
	int err;   /* out: 0 or an errno */
};

#define IBC_MAX_BUDGET_NS 1000000000000000u

/* Everything one call of ibc_ring_at reads and writes. It never moves, and has one owner. */
struct ibc_doorbell {
	/* set up once */
	struct ibv_cq *cq;
	struct ibv_wc *wc;
	uint32_t wc_cap;
	uint64_t ticks_per_us;

	/* in */
	uint32_t batches;
	uint32_t want; /* completions; 0: do not poll */
	uint64_t budget_ns; /* at most IBC_MAX_BUDGET_NS, so that ticks do not overflow */

	/* out */
	uint32_t posted; /* work requests of this call */
	uint32_t completed;
	uint32_t refused; /* sub-chains that were not posted to their ends */
	int32_t poll_errno;

	/* counters; one writer, read concurrently */
	uint64_t n_rings, n_completions;

	struct ibc_batch batch[IBC_MAX_BATCH];
};

void ibc_ring_at(uintptr_t doorbell); /* struct ibc_doorbell */

/* The processor's counter, which runs at a constant rate on all that have RDMA adapters. */
uint64_t ibc_ticks(void);

#endif
