//go:build linux && cgo && (amd64 || arm64)

package memevents

import (
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit/internal/memtest"
)

func TestPreloadedHooksCountEachEventOnce_16(t *testing.T) {
	out := runHelper(t, []string{preload(t, "libmemevents.so"), onlySymbols}, "once")
	wants(t, out, "by preload")
	wants(t, runHelper(t, []string{onlySymbols}, "once"), "by symbols")
}

func TestOtherInterposersKeepTheirCalls_16(t *testing.T) {
	for _, libs := range [][]string{{"counter.so"}, {"counter.so", "libmemevents.so"}, {"libmemevents.so", "counter.so"}} {
		t.Run(strings.Join(libs, " "), func(t *testing.T) {
			runHelper(t, []string{preload(t, libs...), onlySymbols}, "once", "counter")
		})
	}
}

func TestJemalloc_16(t *testing.T) {
	found := memtest.Jemalloc(t)
	for _, libs := range [][]string{{found}, {"libmemevents.so", found}} {
		runHelper(t, []string{preload(t, libs...), onlySymbols}, "once")
		out := runHelper(t, []string{preload(t, libs...)}, "churn", artifact(t, "foreign.so"))
		if strings.Contains(out, "monitor userfaultfd  on") && !strings.Contains(out, "libc-free        userfaultfd") {
			t.Errorf("this allocator gives back when it likes, and the kernel reports it all the same:\n%s", out)
		}
	}
}

// once: of one call, this package sees one event, and the other interposer one. Calls of the
// runtime count too, so a round in which it made some proves nothing.
var _ = helper("once", func(t testing.TB, args []string) error {
	runtime.LockOSThread()
	w := newWatcher(t, WatcherConfig{})
	debug.SetGCPercent(-1)
	var err error
	for range 20 {
		if err = eachOnce(w, len(args) > 0); err == nil {
			fmt.Println("by", Status().Classes[Munmap].By)
			return nil
		}
	}
	return fmt.Errorf("%w\n%v", err, Status())
})

// churn: eight threads in malloc, while ranges are watched.
var _ = helper("churn", func(t testing.TB, args []string) error {
	w := newWatcher(t, WatcherConfig{})
	load(t, args[0])
	deregister, deregistered := memtest.Symbol("ibc_strict_calls") != nil, 0
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
			}
			p := newPages(1)
			if r, err := w.Claim(p, p+pageSize, 0, 0); err == nil && !w.Publish(r) {
				w.Retire(r)
			}
			memtest.Call(memtest.Munmap, p, pageSize)
			for _, r := range w.Drain(nil) {
				for r.Refs() > 0 {
					r.Release()
				}
				if deregister {
					memtest.Func("ibv_dereg_mr", 0)
					deregistered++
				}
				w.Retire(r)
			}
		}
	}()
	memtest.Func("ibc_foreign_churn", 300)
	close(stop)
	<-done
	if deregister && deregistered > 0 && memtest.Func("ibc_strict_calls") > 0 {
		fmt.Println("strict malloc in force, deregistered")
	}
	fmt.Print(Status())
	return Verify()
})

func eachOnce(w *Watcher, counter bool) error {
	p := newPages(1)
	r, err := published(w, p, p+pageSize, CalledFromC)
	if err != nil {
		return err
	}
	other := func(which uintptr) uintptr {
		if !counter {
			return 0
		}
		return memtest.Func("ibc_counter", which)
	}
	munmaps, madvises := memtest.CallsSeen(memtest.Munmap), memtest.CallsSeen(memtest.Madvise)
	counted, countedAdvice, gone := other(0), other(1), ReadStats().Invalidated
	memtest.Call(memtest.Madvise, p, pageSize, unix.MADV_DONTNEED)
	memtest.Call(memtest.Munmap, p, pageSize)
	if a, b := memtest.CallsSeen(memtest.Munmap)-munmaps, memtest.CallsSeen(memtest.Madvise)-madvises; a != 1 || b != 1 {
		return fmt.Errorf("saw %d munmap and %d madvise, want 1 and 1", a, b)
	}
	if ReadStats().Invalidated-gone != 1 || r.Valid() {
		return errors.New("the range was not invalidated once")
	}
	if a, b := other(0)-counted, other(1)-countedAdvice; counter && (a != 1 || b != 1) {
		return fmt.Errorf("the other interposer saw %d munmap and %d madvise, want 1 and 1", a, b)
	}
	return nil
}
