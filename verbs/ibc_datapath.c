/* The hot path: one call posts, polls and waits. No allocation, no lock of ours, no callback into Go. */
#include "ibc_verbs.h"

#include <errno.h>
#include <time.h>

/* Looking at the clock costs as much as several polls of a CQ and a hundred looks at a word; this often is fine enough for budgets of microseconds. */
enum { POLLS_PER_CLOCK = 16, LOOKS_PER_CLOCK = 256 };

static uint64_t now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Counters have one writer: a plain load and an untorn store. */
static void add(uint64_t *counter, uint64_t n)
{
	__atomic_store_n(counter, *counter + n, __ATOMIC_RELAXED);
}

static uint32_t distance(const struct ibv_send_wr *from, const struct ibv_send_wr *to)
{
	uint32_t n = 0;
	for (; from && from != to; from = from->next)
		n++;
	return n;
}

static uint32_t recv_distance(const struct ibv_recv_wr *from, const struct ibv_recv_wr *to)
{
	uint32_t n = 0;
	for (; from && from != to; from = from->next)
		n++;
	return n;
}

/* Posts one sub-chain; on failure bad_wr is the request that was refused, and done those before it. */
static int post_send(struct ibc_batch *b, void **bad_wr, uint32_t *done)
{
	struct ibv_send_wr *last = b->last, *next = last->next, *bad = NULL;

	last->next = NULL;
	int err = ibv_post_send(b->queue, b->first, &bad);
	*done = err ? distance(b->first, bad) : b->count;
	last->next = next;
	*bad_wr = bad;
	return err;
}

static int post_recv(struct ibc_batch *b, void **bad_wr, uint32_t *done)
{
	struct ibv_recv_wr *last = b->last, *next = last->next, *bad = NULL;

	last->next = NULL;
	int err = b->kind == IBC_RECV ? ibv_post_recv(b->queue, b->first, &bad) : ibv_post_srq_recv(b->queue, b->first, &bad);
	*done = err ? recv_distance(b->first, bad) : b->count;
	last->next = next;
	*bad_wr = bad;
	return err;
}

static void post_all(struct ibc_doorbell *d)
{
	for (uint32_t i = 0; i < d->batches; i++) {
		struct ibc_batch *b = &d->batch[i];
		uint32_t done = 0;
		int err = b->kind == IBC_SEND ? post_send(b, &d->bad_wr, &done) : post_recv(b, &d->bad_wr, &done);

		d->posted += done;
		if (err) {
			/* Some providers return -1 and set errno. */
			d->post_errno = err > 0 ? err : errno;
			d->bad_batch = i;
			add(&d->n_post_errors, 1);
			break;
		}
	}
	add(&d->n_posts, d->batches);
	add(&d->n_wrs, d->posted);
}

/* Takes what the CQ has and there is room for. Returns 0 when polling failed. */
static int take(struct ibc_doorbell *d)
{
	int n = ibv_poll_cq(d->cq, (int)(d->wc_cap - d->completed), d->wc + d->completed);

	add(&d->n_polls, 1);
	if (n == 0) {
		add(&d->n_empty_polls, 1);
		return 1;
	}
	if (n < 0) {
		d->poll_errno = EIO; /* providers return -1 or -2, and no errno */
		return 0;
	}
	for (int i = 0; i < n; i++)
		if (d->wc[d->completed + (uint32_t)i].status != IBV_WC_SUCCESS)
			add(&d->n_failed, 1);
	d->completed += (uint32_t)n;
	add(&d->n_completions, (uint64_t)n);
	return 1;
}

static int condition(struct ibc_doorbell *d)
{
	uint64_t v = __atomic_load_n(d->word, __ATOMIC_ACQUIRE);

	d->seen = v;
	switch (d->watch) {
	case IBC_WATCH_DIFFERS:
		return v != d->value;
	case IBC_WATCH_AT_LEAST:
		return v >= d->value;
	default:
		return v == d->value;
	}
}

/* Waits for want completions or the condition, whichever comes first, within the budget. Looks at least once. */
static void wait(struct ibc_doorbell *d)
{
	uint32_t want = d->want < d->wc_cap ? d->want : d->wc_cap;
	uint32_t every = d->watch && d->poll_every ? d->poll_every : 1;
	uint32_t clock_every = d->watch ? LOOKS_PER_CLOCK : POLLS_PER_CLOCK;
	uint64_t end = 0;

	for (uint32_t turn = 0;; turn++) {
		if (d->watch && (d->met = (uint32_t)condition(d)))
			return;
		if (want && turn % every == 0) {
			if (!take(d) || d->completed >= want)
				return;
		}
		if (d->budget_ns == 0)
			return;
		if (turn % clock_every == 0) {
			uint64_t now = now_ns();
			if (!end)
				end = now + d->budget_ns < now ? UINT64_MAX : now + d->budget_ns;
			else if (now >= end)
				return;
		}
	}
}

void ibc_ring(struct ibc_doorbell *d)
{
	d->posted = d->completed = d->met = 0;
	d->post_errno = d->poll_errno = 0;
	add(&d->n_rings, 1);
	if (d->batches)
		post_all(d);
	/* What was refused will not complete: take what is there, and do not wait. */
	if (d->post_errno)
		d->budget_ns = 0;
	if (d->want || d->watch)
		wait(d);
}

int ibc_poll(struct ibv_cq *cq, int cap, struct ibv_wc *wc)
{
	int n = ibv_poll_cq(cq, cap, wc);

	return n < 0 ? -EIO : n;
}
