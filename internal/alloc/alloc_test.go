package alloc

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// plugins are the allocators under test.
var plugins = []struct {
	name string
	make func() Allocator
}{
	{"segregated", func() Allocator { return NewSegregated() }},
	{"buddy", func() Allocator { return NewBuddy() }},
}

func forAll(t *testing.T, f func(t *testing.T, a Allocator)) {
	for _, p := range plugins {
		t.Run(p.name, func(t *testing.T) { f(t, p.make()) })
	}
}

// checked is an allocator over memory of its own, whose faults fail the test.
func checked(t *testing.T, below Allocator, most uint64) *Checked {
	mem := make([]byte, most)
	return NewChecked(below, CheckedConfig{
		Bytes: func(off, n uint64) []byte { return mem[off : off+n : off+n] },
		Fault: func(err error) { t.Helper(); t.Fatal(err) },
	})
}

func TestRandomBlocksNeverOverlap(t *testing.T) {
	const most = 1 << 20
	for seed := range uint64(4) {
		forAll(t, func(t *testing.T, below Allocator) {
			rnd := rand.New(rand.NewPCG(seed, 0))
			a := checked(t, below, most)
			var live []uint64
			var length uint64
			for i := range 10_000 {
				if s, ok := below.(*Segregated); ok && i%16 == 0 {
					verify(t, s)
				}
				switch k := rnd.IntN(100); {
				case k < 2 && length < most:
					n := min(most-length, PageSize<<rnd.IntN(8))
					a.Grow(n)
					length += n
				case k < 3:
					length = a.Trim()
				case k < 55:
					n := 1 + rnd.Uint64N(1<<rnd.IntN(17))
					align := uint64(1) << rnd.IntN(14)
					off, ok := a.Alloc(n, align)
					if need := a.Need(n, align); !ok && length+need <= most {
						a.Grow(need - PageSize)
						if _, ok := a.Alloc(n, align); ok {
							t.Fatalf("%d bytes at a multiple of %d need %d, and are had with less", n, align, need)
						}
						a.Grow(PageSize)
						length += need
						if off, ok = a.Alloc(n, align); !ok {
							t.Fatalf("%d bytes at a multiple of %d need %d, and are not had with them", n, align, need)
						}
					}
					if ok {
						live = append(live, off)
					}
				case len(live) > 0:
					i := rnd.IntN(len(live))
					if _, err := a.Free(live[i]); err != nil {
						t.Fatal(err)
					}
					live[i] = live[len(live)-1]
					live = live[:len(live)-1]
				}
			}
			a.Stats()
			for _, off := range live {
				if _, err := a.Free(off); err != nil {
					t.Fatal(err)
				}
			}
			if s := a.Stats(); s.Blocks != 0 || s.InUse != 0 {
				t.Fatalf("seed %d: all is freed, and %d bytes are in use", seed, s.InUse)
			}
			if n := a.Trim(); n != 0 {
				t.Fatalf("seed %d: all is freed, and %d bytes stay", seed, n)
			}
		})
	}
}

// verify checks that the runs cover the heap, and that no two free ones lie side by side.
func verify(t *testing.T, a *Segregated) {
	before := unused
	for page := uint32(0); page < uint32(len(a.pages)); {
		i := a.pages[page]
		s := &a.spans[i]
		if s.pages == 0 || s.start != page || a.pages[page+s.pages-1] != i || before == free && s.kind == free {
			t.Fatalf("page %d belongs to %+v, behind one of kind %d", page, s, before)
		}
		before = s.kind
		page += s.pages
	}
}

