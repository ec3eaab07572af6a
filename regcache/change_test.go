//go:build linux && cgo && (amd64 || arm64)

package regcache

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit/internal/memtest"
	"github.com/ibconduit/conduit/memevents"
)

// way is how a call is made: by the libc's symbol, or straight to the kernel.
type way struct {
	t   testing.TB
	raw bool
}

func (w way) call(event uint32, nr uintptr, args ...uintptr) uintptr {
	w.t.Helper()
	var ret uintptr
	var errno syscall.Errno
	if w.raw {
		a := append(args, 0, 0, 0, 0, 0, 0)
		ret, _, errno = unix.RawSyscall6(nr, a[0], a[1], a[2], a[3], a[4], a[5])
	} else {
		ret, errno = memtest.Call(event, args...)
	}
	if errno != 0 {
		w.t.Fatalf("call %d: %v", event, errno)
	}
	return ret
}

// since skips where the kernel is older than the one that knows the call; a later one must know it.
func since(t testing.TB, what string, major, minor int) {
	t.Helper()
	var u unix.Utsname
	noError(t, unix.Uname(&u))
	release := unix.ByteSliceToString(u.Release[:])
	var have [2]int
	if _, err := fmt.Sscanf(release, "%d.%d", &have[0], &have[1]); err != nil {
		t.Fatalf("%q: %v", release, err)
	}
	if have[0] < major || have[0] == major && have[1] < minor {
		t.Skipf("%s came with Linux %d.%d; this is %s", what, major, minor, release)
	}
}

const changePages = 8

// change is a way of losing pages. It starts with memory at some address, calls f when it may be
// registered, takes the pages away, and leaves others at the same address, which it returns.
type change struct {
	name   string
	kernel bool // userfaultfd reports the raw call
	run    func(w way, f func(lo, hi uintptr))
}

// bytes is how many can be written and read back: remap_file_pages shows one page at two addresses.
func (x change) bytes() int {
	if x.name == "remap_file_pages" {
		return int(page)
	}
	return changePages * int(page)
}

// simple is a change by one call, after which the pages are stamped anew.
func simple(do func(w way, lo, n uintptr)) func(way, func(lo, hi uintptr)) {
	return func(w way, f func(lo, hi uintptr)) {
		p := reserve(w.t, changePages)
		n := uintptr(changePages) * page
		f(p, p+n)
		do(w, p, n)
		stamp(p, p+n)
	}
}

func advise(advice uintptr) func(way, uintptr, uintptr) {
	return func(w way, lo, n uintptr) { w.call(memtest.Madvise, unix.SYS_MADVISE, lo, n, advice) }
}

// libcOnly is no system call, so there is no raw one.
const libcOnly = "sbrk down"

