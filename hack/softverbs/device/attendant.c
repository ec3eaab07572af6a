/*
 * One thread for what nobody's call would do in time: it sees peers die, tries waiting requests
 * again, and tells of completions that were not due when their queue was armed. It starts with the
 * first such need, and sleeps otherwise.
 */
#include "sv.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static int bell = -1; /* an eventfd */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
	int fd; /* a pidfd + 1; 0: not watched */
	uint32_t births;
} watched[SV_SLOTS];
static struct sv_cq *alarms;

static void bury(uint32_t slot)
{
	pthread_mutex_lock(&lock);
	struct sv_slot *s = &sv.head->slot[slot];
	if (watched[slot].fd) {
		close(watched[slot].fd - 1);
		watched[slot].fd = 0;
		if (s->births == watched[slot].births)
			__atomic_store_n(&s->alive, 0, __ATOMIC_RELEASE);
	}
	pthread_mutex_unlock(&lock);
}

/* Tells of what is due. Returns when the next will be. */
static uint64_t ring_alarms(uint64_t now)
{
	uint64_t next = UINT64_MAX;

	pthread_mutex_lock(&lock);
	for (struct sv_cq **at = &alarms, *q; (q = *at);) {
		if (q->alarm_ns > now) {
			next = q->alarm_ns < next ? q->alarm_ns : next;
			at = &q->next_alarm;
			continue;
		}
		*at = q->next_alarm;
		q->alarm_ns = 0;
		if (__atomic_exchange_n(&q->x->arm, SV_ARM_NONE, __ATOMIC_ACQ_REL))
			sv_tell(&q->x->channel, q->x->number);
	}
	pthread_mutex_unlock(&lock);
	return next;
}

static void rest(struct pollfd *fds, nfds_t n, uint64_t until)
{
	uint64_t now = sv_now_ns(), left = until > now ? until - now : 0;
	struct timespec t = { .tv_sec = (time_t)(left / 1000000000u), .tv_nsec = (long)(left % 1000000000u) };

	ppoll(fds, n, until == UINT64_MAX ? NULL : &t, NULL);
}

static void *attend(void *unused)
{
	struct pollfd fds[SV_SLOTS + 1];
	uint32_t slots[SV_SLOTS + 1];
	uint64_t rung;

	for (;;) {
		nfds_t n = 1;
		uint64_t now = sv_now_ns(), next = sv_wait_retry(now), alarm = ring_alarms(now);

		fds[0] = (struct pollfd){ .fd = bell, .events = POLLIN };
		pthread_mutex_lock(&lock);
		for (uint32_t s = 0; s < SV_SLOTS; s++)
			if (watched[s].fd) {
				fds[n] = (struct pollfd){ .fd = watched[s].fd - 1, .events = POLLIN };
				slots[n++] = s;
			}
		pthread_mutex_unlock(&lock);
		rest(fds, n, next < alarm ? next : alarm);
		if (fds[0].revents && read(bell, &rung, sizeof rung) < 0)
			continue;
		for (nfds_t i = 1; i < n; i++)
			if (fds[i].revents)
				bury(slots[i]);
	}
	return unused;
}

static void start(void)
{
	pthread_t t;
	pthread_attr_t a;
	sigset_t all, before;

	bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	pthread_attr_init(&a);
	pthread_attr_setdetachstate(&a, PTHREAD_CREATE_DETACHED);
	pthread_attr_setstacksize(&a, 256 << 10);
	if (bell < 0 || pthread_create(&t, &a, attend, NULL))
		fprintf(stderr, "softverbs: no thread: what waits goes on waiting, and deaths go unseen\n");
	pthread_attr_destroy(&a);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void sv_nudge(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	uint64_t one = 1;

	pthread_once(&once, start);
	if (write(bell, &one, sizeof one) < 0)
		return; /* it is rung already */
}

void sv_watch(uint32_t slot)
{
	struct sv_slot *s = &sv.head->slot[slot];
	bool fresh = false;

	if (slot == sv.slot)
		return;
	pthread_mutex_lock(&lock);
	if (!watched[slot].fd && sv_alive(slot)) {
		int fd = (int)syscall(SYS_pidfd_open, s->pid, 0);
		if (fd >= 0) {
			watched[slot].fd = fd + 1;
			watched[slot].births = s->births;
			fresh = true;
		} else {
			__atomic_store_n(&s->alive, 0, __ATOMIC_RELEASE);
		}
	}
	pthread_mutex_unlock(&lock);
	if (fresh)
		sv_nudge();
}

void sv_alarm(struct sv_cq *q, uint64_t at_ns)
{
	pthread_mutex_lock(&lock);
	if (!q->alarm_ns) {
		q->next_alarm = alarms;
		alarms = q;
	}
	q->alarm_ns = at_ns;
	pthread_mutex_unlock(&lock);
	sv_nudge();
}

void sv_alarm_off(struct sv_cq *q)
{
	pthread_mutex_lock(&lock);
	for (struct sv_cq **at = &alarms; *at; at = &(*at)->next_alarm)
		if (*at == q) {
			*at = q->next_alarm;
			break;
		}
	q->alarm_ns = 0;
	pthread_mutex_unlock(&lock);
}
