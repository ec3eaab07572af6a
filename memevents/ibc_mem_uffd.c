/* The third monitor: userfaultfd reports every unmapping, discarding and moving of the ranges it is
 * given, from all callers, however they call: the Go runtime, package syscall, the inside of the
 * libc, the loader.
 *
 * The ranges are registered in write-protect mode and never write-protected, so they cause no page
 * faults. A call that takes memory away sleeps in the kernel until its event is read, so the reader
 * must never wait for anything but the descriptor: it is a thread of C that allocates nothing. (A
 * goroutine in its place hangs the process: the runtime waits for a thread that waits for the
 * reader.)
 *
 * The call goes on as soon as its event is read, before the reader has acted on it. So the reader
 * makes the gate odd before it reads and even when all it has read is dealt with; Acquire turns
 * away at an odd gate.
 *
 * MADV_DONTNEED and its like are reported before the pages go, and nothing reports when they are
 * gone (doc.go says why it cannot be found out). Their range stays closed for a while, LINGER_NS,
 * to claims of memory that another thread else may be discarding. */
#include "ibc_mem.h"
#include "ibc_mem_arch.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* The kernel's remaining work takes microseconds; this allows for a thread that is not run */
#define LINGER_NS 1000000000u

/* At each wake poll takes the file that has the number then (fs/select.c, do_poll): one that the
 * program has put there, and that has nothing to read, would let the reader sleep on, and with it
 * every caller that waits for it. */
#define LOOK_AGAIN_MS 1000

#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif
#ifndef SYS_close_range
#define SYS_close_range 436
#endif
#ifndef CLOSE_RANGE_UNSHARE
#define CLOSE_RANGE_UNSHARE (1u << 1)
#endif
#ifndef USERFAULTFD_IOC_NEW
#define USERFAULTFD_IOC_NEW _IO(0xAA, 0x00)
#endif

/* ---- the reader ---- */

/* How much larger slot l becomes by taking in the range; nothing if it is no longer needed. */
static uint64_t growth(const struct ibc_mem_linger *l, uint64_t now, uint64_t lo, uint64_t hi)
{
	uint64_t from = l->lo < lo ? l->lo : lo, to = l->hi > hi ? l->hi : hi;

	return l->until_ns > now ? (to - from) - (l->hi - l->lo) : 0;
}

/* Goes where it closes least beside itself. A slot that is still needed is widened, never given up.
 * The reader only writes here. */
static void linger(struct ibc_mem *m, uint64_t lo, uint64_t hi)
{
	struct ibc_mem_linger *best = &m->linger[0];
	uint64_t now = ibc_now_ns();

	for (uint32_t i = 1; i < IBC_MEM_LINGER; i++)
		if (growth(&m->linger[i], now, lo, hi) < growth(best, now, lo, hi))
			best = &m->linger[i];
	if (best->until_ns > now) {
		lo = best->lo < lo ? best->lo : lo;
		hi = best->hi > hi ? best->hi : hi;
	}
	store(best->lo, lo);
	store(best->hi, hi);
	store(best->until_ns, now + LINGER_NS);
}

/* The call that discarded this range has returned: it need not stay closed. A slot that the reader
 * has widened or given to another range meanwhile has another time, and keeps it. */
IBC_HIDDEN void ibc_mem_uffd_settled(struct ibc_mem *m, uint64_t lo, uint64_t hi)
{
	for (uint32_t i = 0; i < IBC_MEM_LINGER; i++) {
		uint64_t until = load(m->linger[i].until_ns);

		if (load(m->linger[i].lo) == lo && load(m->linger[i].hi) == hi)
			(void)cas(m->linger[i].until_ns, &until, 0);
	}
}

static void take(struct ibc_mem *m, const struct uffd_msg *msg)
{
	switch (msg->event) {
	case UFFD_EVENT_UNMAP:
		add(m->stats.uffd_unmap, 1);
		ibc_mem_invalidate(m, msg->arg.remove.start, msg->arg.remove.end);
		break;
	case UFFD_EVENT_REMOVE:
		add(m->stats.uffd_remove, 1);
		linger(m, msg->arg.remove.start, msg->arg.remove.end);
		ibc_mem_invalidate(m, msg->arg.remove.start, msg->arg.remove.end);
		break;
	case UFFD_EVENT_REMAP:
		add(m->stats.uffd_remap, 1);
		ibc_mem_invalidate(m, msg->arg.remap.from, msg->arg.remap.from + msg->arg.remap.len);
		ibc_mem_invalidate(m, msg->arg.remap.to, msg->arg.remap.to + msg->arg.remap.len);
		break;
	}
}

