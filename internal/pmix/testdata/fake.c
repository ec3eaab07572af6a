/* A libpmix of a job of two ranks in which this process is rank 0. What it does wrong is defined on
 * the compiler's command line. */
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef VERSION
#define VERSION "OpenPMIx 4.2.2 (PMIx Standard: 4.2)"
#endif
#ifndef PROC_BYTES
#define PROC_BYTES 260
#endif
#ifndef SIZE_TYPE
#define SIZE_TYPE 14
#endif

typedef struct { char nspace[256]; uint32_t rank; } proc;
typedef struct { uint16_t type; union { uint32_t u32; struct { char *bytes; size_t size; } bo; proc *p; char envar[24]; } data; } value;
typedef struct { char key[512]; uint32_t flags; value value; } info;
typedef void (*handler)(size_t, int, const proc *, info *, size_t, info *, size_t, void (*)(int, info *, size_t, void *, void *, void *), void *);

static value put;
static handler heard;

const char *PMIx_Get_version(void) { return VERSION; }
const char *PMIx_Error_string(int status) { return status == -52 ? "PARTIAL SUCCESS" : "OTHER"; }

int PMIx_Init(proc *me, info *i, size_t n)
{
	(void)i, (void)n;
#ifdef HANGS_IN_INIT
	pause();
#endif
	memset(me, 0, PROC_BYTES);
	strcpy(me->nspace, "fake.1");
	return 0;
}

int PMIx_Finalize(const info *i, size_t n) { (void)i, (void)n; return 0; }

int PMIx_Put(uint8_t scope, const char *key, value *v)
{
	(void)key;
	put = *v;
	put.data.bo.bytes = malloc(v->data.bo.size);
	memcpy(put.data.bo.bytes, v->data.bo.bytes, v->data.bo.size);
	return scope == 3 ? 0 : -27;
}

int PMIx_Commit(void) { return 0; }

static void done(int status, info *i, size_t n, void *f, void *own, void *data) { (void)status, (void)i, (void)n, (void)f, (void)own, (void)data; }

int PMIx_Fence(const proc *p, size_t np, const info *i, size_t n)
{
	(void)p, (void)np;
	if (n && (strcmp(i[0].key, "pmix.collect") || i[0].value.type != 1))
		return -27;
#ifdef DIES
	if (!n) {
		proc server = { "server", 0 }, dead = { "fake.1", 1 };
		info about[2] = { { "pmix.evtext", 0, { 3, { 0 } } }, { "pmix.evproc", 0, { 22, { 0 } } } };
		about[1].value.data.p = &dead;
		heard(1, -402, &server, about, 2, NULL, 0, (void (*)(int, info *, size_t, void *, void *, void *))done, NULL);
		return -52;
	}
#endif
#ifdef REFUSES
	return -33;
#endif
#ifdef HANGS_IN_FENCE
	pause();
#endif
	return 0;
}

int PMIx_Get(const proc *p, const char *key, const info *i, size_t n, value **out)
{
	(void)i, (void)n;
	value *v = calloc(1, sizeof *v);
	if (!strcmp(key, "pmix.job.size") && p->rank == (uint32_t)-2) {
		v->type = SIZE_TYPE;
		v->data.u32 = 2;
	} else {
		v->type = 27;
		v->data.bo.bytes = malloc(put.data.bo.size);
		v->data.bo.size = put.data.bo.size;
		memcpy(v->data.bo.bytes, put.data.bo.bytes, put.data.bo.size);
	}
	*out = v;
	return 0;
}

#ifndef LACKS_ABORT
int PMIx_Abort(int code, const char *msg, proc *p, size_t n) { (void)msg, (void)p, (void)n; return code == 7 ? 0 : -1; }
#endif

int PMIx_Register_event_handler(int *codes, size_t nc, info *i, size_t n, handler h, void (*f)(int, size_t, void *), void *data)
{
	(void)codes, (void)nc, (void)i, (void)n;
	heard = h;
	if (f)
		f(0, 1, data);
	return 0;
}
