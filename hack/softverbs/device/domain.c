/* The domain: who is in it, locks in it, room for rings, and pipes between its processes. */
#include "sv.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* Changes with the layout, so that a file of another version is made anew. */
#define MAGIC (0x736f667476650000ull ^ sizeof(struct sv_window) ^ (uint64_t)sizeof(struct sv_head) << 20)

struct sv_process sv = { .fd = -1, .rnr_counter = -1 };

uint64_t sv_now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* ---- locks ---- */

static void pause_or_yield(uint32_t turn)
{
	/* The holder may have been preempted: two processors are soon taken. */
	if (turn % 32 == 31)
		sched_yield();
#if defined(__x86_64__)
	else
		__builtin_ia32_pause();
#endif
}

void sv_spin(uint32_t *lock)
{
	for (uint32_t turn = 0; __atomic_exchange_n(lock, 1, __ATOMIC_ACQUIRE); turn++)
		pause_or_yield(turn);
}

void sv_unspin(uint32_t *lock)
{
	__atomic_store_n(lock, 0, __ATOMIC_RELEASE);
}

/* Each process holds a lock on its slot's byte of the file while it lives; a zombie does not. */
static bool holds_slot(uint32_t slot)
{
	struct flock l = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = slot, .l_len = 1 };

	return slot == sv.slot || fcntl(sv.fd, F_OFD_GETLK, &l) || l.l_type != F_UNLCK;
}

bool sv_alive(uint32_t slot)
{
	return __atomic_load_n(&sv.head->slot[slot].alive, __ATOMIC_ACQUIRE) != 0;
}

void sv_lock(sv_lock_t *lock)
{
	for (uint32_t turn = 0;; turn++) {
		uint32_t holder = 0;
		if (__atomic_compare_exchange_n(lock, &holder, sv.slot + 1, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
			return;
		pause_or_yield(turn);
		if (turn % 4096 == 4095 && holder && !holds_slot(holder - 1))
			__atomic_compare_exchange_n(lock, &holder, 0, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
	}
}

void sv_unlock(sv_lock_t *lock)
{
	__atomic_store_n(lock, 0, __ATOMIC_RELEASE);
}

/* ---- attaching ---- */

static uint64_t number(const char *text)
{
	char *end;
	uint64_t v = strtoull(text, &end, 0);

	switch (*end | 0x20) {
	case 'k': return v << 10;
	case 'm': return v << 20;
	case 'g': return v << 30;
	default: return v;
	}
}

static uint64_t setting(const char *name, uint64_t otherwise)
{
	const char *text = getenv(name);

	return text && *text ? number(text) : otherwise;
}

static void read_settings(void)
{
	const char *link = getenv("SOFTVERBS_LINK"), *counter = getenv("SOFTVERBS_RNR_COUNTER");

	sv.infiniband = link && !strcmp(link, "ib");
	sv.share = setting("SOFTVERBS_SHARE", 0);
	sv.wire_ns = setting("SOFTVERBS_WIRE_NS", 0);
	sv.memlock = setting("SOFTVERBS_MEMLOCK", UINT64_MAX);
	if (counter && *counter)
		sv.rnr_counter = open(counter, O_WRONLY | O_CLOEXEC);
}

static int map_domain(void)
{
	/* Registrations that reach beyond what the program has must not find this beside it. */
	const uint64_t guard = 1ull << 30;
	uint8_t *room = mmap(NULL, SV_FILE + 2 * guard, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (room == MAP_FAILED)
		return errno;
	if (mmap(room + guard, SV_FILE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED, sv.fd, 0) == MAP_FAILED)
		return errno;
	madvise(room + guard, SV_FILE, MADV_DONTFORK);
	madvise(room + guard, SV_FILE, MADV_DONTDUMP);
	sv.head = (struct sv_head *)(void *)(room + guard);
	return 0;
}

static bool take_slot(uint32_t i)
{
	struct flock l = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = i, .l_len = 1 };
	struct sv_slot *s = &sv.head->slot[i];
	const char *rank = getenv("SOFTVERBS_NODE");

	if (fcntl(sv.fd, F_OFD_SETLK, &l))
		return false;
	if (s->births++)
		fallocate(sv.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)(SV_HEAD + i * SV_WINDOW), SV_WINDOW);
	if (!rank || !*rank)
		rank = getenv("IBCONDUIT_RANK");
	s->pid = getpid();
	s->node = rank && *rank ? (uint32_t)strtoul(rank, NULL, 10) : SV_NO_NODE;
	s->cut = 0;
	sv.slot = i;
	sv.own = sv_window(i);
	sv.mark = (i * 37 + s->births * 101 + 1) << 24;
	__atomic_store_n(&s->alive, 1, __ATOMIC_RELEASE);
	return true;
}

static int join(void)
{
	/* In turn: somebody may still be at work in what a dead process has left. */
	for (uint32_t i = 0; i < SV_SLOTS; i++)
		if (take_slot(sv.head->next_slot++ % SV_SLOTS))
			return 0;
	return EUSERS;
}

static int attach(void)
{
	const char *path = getenv("SOFTVERBS_DOMAIN"), *plan = getenv("SOFTVERBS_FAULTS");
	char usual[64];
	int err;

	if (!path || !*path) {
		snprintf(usual, sizeof usual, "/dev/shm/softverbs-%u", (unsigned int)getuid());
		path = usual;
	}
	sv.fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (sv.fd < 0)
		return errno;
	if (flock(sv.fd, LOCK_EX))
		return errno;
	uint64_t magic = 0;
	if (pread(sv.fd, &magic, sizeof magic, 0) != sizeof magic || magic != MAGIC) {
		if (ftruncate(sv.fd, 0) || ftruncate(sv.fd, (off_t)SV_FILE))
			return errno;
	}
	if ((err = map_domain()))
		return err;
	sv.head->magic = MAGIC;
	read_settings();
	err = join();
	flock(sv.fd, LOCK_UN);
	/* Peers read and write this process's memory, where Yama asks for a permission. */
	prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
	sv_fault_read(plan);
	return err;
}

int sv_attach(void)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	int err = 0;

	pthread_mutex_lock(&lock);
	if (!sv.own) {
		err = attach();
		if (err) {
			if (sv.fd >= 0)
				close(sv.fd);
			sv.fd = -1;
		}
	}
	pthread_mutex_unlock(&lock);
	return err;
}

/* ---- room for rings ---- */

/*
 * Whole pages, and after their end a hole in the file: so that a new ring has zeros. Free stretches
 * are kept by size, in powers of two.
 */
struct stretch {
	struct stretch *next;
	uint64_t at;
};
static struct stretch *stretches[40];
static uint64_t arena_next;
static pthread_mutex_t arena_lock = PTHREAD_MUTEX_INITIALIZER;

static int size_class(uint64_t bytes)
{
	int c = 12;

	while (1ull << c < bytes)
		c++;
	return c;
}

uint64_t sv_ring_new(uint64_t bytes)
{
	int c = size_class(bytes);
	uint64_t at = 0;

	pthread_mutex_lock(&arena_lock);
	struct stretch *s = stretches[c];
	if (s) {
		stretches[c] = s->next;
		at = s->at;
		free(s);
	} else if (SV_ARENA + arena_next + (1ull << c) <= SV_WINDOW) {
		at = SV_HEAD + sv.slot * SV_WINDOW + SV_ARENA + arena_next;
		arena_next += 1ull << c;
	}
	pthread_mutex_unlock(&arena_lock);
	return at;
}

void sv_ring_free(uint64_t at, uint64_t bytes)
{
	int c = size_class(bytes);
	struct stretch *s = malloc(sizeof *s);

	fallocate(sv.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)at, 1ll << c);
	if (!s)
		return;
	s->at = at;
	pthread_mutex_lock(&arena_lock);
	s->next = stretches[c];
	stretches[c] = s;
	pthread_mutex_unlock(&arena_lock);
}

