/* The second way in: where the executable's symbols come before ours (Go built as a C library or
 * plugin), the relocation entries (GOT) of all loaded objects are made to point to our hooks; those
 * of objects that dlopen brings later too, for which dlopen itself is among the names. Also used to
 * look at where the entries point: another library may have changed them.
 *
 * Calls inside the libc and the loader use no entry, and are not seen this way. */
#include "ibc_mem.h"

#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <limits.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__x86_64__)
#define JUMP_SLOT R_X86_64_JUMP_SLOT
#define GLOB_DAT R_X86_64_GLOB_DAT
#define POINTER R_X86_64_64
#else
#define JUMP_SLOT R_AARCH64_JUMP_SLOT
#define GLOB_DAT R_AARCH64_GLOB_DAT
#define POINTER R_AARCH64_ABS64
#endif

/* ---- walking the entries ---- */

struct walk {
	void (*visit)(struct walk *w, const struct dl_phdr_info *o, const char *name, void **slot);
	/* The same for data that was given an address */
	void (*pointer)(struct walk *w, const struct dl_phdr_info *o, const char *name, void **slot);
	int err;
	int first;              /* the start, and no later library */
	/* Entries that do not lead here, since other code has changed them or they cannot be changed */
	uint32_t left;
	uint32_t event, n, cap; /* of targets */
	void **out;
};

struct dynamic {
	const char *strings;
	const ElfW(Sym) *symbols;
	const ElfW(Rela) *jump, *rela;
	size_t jump_size, rela_size;
};

/* glibc has added the load address to these pointers already, except in objects that it may not
 * write to. */
static const void *at(const struct dl_phdr_info *o, ElfW(Addr) p)
{
	return (const void *)(p < o->dlpi_addr ? p + o->dlpi_addr : p);
}

static int read_dynamic(const struct dl_phdr_info *o, struct dynamic *d)
{
	const ElfW(Dyn) *dyn = NULL;

	memset(d, 0, sizeof *d);
	for (int i = 0; i < o->dlpi_phnum; i++)
		if (o->dlpi_phdr[i].p_type == PT_DYNAMIC)
			dyn = (const void *)(o->dlpi_addr + o->dlpi_phdr[i].p_vaddr);
	for (; dyn && dyn->d_tag != DT_NULL; dyn++) {
		switch (dyn->d_tag) {
		case DT_STRTAB: d->strings = at(o, dyn->d_un.d_ptr); break;
		case DT_SYMTAB: d->symbols = at(o, dyn->d_un.d_ptr); break;
		case DT_JMPREL: d->jump = at(o, dyn->d_un.d_ptr); break;
		case DT_PLTRELSZ: d->jump_size = dyn->d_un.d_val; break;
		case DT_RELA: d->rela = at(o, dyn->d_un.d_ptr); break;
		case DT_RELASZ: d->rela_size = dyn->d_un.d_val; break;
		}
	}
	return d->strings && d->symbols;
}

static void walk_table(struct walk *w, const struct dl_phdr_info *o, const struct dynamic *d,
	const ElfW(Rela) *r, size_t size)
{
	for (size_t i = 0; r && i < size / sizeof *r; i++) {
		uint64_t type = ELF64_R_TYPE(r[i].r_info);
		const char *name = d->strings + d->symbols[ELF64_R_SYM(r[i].r_info)].st_name;
		void **slot = (void **)(o->dlpi_addr + r[i].r_offset);

		if (type == JUMP_SLOT || type == GLOB_DAT)
			w->visit(w, o, name, slot);
		else if (type == POINTER && !r[i].r_addend && w->pointer)
			w->pointer(w, o, name, slot);
	}
}

/* The loader, the libc and the kernel's own object stay as they are. */
static int skipped(const char *name)
{
	const char *base = strrchr(name, '/');

	base = base ? base + 1 : name;
	return !strncmp(base, "ld-linux", 8) || !strncmp(base, "libc.so", 7) || !strncmp(base, "linux-vdso", 10);
}

