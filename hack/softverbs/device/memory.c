/* Registered memory: keys, what they allow, and copying between the memories of two processes. */
#include "sv.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { PAGE = 4096 };

/* ---- registering ---- */

static uint32_t cursor = 1; /* under sv_objects */

/* A free entry, claimed: its key is invalid, and unlike 0. */
static struct sv_region *claim(uint32_t *key)
{
	static uint8_t turn[SV_REGIONS];
	struct sv_region *r = NULL;

	pthread_mutex_lock(&sv_objects);
	for (uint32_t tries = 0; tries < SV_REGIONS && !r; tries++) {
		uint32_t i = cursor++ % SV_REGIONS;
		if (i == 0 || __atomic_load_n(&sv.own->region[i].bytes, __ATOMIC_RELAXED))
			continue;
		r = &sv.own->region[i];
		r->bytes = 1; /* taken */
		*key = sv.mark | i << 8 | ++turn[i];
	}
	pthread_mutex_unlock(&sv_objects);
	return r;
}

static void wait_for_rx(struct sv_qp *q)
{
	sv_lock(&q->x->rx);
	sv_unlock(&q->x->rx);
	sv_spin(&q->sq);
	sv_unspin(&q->sq);
}

/* After this nobody uses the region: who did so held a lock of one of this process's QPs. */
static void release(struct sv_region *r)
{
	__atomic_store_n(&r->key, 0, __ATOMIC_SEQ_CST);
	sv_each_qp(wait_for_rx);
	__atomic_store_n(&r->bytes, 0, __ATOMIC_RELEASE);
}

static bool unlimited(void)
{
	struct __user_cap_header_struct h = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct d[2];

	return !syscall(SYS_capget, &h, d) && (d[0].effective >> CAP_IPC_LOCK & 1);
}

/* As ib_umem_get of the kernel counts: whole pages, against RLIMIT_MEMLOCK. */
static int charge(uint64_t bytes)
{
	struct rlimit r;
	uint64_t limit = sv.memlock;

	if (!unlimited() && !getrlimit(RLIMIT_MEMLOCK, &r) && r.rlim_cur < limit)
		limit = r.rlim_cur;
	if (__atomic_add_fetch(&sv.charged, bytes, __ATOMIC_RELAXED) <= limit)
		return 0;
	__atomic_sub_fetch(&sv.charged, bytes, __ATOMIC_RELAXED);
	return ENOMEM;
}

/* By a direct call: the program's hooks must not take this for a doing of the program. */
static int fault_in(uint64_t lo, uint64_t bytes, bool write)
{
	if (!syscall(SYS_madvise, lo, bytes, write ? MADV_POPULATE_WRITE : MADV_POPULATE_READ))
		return 0;
	return errno == ENOMEM || errno == EINVAL ? EFAULT : errno; /* not mapped, or not so */
}

struct ibv_mr *sv_reg_mr(struct ibv_pd *pd, void *addr, size_t bytes, uint64_t iova, unsigned int access)
{
	const unsigned int all = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC |
				 IBV_ACCESS_MW_BIND | IBV_ACCESS_HUGETLB;
	const unsigned int writes = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
	struct sv_pd *p = (struct sv_pd *)pd;
	uint64_t at = (uintptr_t)addr, lo = at & ~(uint64_t)(PAGE - 1), whole = ((at + bytes + PAGE - 1) & ~(uint64_t)(PAGE - 1)) - lo;
	uint32_t key;

