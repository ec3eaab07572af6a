/* The data path, second part: which memory a call takes away and which it brings. Taking too much
 * costs a registration, taking too little a user's data. */
#include "ibc_mem_path.h"

#include <sys/mman.h>
#include <sys/shm.h>

/* ---- what a call takes away ---- */

static uint64_t page_of(struct ibc_mem *m)
{
	uint64_t page = load(m->page);

	/* The largest of both architectures; before the start nothing is watched */
	return page ? page : 65536;
}

static struct ibc_mem_range rounded(struct ibc_mem *m, const volatile void *addr, uint64_t len)
{
	uint64_t mask = page_of(m) - 1, lo = (uintptr_t)addr, hi = lo + len;

	if (hi < lo || hi + mask < hi)
		return (struct ibc_mem_range){lo & ~mask, UINT64_MAX};
	return (struct ibc_mem_range){lo & ~mask, (hi + mask) & ~mask};
}

/* The largest size of huge pages that divides the address, or 1. Sizes:
 * Documentation/admin-guide/mm/hugetlbpage.rst and Documentation/arch/arm64/hugetlbpage.rst of
 * Linux 6.18, of all base page sizes. */
static uint64_t huge_page_at(uint64_t lo)
{
#if defined(__aarch64__)
	static const uint8_t log2_size[] = {34, 30, 29, 25, 21, 16};
#else
	static const uint8_t log2_size[] = {30, 21};
#endif

	for (uint32_t i = 0; i < sizeof log2_size; i++)
		if (!(lo & ((1ull << log2_size[i]) - 1)))
			return 1ull << log2_size[i];
	return 1;
}

/* The kernel rounds some lengths up to the huge page that a mapping may have. Its size is not known
 * here, but divides the address. Taking too much is safe. */
static struct ibc_mem_range huge_rounded(struct ibc_mem *m, const volatile void *addr, uint64_t len)
{
	struct ibc_mem_range r = rounded(m, addr, len);
	uint64_t huge = huge_page_at(r.lo);

	if (r.hi + huge - 1 > r.hi)
		r.hi = (r.hi + huge - 1) & ~(huge - 1);
	return r;
}

static void take(struct ibc_mem_plan *p, struct ibc_mem_range r)
{
	if (r.lo < r.hi)
		p->gone[p->n++] = r;
}

/* Advice that leaves the contents: madvise(2), and include/uapi/asm-generic/mman-common.h of Linux
 * 6.18. All others, also later inventions, count as taking the pages away. */
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

static void plan_mmap(struct ibc_mem *m, const struct ibc_mem_call *c, struct ibc_mem_plan *p)
{
	int flags = c->u.mmap.flags;

	if ((flags & MAP_FIXED) && !(flags & MAP_FIXED_NOREPLACE) && c->u.mmap.len)
		take(p, (flags & MAP_HUGETLB) || c->u.mmap.fd >= 0 ? huge_rounded(m, c->u.mmap.addr, c->u.mmap.len)
		                                                  : rounded(m, c->u.mmap.addr, c->u.mmap.len));
}

static void plan_mremap(struct ibc_mem *m, const struct ibc_mem_call *c, struct ibc_mem_plan *p)
{
	uint64_t old_len = c->u.mremap.old_len, new_len = c->u.mremap.new_len;
	int flags = c->u.mremap.flags;
	struct ibc_mem_range old = huge_rounded(m, c->u.mremap.old, old_len);

	/* Shrinks in its place */
	if (!(flags & (MREMAP_FIXED | MREMAP_DONTUNMAP)) && new_len <= old_len)
		old.lo = rounded(m, c->u.mremap.old, new_len).hi;
	else if (!(flags & MREMAP_MAYMOVE)) /* grows in its place, or fails */
		old.hi = old.lo;
	if (old_len)
		take(p, old);
	if ((flags & MREMAP_FIXED) && new_len)
		take(p, huge_rounded(m, c->u.mremap.to, new_len));
}

static void plan_brk(struct ibc_mem *m, uint64_t to, uint64_t from, struct ibc_mem_plan *p)
{
	if (to < from)
		take(p, rounded(m, (void *)(uintptr_t)to, from - to));
}

/* Where a raw call has moved the break, going up from the libc's idea of it may mean going down. */
static void plan_sbrk(struct ibc_mem *m, intptr_t by, struct ibc_mem_plan *p)
{
	uint64_t from = ibc_mem_libc_brk(), to = from + (uint64_t)by;

	if ((by > 0) == (to > from)) /* else it is beyond all addresses, and the call fails */
		plan_brk(m, to, ibc_raw_brk(), p);
}

static uint64_t shm_len(int id)
{
	struct shmid_ds ds;

	if (ibc_sys_failed(ibc_sys(SYS_shmctl, id, IPC_STAT, (long)&ds, 0, 0, 0)))
		return 0;
	return ds.shm_segsz;
}

