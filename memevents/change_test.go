//go:build linux && cgo && (amd64 || arm64)

package memevents

import (
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit/internal/memtest"
)

// registration is a fake memory region. It knows what a device would see: the stamp that stood in
// each page when it was "registered". A page that was replaced has another, or none.
type registration struct {
	p      uintptr
	stamps []uint64
}

var lastStamp atomic.Uint64

func register(p uintptr, pages int) registration {
	r := registration{p: p}
	for i := range pages {
		s := lastStamp.Add(1)<<8 | 0xa5
		atomic.StoreUint64(ptr(page(p, i)), s)
		r.stamps = append(r.stamps, s)
	}
	return r
}

// lies reports that the memory is not what was registered: what a device writes would be lost.
func (r registration) lies() bool {
	for i, s := range r.stamps {
		if atomic.LoadUint64(ptr(page(r.p, i))) != s {
			return true
		}
	}
	return false
}

// change is one way to take memory away.
type change struct {
	name  string
	pages int // of the range that is registered at p
	do    func(t *testing.T, p uintptr)
	// How many ranges hooks announce before it happens, besides those of putting new memory there
	reported uint64
	// It happens to keep the contents, or makes them unreadable: the control cannot lose them
	keeps bool
}

func sharedPages(t *testing.T, pages int) uintptr {
	t.Helper()
	p := must(t, memtest.Mmap, 0, uintptr(pages)*pageSize, rw, unix.MAP_SHARED|unix.MAP_ANONYMOUS, noFD, 0)
	t.Cleanup(func() { memtest.Call(memtest.Munmap, p, uintptr(pages)*pageSize) })
	return p
}

func remap(t *testing.T, p uintptr, pages int) {
	t.Helper()
	must(t, memtest.Mmap, p, uintptr(pages)*pageSize, rw, anonymous|unix.MAP_FIXED_NOREPLACE, noFD, 0)
}

func advice(a uintptr) func(*testing.T, uintptr) {
	return func(t *testing.T, p uintptr) { must(t, memtest.Madvise, p, pageSize, a) }
}

const (
	madvGuardInstall   = 102 // include/uapi/asm-generic/mman-common.h, Linux 6.13
	madvDontneedLocked = 24
	mremapMaymove      = 1
	mremapFixed        = 2
	// PIDFD_SELF of Linux 6.14 is -10000 (include/uapi/linux/pidfd.h)
	processMadviseSelfFD = ^uintptr(10000) + 1
)