var changes = []change{
	{"munmap", true, simple(func(w way, lo, n uintptr) {
		w.call(memtest.Munmap, unix.SYS_MUNMAP, lo, n)
		remap(w.t, lo, lo+n)
	})},
	{"mmap over it", true, simple(func(w way, lo, n uintptr) {
		w.call(memtest.Mmap, unix.SYS_MMAP, lo, n, rw, anonymous|unix.MAP_FIXED, ^uintptr(0), 0)
	})},
	{"MADV_DONTNEED", true, simple(advise(unix.MADV_DONTNEED))},
	{"MADV_DONTNEED_LOCKED", true, simple(func(w way, lo, n uintptr) {
		since(w.t, "MADV_DONTNEED_LOCKED", 5, 18)
		w.call(memtest.Madvise, unix.SYS_MADVISE, lo, n, unix.MADV_DONTNEED_LOCKED)
	})},
	{"MADV_REMOVE of shared memory", true, func(w way, f func(lo, hi uintptr)) {
		p, n := reserve(w.t, changePages), uintptr(changePages)*page
		w.call(memtest.Mmap, unix.SYS_MMAP, p, n, rw, unix.MAP_SHARED|unix.MAP_ANONYMOUS|unix.MAP_FIXED, ^uintptr(0), 0)
		stamp(p, p+n)
		f(p, p+n)
		w.call(memtest.Madvise, unix.SYS_MADVISE, p, n, unix.MADV_REMOVE)
		stamp(p, p+n)
	}},
	{"MADV_GUARD_INSTALL", false, simple(func(w way, lo, n uintptr) {
		const install, remove = 102, 103 // Linux 6.13, include/uapi/asm-generic/mman-common.h
		since(w.t, "MADV_GUARD_INSTALL", 6, 13)
		w.call(memtest.Madvise, unix.SYS_MADVISE, lo, n, install)
		w.call(memtest.Madvise, unix.SYS_MADVISE, lo, n, remove)
	})},
	{"process_madvise of itself", true, simple(func(w way, lo, n uintptr) {
		since(w.t, "discarding by process_madvise of oneself", 6, 13)
		fd, err := unix.PidfdOpen(os.Getpid(), 0)
		if err != nil {
			w.t.Fatal(err)
		}
		defer unix.Close(fd)
		v := &[2]uintptr{lo, n}
		w.call(memtest.ProcessMadvise, unix.SYS_PROCESS_MADVISE, uintptr(fd), uintptr(unsafe.Pointer(v)), 1, unix.MADV_DONTNEED, 0)
	})},
	{"mremap away", true, simple(func(w way, lo, n uintptr) {
		w.call(memtest.Mremap, unix.SYS_MREMAP, lo, n, n, unix.MREMAP_MAYMOVE|unix.MREMAP_FIXED, reserve(w.t, changePages))
		remap(w.t, lo, lo+n)
	})},
	{"mremap of the pages away", true, simple(func(w way, lo, n uintptr) {
		w.call(memtest.Mremap, unix.SYS_MREMAP, lo, n, n, unix.MREMAP_MAYMOVE|unix.MREMAP_FIXED|unix.MREMAP_DONTUNMAP, reserve(w.t, changePages))
	})},
	{"mremap onto it", true, func(w way, f func(lo, hi uintptr)) {
		p, q, n := reserve(w.t, changePages), reserve(w.t, changePages), uintptr(changePages)*page
		f(q, q+n)
		w.call(memtest.Mremap, unix.SYS_MREMAP, p, n, n, unix.MREMAP_MAYMOVE|unix.MREMAP_FIXED, q)
		remap(w.t, p, p+n)
	}},
	{"mremap that shrinks", true, func(w way, f func(lo, hi uintptr)) {
		p, n := reserve(w.t, changePages), uintptr(changePages)*page
		f(p, p+n)
		w.call(memtest.Mremap, unix.SYS_MREMAP, p, n, n/2, 0)
		remap(w.t, p+n/2, p+n)
	}},
	{"remap_file_pages", false, func(w way, f func(lo, hi uintptr)) {
		p, n := reserve(w.t, changePages), uintptr(changePages)*page
		w.call(memtest.Mmap, unix.SYS_MMAP, p, n, rw, unix.MAP_SHARED|unix.MAP_ANONYMOUS|unix.MAP_FIXED, ^uintptr(0), 0)
		stamp(p, p+n)
		f(p, p+n)
		const cRemapFilePages = 9
		w.call(cRemapFilePages, unix.SYS_REMAP_FILE_PAGES, p, page, 0, 1, 0)
	}},
	{"shmdt", false, func(w way, f func(lo, hi uintptr)) {
		n := uintptr(changePages) * page
		p := call(w.t, memtest.Shmat, uintptr(shmSegment(w.t)), 0, 0)
		stamp(p, p+n)
		f(p, p+n)
		w.call(memtest.Shmdt, unix.SYS_SHMDT, p)
		remap(w.t, p, p+n)
		w.t.Cleanup(func() { unix.MunmapPtr(ptr(p), n) })
	}},
	{"shmat over it, address rounded", false, simple(func(w way, lo, n uintptr) {
		const shmRnd, shmRemap = 0o20000, 0o40000 // shmop(2)
		w.call(memtest.Shmat, unix.SYS_SHMAT, uintptr(shmSegment(w.t)), lo+123, shmRnd|shmRemap)
	})},
	{"brk down", true, aboveBreak(func(w way, lo, old, n uintptr) bool {
		if call(w.t, memtest.Sbrk, 0) != old+2*n {
			return false
		}
		w.call(memtest.Brk, unix.SYS_BRK, lo)
		w.call(memtest.Brk, unix.SYS_BRK, old+2*n)
		return true
	})},
	{libcOnly, false, aboveBreak(func(w way, _, old, n uintptr) bool {
		return call(w.t, memtest.Sbrk, 0) == old+2*n && call(w.t, memtest.Sbrk, -(2*n)) == old+2*n && call(w.t, memtest.Sbrk, 2*n) == old
	})},
}

// aboveBreak is a change of memory above what was the break. The break is malloc's: where other
// code moved it meanwhile, down reports false, and the change begins anew further up.
func aboveBreak(down func(w way, lo, old, n uintptr) bool) func(way, func(lo, hi uintptr)) {
	return func(w way, f func(lo, hi uintptr)) {
		n := uintptr(changePages) * page
		for range 20 {
			old := call(w.t, memtest.Sbrk, 2*n)
			lo := (old + page - 1) &^ (page - 1)
			stamp(lo, lo+n)
			f(lo, lo+n)
			if down(w, lo, old, n) {
				stamp(lo, lo+n)
				return
			}
		}
		w.t.Fatal("other code moves the break all the time")
	}
}

