package conduit

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/ibconduit/conduit/am"
)

// distributions are some, for arrays of n elements.
func distributions(n int) []Distribution {
	return []Distribution{Cyclic, Indefinite, Block(3), Block(8), Block(max(n, 1)), Block(n + 5)}
}

// value is what element i is to hold.
func value(i int) uint64 { return uint64(i)*0x9e3779b97f4a7c15 + 1 }

// eachArray runs f for arrays of many shapes, on 1 to 4 ranks of each network. The elements hold
// their values.
func eachArray(t *testing.T, f func(ctx context.Context, w *Worker, a *Array[uint64]) error) {
	for ranks := 1; ranks <= 4; ranks++ {
		onFabrics(t, ranks, withHeap(64), worked(func(ctx context.Context, j *Job, w *Worker) error {
			for _, n := range []int{0, 1, 7, 8, 100} {
				for _, how := range distributions(n) {
					a, err := NewArray[uint64](ctx, j, n, how)
					if err != nil {
						return fmt.Errorf("%d elements, %v: %w", n, how, err)
					}
					for i, p := range a.Mine() {
						*p = value(i)
					}
					err = errors.Join(j.Barrier(ctx), f(ctx, w, a), a.Close(ctx))
					if err != nil {
						return fmt.Errorf("%d elements, %v: %w", n, how, err)
					}
				}
			}
			if s := j.HeapStats(); s.Local.Blocks+s.Global.Blocks > 0 {
				return fmt.Errorf("%d and %d blocks are left", s.Local.Blocks, s.Global.Blocks)
			}
			return nil
		}))
	}
}

func sameValues(got []uint64, index func(k int) int) error {
	for k, v := range got {
		if want := value(index(k)); v != want {
			return fmt.Errorf("element %d is %#x, want %#x", index(k), v, want)
		}
	}
	return nil
}

func TestElementsOfArraysAreWhereTheyBelong(t *testing.T) {
	eachArray(t, func(ctx context.Context, w *Worker, a *Array[uint64]) error {
		j, total := w.Job(), 0
		have := make(map[Ptr[uint64]]bool)
		for i := range a.Len() {
			p := a.At(i)
			if have[p] {
				return fmt.Errorf("two elements are at %v", p)
			}
			have[p] = true
			if v, err := Get(w, p); err != nil || v != value(i) {
				return fmt.Errorf("element %d is %#x: %w", i, v, err)
			}
		}
		for r := range j.Size() {
			total += a.LocalLen(r)
		}
		k := 0
		for first, block := range a.Blocks() {
			if cap(block) != len(block) || len(block) > a.BlockLen() && j.Size() > 1 || &block[0] != &a.Local()[k] {
				return fmt.Errorf("block %d is not the part of Local that it should be", first)
			}
			for i := range block {
				if a.At(first+i).Rank() != j.Rank() || block[i] != value(first+i) {
					return fmt.Errorf("element %d is not in its block", first+i)
				}
			}
			k += len(block)
		}
		if total != a.Len() || k != len(a.Local()) || k != a.LocalLen(j.Rank()) || a.LocalLen(-1)+a.LocalLen(j.Size()) != 0 {
			return fmt.Errorf("%d elements in all, %d here, want %d", total, k, a.LocalLen(j.Rank()))
		}
		for range a.Mine() { // may be left early
			break
		}
		return j.Barrier(ctx)
	})
}

