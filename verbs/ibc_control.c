/* Control path: what Go cannot call itself (calls that have two ways, user pointers). */
#include "ibc_verbs.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>

static int fail(int rc)
{
	return rc > 0 ? rc : (errno ? errno : EIO);
}

/* Objects carry their Go number as user context. */
static void *id_to_context(uint64_t id)
{
	return (void *)(uintptr_t)id;
}

static uint64_t context_to_id(const void *context)
{
	return (uint64_t)(uintptr_t)context;
}

int ibc_query_port(struct ibv_context *ctx, uint8_t port, struct ibv_port_attr *out)
{
	struct verbs_context *x = ibc_extended(ctx, offsetof(struct verbs_context, query_port));

	memset(out, 0, sizeof *out);
	int rc = x && x->query_port ? x->query_port(ctx, port, out, sizeof *out)
				    : ibv_query_port(ctx, port, (struct _compat_ibv_port_attr *)out); /* a struct that ends sooner */
	return rc ? fail(rc) : 0;
}

int ibc_query_device(struct ibv_context *ctx, struct ibv_device_attr_ex *out)
{
	struct verbs_context *x = ibc_extended(ctx, offsetof(struct verbs_context, query_device_ex));
	int rc = EOPNOTSUPP;

	memset(out, 0, sizeof *out);
	if (x && x->query_device_ex)
		rc = x->query_device_ex(ctx, NULL, out, sizeof *out);
	if (rc == EOPNOTSUPP || rc == ENOSYS) { /* an older kernel or device */
		memset(out, 0, sizeof *out);
		rc = ibv_query_device(ctx, &out->orig_attr);
	}
	return rc ? fail(rc) : 0;
}

int ibc_query_gids(struct ibv_context *ctx, struct ibv_gid_entry *out, size_t cap, size_t *n)
{
	if (!ibc_library._ibv_query_gid_table)
		return ENOSYS;
	ssize_t got = ibc_library._ibv_query_gid_table(ctx, out, cap, 0, sizeof *out);
	if (got < 0)
		return (int)-got;
	*n = (size_t)got;
	return 0;
}

struct ibv_mr *ibc_reg_mr(struct ibv_pd *pd, uintptr_t addr, size_t len, int access)
{
	return ibv_reg_mr(pd, (void *)addr, len, access);
}

struct ibv_cq *ibc_create_cq(struct ibv_context *ctx, int entries, uint64_t id, struct ibv_comp_channel *ch, int vector)
{
	return ibv_create_cq(ctx, entries, id_to_context(id), ch, vector);
}

int ibc_fork_init(void)
{
	if (!ibc_library.ibv_fork_init)
		return ENOSYS;
	int rc = ibc_library.ibv_fork_init();
	return rc ? fail(rc) : 0;
}

int ibc_fork_status(void)
{
	return ibc_library.ibv_is_fork_initialized ? (int)ibc_library.ibv_is_fork_initialized() : -1;
}

int ibc_get_async_event(struct ibv_context *ctx, uint64_t *overrun)
{
	struct ibv_async_event ev;

	*overrun = 0;
	if (ibv_get_async_event(ctx, &ev))
		return fail(-1);
	if (ev.event_type == IBV_EVENT_CQ_ERR)
		*overrun = context_to_id(ev.element.cq->cq_context);
	/* At once: destroying an object waits for the acknowledgement of its events. */
	ibv_ack_async_event(&ev);
	return 0;
}

int ibc_get_cq_events(struct ibv_comp_channel *ch, uint64_t *ids, int cap, int *n)
{
	struct ibv_cq *last = NULL;
	unsigned int unacked = 0;
	int err = 0;

	*n = 0;
	while (*n < cap) {
		struct ibv_cq *cq;
		void *context;

		if (ibv_get_cq_event(ch, &cq, &context)) {
			err = fail(-1);
			break;
		}
		/* An acknowledgement takes a lock: one for a run of the same CQ. */
		if (cq != last && unacked) {
			ibv_ack_cq_events(last, unacked);
			unacked = 0;
		}
		last = cq;
		unacked++;
		ids[(*n)++] = context_to_id(context);
	}
	if (unacked)
		ibv_ack_cq_events(last, unacked);
	return *n ? 0 : err;
}
