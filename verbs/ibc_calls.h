/*
 * The calls that libibverbs exports: X(result, name, version of the symbol, parameters, arguments).
 * A call with several versions is wanted in the one with these parameters, whatever else a
 * later library offers under its name.
 */
#ifndef IBC_CALLS_H
#define IBC_CALLS_H

/* Every libibverbs.so.1 has them. One that lacks some is not used: ibc_missing names them. */
#define IBC_CALLS(X) \
	X(struct ibv_device **, ibv_get_device_list, "IBVERBS_1.1", (int *n), (n)) \
	X(void, ibv_free_device_list, "IBVERBS_1.1", (struct ibv_device **list), (list)) \
	X(const char *, ibv_get_device_name, "IBVERBS_1.1", (struct ibv_device *device), (device)) \
	X(struct ibv_context *, ibv_open_device, "IBVERBS_1.1", (struct ibv_device *device), (device)) \
	X(int, ibv_close_device, "IBVERBS_1.1", (struct ibv_context *context), (context)) \
	X(int, ibv_query_device, "IBVERBS_1.1", (struct ibv_context *context, struct ibv_device_attr *attr), (context, attr)) \
	X(int, ibv_query_port, "IBVERBS_1.1", \
		(struct ibv_context *context, uint8_t port, struct _compat_ibv_port_attr *attr), (context, port, attr)) \
	X(int, ibv_query_gid, "IBVERBS_1.1", (struct ibv_context *context, uint8_t port, int index, union ibv_gid *gid), \
		(context, port, index, gid)) \
	X(int, ibv_query_pkey, "IBVERBS_1.1", (struct ibv_context *context, uint8_t port, int index, __be16 *pkey), \
		(context, port, index, pkey)) \
	X(int, ibv_get_async_event, "IBVERBS_1.1", \
		(struct ibv_context *context, struct ibv_async_event *event), (context, event)) \
	X(void, ibv_ack_async_event, "IBVERBS_1.1", (struct ibv_async_event *event), (event)) \
	X(struct ibv_pd *, ibv_alloc_pd, "IBVERBS_1.1", (struct ibv_context *context), (context)) \
	X(int, ibv_dealloc_pd, "IBVERBS_1.1", (struct ibv_pd *pd), (pd)) \
	X(struct ibv_mr *, ibv_reg_mr, "IBVERBS_1.1", (struct ibv_pd *pd, void *addr, size_t length, int access), \
		(pd, addr, length, access)) \
	X(int, ibv_dereg_mr, "IBVERBS_1.1", (struct ibv_mr *mr), (mr)) \
	X(struct ibv_ah *, ibv_create_ah, "IBVERBS_1.1", (struct ibv_pd *pd, struct ibv_ah_attr *attr), (pd, attr)) \
	X(int, ibv_destroy_ah, "IBVERBS_1.1", (struct ibv_ah *ah), (ah)) \
	X(struct ibv_comp_channel *, ibv_create_comp_channel, "IBVERBS_1.0", (struct ibv_context *context), (context)) \
	X(int, ibv_destroy_comp_channel, "IBVERBS_1.0", (struct ibv_comp_channel *channel), (channel)) \
	X(int, ibv_get_cq_event, "IBVERBS_1.1", (struct ibv_comp_channel *channel, struct ibv_cq **cq, void **context), \
		(channel, cq, context)) \
	X(void, ibv_ack_cq_events, "IBVERBS_1.1", (struct ibv_cq *cq, unsigned int n), (cq, n)) \
	X(struct ibv_cq *, ibv_create_cq, "IBVERBS_1.1", \
		(struct ibv_context *context, int cqe, void *id, struct ibv_comp_channel *channel, int vector), \
	  (context, cqe, id, channel, vector)) \
	X(int, ibv_resize_cq, "IBVERBS_1.1", (struct ibv_cq *cq, int cqe), (cq, cqe)) \
	X(int, ibv_destroy_cq, "IBVERBS_1.1", (struct ibv_cq *cq), (cq)) \
	X(struct ibv_srq *, ibv_create_srq, "IBVERBS_1.1", (struct ibv_pd *pd, struct ibv_srq_init_attr *attr), (pd, attr)) \
	X(int, ibv_destroy_srq, "IBVERBS_1.1", (struct ibv_srq *srq), (srq)) \
	X(struct ibv_qp *, ibv_create_qp, "IBVERBS_1.1", (struct ibv_pd *pd, struct ibv_qp_init_attr *attr), (pd, attr)) \
	X(int, ibv_modify_qp, "IBVERBS_1.1", (struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask), (qp, attr, mask)) \
	X(int, ibv_destroy_qp, "IBVERBS_1.1", (struct ibv_qp *qp), (qp))

/* A library or a preloaded device may lack them; callers have another way. */
#define IBC_NEWER_CALLS(X) \
	X(ssize_t, _ibv_query_gid_table, "IBVERBS_1.11", \
		(struct ibv_context *context, struct ibv_gid_entry *out, size_t cap, uint32_t flags, size_t size), \
	  (context, out, cap, flags, size)) \
	X(int, ibv_fork_init, "IBVERBS_1.1", (void), ()) \
	X(enum ibv_fork_status, ibv_is_fork_initialized, "IBVERBS_1.13", (void), ())

#endif
