//go:build linux && cgo && (amd64 || arm64)

package regcache

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit/internal/memtest"
	"github.com/ibconduit/conduit/memevents"
	"github.com/ibconduit/conduit/verbs"
)

// leaves writes to memory by the processor, and reports whether the device reads those bytes
// through the cache.
func (w *wire) leaves(c *Cache, lo uintptr, n int, seed byte) bool {
	w.t.Helper()
	mine := unsafe.Slice((*byte)(ptr(lo)), n)
	for i := range mine {
		mine[i] = seed + byte(i*5)
	}
	b := must(w.pool.Alloc(n))(w.t)
	defer w.pool.Free(b)
	r := mustGet(w.t, c, lo, uint64(n), RemoteRead|RemoteWrite)
	w.post(verbs.OpRead, b, lo, r.RKey)
	w.wait()
	mustPut(w.t, c, r)
	return bytes.Equal(mine, b.Bytes())
}

// fork is the libc's. In the child there is one thread; f runs there, and its result is the child's
// exit code. The Go runtime may not survive that; such a child hangs, and is ended.
func fork(t *testing.T, f func() int) (pid int) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	child := memtest.Func("fork")
	if child == 0 {
		unix.RawSyscall(unix.SYS_EXIT_GROUP, uintptr(f()), 0, 0)
	}
	if int(child) < 0 {
		t.Fatal("fork failed")
	}
	return int(child)
}

// reap waits for a child for a while, then ends it. False: it had to be ended.
func reap(t *testing.T, pid int, d time.Duration) (code int, ok bool) {
	t.Helper()
	var status unix.WaitStatus
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if got, err := unix.Wait4(pid, &status, unix.WNOHANG, nil); err != nil {
			t.Fatal(err)
		} else if got == pid {
			return status.ExitStatus(), status.Exited()
		}
	}
	noError(t, unix.Kill(pid, unix.SIGKILL))
	must(unix.Wait4(pid, &status, 0, nil))(t)
	return 0, false
}

// inChild runs f in a child of fork, until one lives long enough to answer.
func inChild(t *testing.T, f func() int) int {
	t.Helper()
	for range 20 {
		if code, ok := reap(t, fork(t, f), 5*time.Second); ok {
			return code
		}
	}
	t.Fatal("no child lived")
	return 0
}

// A parent that goes on writing after fork gets pages of its own (copy on write), unless they are
// pinned.
func TestDeviceAndProcessorAgreeAfterFork_21(t *testing.T) {
	w := newWire(t)
	c := deviceCache(t, w, Mapped)
	const regions = 100
	p := reserve(t, 2*regions)
	at := func(i int) uintptr { return p + 2*uintptr(i)*page }
	round := func(seed byte) {
		t.Helper()
		for i := range regions {
			if !w.leaves(c, at(i), int(page), seed+byte(i)) || !w.arrives(c, at(i), int(page), seed+byte(i)) {
				t.Fatalf("region %d: the bytes are not where they belong", i)
			}
		}
	}
	round(1)
	registered := c.Stats().Registered
	pid := fork(t, func() int {
		for {
			unix.RawSyscall(unix.SYS_PPOLL, 0, 0, 0) // until it is ended
		}
	})
	round(2)
	round(3)
	if _, exited := reap(t, pid, 10*time.Millisecond); exited {
		t.Error("the child was not there all the time")
	}
	round(4)
	if s := c.Stats(); s.Registered != registered || s.Invalidated != 0 {
		t.Errorf("fork ended registrations: %+v", s)
	}
}