func shmSegment(t testing.TB) int {
	id, err := unix.SysvShmGet(unix.IPC_PRIVATE, int(changePages*page), unix.IPC_CREAT|0o600)
	noError(t, err)
	t.Cleanup(func() { unix.SysvShmCtl(id, unix.IPC_RMID, nil) })
	return id
}

// across registers, changes and gets again. It returns whether the second Get found the first
// registration, and whether its operations land in the pages that are there now.
func across(t *testing.T, x change, raw bool, o Origin) (same, lands bool) {
	f := newFake()
	c := newCache(t, f, func(c *Config) { c.Origin = o })
	var lo, hi uintptr
	var first uint32
	x.run(way{t, raw}, func(l, h uintptr) {
		lo, hi = l, h
		if c.Status().Origins[o].Mode != Cached {
			return
		}
		// Events of the tests before may still be on their way: then it is for one operation.
		eventually(t, "it is cached before the change", func() bool {
			first = getPut(t, c, lo, uint64(hi-lo), LocalWrite)
			return getPut(t, c, lo, uint64(hi-lo), LocalWrite) == first
		})
	})
	r := mustGet(t, c, lo, uint64(hi-lo), LocalWrite)
	defer mustPut(t, c, r)
	return r.LKey == first, f.mr(t, r).lands(lo, uint64(hi-lo))
}

// The acceptance tests carry the numbers of their list.

// acrossAll makes each change that is wanted, and checks which registration is found after it.
func acrossAll(t *testing.T, raw bool, o Origin, stale bool, wanted func(change) bool) {
	t.Helper()
	for _, x := range changes {
		if !wanted(x) {
			continue
		}
		t.Run(o.String()+"/"+x.name, func(t *testing.T) {
			if same, lands := across(t, x, raw, o); same != stale || lands == stale {
				t.Errorf("the same registration: %v; lands in the new pages: %v", same, lands)
			}
		})
	}
}

func TestEveryLibcChangeEndsRegistration_01_02(t *testing.T) {
	needCached(t, newCache(t, newFake()), Mapped)
	acrossAll(t, false, Mapped, false, func(change) bool { return true })
}

// The control: what no monitor sees must lose the data, else the tests beside it prove nothing.
func TestUnseenChangeLosesTheData_01_02(t *testing.T) {
	if verifying {
		t.Skip("this build finds it")
	}
	needCached(t, newCache(t, newFake()), Mapped)
	acrossAll(t, true, Mapped, true, func(x change) bool { return x.name != libcOnly })
}

// Raw system calls are seen by userfaultfd; without it memory of Go's mappings is registered per
// operation.
func TestRawSystemCallsLeaveNothingStale_04(t *testing.T) {
	for _, o := range []Origin{GoMapped, Any} {
		acrossAll(t, true, o, false, func(x change) bool { return x.kernel })
	}
}

func TestAPartTakenAwayEndsTheWholeRegistration_05(t *testing.T) {
	const pages = 64
	cases := []struct {
		name string
		do   func(t *testing.T, p uintptr) // p: 64 registered pages with 2 free ones on either side
		ends bool
	}{
		{"one page in the middle", func(t *testing.T, p uintptr) { call(t, memtest.Munmap, p+31*page, page) }, true},
		{"one byte of it", func(t *testing.T, p uintptr) { call(t, memtest.Munmap, p+31*page, 1) }, true},
		{"no multiple of a page", func(t *testing.T, p uintptr) { call(t, memtest.Munmap, p+30*page, page+1) }, true},
		{"from its last page on", func(t *testing.T, p uintptr) { call(t, memtest.Munmap, p+63*page, 2*page) }, true},
		{"one byte into its first page", func(t *testing.T, p uintptr) { call(t, memtest.Munmap, p-page, page+1) }, true},
		{"exactly behind its end", func(t *testing.T, p uintptr) { call(t, memtest.Munmap, p+64*page, page) }, false},
		{"exactly before its start", func(t *testing.T, p uintptr) { call(t, memtest.Munmap, p-page, page) }, false},
		{"beyond the end of memory", func(t *testing.T, p uintptr) {
			if _, errno := memtest.Call(memtest.Munmap, p+page, ^uintptr(0)-page); errno != unix.EINVAL {
				t.Errorf("errno %v, want EINVAL", errno)
			}
		}, true},
	}
	for _, x := range cases {
		t.Run(x.name, func(t *testing.T) {
			f := newFake()
			c := newCache(t, f, func(c *Config) { c.Origin = Mapped })
			all := reserve(t, pages+4)
			p := all + 2*page
			first := getPut(t, c, p, pages*uint64(page), LocalWrite)
			x.do(t, p)
			remap(t, all, all+(pages+4)*page)
			if !x.ends { // put back what was registered, so that the hit below is no lie
				c.Clear()
				first = getPut(t, c, p, pages*uint64(page), LocalWrite)
				x.do(t, p)
			}
			if key := mustLand(t, f, c, p, pages*uint64(page), x.name); (key == first) == x.ends {
				t.Errorf("the same registration: %v", key == first)
			}
			remap(t, all, all+(pages+4)*page)
		})
	}
}

