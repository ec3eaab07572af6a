/* Making, changing and destroying queue pairs. */
#include "sv.h"

#include <stdlib.h>
#include <string.h>

static void count_users(struct sv_qp *q, uint32_t n)
{
	struct ibv_qp *b = &q->ex.qp_base;

	__atomic_add_fetch(&((struct sv_pd *)b->pd)->users, n, __ATOMIC_RELAXED);
	__atomic_add_fetch(&((struct sv_cq *)b->send_cq)->users, n, __ATOMIC_RELAXED);
	__atomic_add_fetch(&((struct sv_cq *)b->recv_cq)->users, n, __ATOMIC_RELAXED);
	if (b->srq)
		__atomic_add_fetch(&((struct sv_srq *)b->srq)->users, n, __ATOMIC_RELAXED);
}

static int check_init(struct ibv_qp_init_attr *a)
{
	const struct ibv_qp_cap *c = &a->cap;

	if (!a->send_cq || !a->recv_cq || c->max_send_wr > SV_QUEUE || c->max_send_sge > SV_SGES || c->max_inline_data > SV_INLINE)
		return EINVAL;
	if (!a->srq && (c->max_recv_wr > SV_QUEUE || c->max_recv_sge > SV_SGES))
		return EINVAL;
	return a->qp_type == IBV_QPT_RC || a->qp_type == IBV_QPT_UC || a->qp_type == IBV_QPT_UD ? 0 : EOPNOTSUPP;
}

static void release(struct sv_qp *q, uint32_t number)
{
	if (number) {
		sv_rq_free(&q->x->rq);
		sv_object_free(SV_KIND_QP, number);
	}
	sv_builder_free(q);
	free(q);
}

static struct ibv_qp *create(struct ibv_pd *pd, struct ibv_qp_init_attr *a, bool extended, uint64_t operations)
{
	int err = check_init(a);

	if (err)
		return sv_none(err);
	if (a->srq)
		a->cap.max_recv_wr = a->cap.max_recv_sge = 0;
	/* A device gives more than is asked for. */
	a->cap.max_send_wr |= a->cap.max_send_wr >> 1;
	for (int shift = 2; shift < 32; shift *= 2)
		a->cap.max_send_wr |= a->cap.max_send_wr >> shift;
	struct sv_qp *q = aligned_alloc(64, (sizeof *q + 63) & ~63ul);
	if (!q)
		return sv_none(ENOMEM);
	memset(q, 0, sizeof *q);
	q->init = *a;
	q->last = &q->first;
	uint32_t number = 0;
	if (extended)
		err = sv_builder_new(q, operations);
	if (!err && !(number = sv_object_new(SV_KIND_QP, q)))
		err = ENOMEM;
	if (err) {
		release(q, 0);
		return sv_none(err);
	}
	struct sv_qp_shared *x = q->x;
	memset(x, 0, sizeof *x);
	if (!a->srq && sv_rq_new(&x->rq, a->cap.max_recv_wr, a->cap.max_recv_sge)) {
		release(q, number);
		return sv_none(ENOMEM);
	}
	x->state = IBV_QPS_RESET;
	x->type = a->qp_type;
	x->pd = ((struct sv_pd *)pd)->id;
	x->send_cq = sv_index(((struct sv_cq *)a->send_cq)->ex.handle);
	x->recv_cq = sv_index(((struct sv_cq *)a->recv_cq)->ex.handle);
	x->srq = a->srq ? sv_index(a->srq->handle) : 0;
	x->async = *sv_async(pd->context);
	struct ibv_qp *b = &q->ex.qp_base;
	*b = (struct ibv_qp){ .context = pd->context, .qp_context = a->qp_context, .pd = pd, .send_cq = a->send_cq, .recv_cq = a->recv_cq, .srq = a->srq,
			      .handle = number, .qp_num = number, .state = IBV_QPS_RESET, .qp_type = a->qp_type };
	pthread_mutex_init(&b->mutex, NULL);
	pthread_cond_init(&b->cond, NULL);
	count_users(q, 1);
	__atomic_store_n(&x->number, number, __ATOMIC_RELEASE);
	return b;
}

SV_EXPORT struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *a)
{
	return create(pd, a, false, 0);
}

struct ibv_qp *sv_create_qp_ex(struct ibv_context *c, struct ibv_qp_init_attr_ex *a)
{
	const uint32_t known = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS | IBV_QP_INIT_ATTR_CREATE_FLAGS;

	(void)c;
	if (!(a->comp_mask & IBV_QP_INIT_ATTR_PD) || a->comp_mask & ~known || (a->comp_mask & IBV_QP_INIT_ATTR_CREATE_FLAGS && a->create_flags))
		return sv_none(EOPNOTSUPP);
	bool build = a->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	return create(a->pd, (struct ibv_qp_init_attr *)a, build, build ? a->send_ops_flags : 0);
}

