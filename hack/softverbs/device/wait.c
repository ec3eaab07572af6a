/*
 * Requests that wait: for a receive at the peer (RNR), or for an answer of a peer that is dead,
 * gone, or not connected yet. They are tried again when their time has come, by whoever polls, or
 * by the attendant; those behind them on their QP wait, too.
 */
#include "sv.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* IBTA 9.7.5.2.8, table 45: the codes of the RNR timer, in us. */
static const uint32_t rnr_us[32] = { 655360, 10,   20,   30,   40,    60,    80,    120,   160,   240,   320,    480,    640,    960,    1280,   1920,
				     2560,   3840, 5120, 7680, 10240, 15360, 20480, 30720, 40960, 61440, 81920, 122880, 163840, 245760, 327680, 491520 };

static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER; /* taken with no sq held, or before none */
static struct sv_qp *list;

static void count_unreceived(void)
{
	char text[24];
	uint64_t n = __atomic_add_fetch(&sv.head->unreceived, 1, __ATOMIC_RELAXED);

	if (sv.rnr_counter >= 0 && pwrite(sv.rnr_counter, text, (size_t)snprintf(text, sizeof text, "%lu\n", n), 0) < 0)
		return; /* it is a count, no more */
}

/* Under sq. When to try again, or a status: patience is at its end. */
static int patience(struct sv_qp *q, int why)
{
	uint64_t now = sv_now_ns();

	if (why == SV_NO_RECEIVE) {
		count_unreceived();
		q->give_up_ns = 0;
		if (q->attr.rnr_retry != 7 && q->rnr_tries++ >= q->attr.rnr_retry)
			return IBV_WC_RNR_RETRY_EXC_ERR;
		q->retry_ns = now + rnr_us[sv_qp_at(q->x->peer)->rnr_timer & 31] * 1000ull;
		return IBV_WC_SUCCESS;
	}
	/* 4.096 us * 2^timeout, and timeout 0 is for ever. A peer may come in between. */
	uint64_t once = 4096ull << (q->attr.timeout & 31);
	if (!q->give_up_ns)
		q->give_up_ns = q->attr.timeout ? now + once * (q->attr.retry_cnt + 1u) : UINT64_MAX;
	if (now >= q->give_up_ns)
		return IBV_WC_RETRY_EXC_ERR;
	uint64_t again = now + (once < 1000000 ? once : 1000000);
	q->retry_ns = again < q->give_up_ns ? again : q->give_up_ns;
	return IBV_WC_SUCCESS;
}

static void keep(struct sv_qp *q, const struct ibv_send_wr *wr, uint32_t credit)
{
	size_t sges = (size_t)wr->num_sge * sizeof *wr->sg_list, data = 0;
	bool copy = wr->send_flags & IBV_SEND_INLINE;

	for (int i = 0; copy && i < wr->num_sge; i++)
		data += wr->sg_list[i].length;
	struct sv_waiting *w = malloc(sizeof *w + sges + data);
	if (!w)
		abort();
	*w = (struct sv_waiting){ .wr = *wr, .credit = credit };
	w->wr.next = NULL;
	w->wr.sg_list = (struct ibv_sge *)(void *)(w + 1);
	if (sges)
		memcpy(w->wr.sg_list, wr->sg_list, sges);
	uint8_t *to = (uint8_t *)(w + 1) + sges;
	for (int i = 0; copy && i < wr->num_sge; i++) {
		memcpy(to, (void *)(uintptr_t)wr->sg_list[i].addr, wr->sg_list[i].length);
		w->wr.sg_list[i].addr = (uintptr_t)to;
		to += wr->sg_list[i].length;
	}
	*q->last = w;
	q->last = &w->next;
}

static void drop_first(struct sv_qp *q)
{
	struct sv_waiting *w = q->first;

	if (!(q->first = w->next)) {
		q->last = &q->first;
		__atomic_sub_fetch(&sv.waiting, 1, __ATOMIC_RELAXED);
	}
	free(w);
}

/* Under sq. Takes a request that cannot be carried out now. Returns a status where it may not wait,
 * 0 where it does. why 0: those before it wait. */
int sv_wait(struct sv_qp *q, const struct ibv_send_wr *wr, uint32_t credit, int why)
{
	int status = why ? patience(q, why) : 0;

	if (status)
		return status;
	if (!q->first)
		__atomic_add_fetch(&sv.waiting, 1, __ATOMIC_RELAXED);
	keep(q, wr, credit);
	if (!why)
		return 0;
	pthread_mutex_lock(&list_lock);
	if (!q->listed) {
		q->listed = true;
		q->next_waiting = list;
		list = q;
	}
	pthread_mutex_unlock(&list_lock);
	sv_nudge();
	return 0;
}

