package dist

import (
	"math/big"
	"testing"
)

// model places the elements of an array one by one.
func model(block, ranks, size uint64, n int) (at []Ref) {
	fill := make([]uint64, ranks) // bytes at each rank
	rank, phase := uint64(0), uint64(0)
	for range n {
		at = append(at, Ref{Rank: uint32(rank), Phase: phase, Off: fill[rank]})
		fill[rank] += size
		if block == Indefinite {
			continue
		}
		if phase++; phase == block {
			phase = 0
			rank = (rank + 1) % ranks
		}
	}
	return at
}

func layouts(t *testing.T, f func(l *Layout, at []Ref)) {
	t.Helper()
	for block := uint64(0); block <= 9; block++ {
		for ranks := uint64(1); ranks <= 8; ranks++ {
			for _, size := range []uint64{1, 3, 8} {
				l, err := New(block, ranks, size)
				if err != nil {
					t.Fatal(err)
				}
				f(&l, model(block, ranks, size, 160))
			}
		}
	}
}

func TestElementsLieAsTheModelSays(t *testing.T) {
	layouts(t, func(l *Layout, at []Ref) {
		for i, want := range at {
			if got := l.At(uint64(i)); got != want {
				t.Fatalf("blocks of %d on %d: element %d at %+v, want %+v", l.block, l.ranks, i, got, want)
			}
		}
	})
}

func TestPointersMoveAsIndexesDo(t *testing.T) {
	layouts(t, func(l *Layout, at []Ref) {
		for i := range at {
			for k := -i; k < len(at)-i; k++ {
				got := l.Add(at[i], int64(k))
				if got != at[i+k] {
					t.Fatalf("blocks of %d on %d: element %d moved by %d: %+v, want %+v", l.block, l.ranks, i, k, got, at[i+k])
				}
				if n, ok := l.Sub(got, at[i]); !ok || n != int64(k) {
					t.Fatalf("blocks of %d on %d: from element %d to %d: %d %t", l.block, l.ranks, i, i+k, n, ok)
				}
			}
		}
	})
}

// A pointer may leave the array and come back.
func TestPointersBeforeTheBeginComeBack(t *testing.T) {
	layouts(t, func(l *Layout, at []Ref) {
		for i := range 20 {
			for a := int64(-50); a <= 50; a++ {
				for _, b := range []int64{-50, -7, -1, 0, 1, 13, 50} {
					p := l.Add(l.Add(at[i], a), b)
					if want := l.Add(at[i], a+b); p != want {
						t.Fatalf("blocks of %d on %d: %d + %d + %d: %+v, want %+v", l.block, l.ranks, i, a, b, p, want)
					}
					if n, ok := l.Sub(p, at[i]); !ok || n != a+b {
						t.Fatalf("blocks of %d on %d: (%d + %d + %d) - %d = %d %t", l.block, l.ranks, i, a, b, i, n, ok)
					}
				}
			}
		}
	})
}

func TestLocalPartsAddUp(t *testing.T) {
	layouts(t, func(l *Layout, at []Ref) {
		for total := range at {
			have := make([]uint64, l.ranks)
			for _, r := range at[:total] {
				have[r.Rank]++
			}
			for r := range have {
				if got := l.Local(uint64(total), r); got != have[r] {
					t.Fatalf("blocks of %d on %d: %d of %d elements at rank %d, want %d", l.block, l.ranks, got, total, r, have[r])
				}
				if have[r] > l.LocalMost(uint64(total)) {
					t.Fatalf("blocks of %d on %d: rank %d has more than the most", l.block, l.ranks, r)
				}
			}
		}
		if l.Local(7, -1) != 0 || l.Local(7, int(l.ranks)) != 0 {
			t.Fatal("a rank that does not exist has elements")
		}
	})
}

func TestLocalRunsCoverEachElementOnce(t *testing.T) {
	layouts(t, func(l *Layout, at []Ref) {
		for total := range 100 {
			seen := 0
			for r := range int(l.ranks) {
				l.LocalRuns(uint64(total), r, func(run Run) bool {
					for k := range run.Len {
						seen++
						if want := at[run.First+k]; run.First+k >= uint64(total) || int(want.Rank) != r || want.Off != run.Off+k*l.size {
							t.Fatalf("blocks of %d on %d, %d elements: %+v of rank %d has %d", l.block, l.ranks, total, run, r, run.First+k)
						}
					}
					return true
				})
			}
			if seen != total {
				t.Fatalf("blocks of %d on %d: the local runs have %d of %d elements", l.block, l.ranks, seen, total)
			}
		}
	})
}

