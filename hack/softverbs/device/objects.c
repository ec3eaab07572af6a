/* Numbers of this process's QPs, CQs and SRQs, and what a number that arrives means. */
#include "sv.h"

pthread_mutex_t sv_objects = PTHREAD_MUTEX_INITIALIZER;

static struct sv_qp *qps; /* all of them */

static struct {
	void *object[SV_OBJECTS];
	uint8_t turn[SV_OBJECTS];
	uint32_t next;
} kinds[3];

/* Indices go round, so that a number comes again as late as can be. 0 and 1 are no QP numbers. */
uint32_t sv_object_new(enum sv_kind kind, void *object)
{
	uint32_t *next = kind == SV_KIND_QP ? &sv.head->slot[sv.slot].next_qp : &kinds[kind].next, number = 0;

	pthread_mutex_lock(&sv_objects);
	for (uint32_t tries = 0; tries < SV_OBJECTS && !number; tries++) {
		uint32_t i = (*next)++ % SV_OBJECTS;
		if (i < 2 || kinds[kind].object[i])
			continue;
		kinds[kind].object[i] = object;
		if (kind == SV_KIND_QP) {
			struct sv_qp *q = object;
			q->x = &sv.own->qp[i];
			q->next = qps;
			qps = q;
		}
		uint32_t turn = ++kinds[kind].turn[i] & ((1 << SV_TURN_BITS) - 1);
		number = sv.slot << SV_SLOT_SHIFT | turn << SV_INDEX_BITS | i;
	}
	pthread_mutex_unlock(&sv_objects);
	return number;
}

void *sv_object(enum sv_kind kind, uint32_t number)
{
	uint32_t i = sv_index(number);

	return (number >> SV_INDEX_BITS & ((1 << SV_TURN_BITS) - 1)) == (kinds[kind].turn[i] & ((1 << SV_TURN_BITS) - 1)) ? kinds[kind].object[i] : NULL;
}

void sv_object_free(enum sv_kind kind, uint32_t number)
{
	pthread_mutex_lock(&sv_objects);
	for (struct sv_qp **at = &qps; kind == SV_KIND_QP && *at; at = &(*at)->next)
		if (*at == kinds[kind].object[sv_index(number)]) {
			*at = (*at)->next;
			break;
		}
	kinds[kind].object[sv_index(number)] = NULL;
	pthread_mutex_unlock(&sv_objects);
}

void sv_each_qp(void (*f)(struct sv_qp *q))
{
	pthread_mutex_lock(&sv_objects);
	for (struct sv_qp *q = qps; q; q = q->next)
		f(q);
	pthread_mutex_unlock(&sv_objects);
}
