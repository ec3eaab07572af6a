/* Shared by the objects of the data path: ibc_mem_hooks.c, ibc_mem_plan.c, ibc_mem_next.c,
 * ibc_mem_window.c.
 *
 * A hook runs on any thread, in signal handlers, before any constructor, and inside the Go
 * runtime's own mmap with the runtime's locks held. So these files call nothing but each other, the
 * kernel, the next definition of the same call, and the handlers; they never wait and never
 * allocate. A test reads the object files and refuses any other undefined symbol. What needs more
 * stands in the other files. */
#ifndef IBC_MEM_PATH_H
#define IBC_MEM_PATH_H

#include "ibc_mem.h"
#include "ibc_mem_arch.h"

#define count(p) ((void)__atomic_add_fetch(&(p), 1, __ATOMIC_RELAXED))
#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)

/* What a call takes away, known before it. */
struct ibc_mem_plan {
	struct ibc_mem_range gone[2];
	uint32_t n;
	/* Other mappings of the same file lose their pages too, wherever they are */
	uint32_t everywhere;
	uint64_t shm_len; /* of the segment that shmat attaches */
	uint64_t was_brk; /* before brk */
};

/* ibc_mem_plan.c */
IBC_HIDDEN void ibc_mem_plan(struct ibc_mem *m, const struct ibc_mem_call *c, struct ibc_mem_plan *p);
IBC_HIDDEN struct ibc_mem_range ibc_mem_brought(struct ibc_mem *m, const struct ibc_mem_call *c,
	const struct ibc_mem_plan *p);

/* ibc_mem_next.c */
IBC_HIDDEN intptr_t ibc_mem_call_at(void *definition, uint32_t event, const intptr_t *args);
IBC_HIDDEN uint64_t ibc_mem_libc_brk(void); /* from where its sbrk counts */
static inline uint64_t ibc_raw_brk(void) { return (uint64_t)ibc_sys(SYS_brk, 0, 0, 0, 0, 0, 0); }

#endif