func TestTheLastByteCanBeHad(t *testing.T) {
	forAll(t, func(t *testing.T, a Allocator) {
		for _, pages := range []uint64{1, 2, 16, 1024} {
			a.Grow(pages*PageSize - a.Stats().Len)
			off, ok := a.Alloc(pages*PageSize, 0)
			if !ok || off != 0 {
				t.Fatalf("%d pages of %d: %#x, %t", pages, pages, off, ok)
			}
			if _, ok := a.Alloc(1, 0); ok {
				t.Fatal("a byte more than there is")
			}
			if _, err := a.Free(off); err != nil {
				t.Fatal(err)
			}
			if _, ok := a.Alloc(pages*PageSize+1, 0); ok {
				t.Fatal("more than the heap has")
			}
			if _, ok := a.Alloc(1, 2*pages*PageSize); !ok && pages > 1 {
				// offset 0 is a multiple of anything, but no allocator promises that
				t.Log("no byte at a multiple of twice the heap")
			}
			for _, off := range used(a, pages*PageSize) {
				if _, err := a.Free(off); err != nil {
					t.Fatal(err)
				}
			}
		}
	})
}

// used are the offsets at which blocks begin.
func used(a Allocator, length uint64) (all []uint64) {
	for off := uint64(0); off < length; off += minBlock {
		if a.Room(off) > 0 {
			all = append(all, off)
		}
	}
	return all
}

// A heap with its last page free serves one-byte blocks from it until it is full.
func TestSmallBlocksFillTheLastPage(t *testing.T) {
	forAll(t, func(t *testing.T, a Allocator) {
		a.Grow(17 * PageSize)
		if _, ok := a.Alloc(16*PageSize, 0); !ok {
			t.Fatal("16 of 17 pages")
		}
		for _, n := range []uint64{1, 48, 320, 1024, 4096} {
			var blocks []uint64
			for {
				off, ok := a.Alloc(n, 0)
				if !ok {
					break
				}
				blocks = append(blocks, off)
			}
			if want := int(PageSize / (2 * max(n, minBuddy))); len(blocks) < want {
				t.Errorf("%d blocks of %d bytes in a page, want %d at least", len(blocks), n, want)
			}
			for _, off := range blocks {
				if _, err := a.Free(off); err != nil {
					t.Fatal(err)
				}
			}
		}
	})
}

func TestWrongFreesAreNamed(t *testing.T) {
	forAll(t, func(t *testing.T, a Allocator) {
		a.Grow(1 << 20)
		little, _ := a.Alloc(100, 0)
		large, _ := a.Alloc(100<<10, 0)
		gone, _ := a.Alloc(300, 0)
		if _, err := a.Free(gone); err != nil {
			t.Fatal(err)
		}
		before := a.Stats()
		for _, c := range []struct {
			what string
			off  uint64
			want FreeError
			text string
		}{
			{"inside of a small block", little + 32, FreeError{Off: little + 32, Inner: true, Block: little}, "lies inside of the block at"},
			{"an odd offset", little + 3, FreeError{Off: little + 3, Inner: true, Block: little}, "lies inside"},
			{"inside of a large block", large + 8*PageSize, FreeError{Off: large + 8*PageSize, Inner: true, Block: large}, "lies inside"},
			{"twice", gone, FreeError{Off: gone}, "freed before, or never allocated"},
			{"outside", 1 << 20, FreeError{Off: 1 << 20, Out: true}, "outside of the heap"},
			{"far outside", 1 << 63, FreeError{Off: 1 << 63, Out: true}, "outside of the heap"},
		} {
			_, err := a.Free(c.off)
			var got *FreeError
			if !errors.As(err, &got) || *got != c.want || !strings.Contains(err.Error(), c.text) || !errors.Is(err, ErrNotAllocated) {
				t.Errorf("%s: %v", c.what, err)
			}
		}
		if after := a.Stats(); after != before {
			t.Errorf("wrong frees changed %+v to %+v", before, after)
		}
		if a.Room(little) < 100 || a.Room(large) < 100<<10 || a.Room(gone) != 0 || a.Room(little+16) != 0 {
			t.Error("Room is wrong")
		}
	})
}