/* ---- pipes ---- */

int sv_pipe_new(struct sv_pipe *p, int *reader)
{
	struct stat st;
	int fds[2];

	if (pipe2(fds, O_CLOEXEC))
		return errno;
	/* The reader's end is the program's, and blocks until it says otherwise. */
	fcntl(fds[1], F_SETFL, O_WRONLY | O_NONBLOCK);
	if (fstat(fds[1], &st)) {
		close(fds[0]);
		close(fds[1]);
		return EIO;
	}
	*p = (struct sv_pipe){ .inode = st.st_ino, .fd = fds[1], .slot = sv.slot };
	*reader = fds[0];
	return 0;
}

/*
 * Other processes' pipes that this one has open. They are opened to read, too: then a write never
 * meets a pipe without readers, which would be a signal.
 */
static struct {
	uint64_t inode;
	int fd;
} opened[64];
static pthread_mutex_t opened_lock = PTHREAD_MUTEX_INITIALIZER;

static int open_pipe(const struct sv_pipe *p)
{
	char path[64];
	struct stat st;

	snprintf(path, sizeof path, "/proc/%d/fd/%d", sv.head->slot[p->slot].pid, p->fd);
	int fd = open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC);
	if (fd >= 0 && (fstat(fd, &st) || st.st_ino != p->inode)) {
		close(fd);
		fd = -1;
	}
	return fd;
}

static void write_number(int fd, uint64_t what)
{
	while (write(fd, &what, sizeof what) < 0 && errno == EINTR)
		;
}

void sv_tell(const struct sv_pipe *p, uint64_t what)
{
	int saved = errno;

	if (!p->inode)
		return;
	if (p->slot == sv.slot) {
		write_number(p->fd, what);
		errno = saved;
		return;
	}
	uint32_t i = (uint32_t)p->inode % 64;
	pthread_mutex_lock(&opened_lock);
	if (opened[i].inode != p->inode) {
		if (opened[i].inode)
			close(opened[i].fd);
		opened[i].fd = open_pipe(p);
		opened[i].inode = opened[i].fd >= 0 ? p->inode : 0;
	}
	if (opened[i].inode)
		write_number(opened[i].fd, what);
	pthread_mutex_unlock(&opened_lock);
	errno = saved;
}
