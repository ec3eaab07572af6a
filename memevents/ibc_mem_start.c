/* Other code in the process: the next definition of each call, and another copy of this code in the
 * process. Runs as a constructor, once more when Go first calls; hooks that run earlier go straight
 * to the kernel. */
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

/* Of several images in a process, what each returns comes to be the same. */
IBC_EXPORT struct ibc_mem *ibc_mem_root_v1(void) { return __atomic_load_n(&ibc_mem_use, __ATOMIC_SEQ_CST); }

/* Calls of other threads that were on their way at the fork never end here. */
static void begin_anew(struct ibc_mem *m)
{
	memset(m->window, 0, sizeof m->window);
	m->overflow = 0;
	m->signal = m->handler_lock = 0;
}

static void orphan(struct ibc_mem *m)
{
	/* Nothing was reported that is no longer true */
	if (!__atomic_load_n(&m->taken, __ATOMIC_SEQ_CST)) {
		begin_anew(m);
		return;
	}
	__atomic_store_n(&m->forked, 1, __ATOMIC_SEQ_CST);
	ibc_mem_uffd_in_child(m);
	__atomic_or_fetch(&m->gate, 1, __ATOMIC_SEQ_CST);
}

/* A child of fork has other memory and other registrations: its hooks only pass on, and the gate
 * stays odd for good (the thread that makes it even is not here), so that no Acquire finds the
 * copied table's entries valid. Children that share the memory until they exec (vfork, posix_spawn,
 * os/exec) do not come by here. */
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
static void choose(void) {} /* the preloaded library uses its own table */
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

/* Handlers that came before us. A hook of ours that walks the chain now goes on in the other. */
static void hand_over_handlers(struct ibc_mem *to)
{
	struct ibc_mem_handler *h;

	/* A caller that adds one now has seen the choice, or is seen here */
	ibc_mem_lock_handlers(&ibc_mem_own);
	h = __atomic_exchange_n(&ibc_mem_own.handlers, NULL, __ATOMIC_SEQ_CST);
	__atomic_store_n(&ibc_mem_own.handler_lock, 0, __ATOMIC_SEQ_CST);
	while (h) {
		struct ibc_mem_handler *next = h->next;

		ibc_mem_add_handler(to, h);
		h = next;
	}
}

static void choose(void)
{
	/* RTLD_DEFAULT begins with a library's own symbols if it was linked so */
	void *program = dlopen(NULL, RTLD_NOW);
	struct ibc_mem *m = program ? other(program) : NULL;

	if (!m)
		m = other(RTLD_NEXT);
	if (!m)
		return;
	__atomic_store_n(&ibc_mem_use, m, __ATOMIC_SEQ_CST);
	__atomic_store_n(&ibc_mem_own.standby, 1, __ATOMIC_SEQ_CST);
	hand_over_handlers(m);
}
#endif

static pthread_once_t once = PTHREAD_ONCE_INIT;

/* The table that counts. One that was there before ours, such as the preloaded library's, is used,
 * and the hooks of this image stand back: each event arrives once, and code outside of Go shares
 * the table. */
IBC_HIDDEN struct ibc_mem *ibc_mem_adopt(void)
{
	pthread_once(&once, choose);
	__atomic_store_n(&ibc_mem_use->taken, 1, __ATOMIC_SEQ_CST);
	return ibc_mem_use;
}

IBC_HIDDEN int ibc_mem_adopted(void)
{
	pthread_once(&once, choose);
	return ibc_mem_use != &ibc_mem_own;
}