/* ---- states ---- */

enum {
	RC = 1 << IBV_QPT_RC,
	UC = 1 << IBV_QPT_UC,
	UD = 1 << IBV_QPT_UD,
	PLACE = IBV_QP_PKEY_INDEX | IBV_QP_PORT,
	PATH = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN,
	LATER = IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE,
};

/* What each way needs and allows (IBTA 11.2.5.2, ibv_modify_qp(3)). RESET and ERR need nothing. */
static const struct {
	enum ibv_qp_state from, to;
	unsigned int types, needs, allows;
} ways[] = {
	{ IBV_QPS_RESET, IBV_QPS_INIT, RC | UC, PLACE | IBV_QP_ACCESS_FLAGS, 0 },
	{ IBV_QPS_RESET, IBV_QPS_INIT, UD, PLACE | IBV_QP_QKEY, 0 },
	{ IBV_QPS_INIT, IBV_QPS_INIT, RC | UC, 0, PLACE | IBV_QP_ACCESS_FLAGS },
	{ IBV_QPS_INIT, IBV_QPS_INIT, UD, 0, PLACE | IBV_QP_QKEY },
	{ IBV_QPS_INIT, IBV_QPS_RTR, RC, PATH | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER, IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX },
	{ IBV_QPS_INIT, IBV_QPS_RTR, UC, PATH, IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX },
	{ IBV_QPS_INIT, IBV_QPS_RTR, UD, 0, IBV_QP_PKEY_INDEX | IBV_QP_QKEY },
	{ IBV_QPS_RTR, IBV_QPS_RTS, RC, IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC, LATER | IBV_QP_MIN_RNR_TIMER },
	{ IBV_QPS_RTR, IBV_QPS_RTS, UC, IBV_QP_SQ_PSN, LATER },
	{ IBV_QPS_RTR, IBV_QPS_RTS, UD, IBV_QP_SQ_PSN, IBV_QP_CUR_STATE | IBV_QP_QKEY },
	{ IBV_QPS_RTS, IBV_QPS_RTS, RC, 0, LATER | IBV_QP_MIN_RNR_TIMER },
	{ IBV_QPS_RTS, IBV_QPS_RTS, UC, 0, LATER },
	{ IBV_QPS_RTS, IBV_QPS_RTS, UD, 0, IBV_QP_CUR_STATE | IBV_QP_QKEY },
};

static int check_way(uint32_t type, enum ibv_qp_state from, enum ibv_qp_state to, unsigned int mask)
{
	mask &= ~(unsigned int)IBV_QP_STATE;
	for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++)
		if (ways[i].from == from && ways[i].to == to && ways[i].types & 1u << type)
			return (mask & ways[i].needs) == ways[i].needs && !(mask & ~(ways[i].needs | ways[i].allows)) ? 0 : EINVAL;
	return EINVAL;
}

static int check_values(const struct ibv_qp_attr *a, unsigned int mask)
{
	const struct {
		unsigned int bit;
		bool bad;
	} checks[] = {
		{ IBV_QP_PORT, a->port_num != 1 },
		{ IBV_QP_PKEY_INDEX, a->pkey_index != 0 },
		{ IBV_QP_PATH_MTU, a->path_mtu < IBV_MTU_256 || a->path_mtu > IBV_MTU_4096 },
		{ IBV_QP_MAX_QP_RD_ATOMIC, a->max_rd_atomic > SV_READS },
		{ IBV_QP_MAX_DEST_RD_ATOMIC, a->max_dest_rd_atomic > SV_READS },
		{ IBV_QP_TIMEOUT, a->timeout > 31 },
		{ IBV_QP_RETRY_CNT, a->retry_cnt > 7 },
		{ IBV_QP_RNR_RETRY, a->rnr_retry > 7 },
		{ IBV_QP_MIN_RNR_TIMER, a->min_rnr_timer > 31 },
		{ IBV_QP_DEST_QPN, a->dest_qp_num >> 24 != 0 },
		{ IBV_QP_CAP | IBV_QP_RATE_LIMIT, true },
	};

	for (size_t i = 0; i < sizeof checks / sizeof checks[0]; i++)
		if (mask & checks[i].bit && checks[i].bad)
			return EINVAL;
	return mask & IBV_QP_AV ? sv_check_ah(&a->ah_attr) : 0;
}

