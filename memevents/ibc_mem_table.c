/* Claiming and retiring entries. These take a lock, among themselves only: no hook ever waits for
 * it. */
#include "ibc_mem.h"
#include "ibc_mem_arch.h"

#include <pthread.h>
#include <string.h>
#include <time.h>

/* Part of the table, so that two images that share it share the lock. */
static void lock(struct ibc_mem *m) { pthread_mutex_lock((pthread_mutex_t *)m->lock); }
static void unlock(struct ibc_mem *m) { pthread_mutex_unlock((pthread_mutex_t *)m->lock); }
_Static_assert(sizeof(pthread_mutex_t) <= sizeof ((struct ibc_mem *)0)->lock,
	"room for the lock; zero is its initial state");

/* ---- watchers ---- */

/* Returns the index, or -1 when all are in use. */
IBC_HIDDEN int ibc_mem_watcher_open(struct ibc_mem *m, uint64_t dead_limit)
{
	int found = -1;

	lock(m);
	for (uint32_t i = 0; i < IBC_MEM_WATCHERS && found < 0; i++) {
		struct ibc_mem_watcher *w = &m->watcher[i];

		if (w->used)
			continue;
		w->used = 1;
		store(w->dead_limit, dead_limit);
		store(w->signalled, 0);
		found = (int)i;
	}
	unlock(m);
	return found;
}

/* Refuses with the number of its entries that are not FREE. */
IBC_HIDDEN int ibc_mem_watcher_close(struct ibc_mem *m, uint32_t watcher)
{
	int busy = 0;

	lock(m);
	for (uint32_t i = 0; i < m->high; i++)
		busy += (load(m->entry[i].state) & 3) != IBC_MEM_FREE && m->entry[i].watcher == watcher;
	if (!busy)
		m->watcher[watcher].used = 0;
	unlock(m);
	return busy;
}

/* ---- the grid ---- */

/* The lowest level with cells at least as large as the range: it then touches one or two of
 * them. */
static uint32_t level_of(uint64_t bytes)
{
	uint32_t level = 0;

	while (level < IBC_MEM_LEVELS - 1 && bytes > 1ull << IBC_MEM_CELL_SHIFT(level))
		level++;
	return level;
}

static void link_node(struct ibc_mem *m, struct ibc_mem_entry *e, uint32_t k, uint64_t cell)
{
	uint32_t node = (uint32_t)(e - m->entry) * 2 + k + 1;

	e->head[k] = ibc_mem_hash(e->level, cell);
	store(e->next[k], load(m->heads[e->head[k]]));
	store(m->heads[e->head[k]], node);
}

static void insert(struct ibc_mem *m, struct ibc_mem_entry *e)
{
	uint32_t shift;

	e->level = (uint8_t)level_of(e->hi - e->lo);
	shift = IBC_MEM_CELL_SHIFT(e->level);
	if (!m->level_count[e->level]++)
		__atomic_or_fetch(&m->levels, 1u << e->level, __ATOMIC_SEQ_CST);
	add(m->epoch, 1); /* before a link changes: a walk that meets the change starts over */
	link_node(m, e, 0, e->lo >> shift);
	e->nodes = 1;
	if (e->lo >> shift != (e->hi - 1) >> shift) {
		link_node(m, e, 1, (e->hi - 1) >> shift);
		e->nodes = 2;
	}
}

/* The node keeps its own link, so that a walk that stands on it goes on. */
static void unlink_node(struct ibc_mem *m, const struct ibc_mem_entry *e, uint32_t k)
{
	uint32_t node = (uint32_t)(e - m->entry) * 2 + k + 1;
	uint32_t *at = &m->heads[e->head[k]];

	while (*at && *at != node)
		at = &m->entry[(*at - 1) / 2].next[(*at - 1) % 2];
	if (*at)
		store(*at, load(e->next[k]));
}

static void erase(struct ibc_mem *m, struct ibc_mem_entry *e)
{
	for (uint32_t k = 0; k < e->nodes; k++)
		unlink_node(m, e, k);
	e->nodes = 0;
	if (!--m->level_count[e->level])
		__atomic_and_fetch(&m->levels, ~(1u << e->level), __ATOMIC_SEQ_CST);
}

/* ---- entries ---- */

static struct ibc_mem_entry *unused(struct ibc_mem *m, uint32_t watcher)
{
	struct ibc_mem_entry *e;

	if (load(m->live) >= IBC_MEM_SLOTS && watcher != IBC_MEM_NO_OWNER)
		return NULL;
	if (!m->free_head)
		return m->high < IBC_MEM_SLOTS + IBC_MEM_SPARE ? &m->entry[m->high] : NULL;
	e = &m->entry[m->free_head - 1];
	m->free_head = e->dead_next;
	return e;
}

