package alloc

import (
	"math/bits"
	"math/rand/v2"
	"testing"
)

// Blocks that were freed are kept, and never in the way of what has room: an Alloc fails only where
// no aligned piece of the heap is free, by a map of the units in use.
func TestKeptBuddiesAreNeverInTheWay(t *testing.T) {
	for seed := range uint64(20) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		a := NewBuddy()
		pages := uint64(1 + rnd.IntN(13))
		a.Grow(pages * PageSize)
		used := make([]bool, pages*PageSize/minBuddy)
		live := map[uint64]uint64{}
		free := func(size uint64) bool {
			for off := uint64(0); off+size <= a.length; off += size {
				ok := true
				for u := off / minBuddy; u < (off+size)/minBuddy && ok; u++ {
					ok = !used[u]
				}
				if ok {
					return true
				}
			}
			return false
		}
		mark := func(off, size uint64, v bool) {
			for u := off / minBuddy; u < (off+size)/minBuddy; u++ {
				if used[u] == v {
					t.Fatalf("seed %d: unit %d of the block at %#x: %v already", seed, u, off, v)
				}
				used[u] = v
			}
		}
		for i := range 20_000 {
			if grown := rnd.IntN(2000); grown == 0 && pages < 40 {
				n := uint64(1 + rnd.IntN(5))
				pages += n
				a.Grow(n * PageSize)
				used = append(used, make([]bool, n*PageSize/minBuddy)...)
			} else if grown == 1 {
				pages = a.Trim() / PageSize
				for _, v := range used[pages*PageSize/minBuddy:] {
					if v {
						t.Fatalf("seed %d: a block was trimmed", seed)
					}
				}
				used = used[:pages*PageSize/minBuddy]
			}
			if rnd.IntN(100) < 52 {
				n := 1 + rnd.Uint64N(1<<rnd.IntN(16))
				align := uint64(1) << rnd.IntN(14)
				size := uint64(1) << bits.Len64(max(n, align, minBuddy)-1)
				can := size <= a.length && free(size)
				off, ok := a.Alloc(n, align)
				if ok != can {
					t.Fatalf("seed %d, %d: %d bytes at a multiple of %d: %v, want %v", seed, i, n, align, ok, can)
				}
				if !ok {
					continue
				}
				if off%align != 0 || off+size > a.length || a.Room(off) != size {
					t.Fatalf("seed %d: %d bytes at %#x, a multiple of %d, room %d", seed, n, off, align, a.Room(off))
				}
				mark(off, size, true)
				live[off] = size
				continue
			}
			for off, size := range live {
				delete(live, off)
				mark(off, size, false)
				if n, err := a.Free(off); err != nil || n != size {
					t.Fatalf("seed %d: free of %#x: %d, %v", seed, off, n, err)
				}
				if _, err := a.Free(off); err == nil || a.Room(off) != 0 {
					t.Fatalf("seed %d: %#x was freed twice", seed, off)
				}
				break
			}
			wild := rnd.Uint64N(a.length + PageSize)
			if _, ok := live[wild]; !ok {
				_, err := a.Free(wild)
				e, is := err.(*FreeError)
				inner := wild < a.length && used[wild/minBuddy]
				if !is || e.Inner != inner || e.Out != (wild >= a.length) || inner && wild-e.Block >= live[e.Block] {
					t.Fatalf("seed %d: free of %#x: %v", seed, wild, err)
				}
			}
			if i%64 == 0 {
				inUse := uint64(0)
				for _, n := range live {
					inUse += n
				}
				if s := a.Stats(); s.InUse != inUse || s.Blocks != uint64(len(live)) {
					t.Fatalf("seed %d: %+v, want %d bytes of %d blocks", seed, s, inUse, len(live))
				}
			}
		}
	}
}
