/* Completion queues: a ring in the domain that whoever completes something writes to. */
#include "sv.h"

#include <errno.h>
#include <string.h>

/* How long a call waits for what is nearly due; a longer wait is the attendant's. */
enum { MOMENT_NS = 50000 };

/* Under the queue's lock. As on a device nothing comes of the queue any more. */
void sv_cq_lose(struct sv_cq_shared *x)
{
	if (!__atomic_exchange_n(&x->lost, 1, __ATOMIC_RELAXED))
		sv_tell(&x->async, (uint64_t)IBV_EVENT_CQ_ERR << 32 | x->number);
}

void sv_complete(uint32_t slot, uint32_t cq, const struct ibv_wc *wc, uint32_t credit, bool solicited, uint64_t due_ns)
{
	struct sv_cq_shared *x = &sv_window(slot)->cq[cq];

	sv_lock(&x->lock);
	uint32_t at = x->added;
	if (x->lost || at - __atomic_load_n(&x->taken, __ATOMIC_ACQUIRE) >= x->room) {
		sv_cq_lose(x);
		sv_unlock(&x->lock);
		return;
	}
	struct sv_cqe *e = (struct sv_cqe *)sv_at(x->ring) + (at & x->mask);
	e->wc = *wc;
	e->credit = credit;
	e->due_ns = due_ns;
	__atomic_store_n(&e->seq, at + 1, __ATOMIC_RELEASE);
	x->added = at + 1;
	sv_unlock(&x->lock);
	/* Who arms the queue writes that and looks at the ring; this is the other order. */
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	uint32_t arm = __atomic_load_n(&x->arm, __ATOMIC_RELAXED);
	if (arm == SV_ARM_NONE || (arm == SV_ARM_SOLICITED && !solicited && wc->status == IBV_WC_SUCCESS))
		return;
	if (__atomic_exchange_n(&x->arm, SV_ARM_NONE, __ATOMIC_ACQ_REL))
		sv_tell(&x->channel, x->number);
}

/* ---- the program's side ---- */

static struct sv_cqe *head_of(const struct sv_cq *q)
{
	struct sv_cqe *e = &q->ring[q->taken & q->x->mask];

	return __atomic_load_n(&e->seq, __ATOMIC_ACQUIRE) == q->taken + 1 ? e : NULL;
}

/* The slots of a send queue are free when the program has seen how their requests ended. */
static void give_credit(const struct sv_cqe *e)
{
	if (e->wc.opcode & IBV_WC_RECV)
		return;
	struct sv_qp_shared *x = sv_qp_at(e->wc.qp_num);
	/* Not backwards: after a reset there may be completions of before. */
	if (x->number == e->wc.qp_num && (int32_t)(e->credit - x->credit) > 0)
		__atomic_store_n(&x->credit, e->credit, __ATOMIC_RELEASE);
}

int sv_poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc)
{
	struct sv_cq *q = (struct sv_cq *)cq;
	struct sv_cqe *e;
	int got = 0;

	if (__atomic_load_n(&sv.waiting, __ATOMIC_RELAXED))
		sv_wait_retry(sv_now_ns());
	sv_spin(&q->lock);
	while (got < n && (e = head_of(q))) {
		if (e->due_ns && sv_now_ns() < e->due_ns)
			break;
		if (sv_faulty && sv_fault_overrun()) {
			sv_lock(&q->x->lock);
			sv_cq_lose(q->x);
			sv_unlock(&q->x->lock);
		}
		wc[got++] = e->wc;
		give_credit(e);
		q->taken++;
	}
	if (got)
		__atomic_store_n(&q->x->taken, q->taken, __ATOMIC_RELEASE);
	sv_unspin(&q->lock);
	return got;
}

/* When the oldest completion is due, if it is there and is not yet; else 0. */
static uint64_t due_later(struct sv_cq *q)
{
	sv_spin(&q->lock);
	struct sv_cqe *e = head_of(q);
	uint64_t due = e ? e->due_ns : 0;
	sv_unspin(&q->lock);
	return due && sv_now_ns() < due ? due : 0;
}

void sv_cq_await(struct sv_cq *q)
{
	uint64_t due = due_later(q);

	if (due && due - sv_now_ns() < MOMENT_NS)
		while (sv_now_ns() < due)
			;
}

int sv_req_notify_cq(struct ibv_cq *cq, int solicited_only)
{
	struct sv_cq *q = (struct sv_cq *)cq;
	uint32_t want = solicited_only ? SV_ARM_SOLICITED : SV_ARM_ANY, before = SV_ARM_NONE;

	if (!q->ex.channel)
		return EINVAL;
	/* The wider wish of two counts. */
	if (!__atomic_compare_exchange_n(&q->x->arm, &before, want, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST) && want > before)
		__atomic_store_n(&q->x->arm, want, __ATOMIC_SEQ_CST);
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	/* The program polls now, and finds nothing, though nobody will add it again. */
	uint64_t due = due_later(q);
	if (due)
		sv_alarm(q, due);
	return 0;
}

/* ---- extended polling ---- */

static int next_poll(struct ibv_cq_ex *cq)
{
	struct sv_cq *q = (struct sv_cq *)cq;

	if (sv_poll_cq((struct ibv_cq *)cq, 1, &q->now) != 1)
		return ENOENT;
	cq->status = q->now.status;
	cq->wr_id = q->now.wr_id;
	return 0;
}

static int start_poll(struct ibv_cq_ex *cq, struct ibv_poll_cq_attr *attr)
{
	return attr && attr->comp_mask ? EINVAL : next_poll(cq);
}

static void end_poll(struct ibv_cq_ex *cq)
{
	(void)cq;
}

#define READER(type, field) \
	static type read_##field(struct ibv_cq_ex *cq) { return ((struct sv_cq *)cq)->now.field; }
READER(enum ibv_wc_opcode, opcode)
READER(uint32_t, vendor_err)
READER(uint32_t, byte_len)
READER(__be32, imm_data)
READER(uint32_t, qp_num)
READER(uint32_t, src_qp)
READER(unsigned int, wc_flags)
READER(uint8_t, sl)
READER(uint8_t, dlid_path_bits)
static uint32_t read_slid(struct ibv_cq_ex *cq) { return ((struct sv_cq *)cq)->now.slid; }

void sv_cq_extend(struct sv_cq *q)
{
	struct ibv_cq_ex *x = &q->ex;

	x->start_poll = start_poll;
	x->next_poll = next_poll;
	x->end_poll = end_poll;
	x->read_opcode = read_opcode;
	x->read_vendor_err = read_vendor_err;
	x->read_byte_len = read_byte_len;
	x->read_imm_data = read_imm_data;
	x->read_qp_num = read_qp_num;
	x->read_src_qp = read_src_qp;
	x->read_wc_flags = read_wc_flags;
	x->read_slid = read_slid;
	x->read_sl = read_sl;
	x->read_dlid_path_bits = read_dlid_path_bits;
}
