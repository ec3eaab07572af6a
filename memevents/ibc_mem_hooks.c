/* The data path: the hooks themselves, and what they do to the table.
 *
 * A hook runs on any thread, in signal handlers, before any constructor, and inside the Go runtime's own mmap
 * with the runtime's locks held. So this file calls nothing but the kernel, the next definition of the same
 * call, and the handlers; it waits for nobody and allocates nothing. A test reads the object file and refuses
 * any other undefined symbol. What needs more stands in the other files.
 *
 * The order is the point: a call that takes memory away first opens a window, then makes the overlapping
 * entries stale, then lets the kernel work, then closes the window. A registrar publishes its entry (PENDING)
 * first and then looks at the windows. With both sides sequentially consistent, either the hook sees the entry
 * or the registrar sees the window; without the window an entry registered between the notice and the kernel's
 * work would stay valid for ever. */
#include "ibc_mem.h"
#include "ibc_mem_arch.h"

#include <errno.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/uio.h>
#include <unistd.h>

#define load(p) __atomic_load_n(&(p), __ATOMIC_SEQ_CST)
#define store(p, v) __atomic_store_n(&(p), (v), __ATOMIC_SEQ_CST)
#define add(p, v) __atomic_add_fetch(&(p), (v), __ATOMIC_SEQ_CST)
#define count(p) ((void)__atomic_add_fetch(&(p), 1, __ATOMIC_RELAXED))
#define cas(p, old, new) __atomic_compare_exchange_n(&(p), (old), (new), 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)
#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)

IBC_HIDDEN struct ibc_mem ibc_mem_own;
IBC_HIDDEN struct ibc_mem *ibc_mem_use = &ibc_mem_own;
IBC_HIDDEN void *ibc_mem_next[IBC_MEM_NATIVE];

/* ---- windows ---- */

IBC_HIDDEN uint32_t ibc_mem_window_open(struct ibc_mem *m, uint64_t lo, uint64_t hi)
{
	uint32_t at = ibc_thread_hint();

	for (uint32_t i = 0; i < IBC_MEM_WINDOWS; i++) {
		struct ibc_mem_window *w = &m->window[(at + i) % IBC_MEM_WINDOWS];
		uint64_t none = 0;

		if (load(w->lo) || !cas(w->lo, &none, 1))
			continue;
		store(w->hi, hi);
		if (lo > 1) /* 1 stays "everything" */
			store(w->lo, lo);
		return (at + i) % IBC_MEM_WINDOWS;
	}
	add(m->overflow, 1);
	count(m->stats.overflows);
	return IBC_MEM_WINDOWS;
}

IBC_HIDDEN void ibc_mem_window_close(struct ibc_mem *m, uint32_t id)
{
	if (likely(id < IBC_MEM_WINDOWS))
		__atomic_store_n(&m->window[id].lo, 0, __ATOMIC_RELEASE);
	else
		add(m->overflow, -1);
}

/* ---- invalidation ---- */

static void bury(struct ibc_mem *m, struct ibc_mem_entry *e)
{
	struct ibc_mem_watcher *w = &m->watcher[e->watcher % IBC_MEM_WATCHERS];
	uint64_t dead = add(w->dead_bytes, load(e->hi) - load(e->lo));
	uint32_t head = load(w->dead_head);

	add(w->dead_count, 1);
	do
		store(e->dead_next, head);
	while (!cas(w->dead_head, &head, (uint32_t)(e - m->entry) + 1));
	/* From here on the entry is its owner's. */
	if (dead > load(w->dead_limit) && !__atomic_exchange_n(&w->signalled, 1, __ATOMIC_SEQ_CST))
		__atomic_or_fetch(&m->signal, 1ull << (w - m->watcher), __ATOMIC_SEQ_CST);
}

/* Makes the entry stale if it overlaps. A VALID one goes to its owner's dead list, which the one winner of
 * the exchange does; a PENDING one belongs to the registrar, who learns it from its own exchange. */
static void expire(struct ibc_mem *m, struct ibc_mem_entry *e, uint64_t lo, uint64_t hi)
{
	uint64_t s = load(e->state), stale;

	do {
		uint64_t kind = s & 3;

		if ((kind != IBC_MEM_PENDING && kind != IBC_MEM_VALID) || load(e->lo) >= hi || load(e->hi) <= lo)
			return;
		stale = (s & ~3ull) | IBC_MEM_STALE;
	} while (!cas(e->state, &s, stale));

	add(m->generation, 1);
	count(m->stats.invalidated);
	if ((s & 3) == IBC_MEM_PENDING) {
		count(m->stats.invalidated_pending);
		return;
	}
	if (load(e->refs))
		count(m->stats.invalidated_in_use);
	bury(m, e);
}

