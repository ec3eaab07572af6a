/* What the device and its port are. */
#include "sv.h"

#include <arpa/inet.h>
#include <endian.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#undef ibv_query_port

enum { VENDOR = 0x5356, PKEY = 0xffff, GID_TABLE = 16 };
#define GUID 0x0253566666fe0001ull

/* Behind a struct ibv_device libibverbs has things of its own, which providers look at. */
static struct {
	struct ibv_device dev;
	uint8_t nothing[1024];
} device;

/* IPv4: 10.86.0.1, of no interface. */
static const uint8_t ipv4[4] = { 10, 86, 0, 1 };

static void name_device(void)
{
	const char *name = getenv("SOFTVERBS_NAME");

	if (!name || !*name)
		name = "sv0";
	device.dev.node_type = IBV_NODE_CA;
	device.dev.transport_type = IBV_TRANSPORT_IB;
	snprintf(device.dev.name, sizeof device.dev.name, "%s", name);
	snprintf(device.dev.dev_name, sizeof device.dev.dev_name, "uverbs_%.40s", name);
	snprintf(device.dev.dev_path, sizeof device.dev.dev_path, "/sys/class/infiniband_verbs/uverbs_%.40s", name);
	snprintf(device.dev.ibdev_path, sizeof device.dev.ibdev_path, "/sys/class/infiniband/%.40s", name);
}

SV_EXPORT struct ibv_device **ibv_get_device_list(int *n)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	struct ibv_device **list = calloc(2, sizeof *list);

	pthread_once(&once, name_device);
	if (list)
		list[0] = &device.dev;
	if (n)
		*n = list ? 1 : 0;
	return list;
}

SV_EXPORT void ibv_free_device_list(struct ibv_device **list)
{
	free(list);
}

SV_EXPORT const char *ibv_get_device_name(struct ibv_device *d)
{
	return d->name;
}

SV_EXPORT int ibv_get_device_index(struct ibv_device *d)
{
	(void)d;
	return 0;
}

SV_EXPORT __be64 ibv_get_device_guid(struct ibv_device *d)
{
	(void)d;
	return htobe64(GUID);
}

static void describe(struct ibv_device_attr *a)
{
	*a = (struct ibv_device_attr){
		.fw_ver = "softverbs", .node_guid = htobe64(GUID), .sys_image_guid = htobe64(GUID),
		.vendor_id = VENDOR, .vendor_part_id = 1, .phys_port_cnt = 1, .max_pkeys = 1, .page_size_cap = ~0xfffull, .max_mr_size = 1ull << 46,
		.device_cap_flags = IBV_DEVICE_RC_RNR_NAK_GEN | IBV_DEVICE_SYS_IMAGE_GUID | IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_MEM_WINDOW_TYPE_2B,
		.max_qp = SV_OBJECTS / 2, .max_qp_wr = SV_QUEUE, .max_sge = SV_SGES, .max_sge_rd = SV_SGES,
		.max_cq = SV_OBJECTS / 2, .max_cqe = SV_CQES, .max_srq = SV_OBJECTS / 2, .max_srq_wr = SV_QUEUE, .max_srq_sge = SV_SGES,
		.max_mr = SV_REGIONS / 2, .max_mw = SV_REGIONS / 2, .max_pd = 1 << 16, .max_ah = 1 << 16,
		.max_qp_rd_atom = SV_READS, .max_qp_init_rd_atom = SV_READS, .max_res_rd_atom = SV_READS * SV_OBJECTS / 2,
		.atomic_cap = IBV_ATOMIC_HCA,
	};
}

SV_EXPORT int ibv_query_device(struct ibv_context *c, struct ibv_device_attr *a)
{
	(void)c;
	describe(a);
	return 0;
}

