/* Making and destroying completion channels, CQs and SRQs. */
#include "sv.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

SV_EXPORT struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *c)
{
	struct sv_channel *ch = calloc(1, sizeof *ch);
	int err = ch ? sv_pipe_new(&ch->pipe, &ch->c.fd) : ENOMEM;

	if (err) {
		free(ch);
		return sv_none(err);
	}
	ch->c.context = c;
	return &ch->c;
}

SV_EXPORT int ibv_destroy_comp_channel(struct ibv_comp_channel *c)
{
	struct sv_channel *ch = (struct sv_channel *)c;

	if (__atomic_load_n(&c->refcnt, __ATOMIC_RELAXED))
		return EBUSY;
	close(c->fd);
	close(ch->pipe.fd);
	free(ch);
	return 0;
}

SV_EXPORT int ibv_get_cq_event(struct ibv_comp_channel *c, struct ibv_cq **cq, void **context)
{
	uint64_t what;

	while (sv_read_event(c->fd, &what)) {
		pthread_mutex_lock(&sv_objects);
		struct sv_cq *q = sv_object(SV_KIND_CQ, (uint32_t)what);
		if (q)
			q->events++;
		pthread_mutex_unlock(&sv_objects);
		if (!q)
			continue;
		sv_cq_await(q);
		*cq = (struct ibv_cq *)&q->ex;
		*context = q->ex.cq_context;
		return 0;
	}
	return -1;
}

static uint32_t power_of_two(uint32_t n)
{
	uint32_t p = 1;

	while (p < n)
		p <<= 1;
	return p;
}

static uint64_t ring_bytes(uint32_t mask)
{
	return ((uint64_t)mask + 1) * sizeof(struct sv_cqe);
}

static struct sv_cq *create_cq(struct ibv_context *c, int entries, void *context, struct ibv_comp_channel *ch, int vector)
{
	if (entries < 1 || entries > SV_CQES || vector < 0 || vector >= SV_VECTORS)
		return sv_none(EINVAL);
	struct sv_cq *q = aligned_alloc(64, (sizeof *q + 63) & ~63ul);
	if (!q)
		return sv_none(ENOMEM);
	memset(q, 0, sizeof *q);
	uint32_t mask = power_of_two((uint32_t)entries) - 1, number = 0;
	uint64_t ring = sv_ring_new(ring_bytes(mask));
	if (!ring) {
		free(q);
		return sv_none(ENOMEM);
	}
	q->ex.context = c;
	q->ex.channel = ch;
	q->ex.cq_context = context;
	q->ex.cqe = entries;
	q->ring = sv_at(ring);
	pthread_mutex_init(&q->ex.mutex, NULL);
	pthread_cond_init(&q->ex.cond, NULL);
	sv_cq_extend(q);
	if (!(number = sv_object_new(SV_KIND_CQ, q))) {
		sv_ring_free(ring, ring_bytes(mask));
		free(q);
		return sv_none(ENOMEM);
	}
	q->x = &sv.own->cq[sv_index(number)];
	*q->x = (struct sv_cq_shared){ .room = (uint32_t)entries, .mask = mask, .ring = ring, .async = *sv_async(c), .number = number };
	if (ch) {
		q->x->channel = ((struct sv_channel *)ch)->pipe;
		__atomic_add_fetch(&ch->refcnt, 1, __ATOMIC_RELAXED);
	}
	q->ex.handle = number;
	return q;
}

SV_EXPORT struct ibv_cq *ibv_create_cq(struct ibv_context *c, int entries, void *context, struct ibv_comp_channel *ch, int vector)
{
	return (struct ibv_cq *)create_cq(c, entries, context, ch, vector);
}

struct ibv_cq_ex *sv_create_cq_ex(struct ibv_context *c, struct ibv_cq_init_attr_ex *a)
{
	if (a->wc_flags & ~(uint64_t)IBV_WC_STANDARD_FLAGS || a->comp_mask & ~(uint32_t)IBV_CQ_INIT_ATTR_MASK_FLAGS)
		return sv_none(EOPNOTSUPP);
	return (struct ibv_cq_ex *)create_cq(c, (int)a->cqe, a->cq_context, a->channel, (int)a->comp_vector);
}

