/* Carrying a request out: checks, copies, and the completion at the peer. */
#include "sv.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* The other end of a request, whose rx is held. */
struct far {
	struct sv_qp_shared *x;
	uint32_t slot;
	uint64_t due_ns; /* of its completions */
};

static bool reads(enum ibv_wr_opcode op)
{
	return op == IBV_WR_RDMA_READ || op == IBV_WR_ATOMIC_FETCH_AND_ADD || op == IBV_WR_ATOMIC_CMP_AND_SWP;
}

/*
 * The responder refuses: its QP fails with an event, and the requester hears why (IBTA 9.7.5.2).
 * Unreliable transports lose the request, and their responder tells nobody.
 */
static int refuse(struct far *f, enum ibv_event_type event, int status)
{
	if (f->x->type != IBV_QPT_RC)
		return IBV_WC_SUCCESS;
	sv_fail(f->x, f->slot);
	sv_tell(&f->x->async, (uint64_t)event << 32 | f->x->number);
	return status;
}

/* What a copy that failed means. A process that is gone does not answer. */
static int copied(struct far *f, int err)
{
	if (!err)
		return IBV_WC_SUCCESS;
	if (err == ESRCH)
		return SV_NO_ANSWER;
	if (err == EPERM)
		fprintf(stderr, "softverbs: process %d may not be read or written: same user? Yama's ptrace_scope?\n", sv.head->slot[f->slot].pid);
	return refuse(f, IBV_EVENT_QP_ACCESS_ERR, IBV_WC_REM_OP_ERR);
}

static const struct sv_region *target(const struct far *f, uint32_t key, uint64_t addr, uint64_t bytes, unsigned int access)
{
	const struct sv_region *r = sv_find(f->slot, key, f->x->pd, addr, bytes);

	if (!r || (r->access & access) != access || (f->x->access & access) != access)
		return NULL;
	return !r->window_of || r->window_of == f->x->number ? r : NULL;
}

static int rdma(struct far *f, const struct ibv_send_wr *wr, struct sv_pieces *mine)
{
	bool read = wr->opcode == IBV_WR_RDMA_READ;
	uint64_t addr = wr->wr.rdma.remote_addr;

	if (!mine->bytes)
		return IBV_WC_SUCCESS;
	const struct sv_region *r = target(f, wr->wr.rdma.rkey, addr, mine->bytes, read ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_REMOTE_WRITE);
	if (!r)
		return refuse(f, IBV_EVENT_QP_ACCESS_ERR, IBV_WC_REM_ACCESS_ERR);
	struct sv_pieces theirs = { .at = { sv_piece_of(r, addr, mine->bytes) }, .n = 1, .bytes = mine->bytes };
	return copied(f, read ? sv_copy(sv.slot, mine, f->slot, &theirs) : sv_copy(f->slot, &theirs, sv.slot, mine));
}

static int atomic(struct far *f, const struct ibv_send_wr *wr, struct sv_pieces *mine)
{
	uint64_t addr = wr->wr.atomic.remote_addr, old;
	struct sv_pieces result = { .at = { { (uintptr_t)&old, 8, &old } }, .n = 1, .bytes = 8 };

	if (mine->bytes != 8)
		return IBV_WC_LOC_LEN_ERR;
	if (addr & 7)
		return refuse(f, IBV_EVENT_QP_REQ_ERR, IBV_WC_REM_INV_REQ_ERR);
	const struct sv_region *r = target(f, wr->wr.atomic.rkey, addr, 8, IBV_ACCESS_REMOTE_ATOMIC);
	if (!r)
		return refuse(f, IBV_EVENT_QP_ACCESS_ERR, IBV_WC_REM_ACCESS_ERR);
	struct sv_piece word = sv_piece_of(r, addr, 8);
	int err = sv_atomic(f->slot, &word, wr, &old);
	return copied(f, err ? err : sv_copy(sv.slot, mine, sv.slot, &result));
}

