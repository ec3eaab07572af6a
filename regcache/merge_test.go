//go:build linux && cgo && (amd64 || arm64)

package regcache

import (
	"errors"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit/internal/memtest"
)

func TestOverlappingRangesMerge_19(t *testing.T) {
	type span struct{ from, pages uintptr }
	for _, x := range []struct {
		name        string
		have        []span
		get, merged span
		merges      uint64
	}{
		{"left", []span{{4, 4}}, span{2, 4}, span{2, 6}, 1},
		{"right", []span{{4, 4}}, span{6, 4}, span{4, 6}, 1},
		{"around", []span{{4, 4}}, span{2, 8}, span{2, 8}, 1},
		{"bridging two", []span{{0, 4}, {8, 4}}, span{3, 6}, span{0, 12}, 2},
		{"a chain", []span{{0, 4}, {6, 4}, {12, 2}}, span{3, 10}, span{0, 14}, 3},
		{"neighbours stay apart", []span{{0, 4}}, span{4, 4}, span{4, 4}, 0},
	} {
		t.Run(x.name, func(t *testing.T) {
			f := newFake()
			c := cached(t, f)
			p := reserve(t, 16)
			for _, s := range x.have {
				getPut(t, c, p+s.from*page, uint64(s.pages*page), LocalWrite)
			}
			r := mustGet(t, c, p+x.get.from*page, uint64(x.get.pages*page), RemoteRead)
			m := f.mr(t, r)
			if m.lo != p+x.merged.from*page || m.n != uint64(x.merged.pages*page) {
				t.Errorf("registered pages %d to %d", (m.lo-p)/page, (m.lo-p+uintptr(m.n))/page)
			}
			if want := RemoteRead | LocalWrite; x.merges > 0 && m.access != want {
				t.Errorf("access %v, want %v", m.access, want)
			}
			mustPut(t, c, r)
			if s := c.Stats(); s.Merged != x.merges {
				t.Errorf("merged %d, want %d", s.Merged, x.merges)
			}
			for _, s := range x.have {
				if getPut(t, c, p+s.from*page, uint64(s.pages*page), LocalWrite) != r.LKey && x.merges > 0 {
					t.Error("the merged registration does not serve what it replaced")
				}
			}
		})
	}
}

func TestFailedUnionGivesTheExactRange_19(t *testing.T) {
	for name, prot := range map[string]int{"not mapped": -1, "PROT_NONE": unix.PROT_NONE, "read-only": unix.PROT_READ} {
		t.Run(name, func(t *testing.T) {
			f := newFake()
			c := cached(t, f)
			p := reserve(t, 12)
			getPut(t, c, p, 4*uint64(page), LocalWrite)
			// Behind the cache's back, as mprotect is.
			if prot < 0 {
				unix.RawSyscall(unix.SYS_MUNMAP, p, page, 0)
				defer mapAt(t, p, page, rw)
			} else if err := unix.Mprotect(unsafe.Slice((*byte)(ptr(p)), page), prot); err != nil {
				t.Fatal(err)
			}
			r := mustGet(t, c, p+3*page, 4*uint64(page), LocalWrite)
			if m := f.mr(t, r); m.lo != p+3*page || m.n != 4*uint64(page) || !m.lands(p+3*page, 4*uint64(page)) {
				t.Errorf("registered pages %d to %d", (m.lo-p)/page, (m.lo-p+uintptr(m.n))/page)
			}
			mustPut(t, c, r)
		})
	}
}

func TestMoreAccessIsANewRegistration_19(t *testing.T) {
	f := newFake()
	c := cached(t, f)
	p, n := reserve(t, 4), 4*uint64(page)
	readable := getPut(t, c, p, n, RemoteRead)
	r := mustGet(t, c, p, n, RemoteWrite)
	if r.LKey == readable || f.mr(t, r).access&(RemoteWrite|LocalWrite) != RemoteWrite|LocalWrite {
		t.Errorf("access %v", f.mr(t, r).access)
	}
	mustPut(t, c, r)
	protect(t, p, page, unix.PROT_READ)
	if _, err := c.Get(ptr(p), n, RemoteWrite|RemoteAtomic); !errors.Is(err, unix.EFAULT) {
		t.Errorf("more access than the memory has: %v, want EFAULT", err)
	}
}

// A merged registration ends when a part goes that only the other user asked for.
func TestAMergedRegistrationEndsWithAnyPart_19(t *testing.T) {
	f := newFake()
	c := cached(t, f)
	p := reserve(t, 8)
	getPut(t, c, p, 4*uint64(page), LocalWrite)
	merged := getPut(t, c, p+3*page, 5*uint64(page), LocalWrite)
	if f.mr(t, Region{LKey: merged}).n != 8*uint64(page) {
		t.Fatal("not merged")
	}
	call(t, memtest.Munmap, p, page)
	remap(t, p, p+page)
	if mustLand(t, f, c, p+4*page, 4*uint64(page), "the merged registration") == merged {
		t.Error("the merged registration goes on")
	}
}

// userfaultfd watches what is mapped when it is asked. A page of the union that is a hole at that
// moment, and comes before the registration, would not be watched: so the union wants all that it
// joins to be valid still.
func TestAUnionWantsWhatItJoinsToBeStillThere_19(t *testing.T) {
	for range 20 {
		if unionOfAHole(t) {
			return
		}
	}
	t.Fatal("no union had a hole, each time: nothing was tested")
}

// unionOfAHole is false where a registration was for one operation only, as while the runtime
// discards: then there is no union.
func unionOfAHole(t *testing.T) bool {
	f := newFake()
	c := newCache(t, f, func(c *Config) { c.MaxRegions = 2 })
	needCached(t, c, Any)
	settle(t)
	p, other := reserve(t, 4), reserve(t, 1)
	last := p + 3*page
	getPut(t, c, other, 8, LocalWrite) // makes room for the union, which is the moment for the hole
	getPut(t, c, p+2*page, 2*uint64(page), LocalWrite)
	raw := func(nr, lo, n uintptr) {
		if _, _, errno := unix.RawSyscall(nr, lo, n, 0); errno != 0 {
			t.Error(errno)
		}
	}
	holes, fills := 0, 0
	f.ending = func(m *fakeMR) {
		if m.lo == other {
			holes++
			raw(unix.SYS_MUNMAP, last, page)
		}
	}
	f.before = func(lo, hi uintptr) {
		if fills == 0 {
			fills++
			remap(t, last, last+page)
		}
	}
	r := mustGet(t, c, p, 3*uint64(page), LocalWrite)
	f.ending, f.before = nil, nil
	mustPut(t, c, r)
	if holes != 1 || fills != 1 {
		return false
	}
	mustPut(t, c, mustGet(t, c, last, 8, LocalWrite))

	raw(unix.SYS_MUNMAP, last, page)
	remap(t, last, last+page)
	mustLand(t, f, c, last, 8, "a hit on a page that was a hole when the union was claimed")
	return true
}
