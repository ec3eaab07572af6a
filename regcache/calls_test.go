//go:build linux && cgo && (amd64 || arm64)

package regcache

import (
	"runtime/debug"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit/internal/memtest"
)

const anonymous = unix.MAP_PRIVATE | unix.MAP_ANONYMOUS

func call(t testing.TB, event uint32, args ...uintptr) uintptr {
	t.Helper()
	ret, errno := memtest.Call(event, args...)
	if errno != 0 {
		t.Fatalf("call %d: %v", event, errno)
	}
	return ret
}

func protect(t testing.TB, lo, n, prot uintptr) {
	t.Helper()
	if _, _, errno := unix.RawSyscall(unix.SYS_MPROTECT, lo, n, prot); errno != 0 {
		t.Fatal(errno)
	}
}

func freeOSMemory() { debug.FreeOSMemory() }
