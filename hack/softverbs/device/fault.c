/*
 * Faults on demand, from SOFTVERBS_FAULTS: KIND=VALUE[,node=N][,peer=N], several separated by
 * blanks or semicolons. README.md has the kinds. A node is the rank of a process (IBCONDUIT_RANK,
 * or SOFTVERBS_NODE); node= says which processes have the fault, peer= towards which one.
 */
#include "sv.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum kind { POST, OVERRUN, CUT, KILL, DELAY, KINDS };

static const char *const names[KINDS] = { "post", "overrun", "cut", "kill", "delay" };

struct fault {
	enum kind kind;
	uint64_t value;
	uint32_t peer; /* SV_NO_NODE: any */
	uint32_t seen; /* posts, or completions */
};

bool sv_faulty;
static struct fault faults[16];
static uint32_t count;

/* A plan that is not understood would be a test that tests nothing. */
static void misread(const char *what)
{
	fprintf(stderr, "softverbs: SOFTVERBS_FAULTS: '%s' is not understood (post= overrun= cut= kill= delay=, with node= peer=)\n", what);
	abort();
}

static uint64_t count_of(const char *text)
{
	char *end;
	uint64_t v = strtoull(text, &end, 10);

	if (*text < '0' || *text > '9' || *end)
		misread(text);
	return v;
}

/* 5ms, 20us, 300ns. */
static uint64_t time_of(const char *text)
{
	char *unit;
	uint64_t v = strtoull(text, &unit, 10);

	if (*text < '0' || *text > '9')
		misread(text);
	if (!*unit || !strcmp(unit, "ns"))
		return v;
	if (!strcmp(unit, "us"))
		return v * 1000;
	if (!strcmp(unit, "ms"))
		return v * 1000000;
	if (strcmp(unit, "s"))
		misread(text);
	return v * 1000000000;
}

static void read_one(char *text)
{
	struct fault f = { .kind = KINDS, .peer = SV_NO_NODE };
	uint32_t node = SV_NO_NODE;
	char *rest;

	for (char *item = strtok_r(text, ",", &rest); item; item = strtok_r(NULL, ",", &rest)) {
		char *value = strchr(item, '=');
		if (!value)
			misread(item);
		*value++ = 0;
		if (!strcmp(item, "node")) {
			node = (uint32_t)count_of(value);
		} else if (!strcmp(item, "peer")) {
			f.peer = (uint32_t)count_of(value);
		} else {
			for (f.kind = 0; f.kind < KINDS && strcmp(item, names[f.kind]); f.kind++)
				;
			f.value = f.kind == DELAY ? time_of(value) : count_of(value);
			if (!f.value && f.kind < DELAY)
				misread("the first is 1, not 0");
		}
	}
	if (f.kind == KINDS)
		misread("a fault without a kind");
	if (node != SV_NO_NODE && node != sv.head->slot[sv.slot].node)
		return;
	if (count == sizeof faults / sizeof faults[0])
		misread("more than 16 faults");
	faults[count++] = f;
	sv_faulty = true;
}

void sv_fault_read(const char *plan)
{
	char *copy = plan ? strdup(plan) : NULL, *rest;

	if (!copy)
		return;
	for (char *one = strtok_r(copy, "; ", &rest); one; one = strtok_r(NULL, "; ", &rest))
		read_one(one);
	free(copy);
}

static bool concerns(const struct fault *f, uint32_t slot)
{
	return f->peer == SV_NO_NODE || f->peer == sv.head->slot[slot].node;
}

/* Whether this is the one that the fault waits for. */
static bool nth(struct fault *f)
{
	return __atomic_add_fetch(&f->seen, 1, __ATOMIC_RELAXED) == f->value;
}

/* Datagrams do not count: they make connections, and when is the program's affair. */
int sv_fault_post(const struct sv_qp *q)
{
	if (q->x->type == IBV_QPT_UD)
		return 0;
	for (uint32_t i = 0; i < count; i++) {
		struct fault *f = &faults[i];
		if (f->kind == OVERRUN || f->kind == DELAY || !concerns(f, sv_slot_of(q->x->peer)) || !nth(f))
			continue;
		if (f->kind == POST)
			return ENOMEM;
		if (f->kind == CUT)
			__atomic_store_n(&sv.head->slot[sv.slot].cut, 1, __ATOMIC_RELEASE);
		if (f->kind == KILL)
			raise(SIGKILL);
	}
	return 0;
}

/* Of the completions that the process takes, of all queues. */
bool sv_fault_overrun(void)
{
	for (uint32_t i = 0; i < count; i++)
		if (faults[i].kind == OVERRUN && nth(&faults[i]))
			return true;
	return false;
}

uint64_t sv_due(uint32_t peer)
{
	uint64_t ns = sv.wire_ns;

	if (!ns && !sv_faulty)
		return 0;
	for (uint32_t i = 0; i < count; i++)
		if (faults[i].kind == DELAY && concerns(&faults[i], peer))
			ns += faults[i].value;
	return ns ? sv_now_ns() + ns : 0;
}
