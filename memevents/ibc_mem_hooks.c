/* The data path, last part: the hooks themselves, from the libc's names to the real call and
 * back. */
#include "ibc_mem_path.h"

#include <errno.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

IBC_HIDDEN struct ibc_mem ibc_mem_own;
IBC_HIDDEN struct ibc_mem *ibc_mem_use = &ibc_mem_own;

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
	if (unlikely(load(m->log_level) >= IBC_MEM_LOG_DEBUG))
		ibc_mem_log(m, IBC_MEM_LOG_DEBUG, event == IBC_MEM_VM_MAPPED ? "mapped" : "unmapped", &r);
	if (unlikely(load(m->handlers) != NULL)) {
		struct ibc_mem_call vm = {.event = event, .u.vm = r};

		handle(m, &vm, 1);
	}
}

/* The self-test makes real calls and looks which of them came by here. */
static void seen(struct ibc_mem *m, uint32_t event)
{
	uint32_t tid = load(m->test_tid);

	if (unlikely(tid) && tid == (uint32_t)ibc_sys(SYS_gettid, 0, 0, 0, 0, 0, 0))
		add(m->test_seen[event], 1);
}

/* ---- one call from beginning to end ---- */

enum { ORDER_SHIPPED, ORDER_BEFORE, ORDER_AFTER, ORDER_BOTH };

#ifdef IBC_MEM_TEST_MODES
/* The three orders that look right and are not, and a stop on either side of the kernel's work, for
 * the test that must catch them. */
#define order(m) load((m)->test_order)

static void stop(struct ibc_mem *m, const struct ibc_mem_plan *p, uint32_t stage)
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

static int fresh(const struct ibc_mem_plan *p, struct ibc_mem_range r)
{
	for (uint32_t i = 0; i < p->n; i++)
		if (r.lo >= p->gone[i].lo && r.lo < p->gone[i].hi)
			return 0;
	return 1;
}

/* A place that was free a moment ago cannot have been registered as it is now: whatever is watched
 * there was unmapped unseen, or is still in userfaultfd's queue. */
static void arrived(struct ibc_mem *m, const struct ibc_mem_call *c, const struct ibc_mem_plan *p)
{
	struct ibc_mem_range r;

	if (c->result == -1)
		return;
	r = ibc_mem_brought(m, c, p);
	if (r.lo >= r.hi)
		return;
	if (fresh(p, r))
		ibc_mem_invalidate(m, r.lo, r.hi);
	vm_event(m, IBC_MEM_VM_MAPPED, r);
}

/* The range that a planned one closes and ends; the planned one itself is reported. */
static struct ibc_mem_range struck(const struct ibc_mem_plan *p, uint32_t i)
{
	return p->everywhere ? (struct ibc_mem_range){0, UINT64_MAX} : p->gone[i];
}

static intptr_t call_next(const struct ibc_mem_call *c)
{
	return ibc_mem_call_at(c->raw ? NULL : load(ibc_mem_next[c->event]), c->event, c->u.args);
}

static void unmap(struct ibc_mem *m, struct ibc_mem_call *c, const struct ibc_mem_plan *p)
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
		struct ibc_mem_range r = struck(p, i);

		if (order(m) == ORDER_SHIPPED)
			window[i] = ibc_mem_window_open(m, r.lo, r.hi);
		if (order(m) != ORDER_AFTER)
			ibc_mem_invalidate(m, r.lo, r.hi);
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

/* A handler has answered. */
static void answer(struct ibc_mem_call *c)
{
	if (!c->done || !c->err)
		return;
	errno = c->err;
	c->result = -1;
}

static intptr_t run(struct ibc_mem_call *c)
{
	struct ibc_mem *m = &ibc_mem_own;
	struct ibc_mem_plan p;

	if (unlikely(load(m->standby) | load(m->forked)))
		return call_next(c);
	enter();
	count(m->stats.calls[c->event]);
	seen(m, c->event);
	if (unlikely(load(m->handlers) != NULL))
		handle(m, c, 0);
	if (likely(!c->done)) {
		ibc_mem_plan(m, c, &p);
		unmap(m, c, &p);
		arrived(m, c, &p);
	} else {
		answer(c);
	}
	if (unlikely(load(m->handlers) != NULL)) {
		handle(m, c, 1);
		answer(c);
	}
	ibc_mem_signal(m);
	leave();
	return c->result;
}

/* ---- the ways in ---- */

/* Each call three times: under the libc's name; for relocations, since the address of a public name
 * may be another image's; and as the target of the libc's patched text, where the kernel comes
 * next. */

#define RUN(call, by_patch, ...) run(&(struct ibc_mem_call){.event = call, .raw = by_patch, .u.args = {__VA_ARGS__}})

#define WAY_IN(ret, name, call, params, ...)                                    \
	IBC_EXPORT ret name params { return (ret)RUN(call, 0, __VA_ARGS__); }       \
	static ret hook_##name params { return (ret)RUN(call, 0, __VA_ARGS__); }    \
	static ret patched_##name params { return (ret)RUN(call, 1, __VA_ARGS__); } \
	_Static_assert(1, "")

WAY_IN(void *, mmap, IBC_MEM_MMAP, (void *addr, size_t len, int prot, int flags, int fd, off_t off),
	(intptr_t)addr, (intptr_t)len, prot, flags, fd, off);
WAY_IN(int, munmap, IBC_MEM_MUNMAP, (void *addr, size_t len), (intptr_t)addr, (intptr_t)len);
WAY_IN(void *, shmat, IBC_MEM_SHMAT, (int id, const void *addr, int flags), id, (intptr_t)addr, flags);
WAY_IN(int, shmdt, IBC_MEM_SHMDT, (const void *addr), (intptr_t)addr);
WAY_IN(int, brk, IBC_MEM_BRK, (void *addr), (intptr_t)addr);
WAY_IN(void *, sbrk, IBC_MEM_SBRK, (intptr_t by), by);
WAY_IN(int, madvise, IBC_MEM_MADVISE, (void *addr, size_t len, int advice), (intptr_t)addr, (intptr_t)len, advice);
WAY_IN(ssize_t, process_madvise, IBC_MEM_PROCESS_MADVISE,
	(int pidfd, const struct iovec *iov, size_t n, int advice, unsigned flags),
	pidfd, (intptr_t)iov, (intptr_t)n, advice, (intptr_t)flags);
WAY_IN(int, remap_file_pages, IBC_MEM_REMAP_FILE_PAGES, (void *addr, size_t len, int prot, size_t pgoff, int flags),
	(intptr_t)addr, (intptr_t)len, prot, (intptr_t)pgoff, flags);

/* On 64-bit systems the two are one. */
IBC_EXPORT void *mmap64(void *addr, size_t len, int prot, int flags, int fd, off64_t off)
	__attribute__((alias("mmap")));

#define MREMAP(name, raw)                                                          \
	void *name(void *old, size_t old_len, size_t new_len, int flags, ...)          \
	{                                                                              \
		va_list more;                                                              \
		intptr_t to = 0;                                                           \
		va_start(more, flags);                                                     \
		if (flags & (MREMAP_FIXED | MREMAP_DONTUNMAP))                             \
			to = (intptr_t)va_arg(more, void *);                                   \
		va_end(more);                                                              \
		return (void *)RUN(IBC_MEM_MREMAP, raw, (intptr_t)old, (intptr_t)old_len,  \
			(intptr_t)new_len, flags, to);                                         \
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
