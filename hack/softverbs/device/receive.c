/* Receive queues, of a QP or shared, and what becomes of a QP that fails. */
#include "sv.h"

#include <errno.h>
#include <string.h>

static struct sv_wqe *wqe(const struct sv_rq *r, uint32_t i)
{
	return sv_at(r->ring + (uint64_t)(i & r->mask) * r->stride);
}

static uint32_t power_of_two(uint32_t n)
{
	uint32_t p = 1;

	while (p < n)
		p <<= 1;
	return p;
}

int sv_rq_new(struct sv_rq *r, uint32_t room, uint32_t sges)
{
	uint32_t n = power_of_two(room);

	*r = (struct sv_rq){ .room = room, .mask = n - 1, .sges = sges };
	r->stride = (uint32_t)(sizeof(struct sv_wqe) + sges * sizeof(struct ibv_sge));
	r->ring = sv_ring_new((uint64_t)n * r->stride);
	return r->ring ? 0 : ENOMEM;
}

void sv_rq_free(struct sv_rq *r)
{
	if (r->ring)
		sv_ring_free(r->ring, ((uint64_t)r->mask + 1) * r->stride);
	r->ring = 0;
}

/* Sequence numbers go on: what is in the ring is old then. */
void sv_rq_clear(struct sv_rq *r)
{
	r->taken = r->added;
}

static int add(struct sv_rq *r, const struct ibv_recv_wr *wr)
{
	if (wr->num_sge < 0 || (uint32_t)wr->num_sge > r->sges)
		return EINVAL;
	if (r->added - __atomic_load_n(&r->taken, __ATOMIC_ACQUIRE) >= r->room)
		return ENOMEM;
	struct sv_wqe *w = wqe(r, r->added);
	w->wr_id = wr->wr_id;
	w->sges = (uint32_t)wr->num_sge;
	if (w->sges)
		memcpy(w->sge, wr->sg_list, w->sges * sizeof *w->sge);
	__atomic_store_n(&w->seq, r->added + 1, __ATOMIC_RELEASE);
	__atomic_store_n(&r->added, r->added + 1, __ATOMIC_RELEASE);
	return 0;
}

static bool take(struct sv_rq *r, struct sv_receive *out)
{
	if (!r->ring)
		return false;
	struct sv_wqe *w = wqe(r, r->taken);
	if (__atomic_load_n(&w->seq, __ATOMIC_ACQUIRE) != r->taken + 1)
		return false;
	out->wr_id = w->wr_id;
	out->sges = w->sges;
	memcpy(out->sge, w->sge, w->sges * sizeof *w->sge);
	__atomic_store_n(&r->taken, r->taken + 1, __ATOMIC_RELEASE);
	return true;
}

bool sv_rq_take(struct sv_qp_shared *x, uint32_t slot, struct sv_receive *out)
{
	if (!x->srq)
		return take(&x->rq, out);
	struct sv_srq_shared *s = &sv_window(slot)->srq[x->srq];
	sv_lock(&s->lock);
	bool got = take(&s->rq, out);
	if (got && s->rq.limit && __atomic_load_n(&s->rq.added, __ATOMIC_ACQUIRE) - s->rq.taken < s->rq.limit) {
		s->rq.limit = 0; /* once, until it is set again */
		sv_tell(&s->async, (uint64_t)IBV_EVENT_SRQ_LIMIT_REACHED << 32 | s->number);
	}
	sv_unlock(&s->lock);
	return got;
}

void sv_flush(struct sv_qp_shared *x, uint32_t slot, uint64_t wr_id)
{
	struct ibv_wc wc = { .wr_id = wr_id, .status = IBV_WC_WR_FLUSH_ERR, .opcode = IBV_WC_RECV, .qp_num = x->number };

	sv_complete(slot, x->recv_cq, &wc, 0, false, 0);
}

static void flush_all(struct sv_qp_shared *x, uint32_t slot)
{
	struct sv_receive r;

	while (!x->srq && take(&x->rq, &r))
		sv_flush(x, slot, r.wr_id);
}

void sv_fail(struct sv_qp_shared *x, uint32_t slot)
{
	if (__atomic_exchange_n(&x->state, IBV_QPS_ERR, __ATOMIC_SEQ_CST) == IBV_QPS_ERR)
		return;
	flush_all(x, slot);
	if (x->srq)
		sv_tell(&x->async, (uint64_t)IBV_EVENT_QP_LAST_WQE_REACHED << 32 | x->number);
}

int sv_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	struct sv_qp *q = (struct sv_qp *)qp;
	struct sv_qp_shared *x = q->x;
	int err = x->srq || __atomic_load_n(&x->state, __ATOMIC_ACQUIRE) == IBV_QPS_RESET ? EINVAL : 0;

	sv_spin(&q->rq_lock);
	while (wr && !err && !(err = add(&x->rq, wr)))
		wr = wr->next;
	sv_unspin(&q->rq_lock);
	/* Who brings the QP into error flushes what is there, and this looks after that. */
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	if (__atomic_load_n(&x->state, __ATOMIC_RELAXED) == IBV_QPS_ERR) {
		sv_lock(&x->rx);
		flush_all(x, sv.slot);
		sv_unlock(&x->rx);
	}
	if (err)
		*bad = wr;
	return err;
}

int sv_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	struct sv_srq *s = (struct sv_srq *)srq;
	int err = 0;

	sv_spin(&s->lock);
	while (wr && !(err = add(&s->x->rq, wr)))
		wr = wr->next;
	sv_unspin(&s->lock);
	if (err)
		*bad = wr;
	return err;
}