func TestSlicesOfArraysCrossBlocks(t *testing.T) {
	eachArray(t, func(ctx context.Context, w *Worker, a *Array[uint64]) error {
		j := w.Job()
		for first := 0; first <= a.Len(); first += 1 + a.Len()/9 {
			for n := 0; n <= a.Len()-first; n += 1 + a.Len()/7 {
				dst := make([]uint64, n)
				if err := a.GetSlice(w, dst, first); err != nil {
					return err
				}
				if err := sameValues(dst, func(k int) int { return first + k }); err != nil {
					return err
				}
			}
		}
		if err := w.Barrier(ctx); err != nil {
			return err
		}
		// Each rank writes a share of the elements, and all read all.
		from, to := j.Rank()*a.Len()/j.Size(), (j.Rank()+1)*a.Len()/j.Size()
		src := make([]uint64, to-from)
		for k := range src {
			src[k] = ^value(from + k)
		}
		if err := errors.Join(a.PutSlice(w, from, src), w.Barrier(ctx)); err != nil {
			return err
		}
		dst := make([]uint64, a.Len())
		if err := errors.Join(a.GetSlice(w, dst, 0), w.Barrier(ctx)); err != nil {
			return err
		}
		for i := range dst {
			dst[i] = ^dst[i]
		}
		return sameValues(dst, func(k int) int { return k })
	})
}

func TestIndexedAndStridedElementsOfArrays(t *testing.T) {
	eachArray(t, func(ctx context.Context, w *Worker, a *Array[uint64]) error {
		j, n := w.Job(), a.Len()
		if n == 0 {
			return errors.Join(a.GetIndexed(w, nil, nil), a.GetStrided(w, nil, 0, 1))
		}
		rng := rand.New(rand.NewPCG(1, uint64(j.Rank())))
		idx := rng.Perm(n)
		dst := make([]uint64, n)
		if err := a.GetIndexed(w, dst, idx); err != nil {
			return err
		}
		if err := sameValues(dst, func(k int) int { return idx[k] }); err != nil {
			return err
		}
		for _, stride := range []int{1, 2, 7, -1, -3, 0} {
			first := 0
			if stride < 0 {
				first = n - 1
			}
			most := n
			if stride != 0 {
				most = 1 + (n-1)/max(stride, -stride)
			}
			part := dst[:most]
			if err := a.GetStrided(w, part, first, stride); err != nil {
				return err
			}
			if err := sameValues(part, func(k int) int { return first + k*stride }); err != nil {
				return err
			}
			if e := (*IndexError)(nil); stride != 0 && !errors.As(a.GetStrided(w, make([]uint64, most+1), first, stride), &e) {
				return fmt.Errorf("one more at stride %d is no error", stride)
			}
		}
		if err := w.Barrier(ctx); err != nil {
			return err
		}
		// Rank r writes the elements i with i mod ranks = r.
		var mine []int
		var src []uint64
		for i := j.Rank(); i < n; i += j.Size() {
			mine, src = append(mine, i), append(src, ^value(i))
		}
		err := a.PutIndexed(w, mine, src)
		if j.Rank()%2 == 1 && len(src) > 0 {
			err = a.PutStrided(w, j.Rank(), j.Size(), src)
		}
		if err := errors.Join(err, w.Barrier(ctx), a.GetSlice(w, dst, 0), w.Barrier(ctx)); err != nil {
			return err
		}
		for i := range dst {
			dst[i] = ^dst[i]
		}
		return sameValues(dst, func(k int) int { return k })
	})
}