static void take(struct sv_qp *q, const struct ibv_qp_attr *a, unsigned int mask)
{
	struct ibv_qp_attr *t = &q->attr;

#define TAKE(bit, field) \
	do { \
		if (mask & (bit)) \
			t->field = a->field; \
	} while (0)
	TAKE(IBV_QP_ACCESS_FLAGS, qp_access_flags);
	TAKE(IBV_QP_PKEY_INDEX, pkey_index);
	TAKE(IBV_QP_PORT, port_num);
	TAKE(IBV_QP_QKEY, qkey);
	TAKE(IBV_QP_AV, ah_attr);
	TAKE(IBV_QP_PATH_MTU, path_mtu);
	TAKE(IBV_QP_DEST_QPN, dest_qp_num);
	TAKE(IBV_QP_RQ_PSN, rq_psn);
	TAKE(IBV_QP_SQ_PSN, sq_psn);
	TAKE(IBV_QP_TIMEOUT, timeout);
	TAKE(IBV_QP_RETRY_CNT, retry_cnt);
	TAKE(IBV_QP_RNR_RETRY, rnr_retry);
	TAKE(IBV_QP_MIN_RNR_TIMER, min_rnr_timer);
	TAKE(IBV_QP_MAX_QP_RD_ATOMIC, max_rd_atomic);
	TAKE(IBV_QP_MAX_DEST_RD_ATOMIC, max_dest_rd_atomic);
#undef TAKE
	q->x->access = t->qp_access_flags;
	q->x->qkey = t->qkey;
	q->x->peer = t->dest_qp_num;
	q->x->rnr_timer = t->min_rnr_timer;
}

/* Forgets all that was posted, and all attributes. */
static void reset(struct sv_qp *q)
{
	sv_wait_drop(q);
	__atomic_store_n(&q->x->credit, q->posted, __ATOMIC_RELEASE);
	sv_spin(&q->rq_lock);
	sv_rq_clear(&q->x->rq);
	sv_unspin(&q->rq_lock);
	memset(&q->attr, 0, sizeof q->attr);
	take(q, &q->attr, 0);
}

SV_EXPORT int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *a, int attr_mask)
{
	struct sv_qp *q = (struct sv_qp *)qp;
	unsigned int mask = (unsigned int)attr_mask;
	enum ibv_qp_state from, to;
	int err = 0;

	if (mask & IBV_QP_STATE && a->qp_state == IBV_QPS_ERR) {
		sv_qp_error(q);
		qp->state = IBV_QPS_ERR;
		return 0;
	}
	sv_spin(&q->sq);
	from = q->x->state;
	to = mask & IBV_QP_STATE ? a->qp_state : from;
	if (to != IBV_QPS_RESET && !(err = check_way(q->x->type, from, to, mask)))
		err = check_values(a, mask);
	if (!err) {
		sv_lock(&q->x->rx);
		if (to == IBV_QPS_RESET)
			reset(q);
		else
			take(q, a, mask);
		__atomic_store_n(&q->x->state, to, __ATOMIC_SEQ_CST);
		sv_unlock(&q->x->rx);
		qp->state = to;
	}
	sv_unspin(&q->sq);
	if (!err && to == IBV_QPS_RTR && q->x->type != IBV_QPT_UD)
		sv_watch(sv_slot_of(q->x->peer));
	return err;
}

SV_EXPORT int ibv_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *a, int mask, struct ibv_qp_init_attr *init)
{
	struct sv_qp *q = (struct sv_qp *)qp;

	(void)mask;
	sv_spin(&q->sq);
	*a = q->attr;
	sv_unspin(&q->sq);
	a->qp_state = a->cur_qp_state = qp->state = __atomic_load_n(&q->x->state, __ATOMIC_ACQUIRE);
	a->path_mig_state = IBV_MIG_MIGRATED;
	a->cap = q->init.cap;
	*init = q->init;
	return 0;
}

SV_EXPORT int ibv_destroy_qp(struct ibv_qp *qp)
{
	struct sv_qp *q = (struct sv_qp *)qp;
	uint32_t number = qp->qp_num;

	sv_spin(&q->sq);
	sv_lock(&q->x->rx);
	__atomic_store_n(&q->x->number, 0, __ATOMIC_RELEASE);
	q->x->state = IBV_QPS_RESET;
	sv_unlock(&q->x->rx);
	sv_wait_drop(q);
	sv_unspin(&q->sq);
	sv_wait_forget(q);
	sv_object_free(SV_KIND_QP, number);
	sv_await_acknowledged(&qp->mutex, &qp->cond, &qp->events_completed, &q->async_events);
	sv_rq_free(&q->x->rq);
	count_users(q, (uint32_t)-1);
	sv_builder_free(q);
	free(q);
	return 0;
}

SV_EXPORT int ibv_query_qp_data_in_order(struct ibv_qp *qp, enum ibv_wr_opcode op, uint32_t flags)
{
	(void)qp, (void)op, (void)flags;
	return 0;
}

SV_EXPORT int ibv_query_ece(struct ibv_qp *qp, struct ibv_ece *e)
{
	(void)qp;
	*e = (struct ibv_ece){ 0 };
	return 0;
}

SV_EXPORT int ibv_set_ece(struct ibv_qp *qp, struct ibv_ece *e)
{
	(void)qp;
	return e->comp_mask ? EINVAL : e->vendor_id ? EOPNOTSUPP : 0;
}
