/*
 * Finds libibverbs. Calls are looked up in the global scope, in which a preloaded library comes
 * first and one that the program is linked with next: as if this program were linked with
 * libibverbs.
 */
#include "ibc_library.h"

#include <dlfcn.h>
#include <link.h>

struct ibc_library ibc_library;

struct call {
	const char *name, *version;
	size_t at; /* in struct ibc_library */
};

#define ENTRY(result, name, version, parameters, arguments) { #name, version, offsetof(struct ibc_library, name) },
static const struct call calls[] = { IBC_CALLS(ENTRY) }, newer[] = { IBC_NEWER_CALLS(ENTRY) };

enum { NEWER = sizeof newer / sizeof newer[0] };

static void **slot(const struct call *c)
{
	return (void **)((char *)&ibc_library + c->at);
}

#ifdef __GLIBC__
/* Whether a function is from a library that gives its symbols no versions. */
static int unversioned(const void *function)
{
	Dl_info info;
	const ElfW(Sym) *symbol = NULL, *symbols = NULL;
	const ElfW(Versym) *versions = NULL;
	struct link_map *library = NULL;

	if (!dladdr1(function, &info, (void **)&symbol, RTLD_DL_SYMENT) || !symbol ||
		!dladdr1(function, &info, (void **)&library, RTLD_DL_LINKMAP))
		return 0;
	for (const ElfW(Dyn) *d = library->l_ld; d->d_tag != DT_NULL; d++)
		if (d->d_tag == DT_SYMTAB)
			symbols = (const void *)d->d_un.d_ptr;
		else if (d->d_tag == DT_VERSYM)
			versions = (const void *)d->d_un.d_ptr;
	return !versions || (symbols && (versions[symbol - symbols] & 0x7fff) <= VER_NDX_GLOBAL);
}
#endif

/*
 * What a program that is linked with libibverbs would get: the first in the scope that has the
 * right version, or none at all. dlvsym alone skips the latter, a library that is preloaded for one
 * call.
 */
static void *look_up(void *scope, const struct call *c)
{
	void *found = dlsym(scope, c->name);
#ifdef __GLIBC__ /* no other libc has versions of symbols */
	if (!found || !unversioned(found))
		found = dlvsym(scope, c->name, c->version);
#endif
	return found;
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
	for (int i = 0; i < IBC_CALL_COUNT; i++)
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

const char *ibc_missing(int i, const char **version)
{
	*version = calls[i].version;
	return *slot(&calls[i]) ? NULL : calls[i].name;
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