IBC_HIDDEN uint32_t ibc_mem_hash(uint32_t level, uint64_t cell)
{
	return (uint32_t)(((cell + 1) * 0x9E3779B97F4A7C15u ^ (uint64_t)(level + 1) * 0xC2B2AE3D27D4EB4Fu) >> (64 - IBC_MEM_HEADS_LOG2));
}

static void expire_all(struct ibc_mem *m, uint64_t lo, uint64_t hi)
{
	uint32_t high = load(m->high);

	count(m->stats.scans);
	for (uint32_t i = 0; i < high; i++)
		expire(m, &m->entry[i], lo, hi);
}

/* Walks the cells of one level. False: there are more cells than entries, or the lists are being changed. */
static int expire_level(struct ibc_mem *m, uint32_t level, uint64_t lo, uint64_t hi, uint32_t *steps)
{
	uint64_t first = lo >> IBC_MEM_CELL_SHIFT(level), last = (hi - 1) >> IBC_MEM_CELL_SHIFT(level);

	if (last - first >= *steps)
		return 0;
	for (uint64_t cell = first; cell <= last; cell++) {
		for (uint32_t n = load(m->heads[ibc_mem_hash(level, cell)]); n; n = load(m->entry[(n - 1) / 2].next[(n - 1) % 2])) {
			if (!--*steps)
				return 0;
			expire(m, &m->entry[(n - 1) / 2], lo, hi);
		}
	}
	return 1;
}

/* An entry of size s stands in the one or two cells it touches of the level whose cells are at least s, so a
 * range meets it in a few lists however many entries there are elsewhere. A list that changed under the walk
 * may have led astray: then every slot is looked at, which needs no list. */
IBC_HIDDEN void ibc_mem_invalidate(struct ibc_mem *m, uint64_t lo, uint64_t hi)
{
	uint32_t live = load(m->live), steps = 2 * live + 64;
	uint64_t epoch = load(m->epoch);

	if (!live || lo >= hi)
		return;
	for (uint32_t levels = load(m->levels); levels; levels &= levels - 1) {
		if (!expire_level(m, (uint32_t)__builtin_ctz(levels), lo, hi, &steps)) {
			expire_all(m, lo, hi);
			return;
		}
	}
	if (unlikely(load(m->epoch) != epoch))
		expire_all(m, lo, hi);
}

/* ---- telling Go, once the call is over ---- */

static void wake(int32_t efd)
{
	uint64_t one = 1;

	if (efd)
		ibc_sys(SYS_write, efd - 1, (long)&one, sizeof one, 0, 0, 0);
}

IBC_HIDDEN void ibc_mem_signal(struct ibc_mem *m)
{
	if (likely(!load(m->signal)))
		return;
	for (uint64_t who = __atomic_exchange_n(&m->signal, 0, __ATOMIC_SEQ_CST); who; who &= who - 1)
		wake(load(m->watcher[__builtin_ctzll(who)].efd));
}

/* A bounded queue of many writers and one reader. A slot's sequence is kept relative to its index, so that
 * zeroed memory is an empty ring. What does not fit is counted; the reader then tells its readers to look anew. */
IBC_HIDDEN void ibc_mem_record(struct ibc_mem *m, uint32_t event, uint64_t lo, uint64_t hi)
{
	struct ibc_mem_record *r;
	uint64_t turn;

	if (likely(!load(m->ring_on)))
		return;
	turn = load(m->ring_tail);
	for (;;) {
		r = &m->ring[turn % IBC_MEM_RING];
		int64_t ahead = (int64_t)(load(r->seq) + turn % IBC_MEM_RING - turn);

		if (ahead < 0) {
			add(m->ring_lost, 1);
			return;
		}
		if (ahead > 0)
			turn = load(m->ring_tail);
		else if (cas(m->ring_tail, &turn, turn + 1))
			break;
	}
	r->event = event;
	r->lo = lo;
	r->hi = hi;
	store(r->seq, turn + 1 - turn % IBC_MEM_RING);
	if (!__atomic_exchange_n(&m->ring_wake, 1, __ATOMIC_SEQ_CST))
		wake(load(m->ring_efd));
}

/* ---- handlers ---- */