/* Moves what is in it. Sequence numbers stay, so only the place of each entry changes. */
SV_EXPORT int ibv_resize_cq(struct ibv_cq *cq, int entries)
{
	struct sv_cq *q = (struct sv_cq *)cq;
	struct sv_cq_shared *x = q->x;

	if (entries < 1 || entries > SV_CQES)
		return EINVAL;
	uint32_t mask = power_of_two((uint32_t)entries) - 1, old_mask = x->mask;
	uint64_t ring = sv_ring_new(ring_bytes(mask)), old = x->ring;
	if (!ring)
		return ENOMEM;
	struct sv_cqe *to = sv_at(ring);
	sv_spin(&q->lock);
	sv_lock(&x->lock);
	bool fits = x->added - q->taken <= (uint32_t)entries;
	if (fits) {
		for (uint32_t i = q->taken; i != x->added; i++)
			to[i & mask] = q->ring[i & old_mask];
		x->ring = ring;
		x->mask = mask;
		x->room = (uint32_t)entries;
		q->ring = to;
		cq->cqe = entries;
	}
	sv_unlock(&x->lock);
	sv_unspin(&q->lock);
	sv_ring_free(fits ? old : ring, ring_bytes(fits ? old_mask : mask));
	return fits ? 0 : EINVAL;
}

SV_EXPORT int ibv_destroy_cq(struct ibv_cq *cq)
{
	struct sv_cq *q = (struct sv_cq *)cq;

	if (__atomic_load_n(&q->users, __ATOMIC_RELAXED))
		return EBUSY;
	q->x->arm = SV_ARM_NONE;
	sv_alarm_off(q);
	sv_object_free(SV_KIND_CQ, q->ex.handle);
	sv_await_acknowledged(&q->ex.mutex, &q->ex.cond, &q->ex.comp_events_completed, &q->events);
	sv_await_acknowledged(&q->ex.mutex, &q->ex.cond, &q->ex.async_events_completed, &q->async_events);
	if (q->ex.channel)
		__atomic_sub_fetch(&q->ex.channel->refcnt, 1, __ATOMIC_RELAXED);
	sv_ring_free(q->x->ring, ring_bytes(q->x->mask));
	free(q);
	return 0;
}

/* ---- SRQs ---- */

SV_EXPORT struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *a)
{
	uint32_t room = a->attr.max_wr, sges = a->attr.max_sge, number;

	if (!room || room > SV_QUEUE || sges > SV_SGES)
		return sv_none(EINVAL);
	struct sv_srq *s = calloc(1, sizeof *s);
	if (!s)
		return sv_none(ENOMEM);
	if (!(number = sv_object_new(SV_KIND_SRQ, s))) {
		free(s);
		return sv_none(ENOMEM);
	}
	s->x = &sv.own->srq[sv_index(number)];
	memset(s->x, 0, sizeof *s->x);
	if (sv_rq_new(&s->x->rq, room, sges)) {
		sv_object_free(SV_KIND_SRQ, number);
		free(s);
		return sv_none(ENOMEM);
	}
	s->x->number = number;
	s->x->pd = ((struct sv_pd *)pd)->id;
	s->x->async = *sv_async(pd->context);
	s->srq = (struct ibv_srq){ .context = pd->context, .srq_context = a->srq_context, .pd = pd, .handle = number };
	pthread_mutex_init(&s->srq.mutex, NULL);
	pthread_cond_init(&s->srq.cond, NULL);
	__atomic_add_fetch(&((struct sv_pd *)pd)->users, 1, __ATOMIC_RELAXED);
	return &s->srq;
}

SV_EXPORT int ibv_modify_srq(struct ibv_srq *srq, struct ibv_srq_attr *a, int mask)
{
	struct sv_srq_shared *x = ((struct sv_srq *)srq)->x;

	if (mask & ~IBV_SRQ_LIMIT)
		return EOPNOTSUPP;
	if (a->srq_limit > x->rq.room)
		return EINVAL;
	sv_lock(&x->lock);
	x->rq.limit = a->srq_limit;
	sv_unlock(&x->lock);
	return 0;
}

SV_EXPORT int ibv_query_srq(struct ibv_srq *srq, struct ibv_srq_attr *a)
{
	struct sv_rq *r = &((struct sv_srq *)srq)->x->rq;

	*a = (struct ibv_srq_attr){ .max_wr = r->room, .max_sge = r->sges, .srq_limit = r->limit };
	return 0;
}

SV_EXPORT int ibv_destroy_srq(struct ibv_srq *srq)
{
	struct sv_srq *s = (struct sv_srq *)srq;

	if (__atomic_load_n(&s->users, __ATOMIC_RELAXED))
		return EBUSY;
	sv_object_free(SV_KIND_SRQ, srq->handle);
	sv_await_acknowledged(&srq->mutex, &srq->cond, &srq->events_completed, &s->async_events);
	sv_rq_free(&s->x->rq);
	__atomic_sub_fetch(&((struct sv_pd *)srq->pd)->users, 1, __ATOMIC_RELAXED);
	free(s);
	return 0;
}
