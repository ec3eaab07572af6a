/* The data path, third part: the real call. It is made by the next definition, so that other
 * interposers keep working; or by the kernel. */
#include "ibc_mem_path.h"

#include <errno.h>
#include <sys/types.h>

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
static intptr_t kernel(uint32_t event, const intptr_t *a)
{
	static const long nr[IBC_MEM_NATIVE] = {
		[IBC_MEM_MMAP] = SYS_mmap, [IBC_MEM_MUNMAP] = SYS_munmap, [IBC_MEM_MREMAP] = SYS_mremap,
		[IBC_MEM_SHMAT] = SYS_shmat, [IBC_MEM_SHMDT] = SYS_shmdt, [IBC_MEM_MADVISE] = SYS_madvise,
		[IBC_MEM_PROCESS_MADVISE] = SYS_process_madvise, [IBC_MEM_REMAP_FILE_PAGES] = SYS_remap_file_pages,
	};

	if (event == IBC_MEM_BRK)
		return kernel_brk((uint64_t)a[0]);
	if (event == IBC_MEM_SBRK)
		return kernel_sbrk(a[0]);
	return returned(ibc_sys(nr[event], a[0], a[1], a[2], a[3], a[4], a[5]));
}

/* By a definition of the call; NULL: the kernel. */
IBC_HIDDEN intptr_t ibc_mem_call_at(void *definition, uint32_t event, const intptr_t *a)
{
	union {
		void *p;
		intptr_t (*mmap)(intptr_t, intptr_t, int, int, int, off_t);
		intptr_t (*mremap)(intptr_t, intptr_t, intptr_t, int, ...);
		intptr_t (*shmat)(int, intptr_t, int);
		intptr_t (*sbrk)(intptr_t);
		ssize_t (*process_madvise)(int, intptr_t, intptr_t, int, unsigned);
		/* munmap, shmdt, brk, madvise, remap_file_pages: both architectures pass them in registers */
		int (*other)(intptr_t, intptr_t, intptr_t, intptr_t, intptr_t);
	} f = {.p = definition};

	if (!f.p)
		return kernel(event, a);
	switch (event) {
	case IBC_MEM_MMAP:
		return f.mmap(a[0], a[1], (int)a[2], (int)a[3], (int)a[4], a[5]);
	case IBC_MEM_MREMAP:
		return f.mremap(a[0], a[1], a[2], (int)a[3], a[4]);
	case IBC_MEM_SHMAT:
		return f.shmat((int)a[0], a[1], (int)a[2]);
	case IBC_MEM_SBRK:
		return f.sbrk(a[0]);
	case IBC_MEM_PROCESS_MADVISE:
		return f.process_madvise((int)a[0], a[1], a[2], (int)a[3], (unsigned)a[4]);
	}
	return f.other(a[0], a[1], a[2], a[3], a[4]);
}
