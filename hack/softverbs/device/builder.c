/* ibv_wr_*: requests that are built call by call, and posted as a list at the end. */
#include "sv.h"

#include <stdlib.h>
#include <string.h>

/* A request with its scatter list and its inline data. */
struct part {
	struct ibv_send_wr wr;
	struct ibv_sge sge[SV_SGES];
	uint8_t data[SV_INLINE];
};

struct sv_builder {
	pthread_mutex_t lock; /* from start to complete or abort */
	uint32_t n, room;
	int err;
	struct part part[];
};

static struct sv_builder *builder_of(struct ibv_qp_ex *x)
{
	return ((struct sv_qp *)x)->builder;
}

static struct ibv_send_wr *begin(struct ibv_qp_ex *x, enum ibv_wr_opcode op)
{
	struct sv_builder *b = builder_of(x);

	if (b->n == b->room) {
		b->err = ENOMEM; /* nothing of this list will be posted: its last may be spoilt */
		b->n--;
	}
	struct part *p = &b->part[b->n++];
	p->wr = (struct ibv_send_wr){ .wr_id = x->wr_id, .opcode = op, .send_flags = x->wr_flags, .sg_list = p->sge };
	if (p != b->part)
		p[-1].wr.next = &p->wr;
	return &p->wr;
}

static struct part *latest(struct ibv_qp_ex *x)
{
	struct sv_builder *b = builder_of(x);

	return &b->part[b->n - 1];
}

static void rdma(struct ibv_qp_ex *x, enum ibv_wr_opcode op, uint32_t rkey, uint64_t addr, __be32 imm)
{
	struct ibv_send_wr *w = begin(x, op);

	w->wr.rdma.rkey = rkey;
	w->wr.rdma.remote_addr = addr;
	w->imm_data = imm;
}

static void wr_rdma_read(struct ibv_qp_ex *x, uint32_t rkey, uint64_t addr)
{
	rdma(x, IBV_WR_RDMA_READ, rkey, addr, 0);
}

static void wr_rdma_write(struct ibv_qp_ex *x, uint32_t rkey, uint64_t addr)
{
	rdma(x, IBV_WR_RDMA_WRITE, rkey, addr, 0);
}

static void wr_rdma_write_imm(struct ibv_qp_ex *x, uint32_t rkey, uint64_t addr, __be32 imm)
{
	rdma(x, IBV_WR_RDMA_WRITE_WITH_IMM, rkey, addr, imm);
}

static void atomic(struct ibv_qp_ex *x, enum ibv_wr_opcode op, uint32_t rkey, uint64_t addr, uint64_t compare_add, uint64_t swap)
{
	struct ibv_send_wr *w = begin(x, op);

	w->wr.atomic.rkey = rkey;
	w->wr.atomic.remote_addr = addr;
	w->wr.atomic.compare_add = compare_add;
	w->wr.atomic.swap = swap;
}

static void wr_atomic_cmp_swp(struct ibv_qp_ex *x, uint32_t rkey, uint64_t addr, uint64_t compare, uint64_t swap)
{
	atomic(x, IBV_WR_ATOMIC_CMP_AND_SWP, rkey, addr, compare, swap);
}

static void wr_atomic_fetch_add(struct ibv_qp_ex *x, uint32_t rkey, uint64_t addr, uint64_t add)
{
	atomic(x, IBV_WR_ATOMIC_FETCH_AND_ADD, rkey, addr, add, 0);
}

static void wr_send(struct ibv_qp_ex *x)
{
	begin(x, IBV_WR_SEND);
}

static void wr_send_imm(struct ibv_qp_ex *x, __be32 imm)
{
	begin(x, IBV_WR_SEND_WITH_IMM)->imm_data = imm;
}

static void wr_local_inv(struct ibv_qp_ex *x, uint32_t rkey)
{
	begin(x, IBV_WR_LOCAL_INV)->invalidate_rkey = rkey;
}

static void wr_set_ud_addr(struct ibv_qp_ex *x, struct ibv_ah *ah, uint32_t qpn, uint32_t qkey)
{
	struct ibv_send_wr *w = &latest(x)->wr;

	w->wr.ud.ah = ah;
	w->wr.ud.remote_qpn = qpn;
	w->wr.ud.remote_qkey = qkey;
}