static int walk_object(struct dl_phdr_info *o, size_t size, void *arg)
{
	struct walk *w = arg;
	struct dynamic d;

	(void)size;
	if (skipped(o->dlpi_name) || !read_dynamic(o, &d))
		return 0;
	walk_table(w, o, &d, d.jump, d.jump_size);
	walk_table(w, o, &d, d.rela, d.rela_size);
	return 0;
}

static int event_of(const char *name)
{
	if (!strcmp(name, "mmap64"))
		return IBC_MEM_MMAP;
	for (int i = 0; i < IBC_MEM_NATIVE; i++)
		if (!strcmp(name, ibc_mem_name[i]))
			return i;
	return -1;
}

/* ---- changing them ---- */

/* Whether the loader has made the page read-only after relocation. It rounds both ends down
 * (elf/dl-reloc.c of glibc, _dl_protect_relro): what shares its page with data that is written
 * stays writable. */
static int relro(const struct dl_phdr_info *o, uintptr_t p, uintptr_t page)
{
	for (int i = 0; i < o->dlpi_phnum; i++) {
		uintptr_t lo = o->dlpi_addr + o->dlpi_phdr[i].p_vaddr, hi = lo + o->dlpi_phdr[i].p_memsz;

		if (o->dlpi_phdr[i].p_type == PT_GNU_RELRO && p >= (lo & ~(page - 1)) && p < (hi & ~(page - 1)))
			return 1;
	}
	return 0;
}

static int set_slot(const struct dl_phdr_info *o, void **slot, void *to)
{
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), lo = (uintptr_t)slot & ~(page - 1);
	int ro = relro(o, (uintptr_t)slot, page);

	if (ro && mprotect((void *)lo, page, PROT_READ | PROT_WRITE))
		return errno;
	__atomic_store_n(slot, to, __ATOMIC_SEQ_CST);
	if (ro)
		mprotect((void *)lo, page, PROT_READ);
	return 0;
}

static void *our_dlopen(const char *file, int flags);
/* This image's own relocation will be changed too */
static void *(*next_dlopen)(const char *file, int flags);

/* By the objects after this image, and by the program and what it was linked to */
static void *defined[IBC_MEM_NATIVE][2];
static struct ibc_mem_range program;     /* the executable in memory */

/* Whether it lies in a part of the object that is loaded with these flags. */
static int inside(const struct dl_phdr_info *o, const void *p, uint32_t flags)
{
	for (int i = 0; i < o->dlpi_phnum; i++)
		if (o->dlpi_phdr[i].p_type == PT_LOAD && (o->dlpi_phdr[i].p_flags & flags) == flags &&
			(uintptr_t)p - o->dlpi_addr - o->dlpi_phdr[i].p_vaddr < o->dlpi_phdr[i].p_memsz)
			return 1;
	return 0;
}

/* Where the loader lets an entry lead: to a definition, to the object's own code that resolves it,
 * or to the executable's (the address of a function that a program without
 * position-independent code takes). */
static int usual(const struct dl_phdr_info *o, int event, const void *p)
{
	return p == defined[event][0] || p == defined[event][1] || p == ibc_mem_next[event] || inside(o, p, 0) ||
	       ((uintptr_t)p >= program.lo && (uintptr_t)p < program.hi);
}

/* Other code has changed the entry. A definition from before ours is called after ours now. A later
 * one may pass on to us, and calling it would go round in circles: it keeps the entry, and the
 * self-test finds out what it does. */
static int foreign(const struct walk *w, const struct dl_phdr_info *o, int event, void *p)
{
	if (event < 0 || usual(o, event, p))
		return 0;
	if (!w->first || (ibc_mem_next[event] != defined[event][0] && ibc_mem_next[event] != defined[event][1]))
		return 1;
	__atomic_store_n(&ibc_mem_next[event], p, __ATOMIC_SEQ_CST);
	return 0;
}

static void patch(struct walk *w, const struct dl_phdr_info *o, const char *name, void **slot)
{
	int event = event_of(name), err;
	void *to = event >= 0 ? ibc_mem_hook[event] : NULL;

	if (!strcmp(name, "dlopen"))
		to = (void *)(uintptr_t)our_dlopen;
	if (!to || __atomic_load_n(slot, __ATOMIC_SEQ_CST) == to)
		return;
	if (foreign(w, o, event, *slot)) {
		w->left++;
		return;
	}
	err = set_slot(o, slot, to);
	if (err) {
		w->err = err;
		w->left++;
	} else {
		w->n++;
	}
}

