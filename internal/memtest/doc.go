// Package memtest makes calls as C code would, and reaches into the hooks of memevents, for tests.
// Where these are not built, without cgo and on other processors, it has only what the kernel knows
// and addresses for tests; on other systems nothing.
package memtest