var changes = []change{
	{name: "munmap and mmap", do: func(t *testing.T, p uintptr) {
		must(t, memtest.Munmap, p, pageSize)
		remap(t, p, 1)
	}},
	{name: "mmap fixed", do: func(t *testing.T, p uintptr) {
		must(t, memtest.Mmap, p, pageSize, rw, anonymous|unix.MAP_FIXED, noFD, 0)
	}},
	{name: "MADV_DONTNEED", do: advice(unix.MADV_DONTNEED)},
	{name: "MADV_DONTNEED_LOCKED", do: advice(madvDontneedLocked)},
	{name: "MADV_FREE", do: advice(unix.MADV_FREE), keeps: true},
	{name: "guard", do: advice(madvGuardInstall), keeps: true},
	{name: "unknown advice", keeps: true, do: func(t *testing.T, p uintptr) { memtest.Call(memtest.Madvise, p, pageSize, 12345) }},
	{name: "one page in the middle", pages: 64, do: func(t *testing.T, p uintptr) {
		must(t, memtest.Munmap, page(p, 31), 1)
		remap(t, page(p, 31), 1)
	}},
	{name: "length not a multiple of pages", pages: 2, do: func(t *testing.T, p uintptr) {
		must(t, memtest.Madvise, p, pageSize+1, unix.MADV_DONTNEED)
	}},
	{name: "mremap away", do: func(t *testing.T, p uintptr) {
		to := mapPages(t, 1)
		must(t, memtest.Mremap, p, pageSize, pageSize, mremapMaymove|mremapFixed, to)
		remap(t, p, 1)
	}},
	{name: "mremap onto", do: func(t *testing.T, p uintptr) {
		must(t, memtest.Mremap, mapPages(t, 1), pageSize, pageSize, mremapMaymove|mremapFixed, p)
	}, reported: 2},
	{name: "mremap grows and moves", do: func(t *testing.T, p uintptr) {
		if must(t, memtest.Mremap, p, pageSize, 1024*pageSize, mremapMaymove) == p {
			t.Fatal("it did not move")
		}
		remap(t, p, 1)
	}},
	{name: "mremap shrinks", pages: 4, do: func(t *testing.T, p uintptr) {
		must(t, memtest.Mremap, p, 4*pageSize, pageSize, 0)
		remap(t, page(p, 1), 3)
	}, reported: 1},
	{name: "process_madvise", do: func(t *testing.T, p uintptr) {
		iov := unix.Iovec{Base: (*byte)(unsafe.Pointer(ptr(p))), Len: uint64(pageSize)}
		_, errno := memtest.Call(memtest.ProcessMadvise, processMadviseSelfFD, uintptr(unsafe.Pointer(&iov)), 1, unix.MADV_DONTNEED, 0)
		runtime.KeepAlive(&iov)
		if errno != 0 { // kernels before 6.14 refuse it: do what it would have done, past all hooks
			unix.RawSyscall(unix.SYS_MADVISE, p, pageSize, unix.MADV_DONTNEED)
		}
	}},
}

// Each change, with a cache that listens and, as control, one that does not and must lose data.
func TestChangesInvalidateControlLosesData_01_02(t *testing.T) {
	w := newWatcher(t, WatcherConfig{})
	for _, c := range changes {
		t.Run(c.name, func(t *testing.T) {
			pages := max(c.pages, 1)
			// Neighbours keep the address from being merged with or taken by something else.
			p := page(mapPages(t, pages+2), 1)
			reg := register(p, pages)
			ref := watch(t, w, p, page(p, pages), CalledFromC|Set(Guard))
			if !ref.Acquire() {
				t.Fatal("no hit before the change")
			}
			ref.Release()
			announced := ReadStats().Unmaps
			c.do(t, p)
			if n := ReadStats().Unmaps - announced; n < max(c.reported, 1) {
				t.Errorf("%d ranges announced, want %d", n, max(c.reported, 1))
			}
			if ref.Acquire() {
				t.Error("a hit after the change")
			}
			if n := sweep(t, w); n != 1 {
				t.Errorf("%d entries invalidated, want 1", n)
			}
			if !c.keeps && !reg.lies() {
				t.Error("control: the memory is still what was registered, so this test cannot fail")
			}
		})
	}
}

func TestMadviseRemoveOfSharedMemory_02(t *testing.T) {
	w := newWatcher(t, WatcherConfig{})
	p := sharedPages(t, 1)
	reg := register(p, 1)
	ref := watch(t, w, p, page(p, 1), CalledFromC)
	must(t, memtest.Madvise, p, pageSize, unix.MADV_REMOVE)
	if ref.Acquire() || sweep(t, w) != 1 {
		t.Error("a hit after the change")
	}
	if !reg.lies() {
		t.Error("control: nothing was lost")
	}
}

func attach(t *testing.T, at, flags uintptr) (id int, p uintptr) {
	t.Helper()
	id, err := unix.SysvShmGet(unix.IPC_PRIVATE, 3*int(pageSize), unix.IPC_CREAT|0o600)
	if errors.Is(err, unix.ENOSYS) {
		t.Skip("this kernel has no System V shared memory")
	}
	noError(t, err)
	t.Cleanup(func() { unix.SysvShmCtl(id, unix.IPC_RMID, nil) })
	p = must(t, memtest.Shmat, uintptr(id), at, flags)
	t.Cleanup(func() { memtest.Call(memtest.Shmdt, p) })
	return id, p
}

