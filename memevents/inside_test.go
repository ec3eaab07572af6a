//go:build linux && cgo && (amd64 || arm64)

package memevents

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit/internal/memtest"
)

// The text is patched before Go could refuse a list.
func TestTextIsPatchedOnlyOnRequest(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("the libc's text is patched on amd64 only")
	}
	for list, want := range map[string]string{"patch": "true", "auto,patch": "true", "auto": "false", "none,patch": "false", "patch,none": "false"} {
		if out := strings.Fields(runHelper(t, []string{EnvMonitors + "=" + list}, "patched"))[0]; out != want {
			t.Errorf("%s: patched is %s, want %s", list, out, want)
		}
	}
}

var _ = helper("patched", func(t testing.TB, _ []string) error {
	var s monitorSet
	s.startPatch()
	fmt.Println(s.patch.Active, s.patch.Why)
	return nil
})

// The patched text ends in the kernel, where only the hook turns a result into errno.
func TestPatchedTextKeepsErrno_06(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("the libc's text is patched on amd64 only")
	}
	runHelper(t, []string{EnvMonitors + "=patch"}, "errno")
}

var _ = helper("errno", func(t testing.TB, _ []string) error {
	Status()
	p := newPages(2)
	for _, c := range []struct {
		name  string
		event uint32
		args  []uintptr
		errno unix.Errno
	}{
		{"mmap", memtest.Mmap, []uintptr{p, pageSize, rw, anonymous | unix.MAP_FIXED_NOREPLACE, noFD, 0}, unix.EEXIST},
		{"munmap", memtest.Munmap, []uintptr{p + 1, pageSize}, unix.EINVAL},
		{"madvise", memtest.Madvise, []uintptr{p, pageSize, 4242}, unix.EINVAL},
		{"mremap", memtest.Mremap, []uintptr{p + 1, pageSize, pageSize, 0}, unix.EINVAL},
		{"shmdt", memtest.Shmdt, []uintptr{p + 1}, unix.EINVAL},
		{"brk", memtest.Brk, []uintptr{1 << 62}, unix.ENOMEM},
	} {
		seen := uint64(0)
		for try := 0; seen != 1 && try < 20; try++ { // the runtime may make calls at the same time
			calls := memtest.CallsSeen(c.event)
			if ret, errno := memtest.Call(c.event, c.args...); errno != c.errno || uint32(ret) != ^uint32(0) {
				return fmt.Errorf("%s: result %#x, errno %d, want %d", c.name, ret, errno, c.errno)
			}
			seen = memtest.CallsSeen(c.event) - calls
		}
		if seen != 1 {
			return fmt.Errorf("%s came by %d times, not once", c.name, seen)
		}
	}
	return nil
})