static void handle(struct ibc_mem *m, struct ibc_mem_call *c, int after)
{
	uint32_t done = c->done;

	for (struct ibc_mem_handler *h = load(m->handlers); h && c->done == done; h = load(h->next))
		if ((load(h->events) >> c->event & 1) && (h->priority >= 0) == after)
			h->fn(c, h->arg);
}

/* False: a handler refuses, for the reason in c->err. */
static int allowed(struct ibc_mem *m, struct ibc_mem_call *c, struct ibc_mem_range r)
{
	struct ibc_mem_call vm = {.event = IBC_MEM_VM_UNMAPPED, .u.vm = r};

	handle(m, &vm, 0);
	c->err = vm.err;
	return !vm.done;
}

static void vm_event(struct ibc_mem *m, uint32_t event, struct ibc_mem_range r)
{
	count(m->stats.calls[event]);
	ibc_mem_record(m, event, r.lo, r.hi);
	if (unlikely(load(m->log_level) >= IBC_MEM_LOG_DEBUG))
		ibc_mem_log(m, IBC_MEM_LOG_DEBUG, "%s [%#lx,%#lx)", event == IBC_MEM_VM_MAPPED ? "mapped" : "unmapped", (unsigned long)r.lo, (unsigned long)r.hi);
	if (unlikely(load(m->handlers) != NULL)) {
		struct ibc_mem_call vm = {.event = event, .u.vm = r};

		handle(m, &vm, 1);
	}
}

/* The self-test makes real calls and asks which of them came by here. */
static void seen(struct ibc_mem *m, uint32_t event)
{
	uint32_t tid = load(m->test_tid);

	if (unlikely(tid) && tid == (uint32_t)ibc_sys(SYS_gettid, 0, 0, 0, 0, 0, 0))
		add(m->test_seen[event], 1);
}

/* ---- what a call takes away ---- */

struct plan {
	struct ibc_mem_range gone[2];
	uint32_t n;
	uint64_t shm_len;
};

static uint64_t page_of(struct ibc_mem *m)
{
	uint64_t page = load(m->page);

	return page ? page : 65536; /* the largest of both architectures; before the start nobody watches */
}

static struct ibc_mem_range rounded(struct ibc_mem *m, const volatile void *addr, uint64_t len)
{
	uint64_t mask = page_of(m) - 1, lo = (uintptr_t)addr, hi = lo + len;

	if (hi < lo || hi + mask < hi)
		return (struct ibc_mem_range){lo & ~mask, UINT64_MAX};
	return (struct ibc_mem_range){lo & ~mask, (hi + mask) & ~mask};
}

/* The kernel rounds some lengths up to the huge page that a mapping may have. Its size is not known here, but
 * divides the address. Taking too much is safe. */
static struct ibc_mem_range huge_rounded(struct ibc_mem *m, const volatile void *addr, uint64_t len)
{
	struct ibc_mem_range r = rounded(m, addr, len);
	uint64_t align = r.lo & -r.lo;

	if (align > 1ull << 30)
		align = 1ull << 30;
	if (align >= 1ull << 21 && r.hi + align - 1 > r.hi)
		r.hi = (r.hi + align - 1) & ~(align - 1);
	return r;
}

static void take(struct plan *p, struct ibc_mem_range r)
{
	if (r.lo < r.hi)
		p->gone[p->n++] = r;
}

/* Advice that leaves the contents: madvise(2), and include/uapi/asm-generic/mman-common.h of Linux 6.18.
 * Everything else, also what is invented later, counts as taking the pages away. */
static int advice_keeps(int advice)
{
	enum { POPULATE_READ = 22, POPULATE_WRITE = 23, COLLAPSE = 25, GUARD_REMOVE = 103 };

	switch (advice) {
	case MADV_NORMAL: case MADV_RANDOM: case MADV_SEQUENTIAL: case MADV_WILLNEED:
	case MADV_DONTFORK: case MADV_DOFORK: case MADV_MERGEABLE: case MADV_UNMERGEABLE:
	case MADV_HUGEPAGE: case MADV_NOHUGEPAGE: case MADV_DONTDUMP: case MADV_DODUMP:
	case MADV_WIPEONFORK: case MADV_KEEPONFORK: case MADV_COLD: case MADV_PAGEOUT:
	case POPULATE_READ: case POPULATE_WRITE: case COLLAPSE: case GUARD_REMOVE:
		return 1;
	}
	return 0;
}

static void plan_mmap(struct ibc_mem *m, const struct ibc_mem_call *c, struct plan *p)
{
	int flags = c->u.mmap.flags;

	if ((flags & MAP_FIXED) && !(flags & MAP_FIXED_NOREPLACE) && c->u.mmap.len)
		take(p, (flags & MAP_HUGETLB) || c->u.mmap.fd >= 0 ? huge_rounded(m, c->u.mmap.addr, c->u.mmap.len)
		                                                  : rounded(m, c->u.mmap.addr, c->u.mmap.len));
}