static void delay(const struct ibc_mem *m)
{
	uint32_t us = load(m->uffd_delay_us);
	struct timespec t = {us / 1000000, (us % 1000000) * 1000};

	if (us)
		nanosleep(&t, NULL);
}

/* Is the descriptor still ours? The program may have closed it and opened something else, which is
 * not ours to read. Each userfaultfd has an inode of its own since Linux 5.12 (fs/userfaultfd.c,
 * anon_inode_create_getfile). */
static int ours(struct ibc_mem *m, int fd)
{
	struct stat s;

	return fd >= 0 && !fstat(fd, &s) && s.st_dev == load(m->uffd_dev) && s.st_ino == load(m->uffd_ino);
}

/* The program has closed the descriptor, as programs do that close all there are. The kernel
 * reports no more: nothing stays valid, and what needs the kernel is watched no more. */
static void lost(struct ibc_mem *m, int fd)
{
	struct pollfd err = {.fd = STDERR_FILENO, .events = POLLOUT};
	int32_t was = fd + 1;

	if (!cas(m->uffd, &was, 0)) /* found out before */
		return;
	ibc_mem_invalidate(m, 0, UINT64_MAX);
	ibc_mem_signal(m);
	/* The reader does not wait, for a full pipe neither */
	if (poll(&err, 1, 0) == 1 && (err.revents & POLLOUT))
		ibc_mem_log(m, IBC_MEM_LOG_ERROR,
			"the program has closed the descriptor of userfaultfd: nothing is cached any more that needs it", NULL);
}

static void *reader(void *arg)
{
	struct ibc_mem *m = arg;
	int fd = load(m->uffd) - 1;
	struct uffd_msg msg[16];

	while (ours(m, fd)) {
		struct pollfd p = {.fd = fd, .events = POLLIN};
		ssize_t n;

		if (poll(&p, 1, LOOK_AGAIN_MS) < 1)
			continue;
		delay(m);
		add(m->gate, 1);
		if (!ours(m, fd))
			break;
		n = read(fd, msg, sizeof msg); /* lets the callers go */
		delay(m);
		for (ssize_t i = 0; i < n / (ssize_t)sizeof *msg; i++)
			take(m, &msg[i]);
		add(m->gate, 1);
		ibc_mem_signal(m);
	}
	lost(m, fd);
	if (load(m->gate) & 1)
		add(m->gate, 1);
	store(m->let_go, 1); /* now that nothing is valid, callers that wait for the reader may go */
	ibc_sys(SYS_futex, (long)&m->let_go, FUTEX_WAKE_PRIVATE, 1, 0, 0, 0);
	return NULL;
}

/* Has the descriptor in a table of its own, where the program cannot close it. Else the end of the
 * file would let go callers that wait for the reader, as soon as its poll returns and before it has
 * said that anything changes. Where the kernel is before Linux 5.9, or a filter forbids it, that
 * instant remains. */
static void *keeper(void *arg)
{
	struct ibc_mem *m = arg;
	int fd = load(m->uffd) - 1;

	if (fd < 0 || ibc_sys_failed(ibc_sys(SYS_close_range, fd + 1, -1u, CLOSE_RANGE_UNSHARE, 0, 0, 0)))
		return NULL;
	if (fd > 0)
		ibc_sys(SYS_close_range, 0, fd - 1, 0, 0, 0, 0);
	while (!load(m->let_go))
		ibc_sys(SYS_futex, (long)&m->let_go, FUTEX_WAIT_PRIVATE, 0, 0, 0, 0);
	return NULL; /* with the thread goes its table */
}

/* ---- starting ---- */

/* The system call needs CAP_SYS_PTRACE (or vm.unprivileged_userfaultfd), the device for its own
 * permissions, and the restricted mode for nothing: faults of the kernel, which it leaves out, do
 * not occur. */
static int open_uffd(void)
{
	int flags = O_CLOEXEC | O_NONBLOCK;
	long fd = ibc_sys(SYS_userfaultfd, flags | UFFD_USER_MODE_ONLY, 0, 0, 0, 0, 0);
	int dev;

	if (!ibc_sys_failed(fd))
		return (int)fd;
	fd = ibc_sys(SYS_userfaultfd, flags, 0, 0, 0, 0, 0); /* before Linux 5.11 */
	if (!ibc_sys_failed(fd))
		return (int)fd;
	dev = open("/dev/userfaultfd", O_RDWR | O_CLOEXEC);
	if (dev < 0) {
		errno = (int)-fd;
		return -1;
	}
	fd = ioctl(dev, USERFAULTFD_IOC_NEW, flags);
	close(dev);
	return (int)fd;
}