/* Tables of functions begin with the address of a call (SQLite's of system calls do). Such a word
 * is the program's own, and may hold anything by now: it is changed only where it holds the address
 * that the loader wrote, and never called. */
static void patch_pointer(struct walk *w, const struct dl_phdr_info *o, const char *name, void **slot)
{
	int event = event_of(name);
	void *is;

	if (event < 0 || (uintptr_t)slot % sizeof *slot || !inside(o, slot, PF_W))
		return;
	is = __atomic_load_n(slot, __ATOMIC_SEQ_CST);
	if (is && (is == defined[event][0] || is == defined[event][1] || is == ibc_mem_next[event]) &&
		!set_slot(o, slot, ibc_mem_hook[event]))
		w->n++;
}

/* ---- dlopen ---- */

static int exists_in(const char *dirs, const char *file, const char *origin, char *path, size_t cap)
{
	while (dirs && *dirs) {
		size_t len = strcspn(dirs, ":");
		int n;

		if (len >= 7 && !strncmp(dirs, "$ORIGIN", 7))
			n = snprintf(path, cap, "%s%.*s/%s", origin, (int)len - 7, dirs + 7, file);
		else if (len >= 9 && !strncmp(dirs, "${ORIGIN}", 9))
			n = snprintf(path, cap, "%s%.*s/%s", origin, (int)len - 9, dirs + 9, file);
		else
			n = snprintf(path, cap, "%.*s/%s", (int)len, dirs, file);
		if (len && n > 0 && (size_t)n < cap && access(path, F_OK) == 0)
			return 1;
		dirs += len + (dirs[len] == ':');
	}
	return 0;
}

/* The loader looks for a bare name in the run path of the calling object, and now we call in its
 * place: so its run path is looked at here, in the loader's order (ld.so(8)): RPATH,
 * LD_LIBRARY_PATH, RUNPATH. */
static int in_run_path(const char *file, void *caller, char *path, size_t cap)
{
	const char *strings = NULL, *rpath = NULL, *runpath = NULL;
	uintptr_t rpath_at = 0, runpath_at = 0;
	char origin[PATH_MAX];
	struct link_map *map;
	Dl_info info;

	if (strchr(file, '/') || !dladdr1(caller, &info, (void **)&map, RTLD_DL_LINKMAP))
		return 0;
	for (const ElfW(Dyn) *d = map->l_ld; d->d_tag != DT_NULL; d++) {
		if (d->d_tag == DT_STRTAB)
			strings = (const char *)(d->d_un.d_ptr < map->l_addr ? d->d_un.d_ptr + map->l_addr : d->d_un.d_ptr);
		else if (d->d_tag == DT_RPATH)
			rpath_at = d->d_un.d_val + 1;
		else if (d->d_tag == DT_RUNPATH)
			runpath_at = d->d_un.d_val + 1;
	}
	if (!strings || !(rpath_at | runpath_at))
		return 0;
	snprintf(origin, sizeof origin, "%s", *map->l_name ? map->l_name : "/proc/self/exe");
	if (!*map->l_name) {
		ssize_t n = readlink("/proc/self/exe", origin, sizeof origin - 1);

		origin[n > 0 ? n : 0] = 0;
	}
	if (strrchr(origin, '/'))
		*strrchr(origin, '/') = 0;
	if (runpath_at)
		runpath = strings + runpath_at - 1;
	else
		rpath = strings + rpath_at - 1;
	if (exists_in(rpath, file, origin, path, cap))
		return 1;
	return !exists_in(getenv("LD_LIBRARY_PATH"), file, origin, path, cap) && exists_in(runpath, file, origin, path, cap);
}

static uint32_t known_left; /* those that the self-test has seen */

static struct walk repatch(int first)
{
	struct walk w = {.visit = patch, .pointer = patch_pointer, .first = first};

	dl_iterate_phdr(walk_object, &w);
	return w;
}

/* Constructors have run meanwhile, and perhaps threads of theirs: it is not known what they took
 * away. */
