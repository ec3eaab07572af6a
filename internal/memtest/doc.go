// Package memtest makes calls as C code would, and reaches into the hooks of memevents, for tests.
// It is empty where these are not built: without cgo, and on other systems and processors.
package memtest
