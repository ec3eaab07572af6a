/*
 * A PMIx client without its headers: libpmix is loaded at run time. Functions return a
 * pmix_status_t (0: success, else negative), unless they say otherwise.
 */
#ifndef IBC_PMIX_H
#define IBC_PMIX_H

#include <stddef.h>
#include <stdint.h>

/*
 * Layouts of pmix_common.h, PMIx 3 to 6. What a library of another version has is not known.
 */
enum { IBC_PMIX_NSLEN = 255, IBC_PMIX_KEYLEN = 511 };

struct ibc_pmix_proc { /* pmix_proc_t, 260 bytes */
	char nspace[IBC_PMIX_NSLEN + 1];
	uint32_t rank;
};

struct ibc_pmix_bytes { /* pmix_byte_object_t */
	char *bytes;
	size_t size;
};

struct ibc_pmix_value { /* pmix_value_t, 32 bytes; the largest of the union is pmix_envar_t */
	uint16_t type;
	union {
		_Bool flag;
		uint32_t uint32;
		struct ibc_pmix_bytes bytes;
		struct ibc_pmix_proc *proc;
		char envar[24];
	} data;
};

struct ibc_pmix_info { /* pmix_info_t, 552 bytes */
	char key[IBC_PMIX_KEYLEN + 1];
	uint32_t flags;
	struct ibc_pmix_value value;
};

/* Loads a library. NULL, or why that was not possible. */
const char *ibc_pmix_load(const char *file);
/* The version of the loaded library, in words. */
const char *ibc_pmix_version(void);
const char *ibc_pmix_error(int status);

/* Connects to the launcher. What else it wrote than a struct ibc_pmix_proc is counted in spilt. */
int ibc_pmix_init(struct ibc_pmix_proc *me, int *spilt);
int ibc_pmix_finalize(void);
/* The number of ranks; where the type is not PMIx's it returns 1. */
int ibc_pmix_size(const struct ibc_pmix_proc *me, uint32_t *size);
int ibc_pmix_put(const char *key, void *bytes, size_t size);
/* Waits for all ranks; collect brings what they have put. */
int ibc_pmix_fence(int collect);
/* What a rank has put, to be freed by the caller; 1 where it is no byte object. */
int ibc_pmix_get(const char *nspace, uint32_t rank, const char *key, void **bytes, size_t *size);
int ibc_pmix_abort(int code, const char *message);

struct ibc_pmix_event {
	int32_t status;
	uint32_t rank;
};

/* Writes each event about a rank of nspace to fd, a struct ibc_pmix_event, until ibc_pmix_deaf. */
void ibc_pmix_listen(const char *nspace, int fd);
int ibc_pmix_deaf(void); /* 0 */

#endif
