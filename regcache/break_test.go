//go:build linux && cgo && (amd64 || arm64)

// What callers should not do, and what several do at once.

package regcache

import (
	"bytes"
	"errors"
	"math"
	"os"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit/internal/memtest"
)

// Two Gets need the room of one idle registration. The one that finds none gets no error of lacking
// memory.
func TestGetsThatLackMemoryShareWhatIsIdle_18(t *testing.T) {
	f := newFake()
	f.limit = 4 * int64(page)
	c := newCache(t, f, func(c *Config) { c.Origin = Mapped })
	p := reserve(t, 16)
	getPut(t, c, p, 4*uint64(page), LocalWrite)
	var lacking atomic.Int32
	f.failed = func() { lacking.Add(1) }
	f.ending = func(*fakeMR) { // the room is there when both have asked for it
		eventually(t, "both lack memory", func() bool { return lacking.Load() >= 2 })
	}
	var wg sync.WaitGroup
	for i := range uintptr(2) {
		wg.Go(func() {
			r, err := c.Get(ptr(p+(6+4*i)*page), 2*uint64(page), LocalWrite)
			if err != nil {
				t.Error(err)
				return
			}
			mustPut(t, c, r)
		})
	}
	wg.Wait()
	f.ending, f.failed = nil, nil
	checkStats(t, c)
}

func TestStrictCacheSeesMergedRangesChange_09(t *testing.T) {
	for _, strict := range []bool{true, false} {
		f := newFake()
		c := cached(t, f, func(c *Config) { c.Strict = strict })
		p := reserve(t, 8)
		small := mustGet(t, c, p+page, 2*uint64(page), LocalWrite)
		large := mustGet(t, c, p, 8*uint64(page), LocalWrite)
		call(t, memtest.Munmap, p+page, page)
		remap(t, p+page, p+2*page)
		for _, r := range []Region{small, large} {
			f.mr(t, r)
			if err := c.Put(r); strict && !errors.Is(err, ErrInvalidated) || !strict && err != nil {
				t.Errorf("strict %v: Put: %v", strict, err)
			}
		}
		if n, _ := f.registered(); n != 0 {
			t.Errorf("%d registrations are left", n)
		}
	}
}

// Whatever is asked for: an error that says so, or a registration that lands; and nothing is left
// behind.
func TestOddRangesAreRefusedOrRight(t *testing.T) {
	file := must(os.CreateTemp(t.TempDir(), "short"))(t)
	defer file.Close()
	noError(t, file.Truncate(int64(page)))
	beyond := must(unix.MmapPtr(int(file.Fd()), 0, nil, 4*page, rw, unix.MAP_SHARED))(t)
	defer unix.MunmapPtr(beyond, 4*page)
	none := reserve(t, 2)
	protect(t, none, page, unix.PROT_NONE)
	p := reserve(t, 2)
	text := reflect.ValueOf(TestOddRangesAreRefusedOrRight).Pointer()
	for _, x := range []struct {
		name   string
		lo     uintptr
		n      uint64
		access Access
		want   error
	}{
		{"the first page", 8, 8, 0, unix.EFAULT},
		{"not mapped", p - page, 8, 0, unix.EFAULT},
		{"the end not mapped", p, 2*uint64(page) + 1, LocalWrite, unix.EFAULT},
		{"the kernel's", 0xffff_8880_0000_0000, 4096, 0, unix.EFAULT},
		{"between the halves of memory", 1 << 62, 8, LocalWrite, unix.EFAULT},
		{"the last page", ^(page - 1), uint64(page) - 1, 0, unix.EFAULT},
		{"half of memory", p, 1 << 63, LocalWrite, unix.EFAULT},
		{"the other half", 1 << 63, 1<<63 - 1, LocalWrite, unix.EFAULT},
		{"all but a page", page, math.MaxUint64 - 2*uint64(page), LocalWrite, unix.EFAULT},
		{"around", ^uintptr(0) - 7, 16, 0, unix.EINVAL},
		{"PROT_NONE", none, 8, 0, unix.EFAULT},
		{"PROT_NONE and the page behind", none, 2 * uint64(page), 0, unix.EFAULT},
		{"code, to write", text, 8, LocalWrite, unix.EFAULT},
		{"code, to read", text, 8, RemoteRead, nil},
		{"a shared file", uintptr(beyond), uint64(page), RemoteWrite, nil},
		{"beyond its end", uintptr(beyond) + page, 8, RemoteWrite, unix.EFAULT},
		{"over its end", uintptr(beyond), uint64(page) + 1, 0, unix.EFAULT},
	} {
		t.Run(x.name, func(t *testing.T) {
			for o := range numOrigins {
				f := newFake()
				c := newCache(t, f, func(c *Config) { c.Origin = o })
				for range 2 {
					r, err := c.Get(ptr(x.lo), x.n, x.access)
					if !errors.Is(err, x.want) {
						t.Errorf("%v: %v, want %v", o, err, x.want)
					}
					if err != nil {
						continue
					}
					if !f.mr(t, r).lands(x.lo, x.n) {
						t.Errorf("%v: does not land", o)
					}
					mustPut(t, c, r)
				}
				if err := checkIdle(c); err != nil {
					t.Errorf("%v: %v", o, err)
				}
				if n, _ := f.registered(); n != 0 {
					t.Errorf("%v: %d registrations are left", o, n)
				}
			}
		})
	}
}