static void at_ease(struct sv_qp *q)
{
	q->rnr_tries = 0;
	q->give_up_ns = 0;
}

void sv_wait_drop(struct sv_qp *q)
{
	while (q->first)
		drop_first(q);
	at_ease(q);
}

/* The QP's last: nobody finds it in the list from now on. */
void sv_wait_forget(struct sv_qp *q)
{
	pthread_mutex_lock(&list_lock);
	for (struct sv_qp **at = &list; *at; at = &(*at)->next_waiting)
		if (*at == q) {
			*at = q->next_waiting;
			break;
		}
	q->listed = false;
	pthread_mutex_unlock(&list_lock);
}

/* Under sq: the end of a request. */
void sv_finish(struct sv_qp *q, const struct ibv_send_wr *wr, uint32_t credit, int status, uint32_t bytes)
{
	static const enum ibv_wc_opcode opcodes[] = {
		[IBV_WR_RDMA_WRITE] = IBV_WC_RDMA_WRITE, [IBV_WR_RDMA_WRITE_WITH_IMM] = IBV_WC_RDMA_WRITE, [IBV_WR_SEND] = IBV_WC_SEND,
		[IBV_WR_SEND_WITH_IMM] = IBV_WC_SEND, [IBV_WR_RDMA_READ] = IBV_WC_RDMA_READ, [IBV_WR_ATOMIC_CMP_AND_SWP] = IBV_WC_COMP_SWAP,
		[IBV_WR_ATOMIC_FETCH_AND_ADD] = IBV_WC_FETCH_ADD, [IBV_WR_LOCAL_INV] = IBV_WC_LOCAL_INV, [IBV_WR_BIND_MW] = IBV_WC_BIND_MW,
	};
	struct ibv_wc wc = { .wr_id = wr->wr_id, .status = (enum ibv_wc_status)status, .opcode = opcodes[wr->opcode], .byte_len = bytes, .qp_num = q->x->number };

	uint32_t peer = q->x->type == IBV_QPT_UD ? wr->wr.ud.remote_qpn : q->x->peer;

	if (status || q->init.sq_sig_all || wr->send_flags & IBV_SEND_SIGNALED)
		sv_complete(sv.slot, q->x->send_cq, &wc, credit, false, status ? 0 : sv_due(sv_slot_of(peer)));
	if (status && status != IBV_WC_WR_FLUSH_ERR) {
		sv_lock(&q->x->rx);
		sv_fail(q->x, sv.slot);
		sv_unlock(&q->x->rx);
	}
}

/* Under sq. */
static void try_again(struct sv_qp *q)
{
	while (q->first) {
		struct sv_waiting *w = q->first;
		uint32_t bytes = 0;
		int status = IBV_WC_WR_FLUSH_ERR;

		if (__atomic_load_n(&q->x->state, __ATOMIC_ACQUIRE) != IBV_QPS_ERR)
			status = sv_carry(q, &w->wr, &bytes);
		if (status >= SV_NO_RECEIVE) {
			if (!(status = patience(q, status)))
				return;
		} else {
			at_ease(q);
		}
		sv_finish(q, &w->wr, w->credit, status, bytes);
		drop_first(q);
	}
}

/* list_lock is held while a QP's turn lasts, so that it is not destroyed. Who posts holds sq and
 * may want list_lock: so sq is only tried here. */
uint64_t sv_wait_retry(uint64_t now)
{
	uint64_t next = UINT64_MAX;

	if (!__atomic_load_n(&sv.waiting, __ATOMIC_RELAXED))
		return next;
	if (pthread_mutex_trylock(&list_lock))
		return now + 20000;
	for (struct sv_qp **at = &list, *q; (q = *at);) {
		if (__atomic_exchange_n(&q->sq, 1, __ATOMIC_ACQUIRE)) {
			next = now + 20000;
			at = &q->next_waiting;
			continue;
		}
		if (q->first && (q->retry_ns <= now || q->x->state == IBV_QPS_ERR))
			try_again(q);
		if (q->first) {
			next = q->retry_ns < next ? q->retry_ns : next;
			at = &q->next_waiting;
		} else {
			*at = q->next_waiting;
			q->listed = false;
		}
		sv_unspin(&q->sq);
	}
	pthread_mutex_unlock(&list_lock);
	return next;
}

/* The program brings its QP into error: all that waits is flushed now. */
void sv_qp_error(struct sv_qp *q)
{
	sv_spin(&q->sq);
	sv_lock(&q->x->rx);
	sv_fail(q->x, sv.slot);
	sv_unlock(&q->x->rx);
	try_again(q);
	sv_unspin(&q->sq);
}