int sv_query_device_ex(struct ibv_context *c, const struct ibv_query_device_ex_input *in, struct ibv_device_attr_ex *a, size_t size)
{
	(void)c, (void)in;
	if (size < sizeof a->orig_attr)
		return EINVAL;
	memset(a, 0, size);
	describe(&a->orig_attr);
	if (size >= sizeof *a)
		a->phys_port_cnt_ex = 1;
	return 0;
}

int sv_query_port(struct ibv_context *c, uint8_t port, struct ibv_port_attr *a, size_t size)
{
	/* 4 lanes of 25 Gb/s: as good a figure as any. */
	struct ibv_port_attr all = {
		.state = IBV_PORT_ACTIVE, .phys_state = 5, .max_mtu = IBV_MTU_4096, .active_mtu = IBV_MTU_4096, .max_msg_sz = SV_MESSAGE,
		.gid_tbl_len = GID_TABLE, .pkey_tbl_len = 1, .max_vl_num = 1, .active_width = 2, .active_speed = 32,
		.link_layer = IBV_LINK_LAYER_ETHERNET, .port_cap_flags = IBV_PORT_CM_SUP | IBV_PORT_IP_BASED_GIDS,
	};

	(void)c;
	if (port != 1)
		return EINVAL;
	if (sv.infiniband) {
		all.link_layer = IBV_LINK_LAYER_INFINIBAND;
		all.lid = all.sm_lid = 1;
		all.port_cap_flags = 0;
	}
	memset(a, 0, size);
	memcpy(a, &all, size < sizeof all ? size : sizeof all);
	return 0;
}

SV_EXPORT int ibv_query_port(struct ibv_context *c, uint8_t port, struct _compat_ibv_port_attr *a)
{
	/* A struct that ends where the first newer attribute begins. */
	return sv_query_port(c, port, (struct ibv_port_attr *)a, offsetof(struct ibv_port_attr, port_cap_flags2));
}

/* ---- GIDs: on RoCE a link-local one and one of IPv4, each for version 1 and 2 ---- */

static uint32_t gids(void)
{
	return sv.infiniband ? 1 : SV_NAMES;
}

bool sv_gid(uint32_t index, union ibv_gid *gid)
{
	memset(gid, 0, sizeof *gid);
	if (index >= gids())
		return false;
	if (index < 2) {
		gid->global.subnet_prefix = htobe64(0xfe80000000000000);
		gid->global.interface_id = htobe64(GUID);
		return true;
	}
	gid->raw[10] = gid->raw[11] = 0xff;
	memcpy(gid->raw + 12, ipv4, sizeof ipv4);
	return true;
}

static uint32_t gid_type(uint32_t index)
{
	if (sv.infiniband)
		return IBV_GID_TYPE_IB;
	return index % 2 ? IBV_GID_TYPE_ROCE_V2 : IBV_GID_TYPE_ROCE_V1;
}

SV_EXPORT int ibv_query_gid(struct ibv_context *c, uint8_t port, int index, union ibv_gid *gid)
{
	(void)c;
	if (port == 1 && index >= 0 && index < GID_TABLE) {
		sv_gid((uint32_t)index, gid); /* zeros: an empty entry */
		return 0;
	}
	errno = EINVAL;
	return -1;
}

static void fill(struct ibv_gid_entry *e, uint32_t index)
{
	*e = (struct ibv_gid_entry){ .gid_index = index, .port_num = 1, .gid_type = gid_type(index) };
	sv_gid(index, &e->gid);
	e->ndev_ifindex = sv.infiniband ? 0 : if_nametoindex("lo");
}

SV_EXPORT int _ibv_query_gid_ex(struct ibv_context *c, uint32_t port, uint32_t index, struct ibv_gid_entry *e, uint32_t flags, size_t size)
{
	(void)c;
	if (port != 1 || flags || size < sizeof *e)
		return EINVAL;
	if (index >= gids())
		return ENODATA;
	fill(e, index);
	return 0;
}