func TestLocalRunsStopWhenTold(t *testing.T) {
	l, _ := New(2, 3, 8)
	calls := 0
	l.LocalRuns(100, 1, func(Run) bool { calls++; return calls < 3 })
	if calls != 3 {
		t.Errorf("%d calls, want 3", calls)
	}
}

func TestWrongLayoutsAreRefused(t *testing.T) {
	for _, c := range [][3]uint64{{1, 0, 8}, {1, MaxRanks + 1, 8}, {1, 2, 0}, {1, 2, MaxSize + 1}, {MaxBlock + 1, 2, 8}} {
		if _, err := New(c[0], c[1], c[2]); err == nil {
			t.Errorf("%v is a layout", c)
		}
	}
	l, _ := New(MaxBlock, 1, MaxSize)
	if _, ok := l.Bytes(1 << 32); ok {
		t.Error("2^64 bytes fit")
	}
}

func TestPlacesOfNoArrayHaveNoDistance(t *testing.T) {
	l, _ := New(4, 3, 8)
	if _, ok := l.Sub(Ref{Rank: 1, Off: 12}, Ref{}); ok {
		t.Error("half an element")
	}
	if _, ok := l.Sub(Ref{Rank: 1, Off: 8}, Ref{}); ok {
		t.Error("a phase that does not fit the offset")
	}
}

// FuzzArithmetic compares with integers of any size.
func FuzzArithmetic(f *testing.F) {
	f.Add(uint64(4), uint64(3), uint64(8), uint64(100), int64(-77))
	f.Add(uint64(MaxBlock), uint64(MaxRanks), uint64(16), uint64(1)<<39, int64(1)<<39)
	f.Fuzz(func(t *testing.T, block, ranks, size, i uint64, k int64) {
		l, err := New(block%(MaxBlock+1), ranks%MaxRanks+1, size%MaxSize+1)
		if err != nil {
			t.Fatal(err)
		}
		i %= 1 << 40
		k %= 1 << 40
		p := l.At(i)
		q := l.Add(p, k)
		n, ok := l.Sub(q, p)
		if !ok && l.size < 1<<20 && l.block < 1<<30 || ok && n != k {
			t.Fatalf("%+v: %d + %d: %+v - %+v = %d %t", l, i, k, q, p, n, ok)
		}
		if j := int64(i) + k; j >= 0 {
			if want := l.At(uint64(j)); q != want {
				t.Fatalf("%+v: %d + %d: %+v, want %+v", l, i, k, q, want)
			}
		}
		if l.block > 0 {
			off := new(big.Int).SetUint64(i / (l.block * min(l.ranks, 1<<23)))
			if l.ranks <= 1<<23 {
				off.Mul(off, new(big.Int).SetUint64(l.block))
				off.Add(off, new(big.Int).SetUint64(i%l.block))
				off.Mul(off, new(big.Int).SetUint64(l.size))
				if off.Mod(off, new(big.Int).Lsh(big.NewInt(1), 64)); off.Uint64() != p.Off {
					t.Fatalf("%+v: element %d at %d, want %v", l, i, p.Off, off)
				}
			}
		}
	})
}

func BenchmarkAt(b *testing.B) {
	for _, c := range []struct {
		name         string
		block, ranks uint64
	}{{"block=1024/ranks=4", 1024, 4}, {"block=1024/ranks=3", 1024, 3}, {"block=1000/ranks=3", 1000, 3}, {"cyclic/ranks=4", 1, 4}} {
		b.Run(c.name, func(b *testing.B) {
			l, _ := New(c.block, c.ranks, 8)
			var sum uint64
			for i := range b.N {
				r := l.At(uint64(i) * 77)
				sum += r.Off + uint64(r.Rank)
			}
			if sum == 1 {
				b.Log(sum)
			}
		})
	}
}
