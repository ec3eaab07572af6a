/*
 * The ABI of libibverbs.so.1, as far as package verbs uses it: the structs that cross the boundary,
 * and the calls that go through a device's table. Declared here, so that neither building nor
 * starting a program needs libibverbs; a test compares it with the library's own header, field by
 * field (abi_test.go). Names are the library's: man pages ibv_*(3), include/uapi/rdma/.
 *
 * Members that begin with `unused` keep the place of one or several that are not used here.
 * Structs that only the library makes end where our interest ends.
 */
#ifndef IBC_ABI_H
#define IBC_ABI_H

#include <linux/types.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

struct ibv_ah;
struct ibv_device;
struct ibv_query_device_ex_input;
struct _compat_ibv_port_attr;

/* ---- devices ---- */

enum ibv_atomic_cap { IBV_ATOMIC_NONE, IBV_ATOMIC_HCA, IBV_ATOMIC_GLOB };

struct ibv_device_attr {
	char fw_ver[64];
	__be64 node_guid, sys_image_guid;
	uint64_t max_mr_size, page_size_cap;
	uint32_t vendor_id, vendor_part_id, hw_ver;
	int max_qp, max_qp_wr;
	unsigned int device_cap_flags;
	int max_sge, max_sge_rd;
	int max_cq, max_cqe, max_mr, max_pd;
	int max_qp_rd_atom, max_ee_rd_atom, max_res_rd_atom, max_qp_init_rd_atom, max_ee_init_rd_atom;
	enum ibv_atomic_cap atomic_cap;
	int max_ee, max_rdd, max_mw, max_raw_ipv6_qp, max_raw_ethy_qp;
	int max_mcast_grp, max_mcast_qp_attach, max_total_mcast_qp_attach;
	int max_ah, max_fmr, max_map_per_fmr;
	int max_srq, max_srq_wr, max_srq_sge;
	uint16_t max_pkeys;
	uint8_t local_ca_ack_delay, phys_port_cnt;
};

struct ibv_odp_caps {
	uint64_t general_caps;
	struct {
		uint32_t rc_odp_caps, uc_odp_caps, ud_odp_caps;
	} per_transport_caps;
};

struct ibv_pci_atomic_caps {
	uint16_t fetch_add, swap, compare_swap;
};

/* The library fills as much as the caller's size covers. */
struct ibv_device_attr_ex {
	struct ibv_device_attr orig_attr;
	uint32_t comp_mask;
	struct ibv_odp_caps odp_caps;
	uint64_t completion_timestamp_mask, hca_core_clock, device_cap_flags_ex;
	uint32_t unused_tso_caps[2];
	uint64_t unused_rss_caps[4];
	uint32_t max_wq_type_rq;
	uint32_t unused_packet_pacing_caps[3];
	uint32_t raw_packet_caps;
	uint32_t unused_tm_caps[5];
	uint16_t unused_cq_mod_caps[2];
	uint64_t max_dm_size;
	struct ibv_pci_atomic_caps pci_atomic_caps;
	uint32_t xrc_odp_caps, phys_port_cnt_ex;
};

enum ibv_port_state { IBV_PORT_DOWN = 1, IBV_PORT_ACTIVE = 4 };

enum ibv_mtu { IBV_MTU_256 = 1, IBV_MTU_4096 = 5 };

/* The library fills as much as the caller's size covers. */
struct ibv_port_attr {
	enum ibv_port_state state;
	enum ibv_mtu max_mtu, active_mtu;
	int gid_tbl_len;
	uint32_t port_cap_flags, max_msg_sz, bad_pkey_cntr, qkey_viol_cntr;
	uint16_t pkey_tbl_len, lid, sm_lid;
	uint8_t lmc, max_vl_num, sm_sl, subnet_timeout, init_type_reply;
	uint8_t active_width, active_speed, phys_state, link_layer, flags;
	uint16_t port_cap_flags2;
};

union ibv_gid {
	uint8_t raw[16];
	struct {
		__be64 subnet_prefix, interface_id;
	} global;
};

