/* The fourth way in, off by default: the libc's own text, for free, realloc and malloc_trim where
 * userfaultfd is forbidden. The first bytes of each function become a jump to our hook, which ends
 * in the kernel: the code that was there is never needed again. It is done in a constructor, before
 * there are threads, and never undone: threads may be running in what would change. */
#include "ibc_mem.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <unistd.h>

static int state = -1; /* -1: not asked for; else an errno */
static const char *reason = "not asked for (IBCONDUIT_MEM_MONITORS=auto,patch)";

#if defined(__x86_64__)
/* endbr64 (kept); mov $hook, %rax; jmp *%rax. Functions start at multiples of 16 and no wrapper of
 * a system call is shorter. */
static const uint8_t endbr[4] = {0xf3, 0x0f, 0x1e, 0xfa};

static int patch(uint8_t *code, void *hook)
{
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), lo;
	uint8_t jump[12] = {0x48, 0xb8, [10] = 0xff, [11] = 0xe0};

	if (!memcmp(code, endbr, sizeof endbr))
		code += sizeof endbr;
	lo = (uintptr_t)code & ~(page - 1);
	if (mprotect((void *)lo, 2 * page, PROT_READ | PROT_WRITE | PROT_EXEC))
		return errno;
	memcpy(jump + 2, &hook, sizeof hook);
	memcpy(code, jump, sizeof jump);
	mprotect((void *)lo, 2 * page, PROT_READ | PROT_EXEC);
	return 0;
}

static int patch_all(void)
{
	void *libc = dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD);
	int err = 0;

	if (!libc) {
		reason = "there is no libc.so.6 in this process";
		return ENOENT;
	}
	for (int i = 0; i < IBC_MEM_NATIVE && !err; i++) {
		void *f = dlsym(libc, ibc_mem_name[i]);
		Dl_info info;

		if (!f || !dladdr(f, &info) || !strstr(info.dli_fname, "libc.so"))
			continue; /* newer than this libc */
		err = patch(f, ibc_mem_patched[i]);
		if (ibc_mem_next[i] == f) /* it would only lead back here */
			__atomic_store_n(&ibc_mem_next[i], NULL, __ATOMIC_SEQ_CST);
	}
	reason = err ? "mprotect of the libc's text" : "the libc's functions jump here";
	dlclose(libc);
	return err;
}
#else
static int patch_all(void)
{
	reason = "not supported on this architecture";
	return ENOTSUP;
}
#endif

static int names(const char *list, const char *name)
{
	const char *p = list ? strstr(list, name) : NULL;
	size_t n = strlen(name);

	return p && (p == list || p[-1] == ',') && (!p[n] || p[n] == ',');
}

/* After start (101), which finds the next definition. */
__attribute__((constructor(102))) static void patch_libc(void)
{
	const char *events = getenv("IBCONDUIT_MEM_EVENTS");
	int off = events && (!strcasecmp(events, "no") || !strcasecmp(events, "off") || !strcasecmp(events, "false") ||
		!strcmp(events, "0"));

	const char *monitors = getenv("IBCONDUIT_MEM_MONITORS");

	/* None beside others is refused later, in Go */
	if (off || !names(monitors, "patch") || names(monitors, "none"))
		return;
	if (ibc_mem_adopted()) { /* whose hooks do the work, and this work too */
		reason = "the preloaded library sees to it";
		state = 0;
		return;
	}
	state = patch_all();
}

IBC_HIDDEN int ibc_mem_patch_state(const char **why)
{
	*why = reason;
	return state;
}
