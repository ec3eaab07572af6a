/*
 * Finds libibverbs. Calls are looked up in the global scope, in which a preloaded library comes
 * first and one that the program is linked with next: as if this program were linked with libibverbs.
 */
#include "ibc_library.h"

#include <dlfcn.h>
#include <string.h>

struct ibc_library ibc_library;

struct call {
	const char *name, *version;
	size_t at; /* in struct ibc_library */
};

#define ENTRY(result, name, version, parameters, arguments) { #name, version, offsetof(struct ibc_library, name) },
static const struct call calls[] = { IBC_CALLS(ENTRY) }, newer[] = { IBC_NEWER_CALLS(ENTRY) };

enum { CALLS = sizeof calls / sizeof calls[0], NEWER = sizeof newer / sizeof newer[0] };

static void **slot(const struct call *c)
{
	return (void **)((char *)&ibc_library + c->at);
}

static void *look_up(void *scope, const struct call *c)
{
#ifdef __GLIBC__
	return dlvsym(scope, c->name, c->version);
#else
	return dlsym(scope, c->name); /* the only libc that has versions of symbols is glibc */
#endif
}

static const void *object_of(const void *function)
{
	Dl_info info;
	return function && dladdr(function, &info) ? info.dli_fbase : NULL;
}

/*
 * A newer call takes objects that the library made which opens devices. Another one may have the
 * call where that one lacks it: a preloaded device in front of the libibverbs of the machine.
 */
static void *look_up_newer(void *library, const void *base, const struct call *c)
{
	return object_of(library ? look_up(library, c) : NULL) == base ? look_up(RTLD_DEFAULT, c) : NULL;
}

int ibc_bind_library(void)
{
	int absent = 0;
	for (int i = 0; i < CALLS; i++)
		if (!(*slot(&calls[i]) = look_up(RTLD_DEFAULT, &calls[i])))
			absent++;
	if (absent)
		return absent;
	const void *base = object_of(*slot(&calls[0]));
	void *library = base ? dlopen(ibc_library_file(), RTLD_LAZY | RTLD_NOLOAD) : NULL;
	for (int i = 0; i < NEWER; i++)
		*slot(&newer[i]) = look_up_newer(library, base, &newer[i]);
	if (library)
		dlclose(library); /* the reference of this look-up */
	return 0;
}

const char *ibc_missing(int i, const char **version, int *end)
{
	*end = i >= CALLS;
	if (*end || *slot(&calls[i]))
		return NULL;
	*version = calls[i].version;
	return calls[i].name;
}

const char *ibc_load_library(const char *file)
{
	return dlopen(file, RTLD_NOW | RTLD_GLOBAL) ? NULL : dlerror();
}

const char *ibc_library_file(void)
{
	Dl_info info;
	const void *open = *slot(&calls[0]);
	return open && dladdr(open, &info) && info.dli_fname ? info.dli_fname : "";
}