/* Is any part of the range changing right now, as far as is known? A gate that is odd means that
 * somewhere something is, and not that an entry could be missed: the reader announces (linger) the
 * change that it is about to deal with before it looks for entries. */
IBC_HIDDEN int ibc_mem_changing(struct ibc_mem *m, uint64_t lo, uint64_t hi, int look)
{
	if (look == IBC_MEM_LOOK_NOT)
		return 0;
	if (load(m->overflow))
		return 1;
	for (uint32_t i = 0; i < IBC_MEM_WINDOWS; i++) {
		uint64_t from = load(m->window[i].lo);

		/* 1: everything, or not written yet. A window that closed and opened anew between the two
		 * loads opened after the caller's entry was PENDING, so its hook sees that entry. */
		if (from == 1 || (from && from < hi && load(m->window[i].hi) > lo))
			return 1;
	}
	if (look == IBC_MEM_LOOK_CALLS)
		return 0;
	if (load(m->gate) & 1)
		return 1;
	for (uint32_t i = 0; i < IBC_MEM_LINGER; i++) {
		uint64_t until = load(m->linger[i].until_ns);

		if (until && load(m->linger[i].lo) < hi && load(m->linger[i].hi) > lo && ibc_now_ns() < until)
			return 1;
	}
	return 0;
}

/* ---- ranges that the kernel need not report any more ---- */

static int reported_by_kernel(const struct ibc_mem_entry *e, uint64_t lo, uint64_t hi)
{
	return e->uffd && (load(e->state) & 3) != IBC_MEM_FREE && e->lo < hi && e->hi > lo;
}

/* Looks in the cells of one level. False: there are more cells than entries. */
static int find_in_level(struct ibc_mem *m, uint32_t level, uint64_t lo, uint64_t hi, struct ibc_mem_entry **found)
{
	uint64_t first = lo >> IBC_MEM_CELL_SHIFT(level), last = (hi - 1) >> IBC_MEM_CELL_SHIFT(level);

	if (last - first >= m->high)
		return 0;
	for (uint64_t cell = first; cell <= last && !*found; cell++)
		for (uint32_t n = m->heads[ibc_mem_hash(level, cell)]; n && !*found; n = m->entry[(n - 1) / 2].next[(n - 1) % 2])
			if (reported_by_kernel(&m->entry[(n - 1) / 2], lo, hi))
				*found = &m->entry[(n - 1) / 2];
	return 1;
}

/* Some entry that overlaps and needs the kernel, or NULL. */
static struct ibc_mem_entry *find_reported(struct ibc_mem *m, uint64_t lo, uint64_t hi)
{
	struct ibc_mem_entry *found = NULL;
	uint32_t levels = m->levels;

	while (levels && !found && find_in_level(m, (uint32_t)__builtin_ctz(levels), lo, hi, &found))
		levels &= levels - 1;
	for (uint32_t i = 0; levels && i < m->high && !found; i++) /* the walk gave up */
		if (reported_by_kernel(&m->entry[i], lo, hi))
			found = &m->entry[i];
	return found;
}

/* Each part that the kernel reports is a mapping of its own, of which a process may have 65530
 * (vm.max_map_count): so it reports no more than what entries need. Under the lock, or the kernel
 * could get the request to stop after the next claimer's to begin. A range between very many others
 * is left as it is. */
static void unwatch(struct ibc_mem *m, uint64_t lo, uint64_t hi, int *budget)
{
	while (lo < hi && (*budget)-- > 0) {
		struct ibc_mem_entry *e = find_reported(m, lo, hi);

		if (!e) {
			ibc_mem_uffd_unwatch(m, lo, hi);
			return;
		}
		if (lo < e->lo)
			unwatch(m, lo, e->lo, budget);
		lo = e->hi;
	}
}

/* Only the caller uses the entry: PENDING or STALE, not on a dead list, no references. The next use
 * of the slot has another generation, so that no old handle fits it. */
IBC_HIDDEN void ibc_mem_retire(struct ibc_mem *m, uint32_t slot)
{
	struct ibc_mem_entry *e = &m->entry[slot];

	if (load(m->forked)) /* and the thread that held the lock is not here to give it back */
		return;
	lock(m);
	store(e->state, ((load(e->state) >> 2) + 1) << 2 | IBC_MEM_FREE);
	erase(m, e);
	add(m->live, -1);
	if (e->uffd) {
		int budget = 64;

		e->uffd = 0;
		unwatch(m, e->lo, e->hi, &budget);
	}
	e->dead_next = m->free_head;
	m->free_head = slot + 1;
	unlock(m);
}

static void count_refused(struct ibc_mem *m) { __atomic_add_fetch(&m->stats.refused, 1, __ATOMIC_RELAXED); }