// The child has a copy of the cache, and shares the descriptor by which the parent's registrations
// are ended.
func TestDeviceForkedChildIsRefused_21(t *testing.T) {
	w := newWire(t)
	c := deviceCache(t, w, Mapped)
	p := reserve(t, 2)
	if !w.arrives(c, p, int(page), 1) {
		t.Error("lost")
	}
	held := mustGet(t, c, p, uint64(page), RemoteWrite)
	single := must(c.GetFrom(Mapped, ptr(p+page), 8, RemoteWrite))(t)
	large := alloc(t, w.pool, 4<<20)
	code := inChild(t, func() int {
		bad := 0
		for i, err := range []func() error{
			// Would be a hit
			func() error { _, err := c.Get(ptr(p), uint64(page), RemoteWrite); return err },
			// Would be a miss
			func() error { _, err := c.Get(ptr(p), 2*uint64(page), RemoteWrite); return err },
			func() error { return c.Close() },
			func() error { _, err := w.pool.Alloc(4 << 20); return err },
			func() error { return w.pool.Free(large) },
			func() error { return w.pool.Close() },
		} {
			if !errors.Is(err(), memevents.ErrForked) {
				bad |= 1 << i
			}
		}
		c.Clear()
		c.Put(held)
		c.Put(single)
		return bad
	})
	if code != 0 {
		t.Errorf("calls %#b of the child did not fail with ErrForked", code)
	}
	mustPut(t, c, held)
	mustPut(t, c, single)
	if err := w.pool.Free(large); err != nil {
		t.Errorf("the parent's buffer: %v", err)
	}
	before := c.Stats().Registered
	if !w.arrives(c, p, int(page), 2) || c.Stats().Registered != before {
		t.Error("the parent's registration is gone")
	}
}

func TestDevicePinsFallWithoutACall_12(t *testing.T) {
	w := newWire(t)
	const pages = 64
	c := must(New(Config{Registrar: w.d, Origin: Mapped, MaxBytes: 1 << 30, MaxDeadBytes: 8 * int64(page)}))(t)
	closing(t, c)
	before := verbs.ReadMemlock().Pinned
	p := reserve(t, pages)
	for i := range uintptr(pages) {
		getPut(t, c, p+i*page, uint64(page), RemoteWrite)
	}
	if now := verbs.ReadMemlock().Pinned; now < before+pages*uint64(page) {
		t.Fatalf("%d bytes pinned, %d before: nothing was", now, before)
	}
	call(t, memtest.Munmap, p, pages*page)
	remap(t, p, p+pages*page)
	eventually(t, "dead pages are unpinned", func() bool { return verbs.ReadMemlock().Pinned <= before+8*uint64(page) })
}

// The limit on locked memory holds for threads without CAP_IPC_LOCK: what is idle goes, then there
// is an error.
func TestDeviceLockLimitEvictsAndIsAnError_18(t *testing.T) {
	w := newWire(t)
	c := deviceCache(t, w, Mapped)
	const regions = 8
	p := reserve(t, 64*regions)
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread lost its capability and ends here
		limit := uint64(verbs.ReadMemlock().Pinned) + 2*16*uint64(page)
		if err := lockAtMost(t, limit); err != nil {
			t.Error(err)
			return
		}
		for i := range uintptr(regions) { // there is room for two
			r, err := c.Get(ptr(p+i*64*page), 16*uint64(page), RemoteWrite)
			if err != nil {
				t.Errorf("region %d: %v", i, err)
				return
			}
			c.Put(r)
		}
		s := c.Stats()
		if s.Retried == 0 || s.Evicted == 0 || s.Live > 2 {
			t.Errorf("the limit was not met: %+v", s)
		}
		for range 2 { // not remembered, and nothing lost
			if _, err := c.Get(ptr(p), 40*uint64(page), RemoteWrite); !errors.Is(err, unix.ENOMEM) {
				t.Errorf("more than there is: %v, want ENOMEM", err)
			}
		}
		if r, err := c.Get(ptr(p), 16*uint64(page), RemoteWrite); err != nil {
			t.Errorf("after the errors: %v", err)
		} else {
			c.Put(r)
		}
	}()
	<-done
	if s := c.Stats(); int(s.Registered-s.Deregistered) != s.Live+s.Dead {
		t.Errorf("%+v", s)
	}
}

