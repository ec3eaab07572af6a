/* Another interposer, as profilers and allocators are: counts the calls and passes on. */
#include <dlfcn.h>
#include <stddef.h>

static int (*next_munmap)(void *, size_t);
static int (*next_madvise)(void *, size_t, int);
int ibc_counter_munmap, ibc_counter_madvise;

__attribute__((constructor)) static void start(void)
{
	*(void **)&next_munmap = dlsym(RTLD_NEXT, "munmap");
	*(void **)&next_madvise = dlsym(RTLD_NEXT, "madvise");
}

int munmap(void *addr, size_t len)
{
	__atomic_add_fetch(&ibc_counter_munmap, 1, __ATOMIC_SEQ_CST);
	return next_munmap(addr, len);
}

int madvise(void *addr, size_t len, int advice)
{
	__atomic_add_fetch(&ibc_counter_madvise, 1, __ATOMIC_SEQ_CST);
	return next_madvise(addr, len, advice);
}

/* How many calls came by. */
long ibc_counter(long which) { return which ? ibc_counter_madvise : ibc_counter_munmap; }