func TestSharedSegments_02(t *testing.T) {
	w := newWatcher(t, WatcherConfig{})
	const remapFlag, rounded = 0o40000, 0o20000 // SHM_REMAP, SHM_RND of shmat(2)

	_, p := attach(t, 0, 0)
	inside := watch(t, w, page(p, 2), page(p, 3), CalledFromC)
	other := mapPages(t, 1)
	outside := watch(t, w, other, page(other, 1), CalledFromC)
	must(t, memtest.Shmdt, p)
	if inside.Acquire() {
		t.Error("a hit after shmdt")
	}
	if !outside.Acquire() {
		t.Error("shmdt took more than the segment")
	} else {
		outside.Release()
	}

	room := mapPages(t, 5)
	first := watch(t, w, room, page(room, 1), CalledFromC)
	over := watch(t, w, page(room, 3), page(room, 4), CalledFromC)
	beyond := watch(t, w, page(room, 4), page(room, 5), CalledFromC)
	announced := ReadStats().Unmaps
	if _, at := attach(t, page(room, 1)+17, remapFlag|rounded); at != page(room, 1) {
		t.Fatalf("attached at %#x", at)
	}
	if ReadStats().Unmaps == announced {
		t.Error("shmat with SHM_REMAP was not announced before it happened")
	}
	if over.Acquire() {
		t.Error("a hit after shmat with SHM_REMAP")
	}
	for _, r := range []Ref{first, beyond} {
		if !r.Acquire() {
			t.Error("shmat with SHM_REMAP took more than the segment:", r)
			continue
		}
		r.Release()
	}
	evict(t, w, outside, first, beyond)
	sweep(t, w)
}

// A program's break belongs to malloc: another process tries it, where no other code uses malloc.
func TestBreakGoesDown_02(t *testing.T) { runHelper(t, nil, "break") }

var _ = helper("break", func(t testing.TB, _ []string) error {
	w := newWatcher(t, WatcherConfig{})
	runtime.LockOSThread()
	for _, down := range []struct {
		name string
		call func(end uintptr) unix.Errno
	}{
		{"sbrk", func(uintptr) unix.Errno { _, e := memtest.Call(memtest.Sbrk, ^(2*pageSize)+1); return e }},
		{"brk", func(end uintptr) unix.Errno { _, e := memtest.Call(memtest.Brk, end-2*pageSize); return e }},
	} {
		must(t, memtest.Sbrk, 4*pageSize)
		end, _ := memtest.Call(memtest.Sbrk, 0)
		top := end &^ (pageSize - 1)
		low, err := w.Claim(top-3*pageSize, top-2*pageSize, 0, CalledFromC)
		noError(t, err)
		high, err := w.Claim(top-pageSize, top, 0, CalledFromC)
		noError(t, err)
		if !w.Publish(low) || !w.Publish(high) {
			return errors.New("not published")
		}
		if errno := down.call(end); errno != 0 {
			return errno
		}
		if high.Valid() {
			return errors.New(down.name + ": valid above the break")
		}
		if !low.Valid() {
			return errors.New(down.name + ": took more than it lowered")
		}
	}
	return nil
})

// The libc's sbrk counts from where it believes the break to be. Where a raw call has moved it,
// going up by the libc's count may mean going down.
func TestSbrkFromTheLibcsIdeaOfTheBreak_02(t *testing.T) { runHelper(t, nil, "rawbreak") }