// Each part that userfaultfd watches is a mapping of its own for the kernel, of which a process
// may have 65530: a program that communicates from ever other places must not run out of them.
func TestWatchingLeavesNoMappingsBehind(t *testing.T) {
	f := newFake()
	c := newCache(t, f, func(c *Config) { c.MaxRegions = 16 })
	needCached(t, c, Any)
	const places = 2000
	p := reserve(t, 2*places)
	before := mappings(t)
	for i := range uintptr(places) {
		getPut(t, c, p+2*i*page, 8, LocalWrite)
	}
	if s := c.Stats(); s.Misses < places/2 {
		t.Fatalf("not cached: %+v", s)
	}
	if more := mappings(t) - before; more > 200 { // 16 need 32; the runtime may make some
		t.Errorf("%d mappings more for 16 registrations", more)
	}
}

func mappings(t testing.TB) int {
	t.Helper()
	text, err := os.ReadFile("/proc/self/maps")
	noError(t, err)
	return bytes.Count(text, []byte("\n"))
}

// What one registration no longer needs to see, another may.
func TestWhatOthersWatchStaysWatched(t *testing.T) {
	needCached(t, newCache(t, newFake()), Any)
	for _, x := range []struct{ from, to uintptr }{{0, 12}, {0, 6}, {6, 12}, {4, 8}, {5, 6}} {
		a, b := newCache(t, newFake()), newCache(t, newFake())
		settle(t)
		p := reserve(t, 12)
		r := mustGet(t, a, p+4*page, 4*uint64(page), LocalWrite)
		mustPut(t, a, r)
		getPut(t, b, p+x.from*page, uint64((x.to-x.from)*page), LocalWrite)
		b.Clear()
		unix.RawSyscall(unix.SYS_MUNMAP, p+5*page, page, 0)
		remap(t, p+5*page, p+6*page)
		if again := mustGet(t, a, p+4*page, 4*uint64(page), LocalWrite); again.LKey == r.LKey {
			t.Errorf("pages %d to %d were watched by another, and a page of 4 to 8 went unseen", x.from, x.to)
		} else {
			mustPut(t, a, again)
		}
	}
}

