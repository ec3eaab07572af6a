/* The self-test: real calls, made as any other library would make them, on ranges that are watched
 * like any other. What counts is that the entry went stale and that this thread's call came by.
 * Also the way by which Go makes such calls on purpose (ibc_mem_call). */
#include "ibc_mem_path.h"

#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <stdlib.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <unistd.h>

/* The definition that a library loaded now would be bound to. RTLD_DEFAULT would begin with this
 * image if it was linked with -Bsymbolic, as Go's C libraries are. */
IBC_HIDDEN void *ibc_mem_symbol(const char *name)
{
	static void *program;

	if (!program)
		program = dlopen(NULL, RTLD_NOW);
	return dlsym(program, name);
}

/* By a definition of the call; NULL: the kernel. */
IBC_HIDDEN intptr_t ibc_mem_call(void *definition, uint32_t event, const intptr_t *a, int *err)
{
	intptr_t ret = ibc_mem_call_at(definition, event, a);

	*err = ret == -1 ? errno : 0;
	return ret;
}

/* ---- the tests ---- */

struct trial {
	struct ibc_mem *m;
	int raw, uffd, err;
	void *target; /* the definition to call; NULL: that of the symbol */
	/* Where relocations lead here and symbols do not: our definitions in the symbols' place */
	int own;
	size_t page;
};

/* 0: the kernel maps nothing more. */
static uintptr_t map(struct trial *t, size_t len, int flags)
{
	long p = ibc_sys(SYS_mmap, 0, (long)len, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);

	if (ibc_sys_failed(p)) {
		t->err = (int)-p;
		return 0;
	}
	/* After mlockall(MCL_FUTURE) the kernel would refuse to discard it */
	ibc_sys(SYS_munlock, p, (long)len, 0, 0, 0, 0);
	return (uintptr_t)p;
}

static void unmap(uintptr_t at, size_t len) { ibc_sys(SYS_munmap, (long)at, (long)len, 0, 0, 0, 0); }

static intptr_t call(struct trial *t, uint32_t event, intptr_t a, intptr_t b, intptr_t c, intptr_t d, intptr_t e)
{
	intptr_t args[6] = {a, b, c, d, e, 0};
	void *f = t->target;

	if (!t->raw && !f)
		f = t->own ? ibc_mem_hook[event] : ibc_mem_symbol(ibc_mem_name[event]);
	if (t->raw || f)
		return ibc_mem_call(f, event, args, &t->err);
	t->err = ENOSYS;
	return -1;
}

/* Watches a range; -1 if it cannot be. The range is the test's own, so other changes do not
 * matter; but an unmapping here by the trial before this may still have to be dealt
 * with. */
static int64_t watch(struct trial *t, uintptr_t at, size_t len)
{
	uint32_t slot;

	ibc_mem_gate_wait(t->m);
	switch (ibc_mem_claim(t->m, IBC_MEM_NO_OWNER, at, at + len, 0, t->uffd, IBC_MEM_LOOK_NOT, &slot)) {
	case IBC_MEM_OK:
		return slot;
	case IBC_MEM_FULL:
		t->err = ENOSPC;
		break;
	case IBC_MEM_UNWATCHED:
		t->err = EOPNOTSUPP;
		break;
	}
	return -1;
}

/* Ends the watch, and says whether the change was noticed. */
static int noticed(struct trial *t, int64_t slot)
{
	int stale;

	if (slot < 0)
		return 0;
	if (t->uffd)
		ibc_mem_gate_wait(t->m);
	/* PENDING ones come on no dead list */
	stale = (load(t->m->entry[slot].state) & 3) == IBC_MEM_STALE;
	ibc_mem_retire(t->m, (uint32_t)slot);
	return stale;
}

/* Whether the call, of which the rest of the arguments is given, is noticed on the first page of a
 * mapping. */
static int try_change(struct trial *t, uint32_t event, size_t len, int flags, intptr_t c, intptr_t d, intptr_t e)
{
	uintptr_t p = map(t, len, flags);
	int64_t slot;
	int ok;

	if (!p)
		return 0;
	*(volatile char *)p = 1;
	slot = watch(t, p, t->page);
	call(t, event, (intptr_t)p, (intptr_t)t->page, c, d, e);
	ok = noticed(t, slot);
	ibc_mem_uffd_settled(t->m, p, p + t->page);
	if (event != IBC_MEM_MUNMAP) /* the addresses may be another thread's by now */
		unmap(p, len);
	return ok;
}