static void wr_set_sge_list(struct ibv_qp_ex *x, size_t n, const struct ibv_sge *list)
{
	struct part *p = latest(x);

	if (n > SV_SGES) {
		builder_of(x)->err = EINVAL;
		return;
	}
	p->wr.num_sge = (int)n;
	memcpy(p->sge, list, n * sizeof *list);
}

static void wr_set_sge(struct ibv_qp_ex *x, uint32_t lkey, uint64_t addr, uint32_t bytes)
{
	struct ibv_sge s = { addr, bytes, lkey };

	wr_set_sge_list(x, 1, &s);
}

static void wr_set_inline_data_list(struct ibv_qp_ex *x, size_t n, const struct ibv_data_buf *list)
{
	struct part *p = latest(x);
	size_t bytes = 0;

	for (size_t i = 0; i < n; i++) {
		if (list[i].length > ((struct sv_qp *)x)->init.cap.max_inline_data - bytes) {
			builder_of(x)->err = ENOMEM;
			return;
		}
		memcpy(p->data + bytes, list[i].addr, list[i].length);
		bytes += list[i].length;
	}
	p->wr.num_sge = 1;
	p->sge[0] = (struct ibv_sge){ .addr = (uintptr_t)p->data, .length = (uint32_t)bytes };
	p->wr.send_flags |= IBV_SEND_INLINE;
}

static void wr_set_inline_data(struct ibv_qp_ex *x, void *addr, size_t bytes)
{
	struct ibv_data_buf b = { addr, bytes };

	wr_set_inline_data_list(x, 1, &b);
}

static void wr_start(struct ibv_qp_ex *x)
{
	struct sv_builder *b = builder_of(x);

	pthread_mutex_lock(&b->lock);
	b->n = 0;
	b->err = 0;
}

static int wr_complete(struct ibv_qp_ex *x)
{
	struct sv_builder *b = builder_of(x);
	struct ibv_send_wr *bad;
	int err = b->err;

	if (!err && b->n)
		err = sv_post_send(&x->qp_base, &b->part[0].wr, &bad);
	pthread_mutex_unlock(&b->lock);
	return err;
}

static void wr_abort(struct ibv_qp_ex *x)
{
	pthread_mutex_unlock(&builder_of(x)->lock);
}

int sv_builder_new(struct sv_qp *q, uint64_t operations)
{
	const uint64_t can = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_SEND |
			     IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD | IBV_QP_EX_WITH_LOCAL_INV;
	uint32_t room = q->init.cap.max_send_wr ? q->init.cap.max_send_wr : 1;
	struct ibv_qp_ex *x = &q->ex;

	if (operations & ~can)
		return EOPNOTSUPP;
	q->builder = calloc(1, sizeof *q->builder + room * sizeof q->builder->part[0]);
	if (!q->builder)
		return ENOMEM;
	q->builder->room = room;
	pthread_mutex_init(&q->builder->lock, NULL);
	x->wr_rdma_read = wr_rdma_read;
	x->wr_rdma_write = wr_rdma_write;
	x->wr_rdma_write_imm = wr_rdma_write_imm;
	x->wr_atomic_cmp_swp = wr_atomic_cmp_swp;
	x->wr_atomic_fetch_add = wr_atomic_fetch_add;
	x->wr_send = wr_send;
	x->wr_send_imm = wr_send_imm;
	x->wr_local_inv = wr_local_inv;
	x->wr_set_ud_addr = wr_set_ud_addr;
	x->wr_set_sge = wr_set_sge;
	x->wr_set_sge_list = wr_set_sge_list;
	x->wr_set_inline_data = wr_set_inline_data;
	x->wr_set_inline_data_list = wr_set_inline_data_list;
	x->wr_start = wr_start;
	x->wr_complete = wr_complete;
	x->wr_abort = wr_abort;
	return 0;
}

void sv_builder_free(struct sv_qp *q)
{
	free(q->builder);
}

SV_EXPORT struct ibv_qp_ex *ibv_qp_to_qp_ex(struct ibv_qp *qp)
{
	struct sv_qp *q = (struct sv_qp *)qp;

	return q->builder ? &q->ex : NULL;
}
