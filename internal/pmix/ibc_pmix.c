/* Finds libpmix and calls it. */
#include "ibc_pmix.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* pmix_common.h */
enum { RANK_WILDCARD = -2, SCOPE_GLOBAL = 3 };
enum { TYPE_BOOL = 1, TYPE_PROC = 22, TYPE_BYTE_OBJECT = 27, TYPE_UINT32 = 14 };

_Static_assert(sizeof(struct ibc_pmix_proc) == 260, "pmix_proc_t");
_Static_assert(sizeof(struct ibc_pmix_value) == 32, "pmix_value_t");
_Static_assert(sizeof(struct ibc_pmix_info) == 552, "pmix_info_t");

typedef void (*op_done)(int status, void *data);
typedef void (*event_done)(int status, struct ibc_pmix_info *results, size_t count, op_done done,
	void *own, void *data);
typedef void (*event_handler)(size_t id, int status, const struct ibc_pmix_proc *source,
	struct ibc_pmix_info *info, size_t infos, struct ibc_pmix_info *results, size_t count,
	event_done done, void *data);
typedef void (*registered)(int status, size_t id, void *data);

#define CALLS(X) \
	X(int, Init, (struct ibc_pmix_proc *, struct ibc_pmix_info *, size_t)) \
	X(int, Finalize, (const struct ibc_pmix_info *, size_t)) \
	X(int, Put, (uint8_t, const char *, struct ibc_pmix_value *)) \
	X(int, Commit, (void)) \
	X(int, Fence, (const struct ibc_pmix_proc *, size_t, const struct ibc_pmix_info *, size_t)) \
	X(int, Get, (const struct ibc_pmix_proc *, const char *, const struct ibc_pmix_info *, size_t, \
		struct ibc_pmix_value **)) \
	X(int, Abort, (int, const char *, struct ibc_pmix_proc *, size_t)) \
	X(const char *, Error_string, (int)) \
	X(const char *, Get_version, (void)) \
	X(int, Register_event_handler, (int *, size_t, struct ibc_pmix_info *, size_t, event_handler, registered, void *))

#define POINTER(result, name, parameters) result (*name) parameters;
static struct { CALLS(POINTER) } pmix;

static char *why; /* of a load that failed */

const char *ibc_pmix_load(const char *file)
{
	void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
	free(why);
	why = NULL;
	if (!library)
		return why = strdup(dlerror());
#define LOOK_UP(result, name, parameters) \
	if (!(*(void **)&pmix.name = dlsym(library, "PMIx_" #name))) \
		return "it lacks PMIx_" #name;
	CALLS(LOOK_UP)
	return NULL;
}

const char *ibc_pmix_version(void) { return pmix.Get_version(); }

const char *ibc_pmix_error(int status) { return pmix.Error_string(status); }

int ibc_pmix_init(struct ibc_pmix_proc *me, int *spilt)
{
	enum { GUARD = 256, FILL = 0x5a };
	struct {
		struct ibc_pmix_proc proc;
		unsigned char guard[GUARD];
	} room;

	memset(&room, FILL, sizeof room);
	int status = pmix.Init(&room.proc, NULL, 0);
	*me = room.proc;
	me->nspace[IBC_PMIX_NSLEN] = 0;
	*spilt = 0;
	for (int i = 0; i < GUARD; i++)
		*spilt += room.guard[i] != FILL;
	return status;
}

int ibc_pmix_finalize(void) { return pmix.Finalize(NULL, 0); }

/* What PMIx_Get returns is the caller's, from malloc. */
static void release(struct ibc_pmix_value *v)
{
	if (v && v->type == TYPE_BYTE_OBJECT)
		free(v->data.bytes.bytes);
	free(v);
}

int ibc_pmix_size(const struct ibc_pmix_proc *me, uint32_t *size)
{
	struct ibc_pmix_proc all = *me;
	struct ibc_pmix_value *v = NULL;

	all.rank = (uint32_t)RANK_WILDCARD;
	int status = pmix.Get(&all, "pmix.job.size", NULL, 0, &v);
	if (!status && (!v || v->type != TYPE_UINT32))
		status = 1;
	else if (!status)
		*size = v->data.uint32;
	release(v);
	return status;
}

int ibc_pmix_put(const char *key, void *bytes, size_t size)
{
	struct ibc_pmix_value v = { .type = TYPE_BYTE_OBJECT, .data.bytes = { bytes, size } };
	int status = pmix.Put(SCOPE_GLOBAL, key, &v);
	return status ? status : pmix.Commit();
}

int ibc_pmix_fence(int collect)
{
	struct ibc_pmix_info i = { .key = "pmix.collect", .value = { .type = TYPE_BOOL, .data.flag = 1 } };
	return pmix.Fence(NULL, 0, collect ? &i : NULL, collect ? 1 : 0);
}

int ibc_pmix_get(const char *nspace, uint32_t rank, const char *key, void **bytes, size_t *size)
{
	struct ibc_pmix_proc p = { .rank = rank };
	struct ibc_pmix_value *v = NULL;

	strncpy(p.nspace, nspace, IBC_PMIX_NSLEN);
	int status = pmix.Get(&p, key, NULL, 0, &v);
	if (!status && (!v || v->type != TYPE_BYTE_OBJECT)) {
		status = 1;
	} else if (!status) {
		*bytes = v->data.bytes.bytes;
		*size = v->data.bytes.size;
		v->data.bytes.bytes = NULL;
	}
	release(v);
	return status;
}

int ibc_pmix_abort(int code, const char *message) { return pmix.Abort(code, message, NULL, 0); }

static char heard_nspace[IBC_PMIX_NSLEN + 1];
static atomic_int heard_fd = -1;

/* Runs on a thread of the library. */
static void hear(size_t id, int status, const struct ibc_pmix_proc *source, struct ibc_pmix_info *info, size_t infos,
		 struct ibc_pmix_info *results, size_t count, event_done done, void *data)
{
	const struct ibc_pmix_proc *who = source;

	(void)id, (void)results, (void)count;
	for (size_t i = 0; i < infos; i++)
		if (!strcmp(info[i].key, "pmix.evproc") && info[i].value.type == TYPE_PROC)
			who = info[i].value.data.proc;
	if (who && !strncmp(who->nspace, heard_nspace, sizeof heard_nspace)) {
		struct ibc_pmix_event e = { status, who->rank };
		int fd = atomic_load(&heard_fd);
		/* A pipe that is full has thousands of events in it already. */
		if (fd >= 0 && write(fd, &e, sizeof e) < 0)
			(void)e;
	}
	if (done)
		done(0, NULL, 0, NULL, NULL, data);
}

static void ignore(int status, size_t id, void *data) { (void)status, (void)id, (void)data; }

void ibc_pmix_listen(const char *nspace, int fd)
{
	strncpy(heard_nspace, nspace, IBC_PMIX_NSLEN);
	atomic_store(&heard_fd, fd);
	pmix.Register_event_handler(NULL, 0, NULL, 0, hear, ignore, NULL);
}

int ibc_pmix_deaf(void)
{
	atomic_store(&heard_fd, -1);
	return 0;
}