// The program's own userfaultfd may watch memory that comes where ours watched.
func TestAnotherUserfaultfdKeepsItsMemory(t *testing.T) {
	c := newCache(t, newFake())
	needCached(t, c, Any)
	settle(t)
	p := reserve(t, 4)
	getPut(t, c, p, 4*uint64(page), LocalWrite)
	unix.RawSyscall(unix.SYS_MUNMAP, p, 4*page, 0)
	mapAt(t, p, 4*page, rw)
	fd, _, errno := unix.RawSyscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC|unix.O_NONBLOCK|1, 0, 0)
	if errno != 0 {
		t.Fatal(errno)
	}
	defer unix.Close(int(fd))
	// ioctl_userfaultfd(2): UFFDIO_API and UFFDIO_REGISTER for missing pages.
	api, reg := [3]uint64{0xaa}, [4]uint64{uint64(p), uint64(4 * page), 1}
	for _, x := range []struct {
		request uintptr
		arg     unsafe.Pointer
	}{{0xc018aa3f, unsafe.Pointer(&api)}, {0xc020aa00, unsafe.Pointer(&reg)}} {
		if _, _, errno := unix.RawSyscall(unix.SYS_IOCTL, fd, x.request, uintptr(x.arg)); errno != 0 {
			t.Fatalf("%#x: %v", x.request, errno)
		}
	}
	c.Clear() // deregisters what was there
	if flags := must(memtest.VMFlags(p))(t); !strings.Contains(flags, " um") {
		t.Errorf("the flags are%s: the other's watch is gone", flags)
	}
}

// An entry may go while another stands at the same place: the index finds the right one.
func TestIndexAgreesWithALinearSearch(t *testing.T) {
	var x index
	var all []*entry
	rnd := &rand{7}
	at := func(n int) uintptr { return uintptr(n) * page }
	for round := range 3000 {
		if rnd.below(3) > 0 {
			lo := rnd.below(60)
			e := &entry{lo: at(lo), hi: at(lo + 1 + rnd.below(20))}
			all = append(all, e)
			x.insert(e)
		} else {
			for range rnd.below(2 * fewDropped) {
				if len(all) == 0 {
					break
				}
				i := rnd.below(len(all))
				all[i].gone = true
				x.drop(all[i])
				all = append(all[:i], all[i+1:]...)
			}
			x.prune()
		}
		lo := rnd.below(80)
		hi := lo + 1 + rnd.below(5)
		want := map[*entry]bool{}
		for _, e := range all {
			if e.lo < at(hi) && e.hi > at(lo) {
				want[e] = true
			}
		}
		x.overlapping(at(lo), at(hi), func(e *entry) {
			if !want[e] {
				t.Fatalf("round %d: [%#x,%#x) is found and not there, or twice", round, e.lo, e.hi)
			}
			delete(want, e)
		})
		if len(want) > 0 {
			t.Fatalf("round %d: %d entries are not found", round, len(want))
		}
	}
}

// Everything at once, from many goroutines, with Close among it: no deadlock, nothing lost.
func TestAllCallsAtOnce(t *testing.T) {
	f := newFake()
	p := reserve(t, 64)
	for range 20 {
		c := must(New(Config{Registrar: f, Origin: Mapped, MaxRegions: 6, MaxDeadBytes: -1}))(t)
		var wg sync.WaitGroup
		for i := range 8 {
			rnd := &rand{uint64(i) + 99}
			wg.Go(func() {
				for range 300 {
					r, err := c.Get(ptr(p+uintptr(rnd.below(60))*page), uint64(1+rnd.below(4*int(page))), LocalWrite)
					if errors.Is(err, os.ErrClosed) {
						continue
					}
					if err != nil {
						t.Error(err)
						return
					}
					switch rnd.below(8) {
					case 0:
						call(t, memtest.Madvise, p+uintptr(rnd.below(63))*page, page, unix.MADV_DONTNEED)
					case 1:
						c.Clear()
					case 2:
						c.Stats()
					}
					f.mr(t, r)
					if err := c.Put(r); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Go(func() {
			for range 20 {
				if err := c.Close(); err != nil && !errors.Is(err, ErrBusy) {
					t.Error(err)
				}
			}
		})
		wg.Wait()
		finish(t, c, f)
	}
}
