/* A library that uses the calls, and one that takes them over: what tests load, call and spoil. */
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <signal.h>
#include <malloc.h>
#include <pthread.h>

char ibc_foreign_data[3 * 65536] = {1};
char ibc_foreign_bss[3 * 65536];

/* Through this library's own relocation. */
long ibc_foreign_munmap(long addr, long len) { return munmap((void *)addr, (size_t)len); }
long ibc_foreign_madvise(long addr, long len, long advice) { return madvise((void *)addr, (size_t)len, (int)advice); }
long ibc_foreign_free(long p) { free((void *)p); return 0; }
long ibc_foreign_malloc(long n) { return (long)malloc((size_t)n); }
long ibc_foreign_realloc(long p, long n) { return (long)realloc((void *)p, (size_t)n); }
long ibc_foreign_trim(void) { return malloc_trim(0); }
long ibc_foreign_address(long bss) { return (long)(bss ? ibc_foreign_bss : ibc_foreign_data); }

/* The same entry, made to lead past everybody. */
static int straight(void *addr, size_t len) { return (int)syscall(SYS_munmap, addr, len); }
static int straight_advice(void *addr, size_t len, int advice) { return (int)syscall(SYS_madvise, addr, len, advice); }

/* Overwrites the beginning of a function with a jump, as a hooker does that patches text. */
static long patch(void *victim, void *to)
{
	unsigned char jump[12] = {0x48, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xe0};
	uintptr_t page = (uintptr_t)victim & ~(uintptr_t)4095;

	memcpy(jump + 2, &to, sizeof to);
	if (mprotect((void *)page, 8192, PROT_READ | PROT_WRITE | PROT_EXEC))
		return errno;
	memcpy(victim, jump, sizeof jump);
	return 0;
}

long ibc_foreign_overwrite(long victim, long advice)
{
	return patch((void *)victim, advice ? (void *)(uintptr_t)straight_advice : (void *)(uintptr_t)straight);
}

/* Overwrites this library's relocation of munmap (its address comes from the test, which reads the
 * ELF file). */
long ibc_foreign_relocate(long offset)
{
	extern const char __ehdr_start[] __attribute__((visibility("hidden")));
	void **slot = (void **)(__ehdr_start + offset);
	uintptr_t page = (uintptr_t)slot & ~(uintptr_t)4095;

	if (mprotect((void *)page, 4096, PROT_READ | PROT_WRITE))
		return errno;
	*slot = (void *)(uintptr_t)straight;
	return 0;
}

/* ---- a signal handler that unmaps while its thread does the same ---- */

static long unmapped_in_handler;

static void on_alarm(int sig)
{
	int err = errno;
	void *p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	(void)sig;
	if (p != MAP_FAILED && !munmap(p, 4096))
		__atomic_add_fetch(&unmapped_in_handler, 1, __ATOMIC_SEQ_CST);
	errno = err;
}

/* Unmaps n times on a thread that is interrupted all the time. */
static void *interrupted(void *arg)
{
	long n = *(long *)arg;

	for (long i = 0; i < n; i++) {
		char *p = mmap(NULL, 8 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		madvise(p, 4096, MADV_DONTNEED);
		munmap(p, 8 * 4096);
	}
	*(long *)arg = 0;
	return NULL;
}

/* Signals until the thread is done; returns how often the handler unmapped. */
long ibc_foreign_signals(long n)
{
	struct sigaction sa = {.sa_handler = on_alarm, .sa_flags = SA_ONSTACK | SA_RESTART}, old;
	volatile long left = n;
	pthread_t t;

	sigaction(SIGUSR2, &sa, &old);
	pthread_create(&t, NULL, interrupted, (void *)&left);
	while (__atomic_load_n(&left, __ATOMIC_SEQ_CST)) {
		pthread_kill(t, SIGUSR2);
		usleep(20);
	}
	pthread_join(t, NULL);
	sigaction(SIGUSR2, &old, NULL);
	return unmapped_in_handler;
}

/* ---- many threads in malloc ---- */

static void *churn(void *arg)
{
	for (long i = 0; i < *(long *)arg; i++) {
		char *p = malloc(256 << 10), *q = malloc((size_t)(1 + i % 50) << 10);

		p[0] = q[0] = 1;
		p = realloc(p, 512 << 10);
		free(q);
		free(p);
		if (i % 64 == 0)
			malloc_trim(0);
	}
	return NULL;
}

long ibc_foreign_churn(long n)
{
	pthread_t t[8];

	for (int i = 0; i < 8; i++)
		pthread_create(&t[i], NULL, churn, &n);
	for (int i = 0; i < 8; i++)
		pthread_join(t[i], NULL);
	return 0;
}

/* ---- a thread whose stack is too large for the libc to keep (40 MiB, nptl/nptl-stack.h) ---- */

static pthread_t stack_thread;
static pthread_mutex_t stack_hold = PTHREAD_MUTEX_INITIALIZER;
static char *volatile stack_place;

static void *on_stack(void *arg)
{
	char here[4 * 4096];

	for (size_t i = 0; i < sizeof here; i += 4096)
		((volatile char *)here)[i] = 1;
	__atomic_store_n(&stack_place, here + 4096, __ATOMIC_SEQ_CST);
	pthread_mutex_lock(&stack_hold);
	pthread_mutex_unlock(&stack_hold);
	return arg;
}

/* Returns an address inside the thread's stack. */
long ibc_foreign_thread(void)
{
	pthread_attr_t attr;

	pthread_mutex_lock(&stack_hold);
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, 64 << 20);
	if (pthread_create(&stack_thread, &attr, on_stack, NULL))
		return 0;
	while (!__atomic_load_n(&stack_place, __ATOMIC_SEQ_CST))
		usleep(100);
	return (long)stack_place;
}

long ibc_foreign_thread_end(void)
{
	pthread_mutex_unlock(&stack_hold);
	return pthread_join(stack_thread, NULL);
}

/* ---- a heap that is trimmed ---- */

static char *blocks[64];

/* Returns an address inside the heap that trim gives back. */
long ibc_foreign_fill(void)
{
	for (int i = 0; i < 64; i++) {
		blocks[i] = malloc(64 << 10);
		memset(blocks[i], 1, 64 << 10);
	}
	return (long)blocks[48];
}

long ibc_foreign_empty(void)
{
	for (int i = 0; i < 64; i++)
		free(blocks[i]);
	return malloc_trim(0);
}

/* ---- hooks before and after everything ---- */

__attribute__((constructor(101))) static void early(void)
{
	void *p = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	munmap(p, 4096);
	sbrk(0);
}

__attribute__((destructor)) static void late(void) { early(); }

/* ---- fork ---- */

/* A child that unmaps a range of its own copy; returns its wait status. */
long ibc_foreign_fork(long addr, long len)
{
	int status = -1;
	pid_t pid = fork();

	if (!pid)
		_exit(munmap((void *)addr, (size_t)len) ? 1 : 0);
	waitpid(pid, &status, 0);
	return status;
}

/* A child that ends when no other process has the write end of the pipe; returns its
 * number. */
long ibc_foreign_fork_until(long from, long to)
{
	pid_t pid = fork();
	char end;

	if (!pid) {
		close((int)to);
		while (read((int)from, &end, 1) < 0 && errno == EINTR)
			;
		_exit(0);
	}
	return pid;
}

/* fork itself: 0 in the child, which goes on in Go. */
long ibc_foreign_bare_fork(void) { return fork(); }
