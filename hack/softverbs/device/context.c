/* Open devices and their events, protection domains, address handles. */
#include "sv.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#undef ibv_reg_mr
#undef ibv_reg_mr_iova

static struct sv_context *context_of(struct ibv_context *c)
{
	return (struct sv_context *)((uint8_t *)c - offsetof(struct verbs_context, context));
}

SV_EXPORT struct ibv_context *ibv_open_device(struct ibv_device *d)
{
	int err = sv_attach();
	struct sv_context *x = err ? NULL : calloc(1, sizeof *x);
	struct ibv_context *c = x ? &x->v.context : NULL;

	if (!err)
		err = x ? sv_pipe_new(&x->async, &c->async_fd) : ENOMEM;
	if (err) {
		free(x);
		return sv_none(err);
	}
	c->device = d;
	c->cmd_fd = -1;
	c->num_comp_vectors = SV_VECTORS;
	c->abi_compat = __VERBS_ABI_IS_EXTENDED;
	pthread_mutex_init(&c->mutex, NULL);
	c->ops.post_send = sv_post_send;
	c->ops.post_recv = sv_post_recv;
	c->ops.post_srq_recv = sv_post_srq_recv;
	c->ops.poll_cq = sv_poll_cq;
	c->ops.req_notify_cq = sv_req_notify_cq;
	c->ops.alloc_mw = sv_alloc_mw;
	c->ops.dealloc_mw = sv_dealloc_mw;
	x->v.sz = sizeof x->v;
	x->v.query_port = sv_query_port;
	x->v.query_device_ex = sv_query_device_ex;
	x->v.create_qp_ex = sv_create_qp_ex;
	x->v.create_cq_ex = sv_create_cq_ex;
	return c;
}

SV_EXPORT int ibv_close_device(struct ibv_context *c)
{
	struct sv_context *x = context_of(c);

	close(c->async_fd);
	close(x->async.fd);
	free(x);
	return 0;
}

const struct sv_pipe *sv_async(struct ibv_context *c)
{
	return &context_of(c)->async;
}

/* ---- events ---- */

/* Reads a number. What was blocking for the program is so here. */
bool sv_read_event(int fd, uint64_t *what)
{
	ssize_t n = read(fd, what, sizeof *what);

	if (n >= 0 && n != sizeof *what)
		errno = EIO;
	return n == sizeof *what;
}

/* The object of an event, which then counts as handed out; NULL: it is destroyed. */
static void *element(struct ibv_async_event *e, uint32_t number)
{
	struct sv_cq *cq;
	struct sv_srq *srq;
	struct sv_qp *qp;

	switch (e->event_type) {
	case IBV_EVENT_CQ_ERR:
		if ((cq = sv_object(SV_KIND_CQ, number))) {
			e->element.cq = (struct ibv_cq *)&cq->ex;
			cq->async_events++;
		}
		return cq;
	case IBV_EVENT_SRQ_ERR:
	case IBV_EVENT_SRQ_LIMIT_REACHED:
		if ((srq = sv_object(SV_KIND_SRQ, number))) {
			e->element.srq = &srq->srq;
			srq->async_events++;
		}
		return srq;
	default:
		if ((qp = sv_object(SV_KIND_QP, number))) {
			e->element.qp = &qp->ex.qp_base;
			qp->async_events++;
		}
		return qp;
	}
}

SV_EXPORT int ibv_get_async_event(struct ibv_context *c, struct ibv_async_event *e)
{
	uint64_t what;

	while (sv_read_event(c->async_fd, &what)) {
		memset(e, 0, sizeof *e);
		e->event_type = (enum ibv_event_type)(what >> 32);
		pthread_mutex_lock(&sv_objects);
		bool there = element(e, (uint32_t)what) != NULL;
		pthread_mutex_unlock(&sv_objects);
		if (there)
			return 0;
	}
	return -1;
}

static void acknowledge(pthread_mutex_t *m, pthread_cond_t *c, uint32_t *completed, uint32_t n)
{
	pthread_mutex_lock(m);
	*completed += n;
	pthread_cond_broadcast(c);
	pthread_mutex_unlock(m);
}

SV_EXPORT void ibv_ack_async_event(struct ibv_async_event *e)
{
	struct ibv_cq *cq = e->element.cq;
	struct ibv_srq *srq = e->element.srq;
	struct ibv_qp *qp = e->element.qp;

	if (e->event_type == IBV_EVENT_CQ_ERR)
		acknowledge(&cq->mutex, &cq->cond, &cq->async_events_completed, 1);
	else if (e->event_type == IBV_EVENT_SRQ_ERR || e->event_type == IBV_EVENT_SRQ_LIMIT_REACHED)
		acknowledge(&srq->mutex, &srq->cond, &srq->events_completed, 1);
	else
		acknowledge(&qp->mutex, &qp->cond, &qp->events_completed, 1);
}

SV_EXPORT void ibv_ack_cq_events(struct ibv_cq *cq, unsigned int n)
{
	acknowledge(&cq->mutex, &cq->cond, &cq->comp_events_completed, n);
}