static void plan_mremap(struct ibc_mem *m, const struct ibc_mem_call *c, struct plan *p)
{
	uint64_t old_len = c->u.mremap.old_len, new_len = c->u.mremap.new_len;
	int flags = c->u.mremap.flags;
	struct ibc_mem_range old = huge_rounded(m, c->u.mremap.old, old_len);

	if (!(flags & (MREMAP_FIXED | MREMAP_DONTUNMAP)) && new_len <= old_len) /* shrinks in its place */
		old.lo = rounded(m, c->u.mremap.old, new_len).hi;
	else if (!(flags & MREMAP_MAYMOVE)) /* grows in its place, or fails */
		old.hi = old.lo;
	if (old_len)
		take(p, old);
	if ((flags & MREMAP_FIXED) && new_len)
		take(p, huge_rounded(m, c->u.mremap.to, new_len));
}

static uint64_t raw_brk(void) { return (uint64_t)ibc_sys(SYS_brk, 0, 0, 0, 0, 0, 0); }

static void plan_brk(struct ibc_mem *m, uint64_t to, uint64_t from, struct plan *p)
{
	if (to < from)
		take(p, rounded(m, (void *)(uintptr_t)to, from - to));
}

static uint64_t shm_len(int id)
{
	struct shmid_ds ds;

	if (ibc_sys_failed(ibc_sys(SYS_shmctl, id, IPC_STAT, (long)&ds, 0, 0, 0)))
		return 0;
	return ds.shm_segsz;
}

static void plan_shmat(struct ibc_mem *m, const struct ibc_mem_call *c, struct plan *p)
{
	uint64_t lo = (uintptr_t)c->u.shmat.addr;

	p->shm_len = shm_len(c->u.shmat.id);
	if (!(c->u.shmat.flags & SHM_REMAP))
		return;
	if (c->u.shmat.flags & SHM_RND)
		lo &= ~(page_of(m) - 1); /* SHMLBA is the page size of the kernel on both architectures */
	take(p, huge_rounded(m, (void *)(uintptr_t)lo, p->shm_len ? p->shm_len : UINT64_MAX));
}

static void plan_shmdt(struct ibc_mem *m, const struct ibc_mem_call *c, struct plan *p)
{
	uint64_t lo = (uintptr_t)c->u.shmdt.addr, len = UINT64_MAX; /* not known: all above */

	for (uint32_t i = 0; i < IBC_MEM_SEGMENTS; i++)
		if (load(m->segment[i].lo) == lo && load(m->segment[i].len))
			len = load(m->segment[i].len);
	take(p, huge_rounded(m, c->u.shmdt.addr, len));
}

static struct plan plan(struct ibc_mem *m, const struct ibc_mem_call *c)
{
	struct plan p = {.n = 0};

	switch (c->event) {
	case IBC_MEM_MMAP:
		plan_mmap(m, c, &p);
		break;
	case IBC_MEM_MUNMAP:
		if (c->u.munmap.len)
			take(&p, rounded(m, c->u.munmap.addr, c->u.munmap.len));
		break;
	case IBC_MEM_MREMAP:
		plan_mremap(m, c, &p);
		break;
	case IBC_MEM_SHMAT:
		plan_shmat(m, c, &p);
		break;
	case IBC_MEM_SHMDT:
		plan_shmdt(m, c, &p);
		break;
	case IBC_MEM_BRK:
		plan_brk(m, (uintptr_t)c->u.brk.addr, raw_brk(), &p);
		break;
	case IBC_MEM_SBRK:
		if (c->u.sbrk.by < 0) {
			uint64_t from = raw_brk();

			plan_brk(m, from + (uint64_t)c->u.sbrk.by, from, &p);
		}
		break;
	case IBC_MEM_MADVISE:
		if (c->u.madvise.len && !advice_keeps(c->u.madvise.advice))
			take(&p, rounded(m, c->u.madvise.addr, c->u.madvise.len));
		break;
	case IBC_MEM_PROCESS_MADVISE: /* whose process and which ranges would have to be asked first: take all */
		if (!advice_keeps(c->u.process_madvise.advice))
			take(&p, (struct ibc_mem_range){0, UINT64_MAX});
		break;
	case IBC_MEM_REMAP_FILE_PAGES:
		if (c->u.remap.len)
			take(&p, rounded(m, c->u.remap.addr, c->u.remap.len));
		break;
	}
	return p;
}