	access &= ~(unsigned int)IBV_ACCESS_OPTIONAL_RANGE;
	if (access & ~all)
		return sv_none(EOPNOTSUPP);
	if (!bytes || bytes >> 46 || at + bytes < at || iova + bytes < iova || (access & writes && !(access & IBV_ACCESS_LOCAL_WRITE)))
		return sv_none(EINVAL);
	int err = charge(whole);
	if (err)
		return sv_none(err);
	struct sv_mr *m = calloc(1, sizeof *m);
	err = m ? fault_in(lo, whole, access & (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND)) : ENOMEM;
	if (!err && !(m->x = claim(&key)))
		err = ENOMEM;
	if (err) {
		free(m);
		__atomic_sub_fetch(&sv.charged, whole, __ATOMIC_RELAXED);
		return sv_none(err);
	}
	m->charged = whole;
	uint64_t shared = sv.share && at == lo && access & IBV_ACCESS_LOCAL_WRITE ? sv_share(lo, whole) : 0;
	m->pins = sv_pin(lo, whole);
	m->x->shared = shared;
	m->x->pd = p->id;
	m->x->access = access;
	m->x->window_of = 0;
	m->x->iova = iova;
	m->x->addr = at;
	m->x->bytes = bytes;
	__atomic_store_n(&m->x->key, key, __ATOMIC_RELEASE);
	m->mr = (struct ibv_mr){ .context = pd->context, .pd = pd, .addr = addr, .length = bytes, .lkey = key, .rkey = key };
	__atomic_add_fetch(&p->users, 1, __ATOMIC_RELAXED);
	return &m->mr;
}

SV_EXPORT int ibv_dereg_mr(struct ibv_mr *mr)
{
	struct sv_mr *m = (struct sv_mr *)mr;

	release(m->x);
	sv_unpin(m->pins);
	__atomic_sub_fetch(&sv.charged, m->charged, __ATOMIC_RELAXED);
	__atomic_sub_fetch(&((struct sv_pd *)mr->pd)->users, 1, __ATOMIC_RELAXED);
	free(m);
	return 0;
}

/* ---- memory windows ---- */

struct ibv_mw *sv_alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type)
{
	struct sv_mw *w;
	uint32_t key;

	if (type != IBV_MW_TYPE_2)
		return sv_none(EOPNOTSUPP);
	if (!(w = calloc(1, sizeof *w)))
		return sv_none(ENOMEM);
	if (!(w->x = claim(&key))) {
		free(w);
		return sv_none(ENOMEM);
	}
	w->mw = (struct ibv_mw){ .context = pd->context, .pd = pd, .rkey = key, .type = type };
	__atomic_add_fetch(&((struct sv_pd *)pd)->users, 1, __ATOMIC_RELAXED);
	return &w->mw;
}

int sv_dealloc_mw(struct ibv_mw *mw)
{
	release(((struct sv_mw *)mw)->x);
	__atomic_sub_fetch(&((struct sv_pd *)mw->pd)->users, 1, __ATOMIC_RELAXED);
	free(mw);
	return 0;
}

static int invalidate(struct sv_qp *q, uint32_t key)
{
	struct sv_region *w = &sv.own->region[key >> 8 & (SV_REGIONS - 1)];

	if (!key || w->key != key || w->window_of != q->x->number)
		return IBV_WC_MW_BIND_ERR;
	__atomic_store_n(&w->key, 0, __ATOMIC_RELEASE);
	return IBV_WC_SUCCESS;
}

int sv_bind(struct sv_qp *q, const struct ibv_send_wr *wr)
{
	if (wr->opcode == IBV_WR_LOCAL_INV)
		return invalidate(q, wr->invalidate_rkey);
	const struct ibv_mw_bind_info *b = &wr->bind_mw.bind_info;
	struct sv_region *w = ((struct sv_mw *)wr->bind_mw.mw)->x;
	struct sv_region *r = b->mr ? sv_find(sv.slot, b->mr->lkey, q->x->pd, b->addr, b->length) : NULL;
	/* The program chooses the variant only. */
	if (!r || !(r->access & IBV_ACCESS_MW_BIND) || w->key || (wr->bind_mw.rkey ^ wr->bind_mw.mw->rkey) >> 8)
		return IBV_WC_MW_BIND_ERR;
	w->pd = q->x->pd;
	w->access = b->mw_access_flags;
	w->window_of = q->x->number;
	w->iova = b->addr;
	w->addr = r->addr + (b->addr - r->iova);
	w->bytes = b->length;
	w->shared = r->shared ? r->shared + (b->addr - r->iova) : 0;
	__atomic_store_n(&w->key, wr->bind_mw.rkey, __ATOMIC_RELEASE);
	wr->bind_mw.mw->rkey = wr->bind_mw.rkey;
	return IBV_WC_SUCCESS;
}

/* ---- using ---- */

struct sv_region *sv_find(uint32_t slot, uint32_t key, uint32_t pd, uint64_t addr, uint64_t bytes)
{
	struct sv_region *r = &sv_window(slot)->region[key >> 8 & (SV_REGIONS - 1)];