/* The event of what stood there before may meet a claim that still looks for it at the gate. Then
 * there is nothing to be registered for. */
static int still_pending(const struct ibc_mem_entry *e) { return (load(e->state) & 3) == IBC_MEM_PENDING; }

/* Publishes a PENDING entry, and then looks whether the range is changing: if so there is no
 * entry. */
IBC_HIDDEN int ibc_mem_claim(struct ibc_mem *m, uint32_t watcher, uint64_t lo, uint64_t hi, uint32_t tag, int uffd,
	int look, uint32_t *slot)
{
	struct ibc_mem_entry *e;

	if (load(m->forked))
		return IBC_MEM_FORKED;
	lock(m);
	e = unused(m, watcher);
	if (!e) {
		unlock(m);
		return IBC_MEM_FULL;
	}
	e->tag = tag;
	e->watcher = (uint8_t)watcher;
	e->uffd = uffd != 0;
	store(e->lo, lo);
	store(e->hi, hi);
	insert(m, e);
	add(m->live, 1);
	if (e == &m->entry[m->high])
		add(m->high, 1);
	store(e->state, (load(e->state) & ~3ull) | IBC_MEM_PENDING);
	unlock(m);
	*slot = (uint32_t)(e - m->entry);
	if (uffd && !ibc_mem_uffd_watch(m, lo, hi)) {
		ibc_mem_retire(m, *slot);
		return IBC_MEM_UNWATCHED;
	}
	if (!ibc_mem_changing(m, lo, hi, look) && (look != IBC_MEM_LOOK_ALL || still_pending(e)))
		return IBC_MEM_OK;
	ibc_mem_retire(m, *slot);
	count_refused(m);
	return IBC_MEM_CHANGING;
}

/* Takes up to cap entries off the watcher's dead list. One caller at a time, so the list's head
 * cannot come back to the same entry under it. */
IBC_HIDDEN uint32_t ibc_mem_drain(struct ibc_mem *m, uint32_t watcher, uint32_t *slots, uint32_t cap)
{
	struct ibc_mem_watcher *w = &m->watcher[watcher];
	uint32_t n = 0;

	if (load(m->forked))
		return 0;
	lock(m);
	store(w->signalled, 0); /* before the list is looked at: what comes later signals anew */
	while (n < cap) {
		uint32_t head = load(w->dead_head);
		struct ibc_mem_entry *e = &m->entry[head - 1];

		if (!head)
			break;
		if (!cas(w->dead_head, &head, load(e->dead_next)))
			continue;
		add(w->dead_bytes, -(load(e->hi) - load(e->lo)));
		add(w->dead_count, -1);
		slots[n++] = head - 1;
	}
	unlock(m);
	return n;
}

/* ---- invariants, for tests ---- */

static int listed(struct ibc_mem *m, const struct ibc_mem_entry *e, uint32_t k)
{
	uint32_t node = (uint32_t)(e - m->entry) * 2 + k + 1, steps = 2 * (IBC_MEM_SLOTS + IBC_MEM_SPARE);

	for (uint32_t n = m->heads[e->head[k]]; n && steps; n = m->entry[(n - 1) / 2].next[(n - 1) % 2], steps--)
		if (n == node)
			return 1;
	return 0;
}

static const char *verify_dead(struct ibc_mem *m, const struct ibc_mem_watcher *w)
{
	uint32_t n = 0;

	for (uint32_t at = load(w->dead_head); at; at = load(m->entry[at - 1].dead_next)) {
		if ((load(m->entry[at - 1].state) & 3) != IBC_MEM_STALE)
			return "an entry on a dead list is not stale";
		if (++n > m->live)
			return "a dead list is longer than there are entries";
	}
	return NULL;
}

/* The fault of the table, or NULL. Holds at any time that no hook is running. */
IBC_HIDDEN const char *ibc_mem_verify(struct ibc_mem *m)
{
	const char *bad = NULL;
	uint32_t live = 0;

	lock(m);
	for (uint32_t i = 0; i < m->high && !bad; i++) {
		struct ibc_mem_entry *e = &m->entry[i];

		if ((load(e->state) & 3) == IBC_MEM_FREE)
			continue;
		live++;
		if (e->lo >= e->hi || !e->nodes)
			bad = "an entry has no range or stands in no list";
		for (uint32_t k = 0; k < e->nodes; k++)
			if (!listed(m, e, k))
				bad = "an entry is missing from its list";
		if (!(m->levels >> e->level & 1))
			bad = "an entry's level is not marked";
	}
	if (!bad && live != m->live)
		bad = "the count of entries is wrong";
	for (uint32_t i = 0; i < IBC_MEM_WATCHERS && !bad; i++)
		bad = verify_dead(m, &m->watcher[i]);
	unlock(m);
	return bad;
}
