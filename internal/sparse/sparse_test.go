package sparse

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"
)

func TestAnArrayIsLikeASlice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 5*pageSize).Draw(t, "n")
		a, want := Make[int](n), make([]int, n)
		if a.Len() != n {
			t.Fatalf("%d elements of %d", a.Len(), n)
		}
		index := rapid.IntRange(0, n-1)
		for range rapid.IntRange(0, 40).Draw(t, "writes") {
			i := index.Draw(t, "i")
			want[i]++
			*a.At(i)++
		}
		found := 0
		for i := range want {
			got := 0
			if e := a.Find(i); e != nil {
				got, found = *e, found+1
			}
			if got != want[i] {
				t.Fatalf("element %d is %d, want %d", i, got, want[i])
			}
		}
		next := 0
		for i, e := range a.All() {
			for ; next < i; next++ {
				if want[next] != 0 {
					t.Fatalf("All leaves out element %d, which is %d", next, want[next])
				}
			}
			next = i + 1
			if *e != want[i] || e != a.Find(i) {
				t.Fatalf("All has %d for element %d, want %d", *e, i, want[i])
			}
			found--
		}
		if found != 0 {
			t.Fatalf("All and Find differ by %d elements", found)
		}
		for ; next < n; next++ {
			if want[next] != 0 {
				t.Fatalf("All ends before element %d, which is %d", next, want[next])
			}
		}
	})
}

func TestAnIndexOutOfRangeHasNoElement(t *testing.T) {
	a := Make[int](pageSize + 1) // the second page has room for more
	*a.At(pageSize) = 1
	for _, i := range []int{-1, pageSize + 1, 2*pageSize - 1, 2 * pageSize} {
		if e := a.Find(i); e != nil {
			t.Errorf("Find(%d) of %d elements found %d", i, a.Len(), *e)
		}
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("At(%d) of %d elements returned", i, a.Len())
				}
			}()
			a.At(i)
		}()
	}
}

// Goroutines that use a page first at the same time get the same one.
func TestFirstUsersOfAPageShareIt(t *testing.T) {
	const n, goroutines = 100 * pageSize, 4
	a := Make[atomic.Int32](n)
	var wg sync.WaitGroup
	for range goroutines {
		wg.Go(func() {
			for i := 0; i < n; i += pageSize / 2 {
				a.At(i).Add(1)
			}
		})
	}
	wg.Wait()
	for i := 0; i < n; i += pageSize / 2 {
		if got := a.Find(i).Load(); got != goroutines {
			t.Errorf("element %d was counted %d times, want %d", i, got, goroutines)
		}
	}
}

func TestUnusedElementsCostAQuarterOfAByte(t *testing.T) {
	const n = 1 << 20
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	a := Make[[64]byte](n)
	for i := range 10 {
		a.At(i * n / 10)[0] = 1
	}
	runtime.ReadMemStats(&after)
	if got, limit := after.TotalAlloc-before.TotalAlloc, uint64(n/4+10*(64*pageSize)+1<<16); got > limit {
		t.Errorf("%d bytes for %d elements, 10 of them used; want at most %d", got, n, limit)
	}
	runtime.KeepAlive(&a)
}
