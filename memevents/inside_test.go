//go:build linux && cgo && (amd64 || arm64)

package memevents

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit/internal/memtest"
)

func TestInsideTheLibc_03(t *testing.T) {
	foreign := artifact(t, "foreign.so")
	for _, c := range []struct {
		name, env string
		want      string
	}{
		{"symbols only", onlySymbols, "refused refused"},
		{"patched text", withPatch, "noticed noticed"},
		{"userfaultfd", EnvMonitors + "=symbols,userfaultfd", "noticed noticed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.name == "patched text" && runtime.GOARCH != "amd64" {
				t.Skip("amd64 only")
			}
			if c.name == "userfaultfd" {
				needUffd(t)
			}
			if out := strings.TrimSpace(runHelper(t, []string{c.env}, "libc", foreign)); !strings.HasSuffix(out, c.want) {
				t.Errorf("%s, want %s", out, c.want)
			}
		})
	}
}

var _ = helper("libc", func(t testing.TB, args []string) error {
	load(t, args[0])
	w := newWatcher(t, WatcherConfig{})
	try := func(size uintptr, change func(block uintptr)) (string, error) {
		block := memtest.Func("ibc_foreign_malloc", size)
		lo := (block + size/2) &^ (pageSize - 1)
		*ptr(lo) = 1
		r, err := claimSoon(w, lo, ForMalloc)
		if errors.Is(err, ErrUnwatched) {
			return "refused", nil
		}
		if err != nil {
			return "", err
		}
		if !w.Publish(r) {
			return "", errors.New("not published")
		}
		change(block)
		if r.Acquire() { // Valid would not look at the gate
			return "missed", nil
		}
		return "noticed", nil
	}
	free, err := try(1<<20, func(block uintptr) { memtest.Func("ibc_foreign_free", block) })
	noError(t, err)
	// So large that it always has a mapping of its own (mallopt(3)); grown until it moves.
	moved := false
	grow, err := try(40<<20, func(block uintptr) {
		for size := uintptr(80 << 20); size <= 10<<30 && !moved; size *= 2 {
			moved = memtest.Func("ibc_foreign_realloc", block, size) != block
		}
	})
	noError(t, err)
	if !moved && grow != "refused" {
		return errors.New("realloc never moved the block: nothing was tested")
	}
	fmt.Println(free, grow)
	return nil
})

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