/* From p to q, over the mapping there: both must be noticed. */
static int try_mremap(struct trial *t)
{
	uintptr_t p = map(t, t->page, MAP_PRIVATE), q = p ? map(t, t->page, MAP_PRIVATE) : 0;
	int64_t from, to;
	int ok;

	if (!q) {
		if (p)
			unmap(p, t->page);
		return 0;
	}
	from = watch(t, p, t->page);
	to = watch(t, q, t->page);
	call(t, IBC_MEM_MREMAP, (intptr_t)p, (intptr_t)t->page, (intptr_t)t->page,
		MREMAP_MAYMOVE | MREMAP_FIXED, (intptr_t)q);
	ok = noticed(t, from);
	ok &= noticed(t, to);
	unmap(q, t->page);
	return ok;
}

/* The break is malloc's: it is only read, and an impossible one refused. */
static int try_brk(struct trial *t)
{
	call(t, IBC_MEM_SBRK, 0, 0, 0, 0, 0);
	call(t, IBC_MEM_BRK, -1, 0, 0, 0, 0);
	return load(t->m->test_seen[IBC_MEM_SBRK]) && load(t->m->test_seen[IBC_MEM_BRK]);
}

static int try_shm(struct trial *t)
{
	int id = shmget(IPC_PRIVATE, t->page, IPC_CREAT | 0600), ok;
	intptr_t p, again;
	int64_t slot;

	if (id < 0) {
		t->err = errno;
		return 0;
	}
	p = call(t, IBC_MEM_SHMAT, id, 0, 0, 0, 0);
	slot = p == -1 ? -1 : watch(t, (uintptr_t)p, t->page);
	again = call(t, IBC_MEM_SHMAT, id, p, SHM_REMAP, 0, 0);
	ok = again == p && noticed(t, slot);
	slot = p == -1 ? -1 : watch(t, (uintptr_t)p, t->page);
	if (p != -1)
		call(t, IBC_MEM_SHMDT, p, 0, 0, 0, 0);
	ok &= noticed(t, slot);
	shmctl(id, IPC_RMID, NULL);
	return ok;
}

/* A block that malloc maps by itself and free unmaps; so large that glibc's threshold for the next
 * ones stays (DEFAULT_MMAP_THRESHOLD_MAX is 32 MiB, mallopt(3)). It is never touched. */
static int try_free(struct trial *t)
{
	size_t len = (size_t)40 << 20;
	char *block = malloc(len);
	uintptr_t p = ((uintptr_t)block + len / 2) & ~(uintptr_t)(t->page - 1);
	int64_t slot;

	if (!block) {
		t->err = ENOMEM;
		return 0;
	}
	slot = watch(t, p, t->page);
	free(block);
	return noticed(t, slot);
}

/* malloc_trim calls the libc's own sbrk, wherever the symbol leads. */
static int try_libc_brk(struct trial *t)
{
	void *libc = dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD);
	union { void *p; void *(*sbrk)(intptr_t); } f;
	uint32_t before = load(t->m->test_seen[IBC_MEM_SBRK]);

	if (!libc)
		return 0;
	f.p = dlsym(libc, "sbrk");
	if (f.p)
		f.sbrk(0);
	dlclose(libc);
	return load(t->m->test_seen[IBC_MEM_SBRK]) > before;
}

enum { GUARD_INSTALL = 102 }; /* Linux 6.13; older kernels refuse it, after the hook */

/* A stale entry could be another thread's doing (its event, of what stood there before, came
 * late). */
static int came_by(const struct trial *t, uint32_t what)
{
	static const uint32_t event[] = {
		[IBC_MEM_TRY_MUNMAP] = IBC_MEM_MUNMAP, [IBC_MEM_TRY_MMAP] = IBC_MEM_MMAP, [IBC_MEM_TRY_MREMAP] = IBC_MEM_MREMAP,
		[IBC_MEM_TRY_MADVISE] = IBC_MEM_MADVISE, [IBC_MEM_TRY_BRK] = IBC_MEM_BRK, [IBC_MEM_TRY_SHM] = IBC_MEM_SHMDT,
		[IBC_MEM_TRY_REMAP] = IBC_MEM_REMAP_FILE_PAGES, [IBC_MEM_TRY_GUARD] = IBC_MEM_MADVISE,
		[IBC_MEM_TRY_FREE] = IBC_MEM_MUNMAP, [IBC_MEM_TRY_LIBC_BRK] = IBC_MEM_SBRK,
	};

	return t->uffd || load(t->m->test_seen[event[what]]);
}