static void plan_shmat(struct ibc_mem *m, const struct ibc_mem_call *c, struct ibc_mem_plan *p)
{
	uint64_t lo = (uintptr_t)c->u.shmat.addr;

	p->shm_len = shm_len(c->u.shmat.id);
	if (!(c->u.shmat.flags & SHM_REMAP))
		return;
	if (c->u.shmat.flags & SHM_RND)
		lo &= ~(page_of(m) - 1); /* SHMLBA is the page size of the kernel on both architectures */
	take(p, huge_rounded(m, (void *)(uintptr_t)lo, p->shm_len ? p->shm_len : UINT64_MAX));
}

static void plan_shmdt(struct ibc_mem *m, const struct ibc_mem_call *c, struct ibc_mem_plan *p)
{
	uint64_t lo = (uintptr_t)c->u.shmdt.addr, len = UINT64_MAX; /* not known: all above */

	for (uint32_t i = 0; i < IBC_MEM_SEGMENTS; i++)
		if (load(m->segment[i].lo) == lo && load(m->segment[i].len))
			len = load(m->segment[i].len);
	take(p, huge_rounded(m, c->u.shmdt.addr, len));
}

IBC_HIDDEN void ibc_mem_plan(struct ibc_mem *m, const struct ibc_mem_call *c, struct ibc_mem_plan *p)
{
	p->n = p->everywhere = 0;
	switch (c->event) {
	case IBC_MEM_MMAP:
		plan_mmap(m, c, p);
		break;
	case IBC_MEM_MUNMAP:
		if (c->u.munmap.len)
			take(p, rounded(m, c->u.munmap.addr, c->u.munmap.len));
		break;
	case IBC_MEM_MREMAP:
		plan_mremap(m, c, p);
		break;
	case IBC_MEM_SHMAT:
		plan_shmat(m, c, p);
		break;
	case IBC_MEM_SHMDT:
		plan_shmdt(m, c, p);
		break;
	case IBC_MEM_BRK:
		p->was_brk = ibc_raw_brk();
		plan_brk(m, (uintptr_t)c->u.brk.addr, p->was_brk, p);
		break;
	case IBC_MEM_SBRK:
		if (c->u.sbrk.by)
			plan_sbrk(m, c->u.sbrk.by, p);
		break;
	case IBC_MEM_MADVISE: /* of huge pages Linux 5.18 to 6.0 discards what it rounds up to, later ones what they round
	                       * down to (mm/madvise.c, madvise_dontneed_free_valid_vma; madvise(2) says
	                       * up) */
		if (c->u.madvise.len && !advice_keeps(c->u.madvise.advice))
			take(p, huge_rounded(m, c->u.madvise.addr, c->u.madvise.len));
		p->everywhere = c->u.madvise.advice == MADV_REMOVE;
		break;
	case IBC_MEM_PROCESS_MADVISE: /* whose process and which ranges would have to be asked first: take all */
		if (!advice_keeps(c->u.process_madvise.advice))
			take(p, (struct ibc_mem_range){0, UINT64_MAX});
		break;
	case IBC_MEM_REMAP_FILE_PAGES:
		if (c->u.remap.len)
			take(p, rounded(m, c->u.remap.addr, c->u.remap.len));
		break;
	}
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

/* Whole pages of what came behind old, which shares its last page. */
static struct ibc_mem_range behind(struct ibc_mem *m, uint64_t old, uint64_t new)
{
	struct ibc_mem_range r = rounded(m, (void *)(uintptr_t)old, new > old ? new - old : 0);

	if (old & (page_of(m) - 1))
		r.lo += page_of(m);
	return r;
}

/* What stays where it was was not brought. The place of a moved segment says nothing about its size
 * any more. */
static struct ibc_mem_range mremap_brought(struct ibc_mem *m, const struct ibc_mem_call *c)
{
	uint64_t at = (uint64_t)c->result;

	if (at == (uintptr_t)c->u.mremap.old)
		return behind(m, at + c->u.mremap.old_len, at + c->u.mremap.new_len);
	forget_segment(m, at);
	return rounded(m, (void *)c->result, c->u.mremap.new_len);
}

IBC_HIDDEN struct ibc_mem_range ibc_mem_brought(struct ibc_mem *m, const struct ibc_mem_call *c,
	const struct ibc_mem_plan *p)
{
	void *at = (void *)c->result;

	switch (c->event) {
	case IBC_MEM_MMAP:
		return rounded(m, at, c->u.mmap.len);
	case IBC_MEM_MREMAP:
		return mremap_brought(m, c);
	case IBC_MEM_SHMAT:
		remember_segment(m, (uint64_t)c->result, p->shm_len);
		return rounded(m, at, p->shm_len);
	case IBC_MEM_SHMDT:
		forget_segment(m, (uintptr_t)c->u.shmdt.addr);
		break;
	case IBC_MEM_BRK:
		return behind(m, p->was_brk, (uintptr_t)c->u.brk.addr);
	case IBC_MEM_SBRK:
		if (c->u.sbrk.by > 0)
			return behind(m, (uint64_t)c->result, (uint64_t)c->result + (uint64_t)c->u.sbrk.by);
	}
	return (struct ibc_mem_range){0, 0};
}