func TestAFailedCallLeavesTheCacheRight_07(t *testing.T) {
	f := newFake()
	c := newCache(t, f, func(c *Config) { c.Origin = Mapped })
	p, n := reserve(t, 4), uint64(4*page)
	for _, x := range []struct {
		name  string
		errno syscall.Errno
		do    func() syscall.Errno
	}{
		{"munmap of no page", unix.EINVAL, func() syscall.Errno { _, e := memtest.Call(memtest.Munmap, p+1, page); return e }},
		{"mmap of no file", unix.EBADF, func() syscall.Errno {
			_, e := memtest.Call(memtest.Mmap, p, page, rw, unix.MAP_PRIVATE|unix.MAP_FIXED, 1<<20, 0)
			return e
		}},
	} {
		getPut(t, c, p, n, LocalWrite)
		if errno := x.do(); errno != x.errno {
			t.Errorf("%s: %v, want %v", x.name, errno, x.errno)
		}
		mustLand(t, f, c, p, n, x.name)
		checkStats(t, c)
	}
}

func TestMemoryInUseStaysRegisteredUntilPut_09(t *testing.T) {
	for _, strict := range []bool{false, true} {
		f := newFake()
		c := newCache(t, f, func(c *Config) { c.Origin, c.Strict = Mapped, strict })
		p, n := reserve(t, 16), uint64(16*page)
		a, b := mustGet(t, c, p, n, LocalWrite), mustGet(t, c, p, n, LocalWrite)
		call(t, memtest.Munmap, p, uintptr(n))
		remap(t, p, p+uintptr(n))
		other := mustGet(t, c, p, n, LocalWrite)
		if other.LKey == a.LKey || !f.mr(t, other).lands(p, n) {
			t.Error("handed out again")
		}
		f.mr(t, a) // still there
		if s := c.Stats(); s.Dead != 1 || s.DeadBytes != int64(n) || s.Live != 1 {
			t.Errorf("%+v", s)
		}
		for i, r := range []Region{a, b} {
			f.mr(t, r)
			err := c.Put(r)
			if strict != errors.Is(err, ErrInvalidated) {
				t.Errorf("strict %v: Put %d: %v", strict, i, err)
			}
		}
		if count, _ := f.registered(); count != 1 {
			t.Errorf("%d registrations after the last Put, want 1", count)
		}
		mustPut(t, c, other)
		if s := c.Stats(); s.InvalidatedInUse != 1 || s.Invalidated != 1 || s.Puts != s.Gets {
			t.Errorf("%+v", s)
		}
	}
}

func TestMprotectIsNotNoticed_20(t *testing.T) {
	f := newFake()
	c := newCache(t, f, func(c *Config) { c.Origin = Mapped })
	p, n := reserve(t, 2), uint64(2*page)
	first := getPut(t, c, p, n, RemoteWrite)
	noError(t, unix.Mprotect(unsafe.Slice((*byte)(ptr(p)), n), unix.PROT_READ))
	if again := getPut(t, c, p, n, RemoteWrite); again != first {
		t.Error("the registration did not outlive mprotect")
	}
	if _, err := c.Get(ptr(p), n, RemoteAtomic); !errors.Is(err, unix.EFAULT) {
		t.Errorf("new access to memory that lacks it: %v, want EFAULT", err)
	}
}