func TestStridedRunsAndIndicesFromAPointer(t *testing.T) {
	const rows, width = 40, 30 // of a matrix at each rank, at the begin of its segment
	onFabrics(t, 3, Config{}, worked(func(ctx context.Context, j *Job, w *Worker) error {
		mine, err := Slice(j, At[uint64](j.Rank(), 0), rows*width)
		if err != nil {
			return err
		}
		for i := range mine {
			mine[i] = value(i + j.Rank())
		}
		if err := w.Barrier(ctx); err != nil {
			return err
		}
		to := neighbour(j)
		dst := make([]uint64, 5*8)
		if err := GetStrided(w, dst, At[uint64](to, 0).Add(3*width+2), 8, width); err != nil {
			return err
		}
		if err := sameValues(dst, func(k int) int { return (3+k/8)*width + 2 + k%8 + to }); err != nil {
			return err
		}
		column := make([]uint64, rows)
		if err := GetStrided(w, column, At[uint64](to, 0).Add((rows-1)*width+7), 1, -width); err != nil {
			return err
		}
		if err := sameValues(column, func(k int) int { return (rows-1-k)*width + 7 + to }); err != nil {
			return err
		}
		offs := []int{5, 0, 1199, 5, 77}
		some := make([]uint64, len(offs))
		if err := GetIndexed(w, some, At[uint64](to, 0), offs); err != nil {
			return err
		}
		if err := sameValues(some, func(k int) int { return offs[k] + to }); err != nil {
			return err
		}
		for _, err := range []error{GetStrided(w, dst, At[uint64](to, 0), 7, 1), GetStrided(w, dst, At[uint64](to, 0), 0, 1),
			GetIndexed(w, dst, At[uint64](to, 0), offs), PutIndexed(w, At[uint64](to, 0), offs, dst)} {
			if err == nil {
				return errors.New("lengths that do not fit are no error")
			}
		}
		bounds := (*BoundsError)(nil)
		if err := GetIndexed(w, some[:2], At[uint64](to, 0), []int{0, 1 << 40}); !errors.As(err, &bounds) {
			return fmt.Errorf("beyond the segment: %w", err)
		}
		if err := w.Barrier(ctx); err != nil {
			return err
		}
		for i := range dst {
			dst[i] = uint64(i)
		}
		if err := errors.Join(PutStrided(w, At[uint64](to, 0), 4, width, dst), PutIndexed(w, At[uint64](to, 0).Add(width-2), []int{1, 0}, dst[:2]), w.Barrier(ctx)); err != nil {
			return err
		}
		for k := range dst {
			if got := mine[k/4*width+k%4]; got != uint64(k) {
				return fmt.Errorf("element %d of the rectangle is %d", k, got)
			}
		}
		if mine[width-1] != 0 || mine[width-2] != 1 {
			return fmt.Errorf("the indexed elements are %d", mine[width-2:width])
		}
		return w.Barrier(ctx)
	}))
}

func TestCopiesBetweenAnyRanksMayOverlap(t *testing.T) {
	const n = 100_000 // elements: more than a buffer of Copy has
	cfg := Config{SegmentSize: 16 * n}
	onFabrics(t, 3, cfg, worked(func(ctx context.Context, j *Job, w *Worker) error {
		mine, err := Slice(j, At[uint64](j.Rank(), 0), 2*n)
		if err != nil {
			return err
		}
		for from := range 3 {
			for to := range 3 {
				for i := range mine {
					mine[i] = value(i + j.Rank())
				}
				if err := j.Barrier(ctx); err != nil {
					return err
				}
				shift := []int{0, 5, n - 3}[(from+to)%3]
				if j.Rank() == 0 {
					if err := Copy(w, At[uint64](to, 0).Add(shift), At[uint64](from, 0).Add(7), n); err != nil {
						return err
					}
					if err := Copy(w, At[uint64](to, 0).Add(7), At[uint64](to, 0).Add(shift), 0); err != nil {
						return err
					}
				}
				if err := j.Barrier(ctx); err != nil {
					return err
				}
				if j.Rank() == to {
					for k := range n {
						if want := value(7 + k + from); mine[shift+k] != want {
							return fmt.Errorf("from %d to %d by %d: element %d is %#x, want %#x", from, to, shift, k, mine[shift+k], want)
						}
					}
				}
				if err := j.Barrier(ctx); err != nil {
					return err
				}
			}
		}
		return errors.Join(wantErr(Copy(w, Ptr[uint64]{}, At[uint64](0, 0), 1), ErrNullPtr), wantText(Copy(w, At[uint64](1, 0), At[uint64](2, 0), -1), "0 or more"),
			wantText(Copy(w, At[uint64](7, 0), At[uint64](2, 0), 1), "no rank 7"))
	}))
}