/* The data into the receive; its status, and through status the requester's. */
static enum ibv_wc_status scatter(struct far *f, const struct sv_receive *r, const struct sv_pieces *data, int *status)
{
	struct sv_pieces to;
	uint32_t pd = f->x->srq ? sv_window(f->slot)->srq[f->x->srq].pd : f->x->pd;

	*status = IBV_WC_REM_OP_ERR;
	if (!sv_resolve(&to, f->slot, pd, r->sge, r->sges, IBV_ACCESS_LOCAL_WRITE))
		return IBV_WC_LOC_PROT_ERR;
	if (to.bytes < data->bytes) {
		*status = IBV_WC_REM_INV_REQ_ERR;
		return IBV_WC_LOC_LEN_ERR;
	}
	int err = sv_copy(f->slot, &to, sv.slot, data);
	if (err == ESRCH)
		*status = SV_NO_ANSWER;
	if (err)
		return IBV_WC_LOC_PROT_ERR;
	*status = IBV_WC_SUCCESS;
	return IBV_WC_SUCCESS;
}

static void prepend(struct sv_pieces *p, void *addr, uint64_t bytes)
{
	memmove(&p->at[1], &p->at[0], p->n * sizeof p->at[0]);
	p->at[0] = (struct sv_piece){ (uintptr_t)addr, bytes, addr };
	p->n++;
	p->bytes += bytes;
}

/* A send, or the immediate of a write. */
static int deliver(struct far *f, const struct sv_qp *q, const struct ibv_send_wr *wr, struct sv_pieces *mine)
{
	bool written = wr->opcode == IBV_WR_RDMA_WRITE_WITH_IMM, datagram = f->x->type == IBV_QPT_UD;
	uint8_t grh[SV_GRH];
	struct sv_receive r;
	struct ibv_wc wc = { .opcode = written ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV, .qp_num = f->x->number };
	int status = IBV_WC_SUCCESS;

	if (!sv_rq_take(f->x, f->slot, &r))
		return SV_NO_RECEIVE;
	wc.wr_id = r.wr_id;
	wc.slid = sv.infiniband;
	if (wr->opcode == IBV_WR_SEND_WITH_IMM || written) {
		wc.imm_data = wr->imm_data;
		wc.wc_flags |= IBV_WC_WITH_IMM;
	}
	if (datagram) {
		const struct ibv_ah_attr *ah = &((struct sv_ah *)wr->wr.ud.ah)->attr;
		sv_header(grh, ah, mine->bytes);
		prepend(mine, grh, sizeof grh);
		wc.src_qp = q->x->number;
		wc.sl = ah->sl;
		if (ah->is_global)
			wc.wc_flags |= IBV_WC_GRH;
	}
	wc.byte_len = (uint32_t)mine->bytes;
	if (written) {
		status = rdma(f, wr, mine);
		if (status) { /* refused, and the receive was taken from the queue before the rest was flushed */
			if (f->x->type == IBV_QPT_RC)
				sv_flush(f->x, f->slot, r.wr_id);
			return status;
		}
	} else {
		wc.status = scatter(f, &r, mine, &status);
	}
	sv_complete(f->slot, f->x->recv_cq, &wc, 0, wr->send_flags & IBV_SEND_SOLICITED, f->due_ns);
	if (!status)
		return IBV_WC_SUCCESS;
	sv_fail(f->x, f->slot);
	return f->x->type == IBV_QPT_RC ? status : IBV_WC_SUCCESS;
}

static int bring(struct far *f, const struct sv_qp *q, const struct ibv_send_wr *wr, struct sv_pieces *mine)
{
	switch (wr->opcode) {
	case IBV_WR_RDMA_WRITE:
	case IBV_WR_RDMA_READ:
		return rdma(f, wr, mine);
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
	case IBV_WR_ATOMIC_CMP_AND_SWP:
		return atomic(f, wr, mine);
	default:
		return deliver(f, q, wr, mine);
	}
}