var _ = helper("rawbreak", func(t testing.TB, _ []string) error {
	w := newWatcher(t, WatcherConfig{})
	runtime.LockOSThread()
	for _, by := range []int{int(pageSize), -int(pageSize)} {
		must(t, memtest.Sbrk, 4*pageSize)
		libc, _ := memtest.Call(memtest.Sbrk, 0)
		top := (libc + pageSize - 1) &^ (pageSize - 1)
		if now, _, _ := unix.RawSyscall(unix.SYS_BRK, top+8*pageSize, 0, 0); now != top+8*pageSize {
			return fmt.Errorf("the break is %#x", now)
		}
		low := watchPage(t, w, top-3*pageSize, CalledFromC)
		mid := watchPage(t, w, top+2*pageSize, CalledFromC)
		must(t, memtest.Sbrk, uintptr(by))
		if now, _, _ := unix.RawSyscall(unix.SYS_BRK, 0, 0, 0); now >= top+2*pageSize {
			return fmt.Errorf("the break is %#x: nothing was tested", now)
		}
		if mid.Valid() || !low.Valid() {
			return fmt.Errorf("sbrk(%d): valid above the break %v, below %v", by, mid.Valid(), low.Valid())
		}
		w.Evict(low)
		w.Retire(low)
	}
	return nil
})

// A segment that was moved to where a smaller one was attached: shmdt takes all of it.
func TestAMovedSegmentIsDetachedWhole_02(t *testing.T) {
	w := newWatcher(t, WatcherConfig{})
	id, err := unix.SysvShmGet(unix.IPC_PRIVATE, 8*int(pageSize), unix.IPC_CREAT|0o600)
	noError(t, err)
	t.Cleanup(func() { unix.SysvShmCtl(id, unix.IPC_RMID, nil) })
	large := must(t, memtest.Shmat, uintptr(id), 0, 0)
	room := mapPages(t, 8)
	must(t, memtest.Munmap, room, 8*pageSize)
	attach(t, room, 0) // 3 pages, which go by munmap
	must(t, memtest.Munmap, room, 3*pageSize)
	must(t, memtest.Mremap, large, 8*pageSize, 8*pageSize, mremapMaymove|mremapFixed, room)
	reg := register(room, 8)
	r := watch(t, w, page(room, 6), page(room, 7), CalledFromC)
	must(t, memtest.Shmdt, room)
	if _, _, errno := unix.RawSyscall6(unix.SYS_MMAP, room, 8*pageSize, rw, anonymous|unix.MAP_FIXED, noFD, 0); errno != 0 {
		t.Fatal(errno)
	}
	if !reg.lies() {
		t.Error("control: nothing was lost")
	}
	if r.Acquire() {
		t.Error("a hit after shmdt")
		r.Release()
	}
	evict(t, w, r)
	sweep(t, w)
	memtest.Call(memtest.Munmap, room, 8*pageSize)
}

// MADV_REMOVE takes the pages out of the file, so that every mapping of it loses them (madvise(2)).
// What handlers see is the range of the call.
func TestMadviseRemoveEndsTheFilesOtherMappings_02(t *testing.T) {
	w := newWatcher(t, WatcherConfig{})
	fd, err := unix.MemfdCreate("twice", unix.MFD_CLOEXEC)
	noError(t, err)
	defer unix.Close(fd)
	noError(t, unix.Ftruncate(fd, int64(pageSize)))
	var at [2]uintptr
	for i := range at {
		at[i] = must(t, memtest.Mmap, 0, pageSize, rw, unix.MAP_SHARED, uintptr(fd), 0)
		defer memtest.Call(memtest.Munmap, at[i], pageSize)
	}
	protected := mapPages(t, 1)
	unprotect, err := Protect(protected, page(protected, 1))
	noError(t, err)
	defer unprotect()
	reg := register(at[0], 1)
	r := watch(t, w, at[0], page(at[0], 1), CalledFromC)
	must(t, memtest.Madvise, at[1], pageSize, unix.MADV_REMOVE)
	if !reg.lies() {
		t.Error("control: nothing was lost")
	}
	if r.Acquire() {
		t.Error("a hit after the file lost the page")
		r.Release()
	}
	evict(t, w, r)
	sweep(t, w)
}
