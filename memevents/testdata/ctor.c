/* A library whose constructor unmaps a page, the address of which the environment tells. */
#include <stdlib.h>
#include <sys/mman.h>

int ibc_ctor_unmapped;

__attribute__((constructor)) static void unmap(void)
{
	const char *place = getenv("IBC_TEST_UNMAP");

	if (place)
		ibc_ctor_unmapped = !munmap((void *)strtoul(place, NULL, 16), 4096);
}
