/* A library with more thread-local storage than the reader's stack. */
_Thread_local char ibc_big_tls[256 << 10];

int ibc_big_tls_use(void) { return ibc_big_tls[1]++; }
