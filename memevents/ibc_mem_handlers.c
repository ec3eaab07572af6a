/* The chain of handlers, and those that come with it. */
#include "ibc_mem.h"
#include "ibc_mem_arch.h"

#include <errno.h>
#include <sys/mman.h>

IBC_HIDDEN void ibc_mem_lock_handlers(struct ibc_mem *m)
{
	while (__atomic_exchange_n(&m->handler_lock, 1, __ATOMIC_SEQ_CST))
		ibc_sys(SYS_sched_yield, 0, 0, 0, 0, 0, 0);
}

/* The chain that counts, locked. A caller that got the table before another image's was chosen has
 * this image's still. */
static struct ibc_mem *locked(struct ibc_mem *m)
{
	struct ibc_mem *use;

	ibc_mem_lock_handlers(m);
	use = load(ibc_mem_use);
	if (m != &ibc_mem_own || m == use)
		return m;
	store(m->handler_lock, 0);
	ibc_mem_lock_handlers(use);
	return use;
}

/* In ascending order of priority. The handler belongs to the chain from then on. Hooks walk it
 * meanwhile. */
IBC_EXPORT void ibc_mem_add_handler(struct ibc_mem *m, struct ibc_mem_handler *h)
{
	struct ibc_mem_handler **at;

	m = locked(m);
	at = &m->handlers;
	while (*at && (*at)->priority <= h->priority)
		at = &(*at)->next;
	store(h->next, *at);
	store(*at, h);
	store(m->handler_lock, 0);
}

/* ---- huge pages for large maps ---- */

static void advise(struct ibc_mem_call *c, void *arg)
{
	struct ibc_mem *m = arg;
	int flags = c->u.mmap.flags;

	if (c->result == -1 || c->u.mmap.len < load(m->huge_min) || !(flags & MAP_ANONYMOUS) || !(flags & MAP_PRIVATE))
		return;
	if (!(flags & (MAP_HUGETLB | MAP_STACK | MAP_NORESERVE)) && c->u.mmap.prot != PROT_NONE)
		ibc_sys(SYS_madvise, c->result, (long)c->u.mmap.len, MADV_HUGEPAGE, 0, 0, 0);
}

/* The order of the two is free: the handler looks at huge_min. */
static void add_once(struct ibc_mem *m, struct ibc_mem_handler *h, uint64_t events)
{
	uint64_t none = 0;

	if (cas(h->events, &none, events))
		ibc_mem_add_handler(m, h);
}

IBC_HIDDEN void ibc_mem_advise_huge(struct ibc_mem *m, uint64_t min)
{
	static struct ibc_mem_handler h = {.priority = 100, .fn = advise};

	store(m->huge_min, min ? min : UINT64_MAX);
	h.arg = m;
	add_once(m, &h, 1u << IBC_MEM_MMAP);
}

/* ---- ranges that stay ---- */

static void refuse(struct ibc_mem_call *c, void *arg)
{
	struct ibc_mem *m = arg;

	for (uint32_t i = 0; i < IBC_MEM_PROTECTED; i++) {
		if (load(m->protect[i].lo) < c->u.vm.hi && load(m->protect[i].hi) > c->u.vm.lo) {
			c->done = 1;
			c->err = EPERM;
			__atomic_add_fetch(&m->stats.spared, 1, __ATOMIC_RELAXED);
			return;
		}
	}
}

/* Returns what unprotect takes, or -1 when there is no room. hi is written last and cleared
 * first. */
IBC_HIDDEN int ibc_mem_protect(struct ibc_mem *m, uint64_t lo, uint64_t hi)
{
	static struct ibc_mem_handler h = {.priority = -100, .fn = refuse};

	h.arg = m;
	add_once(m, &h, 1u << IBC_MEM_VM_UNMAPPED);
	for (int i = 0; i < (int)IBC_MEM_PROTECTED; i++) {
		uintptr_t none = 0;

		if (load(m->protect[i].lo) || !cas(m->protect[i].lo, &none, lo))
			continue;
		store(m->protect[i].hi, hi);
		return i;
	}
	return -1;
}

IBC_HIDDEN void ibc_mem_unprotect(struct ibc_mem *m, int id)
{
	store(m->protect[id].hi, 0);
	store(m->protect[id].lo, 0);
}