func TestMisusedArraysSayWhatIsWrong(t *testing.T) {
	onFabrics(t, 2, withHeap(64), worked(func(ctx context.Context, j *Job, w *Worker) error {
		for _, n := range []int{-1, 1 << 62} {
			if _, err := NewArray[uint64](ctx, j, n, Cyclic); err == nil {
				return fmt.Errorf("an array of %d elements", n)
			}
		}
		_, block := NewArray[uint64](ctx, j, 1, Block(0))
		_, empty := NewArray[struct{}](ctx, j, 1, Cyclic)
		_, large := NewArray[uint64](ctx, j, 1<<20, Cyclic)
		mismatch := (*MismatchError)(nil)
		_, differ := NewArray[uint64](ctx, j, 1+j.Rank(), Cyclic)
		if err := errors.Join(wantText(block, "blocks of 0 elements, want 1 or more"), wantText(empty, "elements of 0 bytes"), wantErr(large, ErrNoSharedMemory)); err != nil {
			return err
		}
		if !errors.As(differ, &mismatch) || mismatch.Rank != 1 {
			return fmt.Errorf("arguments that differ: %w", differ)
		}
		a, err := NewArray[uint64](ctx, j, 10, Block(2))
		if err != nil {
			return err
		}
		b := make([]uint64, 3)
		for _, err := range []error{a.GetSlice(w, b, 8), a.PutSlice(w, -1, b), a.GetIndexed(w, b, []int{0, 1, 10}), a.PutStrided(w, 0, 5, b), a.GetStrided(w, b, 0, 1<<62), a.GetStrided(w, b, 9, -1<<63)} {
			if e := (*IndexError)(nil); !errors.As(err, &e) || e.Len != 10 {
				return fmt.Errorf("outside of the array: %w", err)
			}
		}
		for _, i := range []int{-1, 10} {
			if e, ok := panics(func() { a.At(i) }).(*IndexError); !ok || e.First != i {
				return fmt.Errorf("At(%d) panics with %v", i, e)
			}
		}
		if err := errors.Join(j.Barrier(ctx), a.Close(ctx)); err != nil {
			return err
		}
		at, _ := panics(func() { a.At(0) }).(error)
		for _, err := range []error{a.GetSlice(w, b, 0), a.Close(ctx), at} {
			if !errors.Is(err, os.ErrClosed) {
				return fmt.Errorf("after Close: %w", err)
			}
		}
		return nil
	}))
}

// panics returns what f panics with.
func panics(f func()) (v any) {
	defer func() { v = recover() }()
	f()
	return nil
}

func TestStaticArraysAreThereAfterJoin(t *testing.T) {
	for ranks := 1; ranks <= 4; ranks++ {
		table := NewSharedTable()
		b := SharedIn[uint64](table, "b", 1000, Block(7))
		a := SharedIn[[3]byte](table, "a", 10, Indefinite)
		cfg := withHeap(4)
		cfg.Shared = table
		onFabrics(t, ranks, cfg, worked(func(ctx context.Context, j *Job, w *Worker) error {
			x, y := a.Of(j), b.Of(j)
			if x.Len() != 10 || y.Len() != 1000 || b.Len() != 1000 || y.LocalLen(0) < 1000/ranks || x != a.Of(j) {
				return fmt.Errorf("%d and %d elements", x.Len(), y.Len())
			}
			dst := make([]uint64, 1000)
			if err := y.GetSlice(w, dst, 0); err != nil {
				return err
			}
			if slices.Max(dst) != 0 {
				return errors.New("they are not 0 at first")
			}
			if err := j.Barrier(ctx); err != nil {
				return err
			}
			for i := range y.Mine() {
				if err := Put(w, y.At(i), value(i)); err != nil {
					return err
				}
			}
			if j.Rank() == 0 {
				for i, p := range x.Mine() {
					*p = [3]byte{byte(i), 1, 2}
				}
			}
			if err := errors.Join(j.Barrier(ctx), y.GetSlice(w, dst, 0)); err != nil {
				return err
			}
			if err := sameValues(dst, func(k int) int { return k }); err != nil {
				return err
			}
			if v, err := Get(w, x.At(9)); err != nil || v != [3]byte{9, 1, 2} {
				return fmt.Errorf("element 9 is %v: %w", v, err)
			}
			return errors.Join(wantText(y.Close(ctx), "lives as long as its job"), j.Barrier(ctx))
		}))
	}
}