/* ---- what a call has brought ---- */

static void remember_segment(struct ibc_mem *m, uint64_t lo, uint64_t len)
{
	for (int pass = 0; pass < 2; pass++) {
		for (uint32_t i = 0; i < IBC_MEM_SEGMENTS; i++) {
			uint64_t want = pass ? 0 : lo;

			if (load(m->segment[i].lo) != want || (pass && !cas(m->segment[i].lo, &want, lo)))
				continue;
			store(m->segment[i].len, len);
			return;
		}
	}
}

static void forget_segment(struct ibc_mem *m, uint64_t lo)
{
	for (uint32_t i = 0; i < IBC_MEM_SEGMENTS; i++) {
		if (load(m->segment[i].lo) != lo)
			continue;
		store(m->segment[i].len, 0);
		store(m->segment[i].lo, 0);
	}
}

static struct ibc_mem_range brought(struct ibc_mem *m, const struct ibc_mem_call *c, const struct plan *p)
{
	void *at = (void *)c->result;

	switch (c->event) {
	case IBC_MEM_MMAP:
		return rounded(m, at, c->u.mmap.len);
	case IBC_MEM_MREMAP:
		return rounded(m, at, c->u.mremap.new_len);
	case IBC_MEM_SHMAT:
		remember_segment(m, (uint64_t)c->result, p->shm_len);
		return rounded(m, at, p->shm_len);
	case IBC_MEM_SHMDT:
		forget_segment(m, (uintptr_t)c->u.shmdt.addr);
		break;
	case IBC_MEM_SBRK:
		if (c->u.sbrk.by > 0)
			return rounded(m, at, (uint64_t)c->u.sbrk.by);
	}
	return (struct ibc_mem_range){0, 0};
}

static int fresh(const struct ibc_mem_call *c, const struct plan *p, struct ibc_mem_range r)
{
	for (uint32_t i = 0; i < p->n; i++)
		if (r.lo >= p->gone[i].lo && r.lo < p->gone[i].hi)
			return 0;
	return c->event != IBC_MEM_MREMAP || c->result != (intptr_t)c->u.mremap.old;
}

/* A place that was free a moment ago cannot have been registered as it is now: whatever is watched there was
 * unmapped unseen, or is still in userfaultfd's queue. */
static void arrived(struct ibc_mem *m, const struct ibc_mem_call *c, const struct plan *p)
{
	struct ibc_mem_range r;

	if (c->result == -1)
		return;
	r = brought(m, c, p);
	if (r.lo >= r.hi)
		return;
	if (fresh(c, p, r))
		ibc_mem_invalidate(m, r.lo, r.hi);
	vm_event(m, IBC_MEM_VM_MAPPED, r);
}

/* ---- the real call ---- */

extern void *__curbrk __attribute__((weak)); /* glibc's idea of the break */

static intptr_t returned(long ret)
{
	if (!ibc_sys_failed(ret))
		return ret;
	errno = (int)-ret;
	return -1;
}

static intptr_t kernel_brk(uint64_t to)
{
	uint64_t now = (uint64_t)ibc_sys(SYS_brk, (long)to, 0, 0, 0, 0, 0);

	if (now < to) {
		errno = ENOMEM;
		return -1;
	}
	if (&__curbrk)
		__curbrk = (void *)(uintptr_t)now;
	return 0;
}

static intptr_t kernel_sbrk(intptr_t by)
{
	uint64_t from = &__curbrk && __curbrk ? (uintptr_t)__curbrk : raw_brk();

	if (by && kernel_brk(from + (uint64_t)by))
		return -1;
	return (intptr_t)from;
}

