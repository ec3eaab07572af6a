//go:build linux && cgo && (amd64 || arm64)

package memevents

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit/internal/memtest"
)

func TestSignalHandlerThatUnmapsInsideAHook_22(t *testing.T) {
	runHelper(t, []string{onlySymbols}, "signals", artifact(t, "foreign.so"))
}

var _ = helper("signals", func(t testing.TB, args []string) error {
	load(t, args[0])
	w := newWatcher(t, WatcherConfig{})
	p := newPages(1)
	r, err := claimSoon(w, p, CalledFromC)
	noError(t, err)
	if n := memtest.Func("ibc_foreign_signals", 20000); n == 0 {
		return errors.New("no handler ran: nothing was tested")
	}
	if !w.Publish(r) {
		return errors.New("other calls invalidated the entry")
	}
	return Verify()
})

// The libraries' constructors run before ours, their destructors after main; Go's exit runs none,
// C's does.
func TestBeforeConstructorsAndAfterMain_23(t *testing.T) {
	runHelper(t, []string{preload(t, "foreign.so", "libmemevents.so"), onlySymbols}, "once")
	cmd := exec.Command(artifact(t, "host"), "exit")
	cmd.Env = append(os.Environ(), preload(t, "libmemevents.so", "foreign.so"))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// The loader unmaps a library by raw calls of its own. The kernel can report that for memory
// without a file behind it; initialised data has one, and is refused.
func TestUnloadedLibrary_23(t *testing.T) {
	needUffd(t)
	runHelper(t, nil, "unload", artifact(t, "foreign.so"))
}

var _ = helper("unload", func(t testing.TB, args []string) error {
	w := newWatcher(t, WatcherConfig{})
	seen := 0
	for range 1000 {
		lib, err := memtest.Load(args[0])
		noError(t, err)
		inside := func(bss uintptr) uintptr {
			return (memtest.Func("ibc_foreign_address", bss) + 2*pageSize) &^ (pageSize - 1)
		}
		data := inside(0)
		if _, err := w.Claim(data, data+pageSize, 0, Set(RawUnmap)); !errors.Is(err, ErrUnwatched) {
			return fmt.Errorf("initialised data: %v", err)
		}
		bss := inside(1)
		*ptr(bss) = 1
		r, err := claimSoon(w, bss, Set(RawUnmap))
		noError(t, err)
		if !w.Publish(r) { // the last library's end was reported late
			w.Retire(r)
			memtest.Unload(lib)
			continue
		}
		r.Release()
		memtest.Unload(lib)
		if r.Acquire() {
			return errors.New("a hit on an unloaded library")
		}
		seen++
		for _, r := range w.Drain(nil) {
			w.Retire(r)
		}
	}
	if seen < 900 {
		return fmt.Errorf("only %d of 1000 were watched", seen)
	}
	return nil
})

// The libc changes the user of all threads by a signal to each, and waits for all: the reader,
// which takes no signals, too.
func TestSetgidDoesNotWaitForTheReader_22(t *testing.T) {
	needUffd(t)
	runHelper(t, nil, "setgid")
}

var _ = helper("setgid", func(t testing.TB, _ []string) error {
	w := newWatcher(t, WatcherConfig{})
	p := newPages(1)
	r := watchPage(t, w, p, ForGoMap)
	for range 100 {
		noError(t, unix.Setgid(unix.Getgid())) // the libc's, where there is one
	}
	unix.Syscall(unix.SYS_MUNMAP, p, pageSize, 0)
	if r.Acquire() {
		return errors.New("the reader reports no more")
	}
	return nil
})

// Without descriptors nothing is watched that needs one, and the reasons say how to have more.
func TestWithoutDescriptorsTheReasonIsSaid_17(t *testing.T) {
	if out := runHelper(t, nil, "nofiles"); strings.Count(out, "ulimit -n") < 2 {
		t.Error(out)
	}
}

var _ = helper("nofiles", func(t testing.TB, _ []string) error {
	var old unix.Rlimit
	noError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &old))
	noError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: old.Max}))
	_, err := NewWatcher(WatcherConfig{})
	if !errors.Is(err, unix.EMFILE) {
		return fmt.Errorf("new watcher: %v", err)
	}
	fmt.Println(err)
	fmt.Print(Status())
	noError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &old))
	w := newWatcher(t, WatcherConfig{})
	return w.Close()
})
