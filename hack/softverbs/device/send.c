/* Posting sends. */
#include "sv.h"

#include <errno.h>

static int check_opcode(const struct ibv_send_wr *wr, uint32_t type)
{
	switch (wr->opcode) {
	case IBV_WR_SEND:
	case IBV_WR_SEND_WITH_IMM:
		return type == IBV_QPT_UD && !wr->wr.ud.ah ? EINVAL : 0;
	case IBV_WR_RDMA_WRITE:
	case IBV_WR_RDMA_WRITE_WITH_IMM:
		return type == IBV_QPT_UD ? EINVAL : 0;
	case IBV_WR_RDMA_READ:
	case IBV_WR_ATOMIC_CMP_AND_SWP:
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		return type == IBV_QPT_RC ? 0 : EINVAL;
	case IBV_WR_LOCAL_INV:
	case IBV_WR_BIND_MW:
		return 0;
	default:
		return EOPNOTSUPP;
	}
}

static int check(const struct sv_qp *q, const struct ibv_send_wr *wr, uint32_t state)
{
	uint64_t bytes = 0;

	if (state == IBV_QPS_RESET || state == IBV_QPS_INIT || state == IBV_QPS_RTR)
		return EINVAL;
	if (wr->num_sge < 0 || (uint32_t)wr->num_sge > q->init.cap.max_send_sge)
		return EINVAL;
	if (wr->send_flags & IBV_SEND_INLINE) {
		for (int i = 0; i < wr->num_sge; i++)
			bytes += wr->sg_list[i].length;
		if (bytes > q->init.cap.max_inline_data)
			return EINVAL;
	}
	if (q->posted - __atomic_load_n(&q->x->credit, __ATOMIC_ACQUIRE) >= q->init.cap.max_send_wr)
		return ENOMEM;
	return check_opcode(wr, q->x->type);
}

static int post(struct sv_qp *q, const struct ibv_send_wr *wr)
{
	uint32_t state = __atomic_load_n(&q->x->state, __ATOMIC_ACQUIRE), bytes = 0;
	int err = check(q, wr, state), status = IBV_WC_WR_FLUSH_ERR;

	if (!err && sv_faulty)
		err = sv_fault_post(q);
	if (err)
		return err;
	uint32_t credit = ++q->posted;
	if (q->first) {
		sv_wait(q, wr, credit, 0);
		return 0;
	}
	if (state != IBV_QPS_ERR && state != IBV_QPS_SQE)
		status = sv_carry(q, wr, &bytes);
	if (status >= SV_NO_RECEIVE && !(status = sv_wait(q, wr, credit, status)))
		return 0;
	sv_finish(q, wr, credit, status, bytes);
	return 0;
}

int sv_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	struct sv_qp *q = (struct sv_qp *)qp;
	int err = 0;

	sv_spin(&q->sq);
	while (wr && !(err = post(q, wr)))
		wr = wr->next;
	sv_unspin(&q->sq);
	if (err)
		*bad = wr;
	return err;
}
