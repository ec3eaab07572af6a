/*
 * Pinning registered memory, as a device does: the kernel's io_uring takes buffers that it keeps
 * in place and counts in VmPin. Nothing is read or written through the ring. Where there is no
 * io_uring, or it does not take that memory (what is mapped for reading only), nothing is pinned.
 */
#include "sv.h"

#include <linux/io_uring.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { BUFFERS = 1 << 14 }; /* IORING_MAX_REG_BUFFERS of io_uring/rsrc.c */
#define BUFFER_BYTES (1ull << 30)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int ring = -1;
static uint8_t used[BUFFERS];
static uint32_t cursor;

static void open_ring(void)
{
	struct io_uring_params p = { 0 };
	struct io_uring_rsrc_register table = { .nr = BUFFERS, .flags = IORING_RSRC_REGISTER_SPARSE };

	ring = (int)syscall(SYS_io_uring_setup, 1, &p);
	if (ring >= 0 && syscall(SYS_io_uring_register, ring, IORING_REGISTER_BUFFERS2, &table, sizeof table)) {
		close(ring);
		ring = -1;
	}
}

static bool set_buffer(uint32_t i, void *addr, uint64_t bytes)
{
	struct iovec v = { addr, bytes };
	struct io_uring_rsrc_update2 u = { .offset = i, .data = (uintptr_t)&v, .nr = 1 };

	return syscall(SYS_io_uring_register, ring, IORING_REGISTER_BUFFERS_UPDATE, &u, sizeof u) == 1;
}

static bool pin_one(uint64_t addr, uint64_t bytes, uint32_t *at)
{
	uint32_t tries = 0;

	while (used[cursor % BUFFERS] && tries++ < BUFFERS)
		cursor++;
	uint32_t i = cursor++ % BUFFERS;
	if (used[i] || !set_buffer(i, (void *)(uintptr_t)addr, bytes))
		return false;
	used[i] = 1;
	*at = i;
	return true;
}

static void unpin_some(struct sv_pins *p, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		set_buffer(p->at[i], NULL, 0);
		used[p->at[i]] = 0;
	}
	free(p);
}

/* Pins whole pages. NULL: nothing is pinned. */
struct sv_pins *sv_pin(uint64_t addr, uint64_t bytes)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	uint32_t n = (uint32_t)((bytes + BUFFER_BYTES - 1) / BUFFER_BYTES);
	int saved = errno;

	pthread_once(&once, open_ring);
	struct sv_pins *p = ring >= 0 && n <= BUFFERS ? malloc(sizeof *p + n * sizeof p->at[0]) : NULL;
	if (!p)
		return NULL;
	p->n = n;
	pthread_mutex_lock(&lock);
	for (uint32_t i = 0; i < n; i++) {
		uint64_t done = i * BUFFER_BYTES, left = bytes - done;
		if (!pin_one(addr + done, left < BUFFER_BYTES ? left : BUFFER_BYTES, &p->at[i])) {
			unpin_some(p, i);
			p = NULL;
			break;
		}
	}
	pthread_mutex_unlock(&lock);
	errno = saved;
	return p;
}

void sv_unpin(struct sv_pins *p)
{
	if (!p)
		return;
	pthread_mutex_lock(&lock);
	unpin_some(p, p->n);
	pthread_mutex_unlock(&lock);
}
