package pagepool

import (
	"encoding/binary"
	"flag"
	"math"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

var steps = flag.Int("steps", 20000, "steps of the random tests")

// all is for a pool that may have any memory.
const all = math.MaxUint64

func unbounded() uint64 { return ^uint64(0) }

// resident is how many bytes of the mappings that b lies in have memory, as /proc/self/smaps says.
func resident(t *testing.T, b []byte) (n uint64) {
	t.Helper()
	text, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	at := uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b))))
	inside := false
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if lo, hi, ok := strings.Cut(fields[0], "-"); ok {
			l, err1 := strconv.ParseUint(lo, 16, 64)
			h, err2 := strconv.ParseUint(hi, 16, 64)
			if err1 == nil && err2 == nil {
				inside = l < at+uint64(len(b)) && at < h
			}
		}
		if inside && fields[0] == "Rss:" {
			kb, _ := strconv.ParseUint(fields[1], 10, 64)
			n += kb << 10
		}
	}
	return n
}

// file is shared memory as a segment is.
func file(t *testing.T, n int) []byte {
	b, _ := fileOf(t, n)
	return b
}

// fileOf is file, and how many bytes of the file have memory.
func fileOf(t *testing.T, n int) (b []byte, memory func() int64) {
	t.Helper()
	fd, err := unix.MemfdCreate("pagepool", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	if err := unix.Ftruncate(fd, int64(n)); err != nil {
		t.Fatal(err)
	}
	b, err = unix.Mmap(fd, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(b) })
	return b, func() int64 {
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			t.Fatal(err)
		}
		return st.Blocks * 512 // stat(2)
	}
}