// lockAtMost takes CAP_IPC_LOCK from this thread and sets the limit of the process until the test
// ends.
func lockAtMost(t *testing.T, bytes uint64) error {
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &old); err != nil {
		return err
	}
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: bytes, Max: old.Max}); err != nil {
		return err
	}
	t.Cleanup(func() {
		if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &old); err != nil {
			t.Error(err)
		}
	})
	h := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var d [2]unix.CapUserData
	if err := unix.Capget(&h, &d[0]); err != nil {
		return err
	}
	d[0].Effective &^= 1 << unix.CAP_IPC_LOCK
	return unix.Capset(&h, &d[0])
}

// Each hit compares the page frames that are there with those that the device has.
func TestDeviceFramesAreRightAtEachHit_24(t *testing.T) {
	if !administrator(t) {
		t.Skip("needs CAP_SYS_ADMIN")
	}
	w := newWire(t)
	c := must(New(Config{Registrar: w.d, Origin: Mapped, Verify: true, MaxRegions: 12, MaxBytes: 1 << 30, MaxDeadBytes: int64(16 * page)}))(t)
	closing(t, c)
	var gets atomic.Uint64
	enough := func() bool {
		s := c.Stats()
		return s.Hits > 0 && s.Invalidated > 0
	}
	threads(t, memtest.Stress(2*time.Second), enough, func(lo uintptr, pages int, turn *atomic.Uint64) {
		before := turn.Load()
		r, err := c.Get(ptr(lo), uint64(pages)*uint64(page), LocalWrite)
		switch {
		case err == nil:
			gets.Add(1)
			if err := c.Put(r); err != nil {
				t.Error(err)
			}
		case errors.Is(err, unix.EFAULT) && (turn.Load() != before || before&1 != 0): // not mapped at that moment
		default:
			t.Error(err)
		}
	})
	s := c.Stats()
	if s.Gets != gets.Load() || s.Puts != s.Gets || !enough() || int(s.Registered-s.Deregistered) != s.Live+s.Dead {
		t.Errorf("%d gets: %+v", gets.Load(), s)
	}
	t.Logf("%+v", s)
}

// Collapsing into a huge page, and other advice that keeps the contents, leaves the device the same
// pages.
func TestDeviceHarmlessAdviceKeepsTheData_06(t *testing.T) {
	w := newWire(t)
	c := deviceCache(t, w, Mapped)
	const collapse = 25 // MADV_COLLAPSE, Linux 6.1
	all := reserve(t, 1024)
	p := (all + 2<<20 - 1) &^ (2<<20 - 1)
	if !w.arrives(c, p, 2<<20, 1) {
		t.Fatal("lost")
	}
	for _, advice := range []uintptr{unix.MADV_HUGEPAGE, collapse, unix.MADV_WILLNEED, unix.MADV_COLD, unix.MADV_PAGEOUT} {
		_, errno := memtest.Call(memtest.Madvise, p, 2<<20, advice)
		if !w.arrives(c, p, 2<<20, byte(advice)) || !w.leaves(c, p, 2<<20, byte(advice)) {
			t.Errorf("after advice %d (%v) the bytes are not where they belong", advice, errno)
		}
	}
	if s := c.Stats(); s.Misses > 2 || s.Invalidated != 0 {
		t.Errorf("%+v", s)
	}
}

