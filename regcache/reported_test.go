//go:build linux && cgo && (amd64 || arm64)

package regcache

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit/internal/memtest"
)

// Pages are gone, and their addresses free for all, before the kernel reports it: what another
// thread maps there then is not what was registered, though it was not reported. Of malloc this is
// every day's work: one thread frees a large block, another is given the same addresses.
func TestUnreportedUnmapIsNoHit(t *testing.T) {
	for _, o := range []Origin{Any, Malloc, GoMapped} {
		for _, kept := range []bool{false, true} {
			t.Run(fmt.Sprintf("%v kept %v", o, kept), func(t *testing.T) { unmapUnreported(t, o, kept) })
		}
	}
}

// What comes may be of another origin, of which nothing else is to be asked: memory that stays.
func TestUnreportedUnmapIsNoHitOfLastingMemory(t *testing.T) {
	f := newFake()
	c := cached(t, f, func(c *Config) { c.Origin = Any })
	p := reserve(t, 1)
	was := getPut(t, c, p, 8, LocalWrite)
	memtest.SetReaderDelay(100_000)
	defer memtest.SetReaderDelay(0)
	defer takeOver(t, p)()
	for _, o := range []Origin{Mapped, GoHeap} {
		r, err := c.GetFrom(o, ptr(p), 8, LocalWrite)
		noError(t, err)
		if r.LKey == was || !f.mr(t, r).lands(p, 8) {
			t.Errorf("%v: registration %d of the pages before was hit", o, r.LKey)
		}
		mustPut(t, c, r)
	}
}

func unmapUnreported(t *testing.T, o Origin, kept bool) {
	f := newFake()
	c := cached(t, f, func(c *Config) { c.Origin = o })
	p := reserve(t, 1)
	was := getPut(t, c, p, 8, LocalWrite)
	get := c.Get
	if kept {
		get = c.GetKept
	}

	memtest.SetReaderDelay(100_000)
	defer memtest.SetReaderDelay(0)
	defer takeOver(t, p)()
	r, err := get(ptr(p), 8, LocalWrite)
	if err != nil && !kept {
		t.Fatal(err)
	}
	if err != nil { // the copy that comes then is right too
		return
	}
	if r.LKey == was || !f.mr(t, r).lands(p, 8) {
		t.Errorf("registration %d of the pages before was hit", r.LKey)
	}
	mustPut(t, c, r)
}

// takeOver has one thread unmap a page, and another map it as soon as the kernel lets it, which is
// before it has reported the first. The result waits for that.
func takeOver(t *testing.T, p uintptr) (wait func()) {
	t.Helper()
	var freed sync.WaitGroup
	freed.Go(func() { unix.Syscall(unix.SYS_MUNMAP, p, page, 0) }) // returns when it is reported
	for end := time.Now().Add(20 * time.Second); ; {
		const flags = unix.MAP_PRIVATE | unix.MAP_ANONYMOUS | unix.MAP_FIXED_NOREPLACE
		_, _, errno := unix.Syscall6(unix.SYS_MMAP, p, page, rw, flags, ^uintptr(0), 0)
		if errno == 0 {
			stamp(p, p+page)
			return freed.Wait
		}
		if time.Now().After(end) {
			t.Fatal(errno)
		}
	}
}