/* Straight to the kernel: nobody comes after us, or it is not known yet who. */
static intptr_t kernel(const struct ibc_mem_call *c)
{
	switch (c->event) {
	case IBC_MEM_MMAP:
		return returned(ibc_sys(SYS_mmap, (long)c->u.mmap.addr, (long)c->u.mmap.len, c->u.mmap.prot, c->u.mmap.flags, c->u.mmap.fd, c->u.mmap.off));
	case IBC_MEM_MUNMAP:
		return returned(ibc_sys(SYS_munmap, (long)c->u.munmap.addr, (long)c->u.munmap.len, 0, 0, 0, 0));
	case IBC_MEM_MREMAP:
		return returned(ibc_sys(SYS_mremap, (long)c->u.mremap.old, (long)c->u.mremap.old_len, (long)c->u.mremap.new_len, c->u.mremap.flags, (long)c->u.mremap.to, 0));
	case IBC_MEM_SHMAT:
		return returned(ibc_sys(SYS_shmat, c->u.shmat.id, (long)c->u.shmat.addr, c->u.shmat.flags, 0, 0, 0));
	case IBC_MEM_SHMDT:
		return returned(ibc_sys(SYS_shmdt, (long)c->u.shmdt.addr, 0, 0, 0, 0, 0));
	case IBC_MEM_BRK:
		return kernel_brk((uintptr_t)c->u.brk.addr);
	case IBC_MEM_SBRK:
		return kernel_sbrk(c->u.sbrk.by);
	case IBC_MEM_MADVISE:
		return returned(ibc_sys(SYS_madvise, (long)c->u.madvise.addr, (long)c->u.madvise.len, c->u.madvise.advice, 0, 0, 0));
	case IBC_MEM_PROCESS_MADVISE:
		return returned(ibc_sys(SYS_process_madvise, c->u.process_madvise.pidfd, (long)c->u.process_madvise.iov, (long)c->u.process_madvise.n, c->u.process_madvise.advice, (long)c->u.process_madvise.flags, 0));
	case IBC_MEM_REMAP_FILE_PAGES:
		return returned(ibc_sys(SYS_remap_file_pages, (long)c->u.remap.addr, (long)c->u.remap.len, c->u.remap.prot, (long)c->u.remap.pgoff, c->u.remap.flags, 0));
	}
	return returned(-ENOSYS);
}

static intptr_t call_next(const struct ibc_mem_call *c)
{
	union {
		void *p;
		void *(*mmap)(void *, size_t, int, int, int, off_t);
		int (*munmap)(void *, size_t);
		void *(*mremap)(void *, size_t, size_t, int, ...);
		void *(*shmat)(int, const void *, int);
		int (*shmdt)(const void *);
		int (*brk)(void *);
		void *(*sbrk)(intptr_t);
		int (*madvise)(void *, size_t, int);
		ssize_t (*process_madvise)(int, const struct iovec *, size_t, int, unsigned);
		int (*remap)(void *, size_t, int, size_t, int);
	} next = {.p = c->raw ? NULL : load(ibc_mem_next[c->event])};

	if (!next.p)
		return kernel(c);
	switch (c->event) {
	case IBC_MEM_MMAP:
		return (intptr_t)next.mmap(c->u.mmap.addr, c->u.mmap.len, c->u.mmap.prot, c->u.mmap.flags, c->u.mmap.fd, c->u.mmap.off);
	case IBC_MEM_MUNMAP:
		return next.munmap(c->u.munmap.addr, c->u.munmap.len);
	case IBC_MEM_MREMAP:
		return (intptr_t)next.mremap(c->u.mremap.old, c->u.mremap.old_len, c->u.mremap.new_len, c->u.mremap.flags, c->u.mremap.to);
	case IBC_MEM_SHMAT:
		return (intptr_t)next.shmat(c->u.shmat.id, c->u.shmat.addr, c->u.shmat.flags);
	case IBC_MEM_SHMDT:
		return next.shmdt(c->u.shmdt.addr);
	case IBC_MEM_BRK:
		return next.brk(c->u.brk.addr);
	case IBC_MEM_SBRK:
		return (intptr_t)next.sbrk(c->u.sbrk.by);
	case IBC_MEM_MADVISE:
		return next.madvise(c->u.madvise.addr, c->u.madvise.len, c->u.madvise.advice);
	case IBC_MEM_PROCESS_MADVISE:
		return next.process_madvise(c->u.process_madvise.pidfd, c->u.process_madvise.iov, c->u.process_madvise.n, c->u.process_madvise.advice, c->u.process_madvise.flags);
	case IBC_MEM_REMAP_FILE_PAGES:
		return next.remap(c->u.remap.addr, c->u.remap.len, c->u.remap.prot, c->u.remap.pgoff, c->u.remap.flags);
	}
	return kernel(c);
}

/* ---- one call from beginning to end ---- */

enum { ORDER_SHIPPED, ORDER_BEFORE, ORDER_AFTER, ORDER_BOTH };

#ifdef IBC_MEM_TEST_MODES
/* The three orders that look right and are not, and a stop on either side of the kernel's work, for the test
 * that must catch them. */
#define order(m) load((m)->test_order)