// What the kernel does with pages by itself passes pinned ones over: merging equal ones (KSM),
// compaction, and mprotect that takes all access away and gives it back.
func TestDeviceTheKernelsOwnMovesKeepTheData_06(t *testing.T) {
	w := newWire(t)
	c := deviceCache(t, w, Mapped)
	const pages = 64
	p, n := reserve(t, 2*pages), pages*int(page)
	for i := range 2 * pages {
		clear(unsafe.Slice((*byte)(ptr(p+uintptr(i)*page)), page)) // all equal: worth merging
	}
	if r := mustGet(t, c, p, uint64(n), RemoteWrite|RemoteRead); c.Put(r) != nil {
		t.Fatal("put")
	}
	before := c.Stats().Misses
	for _, x := range []struct {
		name string
		do   func(t *testing.T)
	}{
		{"merging", func(t *testing.T) { mergePages(t, p, 2*uintptr(n)) }},
		{"compaction", func(t *testing.T) {
			if err := os.WriteFile("/proc/sys/vm/compact_memory", []byte("1"), 0); err != nil {
				t.Skip(err)
			}
		}},
		{"mprotect", func(t *testing.T) {
			for _, prot := range []int{unix.PROT_NONE, rw} {
				if _, _, errno := unix.Syscall(unix.SYS_MPROTECT, p, uintptr(n), uintptr(prot)); errno != 0 {
					t.Fatal(errno)
				}
			}
		}},
	} {
		t.Run(x.name, func(t *testing.T) {
			x.do(t)
			if !w.arrives(c, p, n, 3) || !w.leaves(c, p, n, 5) {
				t.Error("the bytes are not where they belong")
			}
		})
	}
	if s := c.Stats(); s.Misses != before || s.Invalidated != 0 {
		t.Errorf("%+v", s)
	}
}

// mergePages lets KSM pass over the range twice (Documentation/admin-guide/mm/ksm.rst).
func mergePages(t *testing.T, lo, n uintptr) {
	t.Helper()
	const at = "/sys/kernel/mm/ksm/"
	if _, err := os.Stat(at); err != nil {
		t.Skip("this kernel does not merge pages: ", err)
	}
	if _, errno := memtest.Call(memtest.Madvise, lo, n, unix.MADV_MERGEABLE); errno != 0 {
		t.Fatal(errno)
	}
	scans := func() (n int) {
		text := must(os.ReadFile(at + "full_scans"))(t)
		must(fmt.Sscan(string(text), &n))(t)
		return n
	}
	for name, value := range map[string]string{"pages_to_scan": "10000", "sleep_millisecs": "1", "run": "1"} {
		old, err := os.ReadFile(at + name)
		if err == nil {
			err = os.WriteFile(at+name, []byte(value), 0)
		}
		if err != nil {
			t.Skip("KSM is not ours to switch on: ", err)
		}
		defer os.WriteFile(at+name, bytes.TrimSpace(old), 0)
	}
	first := scans()
	eventually(t, "KSM passes twice", func() bool { return scans() >= first+3 })
}

// A page that was never written when it was registered only for reading is the zero page, if the
// kernel does not take care.
func TestDeviceReadsLaterWrites_20(t *testing.T) {
	w := newWire(t)
	c := deviceCache(t, w, Mapped)
	p := call(t, memtest.Mmap, 0, 4*page, rw, anonymous, ^uintptr(0), 0)
	t.Cleanup(func() { memtest.Call(memtest.Munmap, p, 4*page) })
	n := 4 * int(page)
	read := func() []byte {
		b := must(w.pool.Alloc(n))(t)
		defer w.pool.Free(b)
		r := mustGet(t, c, p, uint64(n), RemoteRead)
		w.post(verbs.OpRead, b, p, r.RKey)
		w.wait()
		mustPut(t, c, r)
		return bytes.Clone(b.Bytes())
	}
	if !bytes.Equal(read(), make([]byte, n)) {
		t.Error("fresh memory is not zero")
	}
	mine := unsafe.Slice((*byte)(ptr(p)), n)
	for i := range mine {
		mine[i] = byte(i * 3)
	}
	if !bytes.Equal(read(), mine) {
		t.Error("the device reads other pages than the processor writes")
	}
	if s := c.Stats(); s.Hits != 1 {
		t.Errorf("no hit: nothing was tested: %+v", s)
	}
}
