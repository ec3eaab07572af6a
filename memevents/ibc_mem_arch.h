/* Words that two threads touch, and the kernel without the libc: hooks may be called while the libc
 * is not ready, and must not be hooked. */
#ifndef IBC_MEM_ARCH_H
#define IBC_MEM_ARCH_H

#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>

#define load(p) __atomic_load_n(&(p), __ATOMIC_SEQ_CST)
#define store(p, v) __atomic_store_n(&(p), (v), __ATOMIC_SEQ_CST)
#define add(p, v) __atomic_add_fetch(&(p), (v), __ATOMIC_SEQ_CST)
#define cas(p, old, new) __atomic_compare_exchange_n(&(p), (old), (new), 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)

/* Returns the kernel's answer: the result, or -errno. */
static inline long ibc_sys(long nr, long a, long b, long c, long d, long e, long f)
{
#if defined(__x86_64__)
	register long r10 __asm__("r10") = d;
	register long r8 __asm__("r8") = e;
	register long r9 __asm__("r9") = f;
	long ret;
	__asm__ volatile("syscall" : "=a"(ret) : "a"(nr), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
		: "rcx", "r11", "memory");
	return ret;
#elif defined(__aarch64__)
	register long x8 __asm__("x8") = nr;
	register long x0 __asm__("x0") = a;
	register long x1 __asm__("x1") = b;
	register long x2 __asm__("x2") = c;
	register long x3 __asm__("x3") = d;
	register long x4 __asm__("x4") = e;
	register long x5 __asm__("x5") = f;
	__asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory", "cc");
	return x0;
#else
#error "memory events know the system calls of x86-64 and arm64 only; build with CGO_ENABLED=0"
#endif
}

static inline int ibc_sys_failed(long ret) { return (unsigned long)ret >= (unsigned long)-4095L; }

/* Not for hooks: it is the libc's. */
static inline uint64_t ibc_now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Identifies a thread without thread-local storage. */
static inline uint32_t ibc_thread_hint(void)
{
	uint64_t x;

#if defined(__x86_64__)
	__asm__("mov %%fs:0, %0" : "=r"(x)); /* its first word is its own address */
#else
	x = (uint64_t)(uintptr_t)__builtin_thread_pointer();
#endif
	return (uint32_t)((x * 0x9E3779B97F4A7C15u) >> 40);
}

#endif