static void after_dlopen(const char *file)
{
	struct ibc_mem *m = ibc_mem_use;
	struct walk w = repatch(0);
	int changed = __atomic_exchange_n(&known_left, w.left, __ATOMIC_SEQ_CST) != w.left;

	if (w.err) {
		char text[200];

		snprintf(text, sizeof text, "relocations of %.120s could not be changed: errno %d",
			 file ? file : "the program", w.err);
		ibc_mem_log(m, IBC_MEM_LOG_WARN, text, NULL);
	}
	if (changed)
		__atomic_store_n(&m->doubt, 1, __ATOMIC_SEQ_CST);
	if (w.n || changed) {
		ibc_mem_invalidate(m, 0, UINT64_MAX);
		ibc_mem_signal(m);
	}
}

static void *our_dlopen(const char *file, int flags)
{
	char path[PATH_MAX];
	void *ret;

	if (file && in_run_path(file, __builtin_return_address(0), path, sizeof path))
		ret = next_dlopen(path, flags);
	else
		ret = next_dlopen(file, flags);
	if (ret)
		after_dlopen(file);
	return ret;
}

/* ---- the two uses ---- */

static int find_program(struct dl_phdr_info *o, size_t size, void *arg)
{
	(void)size;
	(void)arg;
	program.lo = UINT64_MAX;
	for (int i = 0; i < o->dlpi_phnum; i++) {
		uintptr_t lo = o->dlpi_addr + o->dlpi_phdr[i].p_vaddr, hi = lo + o->dlpi_phdr[i].p_memsz;

		if (o->dlpi_phdr[i].p_type != PT_LOAD)
			continue;
		program.lo = lo < program.lo ? lo : program.lo;
		program.hi = hi > program.hi ? hi : program.hi;
	}
	return 1; /* the executable is the first */
}

/* The definition that would be called if this image were not there comes next: an interposer that
 * the program preloads is not after this image, which is loaded later, but before it. */
static void find_definitions(void)
{
	void *all = dlopen(NULL, RTLD_NOW);
	Dl_info own, other;

	dl_iterate_phdr(find_program, NULL);
	for (int i = 0; i < IBC_MEM_NATIVE; i++) {
		defined[i][0] = defined[i][1] = dlsym(RTLD_NEXT, ibc_mem_name[i]);
		if (all && dlsym(all, ibc_mem_name[i]))
			defined[i][1] = dlsym(all, ibc_mem_name[i]);
		if (defined[i][1] == defined[i][0] || !dladdr(ibc_mem_hook[i], &own) || !dladdr(defined[i][1], &other) ||
			own.dli_fbase == other.dli_fbase)
			continue;
		__atomic_store_n(&ibc_mem_next[i], defined[i][1], __ATOMIC_SEQ_CST);
	}
	if (all)
		dlclose(all);
}

/* Returns 0 or an errno; *slots is how many entries were changed. */
IBC_HIDDEN int ibc_mem_reloc_start(uint32_t *slots)
{
	union { void *p; void *(*f)(const char *, int); } next = {.p = dlsym(RTLD_NEXT, "dlopen")};
	struct walk w;

	*slots = 0;
	if (!next.p)
		return ENOSYS;
	next_dlopen = next.f;
	find_definitions();
	w = repatch(1);
	known_left = w.left;
	*slots = w.n;
	return w.err;
}

static void collect(struct walk *w, const struct dl_phdr_info *o, const char *name, void **slot)
{
	void *to = __atomic_load_n(slot, __ATOMIC_SEQ_CST);

	(void)o;
	if (event_of(name) != (int)w->event || !to)
		return;
	for (uint32_t i = 0; i < w->n; i++)
		if (w->out[i] == to)
			return;
	if (w->n < w->cap)
		w->out[w->n++] = to;
}

/* Where the entries of a call point, each place once. One that was never used leads to the object's
 * own code that resolves it, and can be called like the others. */
IBC_HIDDEN uint32_t ibc_mem_targets(uint32_t event, void **out, uint32_t cap)
{
	struct walk w = {.visit = collect, .event = event, .cap = cap, .out = out};

	dl_iterate_phdr(walk_object, &w);
	return w.n;
}
