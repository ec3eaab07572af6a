/* The self-test: real calls, made as any other library would make them, on ranges that are watched
 * like any other. What counts is that the entry went stale and that this thread's call came by.
 * Also the way by which Go makes such calls on purpose (ibc_mem_call). */
#include "ibc_mem.h"
#include "ibc_mem_arch.h"

#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <stdlib.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <time.h>
#include <unistd.h>

#define load(p) __atomic_load_n(&(p), __ATOMIC_SEQ_CST)
#define store(p, v) __atomic_store_n(&(p), (v), __ATOMIC_SEQ_CST)

/* The definition that a library loaded now would be bound to. RTLD_DEFAULT would begin with this
 * image if it was linked with -Bsymbolic, as Go's C libraries are. */
static void *symbol(const char *name)
{
	static void *program;

	if (!program)
		program = dlopen(NULL, RTLD_NOW);
	return dlsym(program, name);
}

/* ---- a call by number, through the symbol or straight to the kernel ---- */

static intptr_t failed_with(intptr_t ret, int *err)
{
	*err = ret == -1 ? errno : 0;
	return ret;
}

static intptr_t raw_call(uint32_t event, const intptr_t *a, int *err)
{
	static const long nr[IBC_MEM_NATIVE] = {
		[IBC_MEM_MMAP] = SYS_mmap, [IBC_MEM_MUNMAP] = SYS_munmap, [IBC_MEM_MREMAP] = SYS_mremap,
		[IBC_MEM_SHMAT] = SYS_shmat, [IBC_MEM_SHMDT] = SYS_shmdt, [IBC_MEM_BRK] = SYS_brk, [IBC_MEM_SBRK] = -1,
		[IBC_MEM_MADVISE] = SYS_madvise, [IBC_MEM_PROCESS_MADVISE] = SYS_process_madvise,
		[IBC_MEM_REMAP_FILE_PAGES] = SYS_remap_file_pages,
	};
	long ret = ibc_sys(nr[event], a[0], a[1], a[2], a[3], a[4], a[5]);

	*err = ibc_sys_failed(ret) ? (int)-ret : 0;
	return *err ? -1 : ret;
}

/* Through a definition of the call. */
static intptr_t call_at(void *definition, uint32_t event, const intptr_t *a, int *err)
{
	union {
		void *p;
		void *(*six)(intptr_t, intptr_t, int, int, int, off_t);
		void *(*mremap)(intptr_t, intptr_t, intptr_t, int, ...);
		void *(*shmat)(int, intptr_t, int);
		void *(*sbrk)(intptr_t);
		int (*plain)(intptr_t, intptr_t, intptr_t, intptr_t, intptr_t);
		ssize_t (*process_madvise)(int, intptr_t, intptr_t, int, unsigned);
	} f = {.p = definition};

	if (!f.p) {
		*err = ENOSYS;
		return -1;
	}
	switch (event) {
	case IBC_MEM_MMAP:
		return failed_with((intptr_t)f.six(a[0], a[1], (int)a[2], (int)a[3], (int)a[4], a[5]), err);
	case IBC_MEM_MREMAP:
		return failed_with((intptr_t)f.mremap(a[0], a[1], a[2], (int)a[3], a[4]), err);
	case IBC_MEM_SHMAT:
		return failed_with((intptr_t)f.shmat((int)a[0], a[1], (int)a[2]), err);
	case IBC_MEM_SBRK:
		return failed_with((intptr_t)f.sbrk(a[0]), err);
	case IBC_MEM_PROCESS_MADVISE:
		return failed_with(f.process_madvise((int)a[0], a[1], a[2], (int)a[3], (unsigned)a[4]), err);
	}
	return failed_with(f.plain(a[0], a[1], a[2], a[3], a[4]), err);
}

IBC_HIDDEN intptr_t ibc_mem_call(uint32_t event, int raw, const intptr_t *a, int *err)
{
	return raw ? raw_call(event, a, err) : call_at(symbol(ibc_mem_name[event]), event, a, err);
}