static void stop(struct ibc_mem *m, const struct plan *p, uint32_t stage)
{
	if (!p->n || !load(m->test_addr) || p->gone[0].lo != load(m->test_addr))
		return;
	store(m->test_at, stage);
	while (load(m->test_at) == stage)
		ibc_sys(SYS_sched_yield, 0, 0, 0, 0, 0, 0);
}

/* What a strict malloc looks at. */
IBC_EXPORT __attribute__((tls_model("initial-exec"))) _Thread_local int ibc_mem_in_hook;

/* Breaks the rule on purpose: that a strict malloc catches it. */
extern void *malloc(size_t);
IBC_EXPORT long ibc_mem_test_break_rules(void)
{
	ibc_mem_in_hook++;
	return malloc(1) != NULL;
}
#define enter() (ibc_mem_in_hook++)
#define leave() (ibc_mem_in_hook--)
#else
#define order(m) ORDER_SHIPPED
#define stop(m, p, stage) ((void)0)
#define enter() ((void)0)
#define leave() ((void)0)
#endif

static void unmap(struct ibc_mem *m, struct ibc_mem_call *c, const struct plan *p)
{
	uint32_t window[2];

	if (unlikely(load(m->handlers) != NULL)) {
		for (uint32_t i = 0; i < p->n; i++) {
			if (allowed(m, c, p->gone[i]))
				continue;
			errno = c->err;
			c->result = -1;
			return;
		}
	}
	for (uint32_t i = 0; i < p->n; i++) {
		if (order(m) == ORDER_SHIPPED)
			window[i] = ibc_mem_window_open(m, p->gone[i].lo, p->gone[i].hi);
		if (order(m) != ORDER_AFTER)
			ibc_mem_invalidate(m, p->gone[i].lo, p->gone[i].hi);
		vm_event(m, IBC_MEM_VM_UNMAPPED, p->gone[i]);
	}
	stop(m, p, 1);
	c->result = call_next(c);
	stop(m, p, 2);
	for (uint32_t i = 0; i < p->n; i++) {
		if (order(m) == ORDER_SHIPPED)
			ibc_mem_window_close(m, window[i]);
		if (order(m) == ORDER_AFTER || order(m) == ORDER_BOTH)
			ibc_mem_invalidate(m, p->gone[i].lo, p->gone[i].hi);
	}
}

static intptr_t run(struct ibc_mem_call *c)
{
	struct ibc_mem *m = &ibc_mem_own;
	struct plan p;

	if (unlikely(load(m->standby) | load(m->forked)))
		return call_next(c);
	enter();
	count(m->stats.calls[c->event]);
	seen(m, c->event);
	if (unlikely(load(m->handlers) != NULL))
		handle(m, c, 0);
	if (likely(!c->done)) {
		p = plan(m, c);
		unmap(m, c, &p);
		arrived(m, c, &p);
	} else if (c->err) { /* a handler answered */
		errno = c->err;
		c->result = -1;
	}
	if (unlikely(load(m->handlers) != NULL))
		handle(m, c, 1);
	ibc_mem_signal(m);
	leave();
	return c->result;
}

/* ---- the ways in ---- */

/* Each call three times: under the libc's name; for relocations, since the address of a public name may be
 * another image's; and as the target of the libc's patched text, where the kernel comes next. */

static void *enter_mmap(uint32_t raw, void *addr, size_t len, int prot, int flags, int fd, off_t off)
{
	struct ibc_mem_call c = {.event = IBC_MEM_MMAP, .raw = raw, .u.mmap = {addr, len, prot, flags, fd, off}};

	return (void *)run(&c);
}

static int enter_munmap(uint32_t raw, void *addr, size_t len)
{
	struct ibc_mem_call c = {.event = IBC_MEM_MUNMAP, .raw = raw, .u.munmap = {addr, len}};

	return (int)run(&c);
}

static void *enter_mremap(uint32_t raw, void *old, size_t old_len, size_t new_len, int flags, va_list more)
{
	struct ibc_mem_call c = {.event = IBC_MEM_MREMAP, .raw = raw, .u.mremap = {old, old_len, new_len, flags, NULL}};

	if (flags & (MREMAP_FIXED | MREMAP_DONTUNMAP))
		c.u.mremap.to = va_arg(more, void *);
	return (void *)run(&c);
}

static void *enter_shmat(uint32_t raw, int id, const void *addr, int flags)
{
	struct ibc_mem_call c = {.event = IBC_MEM_SHMAT, .raw = raw, .u.shmat = {id, addr, flags}};

	return (void *)run(&c);
}

static int enter_shmdt(uint32_t raw, const void *addr)
{
	struct ibc_mem_call c = {.event = IBC_MEM_SHMDT, .raw = raw, .u.shmdt = {addr}};

	return (int)run(&c);
}

