/* A library that calls through tables of pointers, as SQLite does for all its system calls. */
#include <sys/mman.h>

static const struct { int (*unmap)(void *, size_t); } fixed = {munmap};
static struct { int (*unmap)(void *, size_t); } changeable = {munmap};
/* A variable that began as an address, and is anything by now */
static void *volatile reused = (void *)munmap;

static volatile long calls = 7; /* beside the others, in a page that is written to */

__attribute__((constructor)) static void begin(void) { reused = (void *)&reused; }

long ibc_foreign_munmap(long addr, long len)
{
	int (*volatile const *table)(void *, size_t) = &fixed.unmap;

	calls++;
	if (changeable.unmap != *table || reused != (void *)&reused)
		return -1;
	return (*table)((void *)addr, (size_t)len);
}

/* Or the compiler would make it read-only */
void ibc_foreign_change(int (*to)(void *, size_t)) { changeable.unmap = to; }