SV_EXPORT ssize_t _ibv_query_gid_table(struct ibv_context *c, struct ibv_gid_entry *e, size_t max, uint32_t flags, size_t size)
{
	(void)c;
	if (flags || size < sizeof *e || max < gids())
		return -EINVAL;
	for (uint32_t i = 0; i < gids(); i++)
		fill(&e[i], i);
	return gids();
}

/* Of rdma-core's own programs: 1 is RoCE v2. */
SV_EXPORT int ibv_query_gid_type(struct ibv_context *c, uint8_t port, unsigned int index, int *type)
{
	(void)c;
	*type = gid_type(index) == IBV_GID_TYPE_ROCE_V2;
	return port == 1 ? 0 : -1;
}

SV_EXPORT int ibv_query_pkey(struct ibv_context *c, uint8_t port, int index, __be16 *pkey)
{
	(void)c;
	if (port == 1 && index == 0) {
		*pkey = htobe16(PKEY);
		return 0;
	}
	errno = EINVAL;
	return -1;
}

SV_EXPORT int ibv_get_pkey_index(struct ibv_context *c, uint8_t port, __be16 pkey)
{
	(void)c;
	return port == 1 && pkey == htobe16(PKEY) ? 0 : -1;
}

/* Whether this address is the one that there is. */
int sv_check_ah(const struct ibv_ah_attr *a)
{
	union ibv_gid g;

	if (a->port_num != 1)
		return EINVAL;
	if (!a->is_global)
		return sv.infiniband && a->dlid ? 0 : EINVAL;
	if (!sv_gid(a->grh.sgid_index, &g))
		return EINVAL;
	for (uint32_t i = 0; sv_gid(i, &g); i++)
		if (!memcmp(&g, &a->grh.dgid, sizeof g))
			return 0;
	return EHOSTUNREACH;
}

/*
 * What stands in front of a datagram: a GRH (IBTA 8.3), or on RoCE v2 over IPv4 the IP header
 * (RFC 791) in the last 20 bytes of its place (Annex A17).
 */
void sv_header(uint8_t grh[SV_GRH], const struct ibv_ah_attr *ah, uint64_t payload)
{
	union ibv_gid from;

	memset(grh, 0, SV_GRH);
	if (!ah->is_global)
		return;
	sv_gid(ah->grh.sgid_index, &from);
	if (!sv.infiniband && ah->grh.sgid_index == 3) {
		uint8_t *ip = grh + 20;
		uint16_t total = htons((uint16_t)(20 + 8 + 12 + 8 + payload + 4)); /* with UDP, BTH, DETH, ICRC */
		ip[0] = 0x45;
		memcpy(ip + 2, &total, sizeof total);
		ip[6] = 0x40;
		ip[8] = ah->grh.hop_limit;
		ip[9] = IPPROTO_UDP;
		memcpy(ip + 12, from.raw + 12, 4);
		memcpy(ip + 16, ah->grh.dgid.raw + 12, 4);
		return;
	}
	uint16_t length = htons((uint16_t)payload);
	grh[0] = 0x60;
	memcpy(grh + 4, &length, sizeof length);
	grh[6] = 0x1b;
	grh[7] = ah->grh.hop_limit;
	memcpy(grh + 8, from.raw, 16);
	memcpy(grh + 24, ah->grh.dgid.raw, 16);
}

/* ---- what programs ask for in files ---- */

SV_EXPORT int ibv_read_sysfs_file(const char *dir, const char *file, char *buf, size_t size)
{
	char path[512];

	if (!strcmp(dir, device.dev.ibdev_path) && (!strcmp(file, "board_id") || !strcmp(file, "hca_type") || !strcmp(file, "fw_ver")))
		return snprintf(buf, size, "softverbs");
	snprintf(path, sizeof path, "%s/%s", dir, file);
	FILE *f = fopen(path, "re");
	if (!f)
		return -1;
	size_t n = fread(buf, 1, size - 1, f);
	fclose(f);
	while (n && buf[n - 1] == '\n')
		n--;
	buf[n] = 0;
	return (int)n;
}