static int enter_brk(uint32_t raw, void *addr)
{
	struct ibc_mem_call c = {.event = IBC_MEM_BRK, .raw = raw, .u.brk = {addr}};

	return (int)run(&c);
}

static void *enter_sbrk(uint32_t raw, intptr_t by)
{
	struct ibc_mem_call c = {.event = IBC_MEM_SBRK, .raw = raw, .u.sbrk = {by}};

	return (void *)run(&c);
}

static int enter_madvise(uint32_t raw, void *addr, size_t len, int advice)
{
	struct ibc_mem_call c = {.event = IBC_MEM_MADVISE, .raw = raw, .u.madvise = {addr, len, advice}};

	return (int)run(&c);
}

static ssize_t enter_process_madvise(uint32_t raw, int pidfd, const struct iovec *iov, size_t n, int advice, unsigned flags)
{
	struct ibc_mem_call c = {.event = IBC_MEM_PROCESS_MADVISE, .raw = raw, .u.process_madvise = {pidfd, iov, n, advice, flags}};

	return run(&c);
}

static int enter_remap_file_pages(uint32_t raw, void *addr, size_t len, int prot, size_t pgoff, int flags)
{
	struct ibc_mem_call c = {.event = IBC_MEM_REMAP_FILE_PAGES, .raw = raw, .u.remap = {addr, len, prot, pgoff, flags}};

	return (int)run(&c);
}

#define WAY_IN(ret, name, params, ...)                                        \
	IBC_EXPORT ret name params { return enter_##name(0, __VA_ARGS__); }       \
	static ret hook_##name params { return enter_##name(0, __VA_ARGS__); }    \
	static ret patched_##name params { return enter_##name(1, __VA_ARGS__); } \
	_Static_assert(1, "")

WAY_IN(void *, mmap, (void *addr, size_t len, int prot, int flags, int fd, off_t off), addr, len, prot, flags, fd, off);
WAY_IN(int, munmap, (void *addr, size_t len), addr, len);
WAY_IN(void *, shmat, (int id, const void *addr, int flags), id, addr, flags);
WAY_IN(int, shmdt, (const void *addr), addr);
WAY_IN(int, brk, (void *addr), addr);
WAY_IN(void *, sbrk, (intptr_t by), by);
WAY_IN(int, madvise, (void *addr, size_t len, int advice), addr, len, advice);
WAY_IN(ssize_t, process_madvise, (int pidfd, const struct iovec *iov, size_t n, int advice, unsigned flags), pidfd, iov, n, advice, flags);
WAY_IN(int, remap_file_pages, (void *addr, size_t len, int prot, size_t pgoff, int flags), addr, len, prot, pgoff, flags);

/* On 64-bit systems the two are one. */
IBC_EXPORT void *mmap64(void *addr, size_t len, int prot, int flags, int fd, off64_t off) __attribute__((alias("mmap")));

#define MREMAP(name, raw)                                                          \
	void *name(void *old, size_t old_len, size_t new_len, int flags, ...)          \
	{                                                                              \
		va_list more;                                                              \
		void *ret;                                                                 \
		va_start(more, flags);                                                     \
		ret = enter_mremap(raw, old, old_len, new_len, flags, more);               \
		va_end(more);                                                              \
		return ret;                                                                \
	}

IBC_EXPORT MREMAP(mremap, 0)
static MREMAP(hook_mremap, 0)
static MREMAP(patched_mremap, 1)

#define ALL(prefix)                                                                                            \
	{                                                                                                          \
		[IBC_MEM_MMAP] = prefix##mmap, [IBC_MEM_MUNMAP] = prefix##munmap, [IBC_MEM_MREMAP] = prefix##mremap,   \
		[IBC_MEM_SHMAT] = prefix##shmat, [IBC_MEM_SHMDT] = prefix##shmdt, [IBC_MEM_BRK] = prefix##brk,         \
		[IBC_MEM_SBRK] = prefix##sbrk, [IBC_MEM_MADVISE] = prefix##madvise,                                    \
		[IBC_MEM_PROCESS_MADVISE] = prefix##process_madvise, [IBC_MEM_REMAP_FILE_PAGES] = prefix##remap_file_pages, \
	}

IBC_HIDDEN void *const ibc_mem_hook[IBC_MEM_NATIVE] = ALL(hook_);
IBC_HIDDEN void *const ibc_mem_patched[IBC_MEM_NATIVE] = ALL(patched_);
