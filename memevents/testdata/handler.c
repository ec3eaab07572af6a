/* A library with handlers of its own. It is compiled as C and as C++. */
#include "ibc_mem.h"

#include <errno.h>

/* A library that is loaded by a program without libmemevents.so gets their addresses as
 * arguments. */
#pragma weak ibc_mem_root_v1
#pragma weak ibc_mem_add_handler

#ifdef __cplusplus
extern "C" {
#endif

static uintptr_t place;
static long order;

/* Notes its digit, for calls on the page that the test chose. */
static void note(struct ibc_mem_call *call, void *arg)
{
	uintptr_t lo = call->event == IBC_MEM_MUNMAP ? (uintptr_t)call->u.munmap.addr : call->u.vm.lo;

	if (lo == place)
		order = order * 10 + *(const long *)arg;
}

static void refuse(struct ibc_mem_call *call, void *arg)
{
	(void)arg;
	if (call->u.vm.lo != place)
		return;
	call->done = 1;
	call->err = EBUSY;
}

/* Answers after the kernel. */
static void deny(struct ibc_mem_call *call, void *arg)
{
	(void)arg;
	if ((uintptr_t)call->u.munmap.addr != place)
		return;
	call->done = 1;
	call->err = EDOM;
}

static long digits[] = {1, 2, 3, 4};
static struct ibc_mem_handler handlers[4], refusing, denying;
static struct ibc_mem *table; /* asked for once, as a library may */
static void (*add_handler)(struct ibc_mem *, struct ibc_mem_handler *);

static void add(struct ibc_mem_handler *h, int32_t priority, uint64_t events, void (*fn)(struct ibc_mem_call *, void *), void *arg)
{
	h->priority = priority;
	h->events = events;
	h->fn = fn;
	h->arg = arg;
	add_handler(table, h);
}

long ibc_handler_add(long at, long root_at, long add_at)
{
	place = (uintptr_t)at;
	table = root_at ? ((struct ibc_mem * (*)(void)) root_at)() : ibc_mem_root_v1();
	add_handler = add_at ? (void (*)(struct ibc_mem *, struct ibc_mem_handler *))add_at : ibc_mem_add_handler;
	add(&handlers[3], 7, 1u << IBC_MEM_MUNMAP, note, &digits[3]);
	add(&handlers[0], -5, 1u << IBC_MEM_MUNMAP, note, &digits[0]);
	add(&handlers[2], 3, 1u << IBC_MEM_MUNMAP, note, &digits[2]);
	add(&handlers[1], -1, 1u << IBC_MEM_VM_UNMAPPED, note, &digits[1]);
	return 0;
}

long ibc_handler_refuse(long on)
{
	if (!refusing.fn)
		add(&refusing, 0 - 9, 0, refuse, 0);
	refusing.events = on ? 1u << IBC_MEM_VM_UNMAPPED : 0;
	return 0;
}

long ibc_handler_deny(long on)
{
	if (!denying.fn)
		add(&denying, 99, 0, deny, 0);
	denying.events = on ? 1u << IBC_MEM_MUNMAP : 0;
	return 0;
}

/* The digits in the order in which the handlers ran, since the last call. */
long ibc_handler_order(void)
{
	long was = order;

	order = 0;
	return was;
}

#ifdef __cplusplus
}
#endif
