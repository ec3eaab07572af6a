/* The hot path: one call posts, polls and waits. No allocation, no lock, no callback into Go. */
#include "ibc_verbs.h"

#include <errno.h>
#include <time.h>

/*
 * Time is measured in ticks of the processor's counter: where the kernel does not trust it the
 * clock is a system call (2 us in a TCG virtual machine with an HPET, against 12 ns), which is more
 * than a message takes. A counter that stands still or jumps must not make a wait endless: now and
 * then the clock is read.
 */
enum { POLLS_PER_TICKS = 16, TURNS_PER_CLOCK = 1 << 16 };

static uint64_t now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

uint64_t ibc_ticks(void)
{
#if defined(__x86_64__)
	return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
	uint64_t v;
	__asm__ volatile("mrs %0, cntvct_el0" : "=r"(v));
	return v;
#else
	return now_ns();
#endif
}

/* When a wait ends. */
struct deadline {
	uint64_t start, ticks; /* of the counter */
	uint64_t clock_ns;     /* 0: the clock was not asked yet */
};

static void start(struct deadline *t, const struct ibc_doorbell *d)
{
	t->ticks = d->budget_ns / 1000 * d->ticks_per_us + d->budget_ns % 1000 * d->ticks_per_us / 1000;
	t->clock_ns = 0;
	t->start = ibc_ticks();
}

static int over(struct deadline *t, const struct ibc_doorbell *d, uint32_t turn)
{
	if (ibc_ticks() - t->start >= t->ticks)
		return 1;
	if (turn % TURNS_PER_CLOCK || !turn)
		return 0;
	uint64_t now = now_ns();
	if (!t->clock_ns)
		t->clock_ns = now + d->budget_ns;
	return now >= t->clock_ns;
}

/* Counters have one writer: a plain load and an untorn store. */
static void add(uint64_t *counter, uint64_t n)
{
	__atomic_store_n(counter, *counter + n, __ATOMIC_RELAXED);
}

/* post_send and post_recv post one sub-chain, and return how many of its requests were posted. */
#define POST(name, request, call)                                             \
	static uint32_t name(struct ibc_batch *b)                                 \
	{                                                                         \
		struct request *last = b->last, *next = last->next, *bad = NULL;      \
		uint32_t done = b->count;                                             \
                                                                              \
		last->next = NULL;                                                    \
		b->err = (call);                                                      \
		b->bad = bad;                                                         \
		if (b->err) {                                                         \
			done = 0;                                                         \
			for (struct request *r = b->first; r && r != bad; r = r->next)    \
				done++;                                                       \
		}                                                                     \
		last->next = next;                                                    \
		return done;                                                          \
	}

POST(post_send, ibv_send_wr, ibv_post_send(b->queue, b->first, &bad))
POST(post_recv, ibv_recv_wr,
	b->kind == IBC_RECV ? ibv_post_recv(b->queue, b->first, &bad) : ibv_post_srq_recv(b->queue, b->first, &bad))

/* Whether the queue of sub-chain i has refused an earlier one: then it gets no more, which would be
 * out of order. */
static int refused_before(const struct ibc_doorbell *d, uint32_t i)
{
	for (uint32_t k = 0; k < i; k++)
		if (d->batch[k].err && d->batch[k].queue == d->batch[i].queue)
			return 1;
	return 0;
}

static void post_all(struct ibc_doorbell *d)
{
	for (uint32_t i = 0; i < d->batches; i++) {
		struct ibc_batch *b = &d->batch[i];

		if (d->refused && refused_before(d, i)) {
			b->err = ECANCELED;
			b->bad = b->first;
		} else {
			d->posted += b->kind == IBC_SEND ? post_send(b) : post_recv(b);
		}
		if (b->err) {
			/* Some providers return -1 and set errno. */
			if (b->err < 0)
				b->err = errno;
			d->refused++;
		}
	}
}

/* Takes the CQ's completions that there is room for. Returns 0 when polling failed. */
static int take(struct ibc_doorbell *d)
{
	int n = ibv_poll_cq(d->cq, (int)(d->wc_cap - d->completed), d->wc + d->completed);

	if (n == 0)
		return 1;
	if (n < 0) {
		d->poll_errno = EIO; /* providers return -1 or -2, and no errno */
		return 0;
	}
	d->completed += (uint32_t)n;
	add(&d->n_completions, (uint64_t)n);
	return 1;
}

/* Waits for want completions within the budget. Looks at least once. */
static void wait(struct ibc_doorbell *d)
{
	uint32_t want = d->want < d->wc_cap ? d->want : d->wc_cap;
	uint32_t to_ticks = POLLS_PER_TICKS; /* counted down: a division would take longer than a poll */
	struct deadline t = { 0 };

	for (uint32_t turn = 0;; turn++) {
		if (!take(d) || d->completed >= want)
			return;
		if (turn == 0) {
			if (d->budget_ns == 0)
				return;
			start(&t, d);
		} else if (--to_ticks == 0) {
			to_ticks = POLLS_PER_TICKS;
			if (over(&t, d, turn))
				return;
		}
	}
}

void ibc_ring_at(uintptr_t doorbell)
{
	struct ibc_doorbell *d = (struct ibc_doorbell *)doorbell;

	d->posted = d->completed = d->refused = 0;
	d->poll_errno = 0;
	add(&d->n_rings, 1);
	if (d->batches)
		post_all(d);
	/* Refused requests will not complete: take present completions, and do not wait. */
	if (d->refused)
		d->budget_ns = 0;
	if (d->want)
		wait(d);
}
