/* A definition of munmap that passes everybody by, and a library that is bound to it where it is
 * loaded with RTLD_DEEPBIND. */
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

int munmap(void *addr, size_t len);

#ifdef PAST
int munmap(void *addr, size_t len) { return (int)syscall(SYS_munmap, addr, len); }
#else
long ibc_foreign_munmap(long addr, long len) { return munmap((void *)addr, (size_t)len); }
#endif