	if (!key || __atomic_load_n(&r->key, __ATOMIC_ACQUIRE) != key || r->pd != pd)
		return NULL;
	return addr >= r->iova && bytes <= r->bytes && addr - r->iova <= r->bytes - bytes ? r : NULL;
}

struct sv_piece sv_piece_of(const struct sv_region *r, uint64_t addr, uint64_t bytes)
{
	uint64_t at = addr - r->iova;

	return (struct sv_piece){ r->addr + at, bytes, r->shared ? sv_at(r->shared + at) : NULL };
}

bool sv_resolve(struct sv_pieces *out, uint32_t slot, uint32_t pd, const struct ibv_sge *sge, uint32_t n, unsigned int access)
{
	out->n = 0;
	out->bytes = 0;
	for (uint32_t i = 0; i < n; i++) {
		if (!sge[i].length)
			continue;
		const struct sv_region *r = sv_find(slot, sge[i].lkey, pd, sge[i].addr, sge[i].length);
		if (!r || r->window_of || (r->access & access) != access)
			return false;
		out->at[out->n++] = sv_piece_of(r, sge[i].addr, sge[i].length);
		out->bytes += sge[i].length;
	}
	return true;
}

/* The pieces as the kernel wants them, up to that many bytes. Returns how many pieces. */
static unsigned long vectors(struct iovec *v, const struct sv_pieces *p, uint64_t bytes)
{
	unsigned long n = 0;

	for (; bytes; n++) {
		uint64_t some = p->at[n].bytes < bytes ? p->at[n].bytes : bytes;
		v[n] = (struct iovec){ (void *)(uintptr_t)p->at[n].addr, some };
		bytes -= some;
	}
	return n;
}

/* The last word of each message becomes visible last: programs wait for it. */
static unsigned long split_last_word(struct iovec *v, unsigned long n)
{
	struct iovec *last = &v[n - 1];
	uint64_t end = (uintptr_t)last->iov_base + last->iov_len;

	if (last->iov_len <= 8 || end & 7)
		return n;
	last->iov_len -= 8;
	v[n] = (struct iovec){ (void *)(uintptr_t)(end - 8), 8 };
	return n + 1;
}

static bool all_here(const struct sv_pieces *p)
{
	for (uint32_t i = 0; i < p->n; i++)
		if (!p->at[i].here)
			return false;
	return true;
}

/* The last word as one, and after the rest: programs wait for it. */
static void copy_here(uint8_t *to, const uint8_t *from, uint64_t bytes)
{
	uint64_t word;

	if (bytes < 8 || (uintptr_t)(to + bytes) & 7) {
		memcpy(to, from, bytes);
		__atomic_thread_fence(__ATOMIC_RELEASE);
		return;
	}
	memcpy(&word, from + bytes - 8, 8);
	if (bytes > 8)
		memmove(to, from, bytes - 8);
	__atomic_store_n((uint64_t *)(void *)(to + bytes - 8), word, __ATOMIC_RELEASE);
}

static void plain_copy(const struct sv_pieces *to, const struct sv_pieces *from)
{
	uint64_t t = 0, f = 0, n;

	for (uint32_t i = 0, j = 0; j < from->n;) {
		n = to->at[i].bytes - t < from->at[j].bytes - f ? to->at[i].bytes - t : from->at[j].bytes - f;
		copy_here((uint8_t *)to->at[i].here + t, (const uint8_t *)from->at[j].here + f, n);
		if ((t += n) == to->at[i].bytes) {
			i++;
			t = 0;
		}
		if ((f += n) == from->at[j].bytes) {
			j++;
			f = 0;
		}
	}
}

/* ---- what may not be written any more ---- */

static int memory_of(uint32_t slot)
{
	char path[32];

	snprintf(path, sizeof path, "/proc/%d/mem", sv.head->slot[slot].pid);
	return open(path, O_RDWR | O_CLOEXEC);
}

static int forced_piece(int to_fd, uint64_t to, int from_fd, uint64_t from, uint64_t bytes)
{
	uint8_t some[PAGE];

	for (uint64_t done = 0, n; done < bytes; done += n) {
		n = bytes - done < sizeof some ? bytes - done : sizeof some;
		if (pread(from_fd, some, n, (off_t)(from + done)) != (ssize_t)n || pwrite(to_fd, some, n, (off_t)(to + done)) != (ssize_t)n)
			return EFAULT;
	}
	return 0;
}