func TestMetadataIsSmall(t *testing.T) {
	for _, p := range plugins {
		for _, n := range []uint64{64, 1024, 64 << 10} {
			a := p.make()
			a.Grow(16 << 20)
			for {
				if _, ok := a.Alloc(n, 0); !ok {
					break
				}
			}
			s := a.Stats()
			share := float64(s.Meta) / float64(s.Len)
			t.Logf("%s: blocks of %d bytes: %d, metadata %.2f %%", p.name, n, s.Blocks, 100*share)
			if share > 0.02 {
				t.Errorf("%s: %d bytes of metadata for blocks of %d bytes in %d, more than 2 %%", p.name, s.Meta, n, s.Len)
			}
			if float64(s.Blocks*n) < 0.98*float64(s.Len) {
				t.Errorf("%s: %d blocks of %d bytes in %d", p.name, s.Blocks, n, s.Len)
			}
		}
	}
}

func TestAllocAndFreeDoNotAllocate(t *testing.T) {
	forAll(t, func(t *testing.T, a Allocator) {
		a.Grow(1 << 20)
		var warm []uint64
		for n := uint64(16); n < 64<<10; n *= 2 {
			off, _ := a.Alloc(n, 0)
			warm = append(warm, off)
		}
		for _, off := range warm {
			_, _ = a.Free(off)
		}
		if n := testing.AllocsPerRun(100, func() {
			for n := uint64(16); n < 64<<10; n *= 2 {
				off, ok := a.Alloc(n, 0)
				if _, err := a.Free(off); !ok || err != nil {
					t.Fatal(err)
				}
			}
		}); n != 0 {
			t.Errorf("%v allocations", n)
		}
	})
}

func TestCheckedFindsWhatIsWrong(t *testing.T) {
	for _, c := range []struct {
		what string
		do   func(a *Checked, mem []byte, below *faulty)
		want string
	}{
		{"a store beyond the end", func(a *Checked, mem []byte, _ *faulty) {
			off, _ := a.Alloc(100, 0)
			mem[off+100] = 7
			_, _ = a.Free(off)
		}, "beyond the end of the block of 100 bytes"},
		{"a store of a byte that is no UTF-8", func(a *Checked, mem []byte, _ *faulty) {
			off, _ := a.Alloc(100, 0)
			mem[off+100] = 0xff
			_, _ = a.Free(off)
		}, "beyond the end of the block of 100 bytes"},
		{"an overlap", func(a *Checked, _ []byte, below *faulty) {
			off, _ := a.Alloc(100, 0)
			below.next, below.wrong = off+16, true
			_, _ = a.Alloc(16, 0)
		}, "in the one of"},
		{"a block over the next", func(a *Checked, _ []byte, below *faulty) {
			_, _ = a.Alloc(PageSize, PageSize)
			off, _ := a.Alloc(8*PageSize, PageSize)
			below.next, below.wrong = off-16, true
			_, _ = a.Alloc(16, 0)
		}, "over the one at"},
		{"a wrong alignment", func(a *Checked, _ []byte, below *faulty) {
			below.next, below.wrong = 16, true
			_, _ = a.Alloc(16, 64)
		}, "no multiple of 64"},
		{"a double free that passes", func(a *Checked, _ []byte, below *faulty) {
			off, _ := a.Alloc(16, 0)
			_, _ = a.Free(off)
			below.frees = true
			_, _ = a.Free(off)
		}, "no block is in use"},
		{"a free that is refused", func(a *Checked, _ []byte, below *faulty) {
			off, _ := a.Alloc(16, 0)
			below.refuses = true
			_, _ = a.Free(off)
		}, "was refused"},
		{"a trim into a block", func(a *Checked, _ []byte, below *faulty) {
			_, _ = a.Alloc(16, 0)
			below.trims = true
			a.Trim()
		}, "was trimmed"},
		{"figures that do not add up", func(a *Checked, _ []byte, below *faulty) {
			_, _ = a.Alloc(16, 0)
			below.forgets = true
			a.Stats()
		}, "the figures are"},
	} {
		var faults []string
		mem := make([]byte, 1<<20)
		below := &faulty{Allocator: NewSegregated()}
		a := NewChecked(below, CheckedConfig{
			Bytes: func(off, n uint64) []byte { return mem[off : off+n] },
			Fault: func(err error) { faults = append(faults, err.Error()) },
		})
		a.Grow(1 << 20)
		c.do(a, mem, below)
		if !slices.ContainsFunc(faults, func(s string) bool { return strings.Contains(s, c.want) }) {
			t.Errorf("%s: %q, want %q", c.what, faults, c.want)
		}
	}
}

