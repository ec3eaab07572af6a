/*
 * A library with the calls of ibc_calls.h, made for a test.
 *   -DREAL="file"   they go on to those of that file; else they do nothing
 *   -DNEWER         with the newer calls; ibv_is_fork_initialized returns FORK_STATUS
 */
#define _GNU_SOURCE
#include "../ibc_abi.h"
#include "../ibc_calls.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/types.h>

#ifdef REAL
static void *real(const char *name, const char *version)
{
	static void *library;
	if (!library)
		library = dlopen(REAL, RTLD_NOW | RTLD_LOCAL);
	void *call = library ? dlvsym(library, name, version) : NULL;
	if (!call) {
		fprintf(stderr, "no %s in %s\n", name, REAL);
		abort();
	}
	return call;
}
#define DEFINE(result, name, version, parameters, arguments) \
	result name parameters { return ((result(*) parameters)real(#name, version)) arguments; }
#else
#define DEFINE(result, name, version, parameters, arguments) \
	result name parameters { return (result)0; }
#endif

IBC_CALLS(DEFINE)

#ifdef NEWER
#define ibv_is_fork_initialized unused_fork_status
IBC_NEWER_CALLS(DEFINE)
#undef ibv_is_fork_initialized
enum ibv_fork_status ibv_is_fork_initialized(void) { return FORK_STATUS; }
#endif
