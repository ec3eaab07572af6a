/* libibverbs as it was found at run time. */
#ifndef IBC_LIBRARY_H
#define IBC_LIBRARY_H

#include "ibc_abi.h"
#include "ibc_calls.h"
#include <sys/types.h>

/* The calls. ibc_bind_library fills it, once, before anything else reads it. */
struct ibc_library {
#define IBC_MEMBER(result, name, version, parameters, arguments) result(*name) parameters;
	IBC_CALLS(IBC_MEMBER)
	IBC_NEWER_CALLS(IBC_MEMBER) /* NULL: the library lacks it */
#undef IBC_MEMBER
};
extern struct ibc_library ibc_library;

/* The calls that are always there, under their own names. */
#define IBC_CALL(result, name, version, parameters, arguments) \
	static inline result name parameters { return ibc_library.name arguments; }
IBC_CALLS(IBC_CALL)
#undef IBC_CALL

#define IBC_COUNT(result, name, version, parameters, arguments) +1
enum { IBC_CALL_COUNT = 0 IBC_CALLS(IBC_COUNT) };
#undef IBC_COUNT

/* Looks the calls up in the global scope. Returns how many of IBC_CALLS are not there. */
int ibc_bind_library(void);

/* The name of the i-th call of IBC_CALLS, and its version, if it is not there; else NULL. */
const char *ibc_missing(int i, const char **version);

/* Loads a library into the global scope. Returns NULL, or what dlerror says. */
const char *ibc_load_library(const char *file);

/* The file that the device is opened by, "" if the dynamic linker does not know it. */
const char *ibc_library_file(void);

#endif
