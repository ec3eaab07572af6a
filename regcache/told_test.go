//go:build linux && cgo && (amd64 || arm64)

package regcache

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Pages are gone, and their addresses free for all, before the kernel tells of it: what another thread maps there then is
// not what was registered, though no word of it has come. Of malloc this is every day's work: one thread frees a large
// block, another is given the same addresses.
func TestWhatTheKernelHasNotToldYetIsNotHit(t *testing.T) {
	for _, o := range []Origin{Any, Malloc, GoMapped} {
		for _, kept := range []bool{false, true} {
			t.Run(fmt.Sprintf("%v kept %v", o, kept), func(t *testing.T) { unmapUntold(t, o, kept) })
		}
	}
}

func unmapUntold(t *testing.T, o Origin, kept bool) {
	f := newFake()
	c := cached(t, f, func(c *Config) { c.Origin = o })
	p := reserve(t, 1)
	was := getPut(t, c, p, 8, LocalWrite)
	get := c.Get
	if kept {
		get = c.GetKept
	}

	setReaderDelay(100_000)
	defer setReaderDelay(0)
	var freed sync.WaitGroup
	freed.Go(func() { unix.Syscall(unix.SYS_MUNMAP, p, page, 0) }) // returns when it is told
	defer freed.Wait()
	for end := time.Now().Add(20 * time.Second); ; {
		const flags = unix.MAP_PRIVATE | unix.MAP_ANONYMOUS | unix.MAP_FIXED_NOREPLACE
		if _, _, errno := unix.Syscall6(unix.SYS_MMAP, p, page, rw, flags, ^uintptr(0), 0); errno == 0 {
			break
		} else if time.Now().After(end) {
			t.Fatal(errno)
		}
	}
	stamp(p, p+page)
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
