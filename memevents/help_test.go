//go:build linux && cgo && (amd64 || arm64)

package memevents

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit/internal/memtest"
)

var pageSize = uintptr(unix.Getpagesize())

const (
	rw        = unix.PROT_READ | unix.PROT_WRITE
	anonymous = unix.MAP_PRIVATE | unix.MAP_ANONYMOUS
	noFD      = ^uintptr(0)
)

// testTimeout bounds what must happen soon but is not timed.
const testTimeout = time.Minute

func newWatcher(t testing.TB, cfg WatcherConfig) *Watcher {
	t.Helper()
	w, err := NewWatcher(cfg)
	noError(t, err)
	t.Cleanup(func() {
		if err := Verify(); err != nil {
			t.Error(err)
		}
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

// sweep retires what was invalidated, and reports how much.
func sweep(t testing.TB, w *Watcher) int {
	t.Helper()
	dead := w.Drain(nil)
	for _, r := range dead {
		if r.Refs() != 0 {
			t.Fatalf("%v has %d references", r, r.Refs())
		}
		w.Retire(r)
	}
	return len(dead)
}

// evict ends an entry that is valid.
func evict(t testing.TB, w *Watcher, refs ...Ref) {
	t.Helper()
	for _, r := range refs {
		if w.Evict(r) {
			w.Retire(r)
		}
	}
}

// must makes a call as C code would, and fails the test if it fails.
func must(t testing.TB, event uint32, args ...uintptr) uintptr {
	t.Helper()
	ret, errno := memtest.Call(event, args...)
	if errno != 0 {
		t.Fatalf("call %d%x: %v", event, args, errno)
	}
	return ret
}

// mapPages maps pages by C, and takes away whatever stands there in the end.
func mapPages(t testing.TB, pages int) uintptr {
	t.Helper()
	n := uintptr(pages) * pageSize
	p, err := memtest.TakeAddresses(n)
	noError(t, err)
	must(t, memtest.Mmap, p, n, rw, anonymous|unix.MAP_FIXED, noFD, 0)
	t.Cleanup(func() {
		must(t, memtest.Mmap, p, n, unix.PROT_NONE, anonymous|unix.MAP_NORESERVE|unix.MAP_FIXED, noFD, 0)
	})
	return p
}

// reserve takes addresses without memory. They are the test's to claim. What it unmaps there before
// the end may become another thread's: vacate is for that.
func reserve(t testing.TB, bytes uintptr) uintptr {
	t.Helper()
	p := must(t, memtest.Mmap, 0, bytes, unix.PROT_NONE, anonymous|unix.MAP_NORESERVE, noFD, 0)
	t.Cleanup(func() { memtest.Call(memtest.Munmap, p, bytes) })
	return p
}

// vacate takes reserved addresses' pages away, as unmapping does, and keeps the addresses.
func vacate(t testing.TB, lo, bytes uintptr) {
	t.Helper()
	must(t, memtest.Mmap, lo, bytes, unix.PROT_NONE, anonymous|unix.MAP_NORESERVE|unix.MAP_FIXED, noFD, 0)
}

func ptr(p uintptr) *uint64 { return *(**uint64)(unsafe.Pointer(&p)) }

func page(p uintptr, n int) uintptr { return p + uintptr(n)*pageSize }

// watch returns a valid entry for the range, without a reference.
func watch(t testing.TB, w *Watcher, lo, hi uintptr, need Classes) Ref {
	t.Helper()
	r, err := published(w, lo, hi, need)
	noError(t, err)
	return r
}

func watchPage(t testing.TB, w *Watcher, p uintptr, need Classes) Ref {
	t.Helper()
	return watch(t, w, p, page(p, 1), need)
}

// long: tests that have a short form in the suite run their full one (IBCONDUIT_TEST_LONG=1).
func long() bool { return os.Getenv("IBCONDUIT_TEST_LONG") == "1" }

func indexOf(refs []Ref, r Ref) int { return slices.Index(refs, r) }

func newRand(t *testing.T) *rand.Rand {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// expired is a context that ends before anything else could happen.
func expired(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}

// runHelper runs this binary as another process, with more environment, and returns what it
// printed.
func runHelper(t *testing.T, env []string, name string, args ...string) string {
	t.Helper()
	out, err := tryHelper(t, env, name, args...)
	if err != nil {
		t.Fatalf("%s: %v\n%s", name, err, out)
	}
	return out
}

func tryHelper(t *testing.T, env []string, name string, args ...string) (string, error) {
	t.Helper()
	limit := 2 * time.Minute
	if long() {
		limit = 5 * time.Minute
	}
	limit += memtest.Stress(0)
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], append([]string{"helper", name}, args...)...)
	cmd.Env = append(os.Environ(), env...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.WaitDelay = 5 * time.Second // a child that the helper forked may hold them
	// A helper that hangs ends with this process: with the thread that started it (prctl(2)).
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	err := cmd.Run()
	return out.String(), err
}

// newPages maps pages by C in a helper, where they stay mapped to the end. A few have no multiple
// of 2 MiB among them nor shortly below, where the next is mapped: hooks take a call there to mean
// a whole huge page.
func newPages(n int) uintptr {
	const huge, below = 2 << 20, 64
	for {
		p, errno := memtest.Call(memtest.Mmap, 0, uintptr(n)*pageSize, rw, anonymous, noFD, 0)
		if errno != 0 {
			panic(errno)
		}
		if first, last := p-below*pageSize-1, p+uintptr(n-1)*pageSize; n > below || first/huge == last/huge {
			return p
		}
	}
}

func published(w *Watcher, lo, hi uintptr, need Classes) (Ref, error) {
	r, err := claimRange(w, lo, hi, need)
	if err != nil {
		return r, fmt.Errorf("claim: %w", err)
	}
	if !w.Publish(r) {
		w.Retire(r)
		return r, errors.New("not published: the range changed meanwhile")
	}
	r.Release()
	return r, nil
}

// claimRange claims as soon as no other thread of this process changes memory there: the runtime
// may.
func claimRange(w *Watcher, lo, hi uintptr, need Classes) (r Ref, err error) {
	for end := time.Now().Add(testTimeout); ; runtime.Gosched() {
		if r, err = w.Claim(lo, hi, 7, need); !errors.Is(err, ErrChanging) || time.Now().After(end) {
			return r, err
		}
	}
}

// claimSoon claims the page at p likewise.
func claimSoon(w *Watcher, p uintptr, need Classes) (r Ref, err error) {
	return claimRange(w, p, p+pageSize, need)
}

// load loads a library of testdata.
func load(t testing.TB, path string) unsafe.Pointer {
	t.Helper()
	lib, err := memtest.Load(path)
	noError(t, err)
	return lib
}

// wants checks that a program printed all of these.
func wants(t testing.TB, out string, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if !strings.Contains(out, text) {
			t.Errorf("no %q in\n%.20000s", text, out)
		}
	}
}

// forbidSmallMaps makes every mmap of one or two pages fail with ENOMEM, for all threads and for
// good.
func forbidSmallMaps() error {
	return memtest.FilterCalls(unix.ENOMEM,
		memtest.FilterLoad(memtest.CallNumber), memtest.FilterIf(unix.SYS_MMAP, 0, 3),
		memtest.FilterLoad(memtest.SecondArgument), memtest.FilterIf(uint32(pageSize), 2, 0),
		memtest.FilterIf(2*uint32(pageSize), 1, 0))
}

// sliceRange are the arguments of a claim of the whole pages of Go memory.
func sliceRange(b []byte) (lo, hi uintptr, tag uint32, need Classes) {
	lo = (uintptr(unsafe.Pointer(&b[0])) + pageSize - 1) &^ (pageSize - 1)
	hi = (uintptr(unsafe.Pointer(&b[0])) + uintptr(len(b))) &^ (pageSize - 1)
	return lo, hi, 0, ForGoHeap
}