/* Destroying an object waits for this. */
void sv_await_acknowledged(pthread_mutex_t *m, pthread_cond_t *c, const uint32_t *completed, const uint32_t *events)
{
	pthread_mutex_lock(m);
	while (*completed != *events)
		pthread_cond_wait(c, m);
	pthread_mutex_unlock(m);
}

/* ---- protection domains, memory, address handles ---- */

SV_EXPORT struct ibv_pd *ibv_alloc_pd(struct ibv_context *c)
{
	static uint32_t last;
	struct sv_pd *p = calloc(1, sizeof *p);

	if (!p)
		return sv_none(ENOMEM);
	p->id = __atomic_add_fetch(&last, 1, __ATOMIC_RELAXED);
	p->pd = (struct ibv_pd){ .context = c, .handle = p->id };
	return &p->pd;
}

SV_EXPORT int ibv_dealloc_pd(struct ibv_pd *pd)
{
	struct sv_pd *p = (struct sv_pd *)pd;

	if (__atomic_load_n(&p->users, __ATOMIC_RELAXED))
		return EBUSY;
	free(p);
	return 0;
}

SV_EXPORT struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t bytes, uint64_t iova, unsigned int access)
{
	return sv_reg_mr(pd, addr, bytes, iova, access);
}

SV_EXPORT struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *pd, void *addr, size_t bytes, uint64_t iova, int access)
{
	return sv_reg_mr(pd, addr, bytes, iova, (unsigned int)access);
}

SV_EXPORT struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t bytes, int access)
{
	return sv_reg_mr(pd, addr, bytes, (uintptr_t)addr, (unsigned int)access);
}

SV_EXPORT int ibv_rereg_mr(struct ibv_mr *mr, int flags, struct ibv_pd *pd, void *addr, size_t bytes, int access)
{
	(void)mr, (void)flags, (void)pd, (void)addr, (void)bytes, (void)access;
	errno = EOPNOTSUPP;
	return IBV_REREG_MR_ERR_INPUT;
}

SV_EXPORT struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t bytes, uint64_t iova, int fd, int access)
{
	(void)pd, (void)offset, (void)bytes, (void)iova, (void)fd, (void)access;
	return sv_none(EOPNOTSUPP);
}

SV_EXPORT struct ibv_ah *ibv_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr)
{
	int err = sv_check_ah(attr);
	struct sv_ah *a = err ? NULL : calloc(1, sizeof *a);

	if (!a)
		return sv_none(err ? err : ENOMEM);
	a->attr = *attr;
	a->ah = (struct ibv_ah){ .context = pd->context, .pd = pd };
	__atomic_add_fetch(&((struct sv_pd *)pd)->users, 1, __ATOMIC_RELAXED);
	return &a->ah;
}

SV_EXPORT int ibv_destroy_ah(struct ibv_ah *ah)
{
	__atomic_sub_fetch(&((struct sv_pd *)ah->pd)->users, 1, __ATOMIC_RELAXED);
	free(ah);
	return 0;
}

/* The way back to who sent a datagram. All have one address here, of two forms. */
SV_EXPORT int ibv_init_ah_from_wc(struct ibv_context *c, uint8_t port, struct ibv_wc *wc, struct ibv_grh *grh, struct ibv_ah_attr *a)
{
	const uint8_t *raw = (const uint8_t *)grh;
	bool ip4 = !sv.infiniband && raw[20] >> 4 == 4 && raw[0] >> 4 != 6;

	(void)c;
	*a = (struct ibv_ah_attr){ .port_num = port, .dlid = wc->slid };
	if (!(wc->wc_flags & IBV_WC_GRH))
		return 0;
	a->is_global = 1;
	a->grh.hop_limit = 64;
	a->grh.sgid_index = sv.infiniband ? 0 : ip4 ? 3 : 1;
	if (!ip4) {
		a->grh.dgid = grh->sgid;
		return 0;
	}
	a->grh.dgid.raw[10] = a->grh.dgid.raw[11] = 0xff;
	memcpy(a->grh.dgid.raw + 12, raw + 32, 4);
	return 0;
}

SV_EXPORT struct ibv_ah *ibv_create_ah_from_wc(struct ibv_pd *pd, struct ibv_wc *wc, struct ibv_grh *grh, uint8_t port)
{
	struct ibv_ah_attr a;

	return ibv_init_ah_from_wc(pd->context, port, wc, grh, &a) ? NULL : ibv_create_ah(pd, &a);
}

SV_EXPORT int ibv_resolve_eth_l2_from_gid(struct ibv_context *c, struct ibv_ah_attr *a, uint8_t mac[6], uint16_t *vid)
{
	(void)c, (void)a;
	memset(mac, 0, 6);
	if (vid)
		*vid = 0xffff;
	return 0;
}

SV_EXPORT int ibv_attach_mcast(struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid)
{
	(void)qp, (void)gid, (void)lid;
	return EOPNOTSUPP;
}

SV_EXPORT int ibv_detach_mcast(struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid)
{
	(void)qp, (void)gid, (void)lid;
	return EOPNOTSUPP;
}
