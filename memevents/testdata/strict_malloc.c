/* A malloc, and a deregistration, that cannot be called from a hook: they abort while the thread's
 * flag is set that test builds of the hooks keep. */
#include <dlfcn.h>
#include <stddef.h>
#include <unistd.h>
#include <stdlib.h>

extern __attribute__((tls_model("initial-exec"))) _Thread_local int ibc_mem_in_hook;
extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
extern void __libc_free(void *);
static long calls;

static void check(void)
{
	static const char text[] = "malloc, free or ibv_dereg_mr called from a hook\n";

	__atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED);
	if (ibc_mem_in_hook && write(2, text, sizeof text - 1))
		abort();
}

void *malloc(size_t n) { check(); return __libc_malloc(n); }
void *calloc(size_t n, size_t m) { check(); return __libc_calloc(n, m); }
void *realloc(void *p, size_t n) { check(); return __libc_realloc(p, n); }
void free(void *p) { check(); __libc_free(p); }

int ibv_dereg_mr(void *mr) { check(); return mr != NULL; }

/* So that a test knows that it was in force. */
long ibc_strict_calls(void) { return calls; }