/*
 * A device does not look at page tables when it has pinned the pages: what the program has
 * protected since (mprotect) it reads and writes as before. So does who uses /proc/PID/mem.
 */
static int forced_copy(uint32_t to_slot, const struct sv_pieces *to, uint32_t from_slot, const struct sv_pieces *from)
{
	int to_fd = memory_of(to_slot), from_fd = memory_of(from_slot), err = to_fd < 0 || from_fd < 0 ? EFAULT : 0;
	uint64_t t = 0, f = 0, n;

	for (uint32_t i = 0, j = 0; !err && j < from->n;) {
		n = to->at[i].bytes - t < from->at[j].bytes - f ? to->at[i].bytes - t : from->at[j].bytes - f;
		err = forced_piece(to_fd, to->at[i].addr + t, from_fd, from->at[j].addr + f, n);
		if ((t += n) == to->at[i].bytes) {
			i++;
			t = 0;
		}
		if ((f += n) == from->at[j].bytes) {
			j++;
			f = 0;
		}
	}
	if (to_fd >= 0)
		close(to_fd);
	if (from_fd >= 0)
		close(from_fd);
	return err;
}

/*
 * Copies from->bytes. At least one side is this process. Its own memory goes through the kernel,
 * too: what the program has unmapped is an error of the request then, not the end of the process.
 */
int sv_copy(uint32_t to_slot, const struct sv_pieces *to, uint32_t from_slot, const struct sv_pieces *from)
{
	struct iovec t[SV_SGES + 3] = { 0 }, f[SV_SGES + 3] = { 0 };
	uint64_t bytes = from->bytes;
	ssize_t done;

	if (!bytes)
		return 0;
	if (sv.share && all_here(to) && all_here(from)) {
		plain_copy(to, from);
		return 0;
	}
	unsigned long nt = split_last_word(t, vectors(t, to, bytes)), nf = vectors(f, from, bytes);
	if (from_slot == sv.slot)
		done = process_vm_writev(sv.head->slot[to_slot].pid, f, nf, t, nt, 0);
	else
		done = process_vm_readv(sv.head->slot[from_slot].pid, t, nt, f, nf, 0);
	if (done == (ssize_t)bytes)
		return 0;
	return done < 0 && errno != EFAULT ? errno : forced_copy(to_slot, to, from_slot, from);
}

static uint64_t changed(const struct ibv_send_wr *wr, uint64_t old)
{
	if (wr->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD)
		return old + wr->wr.atomic.compare_add;
	return old == wr->wr.atomic.compare_add ? wr->wr.atomic.swap : old;
}

/* In shared memory by the processor. */
static uint64_t atomic_here(uint64_t *word, const struct ibv_send_wr *wr)
{
	uint64_t old = __atomic_load_n(word, __ATOMIC_RELAXED);

	while (!__atomic_compare_exchange_n(word, &old, changed(wr, old), false, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED))
		;
	return old;
}

/*
 * Atomic among the requests of all processes, by a lock in the domain, and like most devices
 * (IBV_ATOMIC_HCA) not with the processor of the word's owner.
 */
int sv_atomic(uint32_t slot, const struct sv_piece *at, const struct ibv_send_wr *wr, uint64_t *old)
{
	sv_lock_t *lock = &sv.head->words[at->addr >> 3 & 63];
	uint64_t word;
	struct sv_pieces there = { .at = { *at }, .n = 1, .bytes = 8 };
	struct sv_pieces before = { .at = { { (uintptr_t)old, 8, old } }, .n = 1, .bytes = 8 };
	struct sv_pieces after = { .at = { { (uintptr_t)&word, 8, &word } }, .n = 1, .bytes = 8 };

	if (at->here) {
		*old = atomic_here(at->here, wr);
		return 0;
	}
	sv_lock(lock);
	int err = sv_copy(sv.slot, &before, slot, &there);
	if (!err && (word = changed(wr, *old)) != *old)
		err = sv_copy(slot, &there, sv.slot, &after);
	sv_unlock(lock);
	return err;
}