/* Returns 1 when the change was noticed, 0 when not; *err is why the call itself failed, if it
 * did. */
IBC_HIDDEN int ibc_mem_try(struct ibc_mem *m, uint32_t what, int raw, int uffd, int own, void *target, int *err)
{
	struct trial t = {.m = m, .raw = raw, .uffd = uffd, .own = own, .target = target, .page = load(m->page)};
	int ok = 0;

	for (int i = 0; i < IBC_MEM_EVENTS; i++)
		store(m->test_seen[i], 0);
	store(m->test_tid, (uint32_t)ibc_sys(SYS_gettid, 0, 0, 0, 0, 0, 0));
	switch (what) {
	case IBC_MEM_TRY_MUNMAP: ok = try_change(&t, IBC_MEM_MUNMAP, t.page, MAP_PRIVATE, 0, 0, 0); break;
	case IBC_MEM_TRY_MMAP:
		ok = try_change(&t, IBC_MEM_MMAP, t.page, MAP_PRIVATE, PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1);
		break;
	case IBC_MEM_TRY_MREMAP: ok = try_mremap(&t); break;
	case IBC_MEM_TRY_MADVISE: ok = try_change(&t, IBC_MEM_MADVISE, t.page, MAP_PRIVATE, MADV_DONTNEED, 0, 0); break;
	case IBC_MEM_TRY_BRK: ok = try_brk(&t); break;
	case IBC_MEM_TRY_SHM: ok = try_shm(&t); break;
	case IBC_MEM_TRY_REMAP: /* the second page comes to stand in the place of the first */
		ok = try_change(&t, IBC_MEM_REMAP_FILE_PAGES, 2 * t.page, MAP_SHARED, 0, 1, 0);
		break;
	case IBC_MEM_TRY_GUARD: ok = try_change(&t, IBC_MEM_MADVISE, t.page, MAP_PRIVATE, GUARD_INSTALL, 0, 0); break;
	case IBC_MEM_TRY_FREE: ok = try_free(&t); break;
	case IBC_MEM_TRY_LIBC_BRK: ok = try_libc_brk(&t); break;
	}
	ok = ok && came_by(&t, what);
	store(m->test_tid, 0);
	*err = t.err;
	return ok;
}

/* ---- what listening costs ---- */

/* Nanoseconds of n cycles: a page is mapped, written to and unmapped, or, with nothing at 'at',
 * only unmapped. */
static uint64_t cycles(void *map_by, void *unmap_by, uint64_t n, size_t page, uintptr_t at)
{
	const intptr_t args[6] = {0, (intptr_t)page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0};
	uint64_t begin = ibc_now_ns();

	for (uint64_t i = 0; i < n; i++) {
		intptr_t p = (intptr_t)at;

		if (!p) {
			p = ibc_mem_call_at(map_by, IBC_MEM_MMAP, args);
			if (p == -1)
				break;
			*(volatile char *)p = 1;
		}
		ibc_mem_call_at(unmap_by, IBC_MEM_MUNMAP, (intptr_t[6]){p, (intptr_t)page});
	}
	return ibc_now_ns() - begin;
}

/* n cycles in turns of 64 through the symbols and straight to the kernel, so that both see the same
 * weather; ns[0] and ns[1] are what they took. */
IBC_HIDDEN void ibc_mem_cycles(struct ibc_mem *m, uint64_t n, int mapped, uint64_t *ns)
{
	void *map_by = ibc_mem_symbol("mmap"), *unmap_by = ibc_mem_symbol("munmap");
	size_t page = load(m->page);
	/* Where nothing is: the second page, below vm.mmap_min_addr. A hole elsewhere may be another
	 * thread's memory by the time it is unmapped. */
	uintptr_t at = mapped ? 0 : page;

	for (uint64_t left = n; left;) {
		uint64_t turn = left < 64 ? left : 64;

		ns[0] += cycles(map_by, unmap_by, turn, page, at);
		ns[1] += cycles(NULL, NULL, turn, page, at);
		left -= turn;
	}
}