static int start_thread(void *(*run)(void *), struct ibc_mem *m)
{
	pthread_attr_t attr;
	pthread_t thread;
	sigset_t all, old;
	int err;

	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, 64 << 10);
	sigfillset(&all); /* no signal handler may run here: Go's would wait for the runtime */
	pthread_sigmask(SIG_SETMASK, &all, &old);
	err = pthread_create(&thread, &attr, run, m);
	if (err == EINVAL) /* the program's thread-local storage is larger by itself */
		err = pthread_create(&thread, NULL, run, m);
	if (!err)
		pthread_detach(thread);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	pthread_attr_destroy(&attr);
	return err;
}

/* Returns 0 or an errno; *step is the call that failed. Once started it stays. */
IBC_HIDDEN int ibc_mem_uffd_start(struct ibc_mem *m, const char **step)
{
	struct stat s;
	struct uffdio_api api = {
		.api = UFFD_API,
		.features = UFFD_FEATURE_EVENT_UNMAP | UFFD_FEATURE_EVENT_REMOVE | UFFD_FEATURE_EVENT_REMAP |
			UFFD_FEATURE_PAGEFAULT_FLAG_WP,
	};
	int fd, err;

	if (load(m->uffd))
		return 0;
	*step = "userfaultfd";
	fd = open_uffd();
	if (fd < 0)
		return errno;
	*step = "UFFDIO_API";
	if (ioctl(fd, UFFDIO_API, &api) < 0 || fstat(fd, &s) < 0) {
		err = errno;
		close(fd);
		return err;
	}
	store(m->uffd_dev, s.st_dev);
	store(m->uffd_ino, s.st_ino);
	store(m->uffd, fd + 1);
	*step = "pthread_create";
	err = start_thread(reader, m);
	if (err) {
		store(m->uffd, 0);
		close(fd);
		return err;
	}
	(void)start_thread(keeper, m); /* without it little is lost */
	return 0;
}

/* A child of fork that kept it open would keep the parent's callers waiting after the parent has
 * closed it. */
IBC_HIDDEN void ibc_mem_uffd_in_child(struct ibc_mem *m)
{
	int fd = load(m->uffd) - 1;

	if (ours(m, fd))
		ibc_sys(SYS_close, fd, 0, 0, 0, 0, 0);
	store(m->uffd, 0);
}

/* ---- use ---- */

/* The descriptor, or -1: it was never opened, or is lost. */
static int descriptor(struct ibc_mem *m)
{
	int fd = load(m->uffd) - 1;

	if (fd < 0 || ours(m, fd))
		return fd;
	lost(m, fd);
	return -1;
}

IBC_HIDDEN int ibc_mem_uffd_alive(struct ibc_mem *m) { return descriptor(m) >= 0; }

/* 1 when the kernel will report the whole range, until it is unmapped or no longer watched. */
IBC_HIDDEN int ibc_mem_uffd_watch(struct ibc_mem *m, uint64_t lo, uint64_t hi)
{
	struct uffdio_register r = {.range = {lo, hi - lo}, .mode = UFFDIO_REGISTER_MODE_WP};
	int fd = descriptor(m);

	return fd >= 0 && ioctl(fd, UFFDIO_REGISTER, &r) == 0;
}

/* The kernel need not report the range any more. Where the memory has become another userfaultfd's
 * meanwhile, older kernels would end that one's watch: so it is watched anew first, which fails
 * there. */
IBC_HIDDEN void ibc_mem_uffd_unwatch(struct ibc_mem *m, uint64_t lo, uint64_t hi)
{
	struct uffdio_range r = {lo, hi - lo};

	if (ibc_mem_uffd_watch(m, lo, hi))
		ioctl(load(m->uffd) - 1, UFFDIO_UNREGISTER, &r);
}

/* Until changes read before this call are dealt with; bounded. */
IBC_HIDDEN void ibc_mem_gate_wait(struct ibc_mem *m)
{
	struct timespec t = {0, 1000000};
	uint64_t gate = load(m->gate);

	for (int i = 0; i < 1000 && (gate & 1) && load(m->gate) == gate; i++)
		nanosleep(&t, NULL);
}