/* Through the hook itself, which is seen also where symbols lead elsewhere. */
IBC_HIDDEN intptr_t ibc_mem_call_hook(struct ibc_mem *m, uint32_t event, const intptr_t *a, int *err)
{
	return call_at(m->hook[event], event, a, err);
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
static uintptr_t map_as(struct trial *t, size_t len, int flags)
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

static uintptr_t map(struct trial *t) { return map_as(t, t->page, MAP_PRIVATE); }

static void unmap(uintptr_t at, size_t len) { ibc_sys(SYS_munmap, (long)at, (long)len, 0, 0, 0, 0); }

static intptr_t call(struct trial *t, uint32_t event, intptr_t a, intptr_t b, intptr_t c, intptr_t d,
	intptr_t e, intptr_t f)
{
	intptr_t args[6] = {a, b, c, d, e, f};

	if (t->target)
		return call_at(t->target, event, args, &t->err);
	if (t->own)
		return call_at(ibc_mem_hook[event], event, args, &t->err);
	return ibc_mem_call(event, t->raw, args, &t->err);
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

static int try_munmap(struct trial *t)
{
	uintptr_t p = map(t);
	int64_t slot;

	if (!p)
		return 0;
	slot = watch(t, p, t->page);
	call(t, IBC_MEM_MUNMAP, (intptr_t)p, (intptr_t)t->page, 0, 0, 0, 0);
	return noticed(t, slot);
}

static int try_mmap(struct trial *t)
{
	uintptr_t p = map(t);
	int64_t slot;
	int ok;

	if (!p)
		return 0;
	slot = watch(t, p, t->page);
	call(t, IBC_MEM_MMAP, (intptr_t)p, (intptr_t)t->page, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	ok = noticed(t, slot);
	unmap(p, t->page);
	return ok;
}

/* From p to q, over the mapping there: both must be noticed. */
static int try_mremap(struct trial *t)
{
	uintptr_t p = map(t), q = p ? map(t) : 0;
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
		MREMAP_MAYMOVE | MREMAP_FIXED, (intptr_t)q, 0);
	ok = noticed(t, from);
	ok &= noticed(t, to);
	unmap(q, t->page);
	return ok;
}

static int try_advice(struct trial *t, int advice)
{
	uintptr_t p = map(t);
	int64_t slot;
	int ok;

	if (!p)
		return 0;
	*(volatile char *)p = 1;
	slot = watch(t, p, t->page);
	call(t, IBC_MEM_MADVISE, (intptr_t)p, (intptr_t)t->page, advice, 0, 0, 0);
	ok = noticed(t, slot);
	ibc_mem_uffd_settled(t->m, p, p + t->page);
	unmap(p, t->page);
	return ok;
}

/* The break is malloc's: it is only read, and an impossible one refused. */
static int try_brk(struct trial *t)
{
	call(t, IBC_MEM_SBRK, 0, 0, 0, 0, 0, 0);
	call(t, IBC_MEM_BRK, -1, 0, 0, 0, 0, 0);
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
	p = call(t, IBC_MEM_SHMAT, id, 0, 0, 0, 0, 0);
	slot = p == -1 ? -1 : watch(t, (uintptr_t)p, t->page);
	again = call(t, IBC_MEM_SHMAT, id, p, SHM_REMAP, 0, 0, 0);
	ok = again == p && noticed(t, slot);
	slot = p == -1 ? -1 : watch(t, (uintptr_t)p, t->page);
	if (p != -1)
		call(t, IBC_MEM_SHMDT, p, 0, 0, 0, 0, 0);
	ok &= noticed(t, slot);
	shmctl(id, IPC_RMID, NULL);
	return ok;
}

/* The second page of a shared mapping comes to stand in the place of the first. */
static int try_remap(struct trial *t)
{
	uintptr_t p = map_as(t, 2 * t->page, MAP_SHARED);
	int64_t slot;
	int ok;

	if (!p)
		return 0;
	slot = watch(t, p, t->page);
	call(t, IBC_MEM_REMAP_FILE_PAGES, (intptr_t)p, (intptr_t)t->page, 0, 1, 0, 0);
	ok = noticed(t, slot);
	unmap(p, 2 * t->page);
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
	case IBC_MEM_TRY_MUNMAP: ok = try_munmap(&t); break;
	case IBC_MEM_TRY_MMAP: ok = try_mmap(&t); break;
	case IBC_MEM_TRY_MREMAP: ok = try_mremap(&t); break;
	case IBC_MEM_TRY_MADVISE: ok = try_advice(&t, MADV_DONTNEED); break;
	case IBC_MEM_TRY_BRK: ok = try_brk(&t); break;
	case IBC_MEM_TRY_SHM: ok = try_shm(&t); break;
	case IBC_MEM_TRY_REMAP: ok = try_remap(&t); break;
	case IBC_MEM_TRY_GUARD: ok = try_advice(&t, GUARD_INSTALL); break;
	case IBC_MEM_TRY_FREE: ok = try_free(&t); break;
	case IBC_MEM_TRY_LIBC_BRK: ok = try_libc_brk(&t); break;
	}
	ok = ok && came_by(&t, what);
	store(m->test_tid, 0);
	*err = t.err;
	return ok;
}

IBC_HIDDEN uint32_t ibc_mem_seen(struct ibc_mem *m, uint32_t event) { return load(m->test_seen[event]); }

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* ---- what listening costs ---- */

struct calls {
	void *(*map)(void *, size_t, int, int, int, off_t);
	int (*unmap)(void *, size_t);
};

static void *raw_map(void *at, size_t len, int prot, int flags, int fd, off_t offset)
{
	return (void *)ibc_sys(SYS_mmap, (long)at, (long)len, prot, flags, fd, offset);
}

static int raw_unmap(void *at, size_t len) { return (int)ibc_sys(SYS_munmap, (long)at, (long)len, 0, 0, 0, 0); }

/* Nanoseconds of n cycles: a page is mapped, written to and unmapped, or, with nothing at 'at',
 * only unmapped. */
static uint64_t cycles(const struct calls *c, uint64_t n, size_t page, void *at)
{
	uint64_t begin = now_ns();

	for (uint64_t i = 0; i < n; i++) {
		char *p = at;

		if (!p) {
			p = c->map(NULL, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
			if ((uintptr_t)p >= (uintptr_t)-4095)
				break;
			*p = 1;
		}
		c->unmap(p, page);
	}
	return now_ns() - begin;
}

/* n cycles in turns of 64 through the symbols and straight to the kernel, so that both see the same
 * weather; ns[0] and ns[1] are what they took. */
IBC_HIDDEN void ibc_mem_cycles(struct ibc_mem *m, uint64_t n, int mapped, uint64_t *ns)
{
	union { void *p; void *(*map)(void *, size_t, int, int, int, off_t); int (*unmap)(void *, size_t); } f[2] = {
		{.p = symbol("mmap")}, {.p = symbol("munmap")},
	};
	const struct calls hooked = {f[0].map, f[1].unmap}, raw = {raw_map, raw_unmap};
	size_t page = load(m->page);
	/* Where nothing is: the second page, below vm.mmap_min_addr. A hole elsewhere may be another
	 * thread's memory by the time it is unmapped. */
	void *at = mapped ? NULL : (void *)page;

	for (uint64_t left = n; left;) {
		uint64_t turn = left < 64 ? left : 64;

		ns[0] += cycles(&hooked, turn, page, at);
		ns[1] += cycles(&raw, turn, page, at);
		left -= turn;
	}
}

/* symbol, for Go. */
IBC_HIDDEN void *ibc_mem_symbol(const char *name) { return symbol(name); }