func TestWrongStaticArraysPanicAtOnce(t *testing.T) {
	table := NewSharedTable()
	SharedIn[int](table, "taken", 1, Cyclic)
	for want, f := range map[string]func(){
		"the name is taken":           func() { SharedIn[int](table, "taken", 1, Cyclic) },
		"needs a name":                func() { SharedIn[int](table, "", 1, Cyclic) },
		"0 elements":                  func() { SharedIn[int](table, "a", 0, Cyclic) },
		"blocks of 0 elements":        func() { SharedIn[int](table, "a", 1, Block(-3)) },
		"holds a pointer":             func() { SharedIn[string](table, "a", 1, Cyclic) },
		"and 1099511627776 bytes":     func() { SharedIn[int](table, "a", 1<<60, Cyclic) },
		"elements of 0 bytes, want 1": func() { SharedIn[struct{}](table, "a", 1, Cyclic) },
	} {
		if text := fmt.Sprint(panics(f)); !strings.Contains(text, want) {
			t.Errorf("%s: %s", want, text)
		}
	}
	other := SharedIn[int](NewSharedTable(), "other", 1, Cyclic)
	runLocal(t, 1, Config{Fabric: FabricSHM, Shared: table}, func(_ context.Context, j *Job) error {
		late := fmt.Sprint(panics(func() { SharedIn[int](table, "late", 1, Cyclic) }))
		foreign := fmt.Sprint(panics(func() { other.Of(j) }))
		return errors.Join(wantText(errors.New(late), "register before the job starts"), wantText(errors.New(foreign), `"other" is not in the job's table`))
	})
}

func TestRanksWithOtherStaticArraysDoNotJoin(t *testing.T) {
	with := func(names ...string) Config {
		c := Config{Fabric: FabricSHM, SegmentSize: 1 << 16, Handlers: am.NewTable(), Shared: NewSharedTable()}
		for i, name := range names {
			SharedIn[uint64](c.Shared, name, 10+i, Block(4))
		}
		return c
	}
	for want, other := range map[string]Config{
		`rank 2 has other shared arrays than rank 0, which has "b": 11 of uint64 (8 bytes), blocks of 4; rank 2 has nothing`: with("a"),
		`which has "a": 10 of uint64 (8 bytes), blocks of 4; rank 2 has "0": 10`:                                             with("0", "a"),
	} {
		for r, err := range failToJoin(t, with("a", "b"), with("a", "b"), other) {
			if err := wantText(err, want); err != nil {
				t.Errorf("rank %d: %v", r, err)
			}
		}
	}
	big := with()
	SharedIn[byte](big.Shared, "large", 1<<20, Indefinite)
	for r, err := range failToJoin(t, big, big) {
		if err := wantText(err, "1048576 static"); err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
	}
}

func TestArrayAtAllocatesNothing(t *testing.T) {
	runLocal(t, 1, Config{Fabric: FabricSHM, HeapSize: 1 << 16, Handlers: am.NewTable()}, func(ctx context.Context, j *Job) error {
		a, err := NewArray[float64](ctx, j, 1000, Block(16))
		if err != nil {
			return err
		}
		var sum uint64
		if n := testing.AllocsPerRun(100, func() { sum += a.At(77).Offset() }); n > 0 {
			return fmt.Errorf("%v allocations, %d", n, sum)
		}
		return a.Close(ctx)
	})
}