// faulty is an allocator with planted mistakes.
type faulty struct {
	Allocator
	next                           uint64
	wrong                          bool // the next block is at next
	frees, refuses, trims, forgets bool
}

func (f *faulty) Alloc(n, align uint64) (uint64, bool) {
	if f.wrong {
		return f.next, true
	}
	return f.Allocator.Alloc(n, align)
}

func (f *faulty) Room(off uint64) uint64 {
	if f.wrong {
		return 32
	}
	return f.Allocator.Room(off)
}

func (f *faulty) Free(off uint64) (uint64, error) {
	switch {
	case f.frees:
		return 16, nil
	case f.refuses:
		return 0, &FreeError{Off: off}
	}
	return f.Allocator.Free(off)
}

func (f *faulty) Trim() uint64 {
	if f.trims {
		return 0
	}
	return f.Allocator.Trim()
}

func (f *faulty) Stats() Stats {
	s := f.Allocator.Stats()
	if f.forgets {
		s.Blocks = 0
	}
	return s
}

func TestGrowingWronglyPanics(t *testing.T) {
	forAll(t, func(t *testing.T, a Allocator) {
		for _, n := range []uint64{1, PageSize - 1, MaxLen + PageSize, 1 << 63} {
			func() {
				defer func() {
					if recover() == nil {
						t.Errorf("grew by %d", n)
					}
				}()
				a.Grow(n)
			}()
		}
	})
}

func FuzzAllocators(f *testing.F) {
	f.Add([]byte{1, 200, 3, 100, 2, 0, 9, 9})
	f.Fuzz(func(t *testing.T, ops []byte) {
		for _, p := range plugins {
			a := checked(t, p.make(), 1<<20)
			var live []uint64
			length := uint64(0)
			for len(ops) >= 2 {
				op, x := ops[0], uint64(ops[1])
				ops = ops[2:]
				switch op % 4 {
				case 0:
					if n := (x%16 + 1) * PageSize; length+n <= 1<<20 {
						a.Grow(n)
						length += n
					}
				case 1:
					if off, ok := a.Alloc(x*x+1, 1<<(op>>5)); ok {
						live = append(live, off)
					}
				case 2:
					if len(live) > 0 {
						i := int(x) % len(live)
						if _, err := a.Free(live[i]); err != nil {
							t.Fatal(err)
						}
						live = slices.Delete(live, i, i+1)
					}
				case 3:
					length = a.Trim()
				}
			}
			a.Stats()
		}
	})
}

// BenchmarkMixed frees and allocates, of 16 bytes to 64 KiB, one of 100,000 blocks in use.
func BenchmarkMixed(b *testing.B) {
	const live = 100_000
	for _, p := range plugins {
		b.Run(fmt.Sprintf("%s/%d", p.name, live), func(b *testing.B) {
			a := p.make()
			rnd := rand.New(rand.NewPCG(1, 2))
			a.Grow(8 << 30)
			size := func() uint64 { return 16 + rnd.Uint64N(1<<(4+rnd.IntN(13))) }
			blocks := make([]uint64, live)
			sizes, which := make([]uint64, 1<<16), make([]int, 1<<16)
			for i := range blocks {
				blocks[i], _ = a.Alloc(size(), 0)
			}
			for i := range sizes {
				sizes[i], which[i] = size(), rnd.IntN(live)
			}
			b.ResetTimer()
			for i := range b.N {
				k := which[i&0xffff]
				if _, err := a.Free(blocks[k]); err != nil {
					b.Fatal(err)
				}
				off, ok := a.Alloc(sizes[i&0xffff], 0)
				if !ok {
					b.Fatal("no room")
				}
				blocks[k] = off
			}
		})
	}
}