/* The library fills as much as the caller's size covers. */
struct ibv_gid_entry {
	union ibv_gid gid;
	uint32_t gid_index, port_num, gid_type, ndev_ifindex;
};

/* ---- memory ---- */

struct ibv_pd {
	struct ibv_context *context;
};

struct ibv_mr {
	struct ibv_context *context;
	struct ibv_pd *pd;
	void *addr;
	size_t length;
	uint32_t handle, lkey, rkey;
};

enum ibv_fork_status { IBV_FORK_DISABLED, IBV_FORK_ENABLED, IBV_FORK_UNNEEDED };

/* ---- addresses ---- */

struct ibv_global_route {
	union ibv_gid dgid;
	uint32_t flow_label;
	uint8_t sgid_index, hop_limit, traffic_class;
};

struct ibv_ah_attr {
	struct ibv_global_route grh;
	uint16_t dlid;
	uint8_t sl, src_path_bits, static_rate, is_global, port_num;
};

/* ---- queues ---- */

struct ibv_comp_channel {
	struct ibv_context *context;
	int fd;
};

struct ibv_cq {
	struct ibv_context *context;
	struct ibv_comp_channel *channel;
	void *cq_context;
	uint32_t handle;
	int cqe;
};

struct ibv_srq {
	struct ibv_context *context;
	void *srq_context;
};

struct ibv_srq_attr {
	uint32_t max_wr, max_sge, srq_limit;
};

struct ibv_srq_init_attr {
	void *srq_context;
	struct ibv_srq_attr attr;
};

enum ibv_qp_type { IBV_QPT_RC = 2, IBV_QPT_UC = 3, IBV_QPT_UD = 4 };

enum ibv_qp_state { IBV_QPS_RESET, IBV_QPS_ERR = 6 };

struct ibv_qp {
	struct ibv_context *context;
	void *qp_context;
	struct ibv_pd *pd;
	struct ibv_cq *send_cq, *recv_cq;
	struct ibv_srq *srq;
	uint32_t handle, qp_num;
	enum ibv_qp_state state;
	enum ibv_qp_type qp_type;
};

struct ibv_qp_cap {
	uint32_t max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data;
};

struct ibv_qp_init_attr {
	void *qp_context;
	struct ibv_cq *send_cq, *recv_cq;
	struct ibv_srq *srq;
	struct ibv_qp_cap cap;
	enum ibv_qp_type qp_type;
	int sq_sig_all;
};

enum ibv_mig_state { IBV_MIG_MIGRATED };

struct ibv_qp_attr {
	enum ibv_qp_state qp_state, cur_qp_state;
	enum ibv_mtu path_mtu;
	enum ibv_mig_state path_mig_state;
	uint32_t qkey, rq_psn, sq_psn, dest_qp_num;
	unsigned int qp_access_flags;
	struct ibv_qp_cap cap;
	struct ibv_ah_attr ah_attr, alt_ah_attr;
	uint16_t pkey_index, alt_pkey_index;
	uint8_t en_sqd_async_notify, sq_draining, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer;
	uint8_t port_num, timeout, retry_cnt, rnr_retry, alt_port_num, alt_timeout;
	uint32_t rate_limit;
};

/* ---- work requests and completions ---- */

struct ibv_sge {
	uint64_t addr;
	uint32_t length, lkey;
};

enum ibv_wr_opcode { IBV_WR_RDMA_WRITE, IBV_WR_BIND_MW = 8 };

struct ibv_send_wr {
	uint64_t wr_id;
	struct ibv_send_wr *next;
	struct ibv_sge *sg_list;
	int num_sge;
	enum ibv_wr_opcode opcode;
	unsigned int send_flags;
	union {
		__be32 imm_data;
		uint32_t invalidate_rkey;
	};
	union {
		struct {
			uint64_t remote_addr;
			uint32_t rkey;
		} rdma;
		struct {
			uint64_t remote_addr, compare_add, swap;
			uint32_t rkey;
		} atomic;
		struct {
			struct ibv_ah *ah;
			uint32_t remote_qpn, remote_qkey;
		} ud;
	} wr;
	union {
		struct {
			uint32_t remote_srqn;
		} xrc;
	} qp_type;
	uint64_t unused_bind_mw[6];
};

