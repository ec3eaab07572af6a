/* Compiles where each call's declaration in the library's header is the one in ibc_calls.h. */
#include <infiniband/verbs.h>

#include "../ibc_calls.h"

#define CHECK(result, name, version, parameters, arguments) result(*const check_##name) parameters = name;
IBC_CALLS(CHECK)
IBC_NEWER_CALLS(CHECK)
