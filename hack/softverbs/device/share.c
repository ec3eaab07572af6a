/*
 * SOFTVERBS_SHARE=1: registered memory is moved into the domain, at the address where it is. Peers
 * then reach it by plain loads and stores, which is for measuring what is above a device. It is
 * not for tests: moved memory is shared with a forked child, madvise does not drop its pages, and
 * what other threads write into it during the registration may be lost.
 */
#include "sv.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

/* Go's heap, up to where it will hardly come: others write beside what is registered. */
#define GO_HEAP 0xc000000000ull
#define GO_HEAP_END 0x10000000000ull

struct mapping {
	uint64_t lo, hi, offset, inode;
	uint32_t major, minor;
	char access[8], name[64];
	bool watched; /* by userfaultfd, which would be told of the move */
};

/* The next mapping of /proc/self/smaps. line has its first line, or nothing yet. */
static bool next_mapping(FILE *f, char *line, int size, struct mapping *m)
{
	memset(m, 0, sizeof *m);
	if (!*line && !fgets(line, size, f))
		return false;
	if (sscanf(line, "%lx-%lx %7s %lx %x:%x %lu %63s", &m->lo, &m->hi, m->access, &m->offset, &m->major, &m->minor, &m->inode, m->name) < 7)
		return false;
	*line = 0;
	while (fgets(line, size, f)) {
		uint64_t a, b;
		if (sscanf(line, "%lx-%lx ", &a, &b) == 2)
			return true; /* the next one's */
		if (!strncmp(line, "VmFlags:", 8))
			m->watched = strstr(line, " um") || strstr(line, " uw") || strstr(line, " ui");
		*line = 0;
	}
	return true;
}

/* Nobody writes to the heap beside what is moved: /proc/self/task has a folder for each thread. */
static bool one_thread(void)
{
	struct stat st;

	return !stat("/proc/self/task", &st) && st.st_nlink == 3;
}

/* Whether all of it may be moved; or it is in the domain already, then *at is where. */
static bool movable(uint64_t lo, uint64_t hi, uint64_t *at)
{
	struct stat st;
	struct mapping m;
	char line[512] = "";
	FILE *f = fopen("/proc/self/smaps", "re");
	uint64_t next = lo;
	bool may = f && !fstat(sv.fd, &st) && (hi <= GO_HEAP || lo >= GO_HEAP_END);

	while (may && next < hi && next_mapping(f, line, sizeof line, &m)) {
		if (m.hi <= next)
			continue;
		if (m.inode == st.st_ino && makedev(m.major, m.minor) == st.st_dev) {
			if (m.lo <= lo && m.hi >= hi)
				*at = m.offset + (lo - m.lo);
			may = false;
		} else {
			may = m.lo <= next && !m.inode && !m.watched && !strcmp(m.access, "rw-p") && strncmp(m.name, "[stack", 6) != 0 && (strcmp(m.name, "[heap]") != 0 || one_thread());
		}
		next = m.hi;
	}
	if (f)
		fclose(f);
	return may && next >= hi;
}

/* Returns where the pages are in the domain; 0: they stay where they are. */
uint64_t sv_share(uint64_t lo, uint64_t bytes)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	uint64_t at = 0;
	int saved = errno;

	pthread_mutex_lock(&lock);
	if (movable(lo, lo + bytes, &at) && (at = sv_ring_new(bytes))) {
		memcpy(sv_at(at), (void *)(uintptr_t)lo, bytes);
		if (syscall(SYS_mmap, lo, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_POPULATE, sv.fd, at) < 0) {
			sv_ring_free(at, bytes);
			at = 0;
		}
	}
	pthread_mutex_unlock(&lock);
	errno = saved;
	return at;
}