func pool(t *testing.T) *Pool {
	s := New()
	t.Cleanup(func() {
		if err := s.Verify(); err != nil {
			t.Error(err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func take(t *testing.T, s *Pool, n, most uint64) []byte {
	t.Helper()
	b, err := s.Take(n, most)
	if err != nil {
		t.Fatal(err)
	}
	for i := range b {
		b[i] = 1
	}
	return b
}

func TestIdleSlabsAreUnmapped(t *testing.T) {
	s := pool(t)
	b := take(t, s, 8<<20, all)
	if n := resident(t, b); n != 8<<20 {
		t.Errorf("%d bytes of 8 MiB in use have memory", n)
	}
	s.Give(b)
	s.Tick()
	if st := s.Stats(); st.Warm != 8<<20 || st.Mapped == 0 {
		t.Errorf("given back at once: %+v", st)
	}
	s.Tick()
	if st := s.Stats(); st.Warm != 0 || st.Mapped != 0 || st.Given != 8<<20 {
		t.Errorf("idle, and not given back: %+v", st)
	}
}

func TestWarmPagesGiveWay(t *testing.T) {
	s := pool(t)
	const most = 6 << 20
	first, second := take(t, s, 4<<20, most), take(t, s, 1<<20, most)
	s.Give(first)
	if st := s.Stats(); st.Warm != 4<<20 {
		t.Errorf("%+v", st)
	}
	third := take(t, s, 5<<20, most) // not where the first was: that is too small
	if st := s.Stats(); st.Used+st.Warm > most || st.Peak > most {
		t.Errorf("more than %d bytes have memory: %+v", most, st)
	}
	if n := resident(t, first); n > most {
		t.Errorf("%d bytes have memory", n)
	}
	s.Give(second)
	s.Give(third)
}

func TestARegionsHolesHaveNoMemory(t *testing.T) {
	s := pool(t)
	mem, memory := fileOf(t, 4<<20)
	r := s.NewRegion(mem, false, unbounded)
	var offs []uint64
	r.Take([]int{1 << 20, 5000}, func(o []uint64) { offs = o })
	if len(offs) != 2 || offs[1]%Size != 0 {
		t.Fatalf("runs at %v", offs)
	}
	if n := memory(); n != int64(1<<20+2*Size) || resident(t, mem) != uint64(n) {
		t.Errorf("%d bytes of the file have memory, %d of the mapping", n, resident(t, mem))
	}
	r.Give(offs[0], 1<<20)
	r.Give(offs[1], 5000)
	s.Tick()
	s.Tick()
	if n := memory(); n != 0 || resident(t, mem) != 0 {
		t.Errorf("idle, and %d bytes have memory", n)
	}
}

func TestPinnedMemoryStays(t *testing.T) {
	s, mem := pool(t), file(t, 1<<20)
	other := s.NewRegion(file(t, 1<<20), false, unbounded)
	other.Take([]int{1 << 20}, func([]uint64) {})
	other.Give(0, 1<<20)
	r := s.NewRegion(mem, true, unbounded)
	var at []uint64
	r.Take([]int{1 << 20}, func(o []uint64) { at = o })
	mem[5] = 7
	r.Give(at[0], 1<<20)
	s.Tick()
	s.Tick()
	s.Fit(0)
	if mem[5] != 7 {
		t.Error("a device would write to memory that the segment has no more")
	}
}

func TestRunsOfAClaimComeTogether(t *testing.T) {
	s := pool(t)
	r := s.NewRegion(file(t, 8*int(Size)), false, unbounded)
	page := int(Size)
	var got [][]uint64
	claim := func(sizes ...int) *Claim {
		return r.Take(sizes, func(o []uint64) { got = append(got, o) })
	}
	claim(3*page, page)
	claim(3 * page)
	second := claim(page, page) // only one page is there
	claim(page)                 // which waits behind it
	if len(got) != 2 {
		t.Fatalf("granted %v", got)
	}
	if !second.Cancel() || second.Cancel() {
		t.Error("a claim that waits is cancelled once")
	}
	if len(got) != 3 {
		t.Errorf("behind a claim that was cancelled: granted %v", got)
	}
	for i, o := range [][]int{{3 * page, page}, {3 * page}, {page}} {
		for k, n := range o {
			r.Give(got[i][k], n)
		}
	}
	claim(8 * page)
	if len(got) != 4 {
		t.Error("an empty region does not serve a claim that fits")
	}
	r.Give(got[3][0], 8*page)
}

func TestARunGivenTwicePanics(t *testing.T) {
	s := New()
	defer s.Close()
	b, err := s.Take(1, all)
	if err != nil {
		t.Fatal(err)
	}
	s.Give(b)
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	s.Give(b)
}

// Random runs never overlap, keep what is written to them, and the accounts are right.
func TestRandomRunsKeepTheAccounts(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	s := pool(t)
	most := uint64(24 << 20)
	r := s.NewRegion(file(t, 16<<20), false, func() uint64 { return most })
	type run struct {
		b   []byte
		off uint64
		in  *Region
		tag byte
	}
	var runs []run
	mark := func(x run) {
		x.b[0], x.b[len(x.b)-1] = x.tag, x.tag
		runs = append(runs, x)
	}
	var used uint64
	for i := range *steps {
		n := 1 + rng.Uint64N(1<<uint(10+rng.IntN(12)))
		switch k := rng.IntN(10); {
		case k < 5 && used+Round(n) <= most:
			tag := byte(i)
			used += Round(n)
			if k < 3 {
				b, err := s.Take(n, most)
				if err != nil {
					t.Fatal(err)
				}
				mark(run{b: b, tag: tag})
				break
			}
			c := r.Take([]int{int(n)}, func(o []uint64) {
				mark(run{b: r.Memory(o[0], int(Round(n))), off: o[0], in: r, tag: tag})
			})
			if c.Cancel() {
				used -= Round(n)
			}
		case k < 9 && len(runs) > 0:
			j := rng.IntN(len(runs))
			x := runs[j]
			runs[j] = runs[len(runs)-1]
			runs = runs[:len(runs)-1]
			if x.b[0] != x.tag || x.b[len(x.b)-1] != x.tag {
				t.Fatalf("step %d: a run lost what was written", i)
			}
			used -= uint64(len(x.b))
			if x.in != nil {
				x.in.Give(x.off, len(x.b))
			} else {
				s.Give(x.b)
			}
		case k == 9 && rng.IntN(20) == 0:
			s.Tick()
		}
		if st := s.Stats(); st.Used != used || st.Used+st.Warm > most {
			t.Fatalf("step %d: %+v, used are %d", i, st, used)
		}
		if i%100 == 0 {
			if err := s.Verify(); err != nil {
				t.Fatalf("step %d: %v", i, err)
			}
		}
	}
	for _, x := range runs {
		if x.in != nil {
			x.in.Give(x.off, len(x.b))
		} else {
			s.Give(x.b)
		}
	}
}

// Pages that were written once, and are marked as referenced, are the last that the kernel swaps.
func TestNewMemoryIsNotMarkedReferenced(t *testing.T) {
	flags, err := os.Open("/proc/kpageflags")
	if err != nil {
		t.Skipf("flags of pages are for a privileged reader: %v", err)
	}
	defer flags.Close()
	maps, err := os.Open("/proc/self/pagemap")
	if err != nil {
		t.Fatal(err)
	}
	defer maps.Close()
	word := func(f *os.File, i uint64) uint64 {
		var b [8]byte
		if _, err := f.ReadAt(b[:], int64(8*i)); err != nil {
			t.Fatal(err)
		}
		return binary.NativeEndian.Uint64(b[:])
	}
	s := pool(t)
	b, err := s.Take(64*Size, all)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Give(b)
	at := uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) / Size
	const present, frame, referenced = 1 << 63, 1<<55 - 1, 1 << 2 // Documentation/admin-guide/mm/pagemap.rst
	marked := 0
	for i := range uint64(64) {
		p := word(maps, at+i)
		if p&present == 0 {
			t.Fatalf("page %d of a run has no memory", i)
		}
		if p&frame == 0 {
			t.Skip("frames of pages are for a privileged reader")
		}
		if word(flags, p&frame)&referenced != 0 {
			marked++
		}
	}
	// Others may look at the pages meanwhile: reclaim, and what samples accesses.
	if marked > 32 {
		t.Errorf("%d of 64 pages are marked as referenced", marked)
	}
}
