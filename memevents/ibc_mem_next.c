/* The data path, third part: the real call. It is made by the next definition, so that other
 * interposers keep working; or by the kernel. */
#include "ibc_mem_path.h"

#include <errno.h>
#include <sys/uio.h>

IBC_HIDDEN void *ibc_mem_next[IBC_MEM_NATIVE];

extern void *__curbrk __attribute__((weak)); /* glibc's idea of the break */

static intptr_t returned(long ret)
{
	if (!ibc_sys_failed(ret))
		return ret;
	errno = (int)-ret;
	return -1;
}

static intptr_t kernel_brk(uint64_t to)
{
	uint64_t now = (uint64_t)ibc_sys(SYS_brk, (long)to, 0, 0, 0, 0, 0);

	if (now < to) {
		errno = ENOMEM;
		return -1;
	}
	if (&__curbrk)
		__curbrk = (void *)(uintptr_t)now;
	return 0;
}

IBC_HIDDEN uint64_t ibc_mem_libc_brk(void) { return &__curbrk && __curbrk ? (uintptr_t)__curbrk : ibc_raw_brk(); }

static intptr_t kernel_sbrk(intptr_t by)
{
	uint64_t from = ibc_mem_libc_brk();

	if (by && kernel_brk(from + (uint64_t)by))
		return -1;
	return (intptr_t)from;
}

/* Straight to the kernel: there is no next definition, or it is not known yet. */
static intptr_t kernel(const struct ibc_mem_call *c)
{
	switch (c->event) {
	case IBC_MEM_MMAP:
		return returned(ibc_sys(SYS_mmap, (long)c->u.mmap.addr, (long)c->u.mmap.len, c->u.mmap.prot, c->u.mmap.flags,
			c->u.mmap.fd, c->u.mmap.off));
	case IBC_MEM_MUNMAP:
		return returned(ibc_sys(SYS_munmap, (long)c->u.munmap.addr, (long)c->u.munmap.len, 0, 0, 0, 0));
	case IBC_MEM_MREMAP:
		return returned(ibc_sys(SYS_mremap, (long)c->u.mremap.old, (long)c->u.mremap.old_len, (long)c->u.mremap.new_len,
			c->u.mremap.flags, (long)c->u.mremap.to, 0));
	case IBC_MEM_SHMAT:
		return returned(ibc_sys(SYS_shmat, c->u.shmat.id, (long)c->u.shmat.addr, c->u.shmat.flags, 0, 0, 0));
	case IBC_MEM_SHMDT:
		return returned(ibc_sys(SYS_shmdt, (long)c->u.shmdt.addr, 0, 0, 0, 0, 0));
	case IBC_MEM_BRK:
		return kernel_brk((uintptr_t)c->u.brk.addr);
	case IBC_MEM_SBRK:
		return kernel_sbrk(c->u.sbrk.by);
	case IBC_MEM_MADVISE:
		return returned(ibc_sys(SYS_madvise, (long)c->u.madvise.addr, (long)c->u.madvise.len, c->u.madvise.advice, 0, 0, 0));
	case IBC_MEM_PROCESS_MADVISE:
		return returned(ibc_sys(SYS_process_madvise, c->u.process_madvise.pidfd, (long)c->u.process_madvise.iov,
			(long)c->u.process_madvise.n, c->u.process_madvise.advice, (long)c->u.process_madvise.flags, 0));
	case IBC_MEM_REMAP_FILE_PAGES:
		return returned(ibc_sys(SYS_remap_file_pages, (long)c->u.remap.addr, (long)c->u.remap.len, c->u.remap.prot,
			(long)c->u.remap.pgoff, c->u.remap.flags, 0));
	}
	return returned(-ENOSYS);
}

IBC_HIDDEN intptr_t ibc_mem_call_next(const struct ibc_mem_call *c)
{
	union {
		void *p;
		void *(*mmap)(void *, size_t, int, int, int, off_t);
		int (*munmap)(void *, size_t);
		void *(*mremap)(void *, size_t, size_t, int, ...);
		void *(*shmat)(int, const void *, int);
		int (*shmdt)(const void *);
		int (*brk)(void *);
		void *(*sbrk)(intptr_t);
		int (*madvise)(void *, size_t, int);
		ssize_t (*process_madvise)(int, const struct iovec *, size_t, int, unsigned);
		int (*remap)(void *, size_t, int, size_t, int);
	} next = {.p = c->raw ? NULL : load(ibc_mem_next[c->event])};

	if (!next.p)
		return kernel(c);
	switch (c->event) {
	case IBC_MEM_MMAP:
		return (intptr_t)next.mmap(c->u.mmap.addr, c->u.mmap.len, c->u.mmap.prot, c->u.mmap.flags,
			c->u.mmap.fd, c->u.mmap.off);
	case IBC_MEM_MUNMAP:
		return next.munmap(c->u.munmap.addr, c->u.munmap.len);
	case IBC_MEM_MREMAP:
		return (intptr_t)next.mremap(c->u.mremap.old, c->u.mremap.old_len, c->u.mremap.new_len,
			c->u.mremap.flags, c->u.mremap.to);
	case IBC_MEM_SHMAT:
		return (intptr_t)next.shmat(c->u.shmat.id, c->u.shmat.addr, c->u.shmat.flags);
	case IBC_MEM_SHMDT:
		return next.shmdt(c->u.shmdt.addr);
	case IBC_MEM_BRK:
		return next.brk(c->u.brk.addr);
	case IBC_MEM_SBRK:
		return (intptr_t)next.sbrk(c->u.sbrk.by);
	case IBC_MEM_MADVISE:
		return next.madvise(c->u.madvise.addr, c->u.madvise.len, c->u.madvise.advice);
	case IBC_MEM_PROCESS_MADVISE:
		return next.process_madvise(c->u.process_madvise.pidfd, c->u.process_madvise.iov, c->u.process_madvise.n,
			c->u.process_madvise.advice, c->u.process_madvise.flags);
	case IBC_MEM_REMAP_FILE_PAGES:
		return next.remap(c->u.remap.addr, c->u.remap.len, c->u.remap.prot, c->u.remap.pgoff, c->u.remap.flags);
	}
	return kernel(c);
}
