/* Threads of C that take memory away while Go communicates from it, each on pages of its own. */
#include <pthread.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

enum { THREADS = 4, PAGES = 16 };

static struct { uint64_t turn; char pad[56]; } state[THREADS]; /* odd while the pages change */
static pthread_t thread[THREADS];
static char *base;
static long page;
static int stop;

static void stamp(char *p, long n, uint64_t id)
{
	for (long i = 0; i < n; i++)
		*(volatile uint64_t *)(p + i * page) = id << 8;
}

static void change(char *p, long n, uint32_t how)
{
	switch (how % 3) {
	case 0:
		munmap(p, (size_t)(n * page));
		/* fall through */
	case 1:
		mmap(p, (size_t)(n * page), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
		break;
	case 2:
		madvise(p, (size_t)(n * page), MADV_DONTNEED);
	}
}

static void *run(void *arg)
{
	long me = (long)(intptr_t)arg;
	uint32_t rnd = 12345 + (uint32_t)me;
	uint64_t id = (uint64_t)(me + 1) << 44; /* no page had it before */

	while (!__atomic_load_n(&stop, __ATOMIC_SEQ_CST)) {
		rnd = rnd * 1664525 + 1013904223;
		long from = rnd >> 8 & (PAGES - 1), n = 1 + (rnd >> 16) % (uint32_t)(PAGES - from);
		char *p = base + (me * PAGES + from) * page;

		__atomic_add_fetch(&state[me].turn, 1, __ATOMIC_SEQ_CST);
		change(p, n, rnd >> 24);
		stamp(p, n, ++id);
		__atomic_add_fetch(&state[me].turn, 1, __ATOMIC_SEQ_CST);
		usleep(100);
	}
	return NULL;
}

long ibc_threads_start(long at)
{
	base = (char *)at;
	page = sysconf(_SC_PAGESIZE);
	__atomic_store_n(&stop, 0, __ATOMIC_SEQ_CST);
	for (long i = 0; i < THREADS; i++)
		if (pthread_create(&thread[i], NULL, run, (void *)(intptr_t)i))
			return -1;
	return 0;
}

long ibc_threads_turn(long i) { return (long)(intptr_t)&state[i].turn; }

/* Returns the number of changes. */
long ibc_threads_stop(void)
{
	uint64_t n = 0;

	__atomic_store_n(&stop, 1, __ATOMIC_SEQ_CST);
	for (int i = 0; i < THREADS; i++) {
		pthread_join(thread[i], NULL);
		n += state[i].turn / 2;
	}
	return (long)n;
}