// Calls that fail, and advice that leaves the contents: the result and errno are the kernel's, and
// nothing ends.
func TestHarmlessCallsEndNothing_06(t *testing.T) {
	const populate, collapse = 22, 25 // include/uapi/asm-generic/mman-common.h
	for _, x := range []struct {
		name  string
		errno []syscall.Errno // what the kernel may say; 0: nothing
		do    func(p, n uintptr) syscall.Errno
	}{
		{"MAP_FIXED_NOREPLACE over it", []syscall.Errno{unix.EEXIST}, func(p, n uintptr) syscall.Errno {
			_, e := memtest.Call(memtest.Mmap, p, n, rw, anonymous|unix.MAP_FIXED|unix.MAP_FIXED_NOREPLACE, ^uintptr(0), 0)
			return e
		}},
		{"munmap of nothing", []syscall.Errno{unix.EINVAL}, func(p, n uintptr) syscall.Errno { _, e := memtest.Call(memtest.Munmap, p, 0); return e }},
		{"mremap in its place", []syscall.Errno{0, unix.ENOMEM}, func(p, n uintptr) syscall.Errno { _, e := memtest.Call(memtest.Mremap, p, n, n, 0); return e }},
		{"WILLNEED", []syscall.Errno{0}, func(p, n uintptr) syscall.Errno {
			_, e := memtest.Call(memtest.Madvise, p, n, unix.MADV_WILLNEED)
			return e
		}},
		{"HUGEPAGE", []syscall.Errno{0, unix.EINVAL}, func(p, n uintptr) syscall.Errno {
			_, e := memtest.Call(memtest.Madvise, p, n, unix.MADV_HUGEPAGE)
			return e
		}},
		{"COLD", []syscall.Errno{0}, func(p, n uintptr) syscall.Errno {
			_, e := memtest.Call(memtest.Madvise, p, n, unix.MADV_COLD)
			return e
		}},
		{"POPULATE_READ", []syscall.Errno{0, unix.EINVAL}, func(p, n uintptr) syscall.Errno { _, e := memtest.Call(memtest.Madvise, p, n, populate); return e }},
		{"COLLAPSE", []syscall.Errno{0, unix.EINVAL, unix.EAGAIN, unix.EBUSY}, func(p, n uintptr) syscall.Errno { _, e := memtest.Call(memtest.Madvise, p, n, collapse); return e }},
	} {
		f := newFake()
		c := cached(t, f)
		p, n := reserve(t, 4), 4*page
		first := getPut(t, c, p, uint64(n), LocalWrite)
		if errno := x.do(p, n); !slices.Contains(x.errno, errno) {
			t.Errorf("%s: %v, want one of %v", x.name, errno, x.errno)
		}
		if mustLand(t, f, c, p, uint64(n), x.name) != first {
			t.Errorf("%s: another registration", x.name)
		}
	}
}

// What is counted bounds the work: calls beside a thousand registrations look at no slot of the
// table beyond those beside them, and one call that takes all ends each once.
func TestManyRegistrationsAreNoBurdenToCalls_25_26(t *testing.T) {
	const regions = 4000
	f := newFake()
	c := cached(t, f, func(c *Config) { c.MaxRegions = regions })
	other, p := reserve(t, 1), reserve(t, 2*regions)
	for i := range uintptr(regions) { // every other page: all in a few places of 2 MiB
		getPut(t, c, p+2*i*page, 8, LocalWrite)
	}
	before := memevents.ReadStats()
	for range 1000 {
		call(t, memtest.Madvise, other, page, unix.MADV_DONTNEED)
	}
	after := memevents.ReadStats()
	// Other threads register and unmap at times
	if n := after.TableScans - before.TableScans; n > 10 {
		t.Errorf("%d of 1000 calls looked at the whole table", n)
	}
	if s := c.Stats(); s.Invalidated != 0 || s.Live != regions {
		t.Errorf("calls elsewhere ended registrations: %+v", s)
	}
	call(t, memtest.Mmap, p, 64<<30, unix.PROT_NONE, anonymous|unix.MAP_FIXED|unix.MAP_NORESERVE, ^uintptr(0), 0)
	getPut(t, c, other, 8, LocalWrite) // sweeps
	if s := c.Stats(); s.Invalidated != regions || s.Dead != 0 || s.Live != 1 {
		t.Errorf("%+v", s)
	}
	if n, _ := f.registered(); n != 1 {
		t.Errorf("%d registrations are left", n)
	}
}

// What is deregistered in the background is no call of the program's, so the figures add up
// meanwhile.
func TestFiguresAddUpWhileRegistrationsEnd_24(t *testing.T) {
	f := newFake()
	c := cached(t, f)
	const regions = 2000
	p := reserve(t, 2*regions)
	for i := range uintptr(regions) {
		getPut(t, c, p+2*i*page, 8, LocalWrite)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if left := c.Clear(); left != 0 {
			t.Errorf("%d are left", left)
		}
	}()
	for looking := true; looking && !t.Failed(); {
		select {
		case <-done:
			looking = false
		default:
			checkStats(t, c)
		}
	}
	<-done
}