struct ibv_recv_wr {
	uint64_t wr_id;
	struct ibv_recv_wr *next;
	struct ibv_sge *sg_list;
	int num_sge;
};

enum ibv_wc_status { IBV_WC_SUCCESS };

enum ibv_wc_opcode { IBV_WC_SEND, IBV_WC_RECV = 1 << 7 };

struct ibv_wc {
	uint64_t wr_id;
	enum ibv_wc_status status;
	enum ibv_wc_opcode opcode;
	uint32_t vendor_err, byte_len;
	union {
		__be32 imm_data;
		uint32_t invalidated_rkey;
	};
	uint32_t qp_num, src_qp;
	unsigned int wc_flags;
	uint16_t pkey_index, slid;
	uint8_t sl, dlid_path_bits;
};

/* ---- asynchronous events ---- */

enum ibv_event_type { IBV_EVENT_CQ_ERR, IBV_EVENT_WQ_FATAL = 19 };

struct ibv_async_event {
	union {
		struct ibv_cq *cq;
	} element;
	enum ibv_event_type event_type;
};

/* ---- the device's own calls ---- */

struct ibv_context_ops {
	void *unused_query[2];
	void *unused_memory[5];
	void *unused_mw[3];
	void *unused_create_cq;
	int (*poll_cq)(struct ibv_cq *, int, struct ibv_wc *);
	int (*req_notify_cq)(struct ibv_cq *, int);
	void *unused_cq[3];
	void *unused_srq[4];
	int (*post_srq_recv)(struct ibv_srq *, struct ibv_recv_wr *, struct ibv_recv_wr **);
	void *unused_qp[4];
	int (*post_send)(struct ibv_qp *, struct ibv_send_wr *, struct ibv_send_wr **);
	int (*post_recv)(struct ibv_qp *, struct ibv_recv_wr *, struct ibv_recv_wr **);
	void *unused_others[5];
};

struct ibv_context {
	struct ibv_device *device;
	struct ibv_context_ops ops;
	int cmd_fd, async_fd, num_comp_vectors;
	pthread_mutex_t mutex;
	void *abi_compat; /* all ones: it is the end of a struct verbs_context */
};

/*
 * What stands before a context: newer libraries have more in front, so a member's place is a
 * distance to the end, and sz says how far the struct reaches up.
 */
struct verbs_context {
	int (*query_port)(struct ibv_context *, uint8_t, struct ibv_port_attr *, size_t);
	void *unused_advise_mr_to_priv[26];
	int (*query_device_ex)(struct ibv_context *, const struct ibv_query_device_ex_input *,
		struct ibv_device_attr_ex *, size_t);
	void *unused_flow_to_xrcd[10];
	uint64_t unused_placeholder;
	size_t sz;
	struct ibv_context context;
};

/* ibc_extended returns the struct around a context, NULL unless it has the member at an offset. */
static inline struct verbs_context *ibc_extended(struct ibv_context *context, size_t member)
{
	if (context->abi_compat != (void *)UINTPTR_MAX)
		return NULL;
	struct verbs_context *x = (void *)((char *)context - offsetof(struct verbs_context, context));
	return x->sz >= sizeof *x - member ? x : NULL;
}

static inline int ibv_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	return qp->context->ops.post_send(qp, wr, bad);
}

static inline int ibv_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	return qp->context->ops.post_recv(qp, wr, bad);
}

static inline int ibv_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	return srq->context->ops.post_srq_recv(srq, wr, bad);
}

static inline int ibv_poll_cq(struct ibv_cq *cq, int cap, struct ibv_wc *wc)
{
	return cq->context->ops.poll_cq(cq, cap, wc);
}

static inline int ibv_req_notify_cq(struct ibv_cq *cq, int solicited_only)
{
	return cq->context->ops.req_notify_cq(cq, solicited_only);
}

#endif
