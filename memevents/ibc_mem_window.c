/* The data path, first part: windows, invalidation, and waking Go.
 *
 * The order is the point: a call that takes memory away first opens a window, then makes the
 * overlapping entries stale, then lets the kernel work, then closes the window. A registrar
 * publishes its entry (PENDING) first and then looks at the windows. With both sides sequentially
 * consistent, either the hook sees the entry or the registrar sees the window; without the window
 * an entry registered between the notice and the kernel's work would stay valid for ever. */
#include "ibc_mem_path.h"

#include <sys/stat.h>

/* ---- windows ---- */

IBC_HIDDEN uint32_t ibc_mem_window_open(struct ibc_mem *m, uint64_t lo, uint64_t hi)
{
	uint32_t at = ibc_thread_hint();

	for (uint32_t i = 0; i < IBC_MEM_WINDOWS; i++) {
		struct ibc_mem_window *w = &m->window[(at + i) % IBC_MEM_WINDOWS];
		uint64_t none = 0;

		if (load(w->lo) || !cas(w->lo, &none, 1))
			continue;
		/* Read only after lo, the store of which orders it */
		__atomic_store_n(&w->hi, hi, __ATOMIC_RELAXED);
		if (lo > 1) /* 1 stays "everything" */
			store(w->lo, lo);
		return (at + i) % IBC_MEM_WINDOWS;
	}
	add(m->overflow, 1);
	count(m->stats.overflows);
	return IBC_MEM_WINDOWS;
}

IBC_HIDDEN void ibc_mem_window_close(struct ibc_mem *m, uint32_t id)
{
	if (likely(id < IBC_MEM_WINDOWS))
		__atomic_store_n(&m->window[id].lo, 0, __ATOMIC_RELEASE);
	else
		add(m->overflow, -1);
}

/* ---- invalidation ---- */

static void add_dead(struct ibc_mem *m, struct ibc_mem_entry *e)
{
	struct ibc_mem_watcher *w = &m->watcher[e->watcher % IBC_MEM_WATCHERS];
	uint64_t dead = add(w->dead_bytes, load(e->hi) - load(e->lo));
	uint32_t head = load(w->dead_head);

	add(w->dead_count, 1);
	do
		store(e->dead_next, head);
	while (!cas(w->dead_head, &head, (uint32_t)(e - m->entry) + 1));
	/* From here on the entry is its owner's. */
	if (dead > load(w->dead_limit) && !__atomic_exchange_n(&w->signalled, 1, __ATOMIC_SEQ_CST))
		__atomic_or_fetch(&m->signal, 1ull << (w - m->watcher), __ATOMIC_SEQ_CST);
}

/* Makes the entry stale if it overlaps. A VALID one goes to its owner's dead list, which the one
 * winner of the exchange does; a PENDING one belongs to the registrar, which learns it from its own
 * exchange. */
static void expire(struct ibc_mem *m, struct ibc_mem_entry *e, uint64_t lo, uint64_t hi)
{
	uint64_t s = load(e->state), stale;

	do {
		uint64_t kind = s & 3;

		if ((kind != IBC_MEM_PENDING && kind != IBC_MEM_VALID) || load(e->lo) >= hi || load(e->hi) <= lo)
			return;
		stale = (s & ~3ull) | IBC_MEM_STALE;
	} while (!cas(e->state, &s, stale));

	count(m->stats.invalidated);
	if ((s & 3) == IBC_MEM_PENDING) {
		count(m->stats.invalidated_pending);
		return;
	}
	if (load(e->refs))
		count(m->stats.invalidated_in_use);
	add_dead(m, e);
}

IBC_HIDDEN uint32_t ibc_mem_hash(uint32_t level, uint64_t cell)
{
	return (uint32_t)(((cell + 1) * 0x9E3779B97F4A7C15u ^
		(uint64_t)(level + 1) * 0xC2B2AE3D27D4EB4Fu) >> (64 - IBC_MEM_HEADS_LOG2));
}

static void expire_all(struct ibc_mem *m, uint64_t lo, uint64_t hi)
{
	uint32_t high = load(m->high);

	count(m->stats.scans);
	for (uint32_t i = 0; i < high; i++)
		expire(m, &m->entry[i], lo, hi);
}

/* Walks the cells of one level. False: there are more cells than entries, or the lists are being
 * changed. */
static int expire_level(struct ibc_mem *m, uint32_t level, uint64_t lo, uint64_t hi, uint32_t *steps)
{
	uint64_t first = lo >> IBC_MEM_CELL_SHIFT(level), last = (hi - 1) >> IBC_MEM_CELL_SHIFT(level);

	if (last - first >= *steps)
		return 0;
	for (uint64_t cell = first; cell <= last; cell++) {
		for (uint32_t n = load(m->heads[ibc_mem_hash(level, cell)]); n; n = load(m->entry[(n - 1) / 2].next[(n - 1) % 2])) {
			if (!--*steps)
				return 0;
			expire(m, &m->entry[(n - 1) / 2], lo, hi);
		}
	}
	return 1;
}

/* An entry of size s stands in the one or two cells it touches of the level with cells of at
 * least s, so a range meets it in a few lists however many entries there are elsewhere. A list that
 * changed under the walk may have led astray: then every slot is looked at, which needs no list. */
IBC_HIDDEN void ibc_mem_invalidate(struct ibc_mem *m, uint64_t lo, uint64_t hi)
{
	uint32_t live = load(m->live), steps = 2 * live + 64;
	uint64_t epoch = load(m->epoch);

	if (!live || lo >= hi)
		return;
	for (uint32_t levels = load(m->levels); levels; levels &= levels - 1) {
		if (!expire_level(m, (uint32_t)__builtin_ctz(levels), lo, hi, &steps)) {
			expire_all(m, lo, hi);
			return;
		}
	}
	if (unlikely(load(m->epoch) != epoch))
		expire_all(m, lo, hi);
}

/* ---- waking Go, once the call is over ---- */

/* The program may have closed the descriptor, and have a file of its own under that number now:
 * nothing is written to that. What shares the inode with eventfds is none that keeps data
 * (fs/anon_inodes.c). */
static void wake(const struct ibc_mem *m, int32_t efd)
{
	uint64_t one = 1;
	struct stat s;

	if (!efd || ibc_sys_failed(ibc_sys(SYS_fstat, efd - 1, (long)&s, 0, 0, 0, 0)))
		return;
	if (s.st_dev == load(m->event_dev) && s.st_ino == load(m->event_ino))
		ibc_sys(SYS_write, efd - 1, (long)&one, sizeof one, 0, 0, 0);
}

IBC_HIDDEN void ibc_mem_signal(struct ibc_mem *m)
{
	if (likely(!load(m->signal)))
		return;
	for (uint64_t due = __atomic_exchange_n(&m->signal, 0, __ATOMIC_SEQ_CST); due; due &= due - 1)
		wake(m, load(m->watcher[__builtin_ctzll(due)].efd));
}