/* Whether a request of q would reach this QP. */
static bool reachable(const struct sv_qp_shared *x, uint32_t qpn, const struct sv_qp *q)
{
	uint32_t state = __atomic_load_n(&x->state, __ATOMIC_ACQUIRE);
	const struct sv_slot *there = &sv.head->slot[sv_slot_of(qpn)], *here = &sv.head->slot[sv.slot];

	if (x->number != qpn || x->type != q->x->type || !sv_alive(sv_slot_of(qpn)))
		return false;
	if (__atomic_load_n(&there->cut, __ATOMIC_RELAXED) || __atomic_load_n(&here->cut, __ATOMIC_RELAXED))
		return false;
	if (state != IBV_QPS_RTR && state != IBV_QPS_RTS && state != IBV_QPS_SQD && state != IBV_QPS_SQE)
		return false;
	return x->type == IBV_QPT_UD || x->peer == q->x->number;
}

static bool right_qkey(const struct sv_qp_shared *x, const struct sv_qp *q, uint32_t qkey)
{
	return x->qkey == (qkey >> 31 ? q->x->qkey : qkey); /* a controlled Q_Key: IBTA 10.2.5 */
}

/* The local side. Returns a status, IBV_WC_SUCCESS to go on. */
static int gather(const struct sv_qp *q, const struct ibv_send_wr *wr, struct sv_pieces *mine)
{
	uint32_t n = (uint32_t)wr->num_sge;

	if (!(wr->send_flags & IBV_SEND_INLINE) || reads(wr->opcode)) {
		if (!sv_resolve(mine, sv.slot, q->x->pd, wr->sg_list, n, reads(wr->opcode) ? IBV_ACCESS_LOCAL_WRITE : 0))
			return IBV_WC_LOC_PROT_ERR;
	} else {
		mine->n = 0;
		mine->bytes = 0;
		for (uint32_t i = 0; i < n; i++)
			if (wr->sg_list[i].length) {
				mine->at[mine->n++] = (struct sv_piece){ wr->sg_list[i].addr, wr->sg_list[i].length, (void *)(uintptr_t)wr->sg_list[i].addr };
				mine->bytes += wr->sg_list[i].length;
			}
	}
	return mine->bytes > (q->x->type == IBV_QPT_UD ? SV_DATAGRAM : SV_MESSAGE) ? IBV_WC_LOC_LEN_ERR : IBV_WC_SUCCESS;
}

/* Returns a status, or SV_NO_RECEIVE or SV_NO_ANSWER: the request must wait. Under sq. */
int sv_carry(struct sv_qp *q, const struct ibv_send_wr *wr, uint32_t *bytes)
{
	uint32_t type = q->x->type, qpn = type == IBV_QPT_UD ? wr->wr.ud.remote_qpn : q->x->peer;
	struct sv_pieces mine;
	struct far f = { sv_qp_at(qpn), sv_slot_of(qpn), 0 };

	if (wr->opcode == IBV_WR_LOCAL_INV || wr->opcode == IBV_WR_BIND_MW)
		return sv_bind(q, wr);
	int status = gather(q, wr, &mine);
	if (status)
		return status;
	*bytes = (uint32_t)mine.bytes;
	status = SV_NO_ANSWER;
	if (reachable(f.x, qpn, q)) {
		sv_lock(&f.x->rx);
		if (reachable(f.x, qpn, q) && (type != IBV_QPT_UD || right_qkey(f.x, q, wr->wr.ud.remote_qkey))) {
			f.due_ns = sv_due(f.slot);
			status = bring(&f, q, wr, &mine);
		}
		sv_unlock(&f.x->rx);
	}
	return type != IBV_QPT_RC && status >= SV_NO_RECEIVE ? (int)IBV_WC_SUCCESS : status; /* lost */
}
