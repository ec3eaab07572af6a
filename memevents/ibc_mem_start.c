/* Who else is there: the next definition of each call, and another copy of this code in the process. Runs as
 * a constructor, once more when Go first asks; hooks that run earlier go straight to the kernel. */
#include "ibc_mem.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

IBC_HIDDEN const char *const ibc_mem_name[IBC_MEM_NATIVE] = {
	[IBC_MEM_MMAP] = "mmap",
	[IBC_MEM_MUNMAP] = "munmap",
	[IBC_MEM_MREMAP] = "mremap",
	[IBC_MEM_SHMAT] = "shmat",
	[IBC_MEM_SHMDT] = "shmdt",
	[IBC_MEM_BRK] = "brk",
	[IBC_MEM_SBRK] = "sbrk",
	[IBC_MEM_MADVISE] = "madvise",
	[IBC_MEM_PROCESS_MADVISE] = "process_madvise",
	[IBC_MEM_REMAP_FILE_PAGES] = "remap_file_pages",
};

IBC_EXPORT struct ibc_mem *ibc_mem_root_v1(void) { return &ibc_mem_own; }

static void orphan(struct ibc_mem *m)
{
	__atomic_store_n(&m->forked, 1, __ATOMIC_SEQ_CST);
	__atomic_or_fetch(&m->gate, 1, __ATOMIC_SEQ_CST);
}

/* A child of fork has other memory and other registrations: its hooks only pass on, and the gate stays odd for
 * good (the thread that makes it even is not here), so that no Acquire finds the copied table's entries valid.
 * Children that share the memory until they exec (vfork, posix_spawn, os/exec) do not come by here. */
static void in_child(void)
{
	orphan(&ibc_mem_own);
	orphan(ibc_mem_use);
}

static uint32_t log_level(const char *name)
{
	static const char *const names[] = {"off", "error", "warn", "info", "debug"};

	for (uint32_t i = 0; name && i < sizeof names / sizeof *names; i++)
		if (!strcmp(name, names[i]))
			return i;
	return IBC_MEM_LOG_WARN;
}

__attribute__((constructor(101))) static void start(void)
{
	__atomic_store_n(&ibc_mem_own.page, (uint64_t)sysconf(_SC_PAGESIZE), __ATOMIC_SEQ_CST);
	ibc_mem_own.version = IBC_MEM_VERSION;
	ibc_mem_own.size = sizeof ibc_mem_own;
	memcpy(ibc_mem_own.hook, ibc_mem_hook, sizeof ibc_mem_own.hook);
	for (int i = 0; i < IBC_MEM_NATIVE; i++)
		__atomic_store_n(&ibc_mem_next[i], dlsym(RTLD_NEXT, ibc_mem_name[i]), __ATOMIC_SEQ_CST);
	ibc_mem_own.log_level = log_level(getenv("IBCONDUIT_MEM_LOG_LEVEL"));
	pthread_atfork(NULL, NULL, in_child);
}

#ifdef IBC_MEM_PRELOAD
static void choose(void) {} /* the preloaded library follows nobody */
#else
/* Another image's table, if it is one like ours. */
static struct ibc_mem *other(void *where)
{
	union { void *p; struct ibc_mem *(*root)(void); } f = {.p = dlsym(where, "ibc_mem_root_v1")};
	struct ibc_mem *m;

	if (!f.p || f.root == ibc_mem_root_v1)
		return NULL;
	m = f.root();
	return m != &ibc_mem_own && m->version == IBC_MEM_VERSION && m->size == sizeof *m ? m : NULL;
}

static void choose(void)
{
	void *program = dlopen(NULL, RTLD_NOW); /* RTLD_DEFAULT begins with a library's own symbols if it was linked so */
	struct ibc_mem *m = program ? other(program) : NULL;

	if (!m)
		m = other(RTLD_NEXT);
	if (!m)
		return;
	__atomic_store_n(&ibc_mem_use, m, __ATOMIC_SEQ_CST);
	__atomic_store_n(&ibc_mem_own.standby, 1, __ATOMIC_SEQ_CST);
}
#endif

static pthread_once_t once = PTHREAD_ONCE_INIT;

/* The table that counts. One that was there before ours, such as the preloaded library's, is used, and the
 * hooks of this image stand back: each event arrives once, and code outside Go's reach shares the table. */
IBC_HIDDEN struct ibc_mem *ibc_mem_adopt(void)
{
	pthread_once(&once, choose);
	return ibc_mem_use;
}

IBC_HIDDEN int ibc_mem_adopted(void) { return ibc_mem_adopt() != &ibc_mem_own; }
