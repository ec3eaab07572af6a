package conduit

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/bootstrap"
	"github.com/ibconduit/conduit/internal/alloc"
	"github.com/ibconduit/conduit/internal/heap"
	"github.com/ibconduit/conduit/internal/owner"
)

// withHeap is a configuration of a job with shared heaps of some pages.
func withHeap(pages int) Config {
	return Config{HeapSize: int64(pages) * alloc.PageSize, Handlers: am.NewTable(), Shared: NewSharedTable()}
}

func TestHeapsLieAtTheBeginOfTheSegment(t *testing.T) {
	table := NewSharedTable()
	SharedIn[uint64](table, "a", 100, Cyclic)
	cfg := Config{HeapSize: 5000, SymmetricSize: 1, Shared: table, SegmentSize: 1 << 20}
	onFabrics(t, 3, cfg, func(ctx context.Context, j *Job) error {
		want := SharedLayout{Static: 4096, Symmetric: 4096, Heap: 8192}
		if got := j.Info().Shared; got != want || got.End() != 16384 {
			return fmt.Errorf("layout %+v, end %d, want %+v", got, got.End(), want)
		}
		s, err := SymmetricAlloc[uint64](ctx, j, 1)
		if err != nil || s.Offset() != 4096 || s.Rank() != j.Rank() {
			return fmt.Errorf("the first symmetric block is at %v: %w", s, err)
		}
		p, err := Alloc[uint64](ctx, j, 1)
		if err != nil || p.Offset() != 8192 || p.Rank() != j.Rank() {
			return fmt.Errorf("the first block is at %v: %w", p, err)
		}
		return errors.Join(Free(ctx, j, p), SymmetricFree(ctx, j, s))
	})
}

func TestHeapAllIsWhatTheSmallestSegmentHas(t *testing.T) {
	fabrics(t, func(t *testing.T, cfg Config) {
		cfg.HeapSize, cfg.SymmetricSize = HeapAll, 100
		for _, err := range joinSizes(t, cfg, []int64{1 << 20, 300_001, 1 << 21}, func(_ context.Context, j *Job, _ *Worker) error {
			if got, want := j.Info().Shared, (SharedLayout{Symmetric: 4096, Heap: 294912}); got != want {
				return fmt.Errorf("layout %+v, want %+v", got, want)
			}
			return nil
		}) {
			if err != nil {
				t.Error(err)
			}
		}
	})
}

func TestAJobWithoutHeapsSaysWhatToSet(t *testing.T) {
	runLocal(t, 2, Config{Fabric: FabricSHM, Shared: NewSharedTable(), Handlers: am.NewTable()}, func(ctx context.Context, j *Job) error {
		_, a := Alloc[int](ctx, j, 1)
		_, g := GlobalAlloc[int](ctx, j, 1, 1)
		_, all := AllAlloc[int](ctx, j, 1, 1)
		_, arr := NewArray[int](ctx, j, 1, Cyclic)
		for _, err := range []error{a, g, all, arr, Free(ctx, j, At[int](0, 0)), j.DumpHeap(new(strings.Builder))} {
			if err := wantErr(err, ErrNoHeap, "Config.HeapSize (IBCONDUIT_HEAP_SIZE)"); err != nil {
				return err
			}
		}
		_, s := SymmetricAlloc[int](ctx, j, 1)
		if n := len(j.library.all); n != 0 || j.HeapStats().Size != 0 {
			return fmt.Errorf("there are %d endpoints of the library", n)
		}
		return wantErr(s, ErrNoHeap, "Config.SymmetricSize (IBCONDUIT_SYMMETRIC_SIZE)")
	})
}

func TestASegmentWithoutRoomForTheHeapIsNamed(t *testing.T) {
	boots := bootstrap.NewGroup(3)
	errs := joinEach(t, 3, func(r int) Config {
		c := withHeap(10)
		c.Bootstrap, c.Fabric, c.SegmentSize = boots[r], FabricSHM, []int64{1 << 20, 4096, 1 << 20}[r]
		return c
	}, func(context.Context, *Job) error { return errors.New("it joined") })
	for r, err := range errs {
		if err == nil || !strings.Contains(err.Error(), "the segment of rank 1 has 4096 bytes, of which the shared data need 40960") {
			t.Errorf("rank %d: %v", r, err)
		}
	}
}

func TestRanksWithOtherHeapsDoNotJoin(t *testing.T) {
	base := Config{Fabric: FabricSHM, SegmentSize: 1 << 20, HeapSize: 8192, SymmetricSize: 4096, Handlers: am.NewTable(), Shared: NewSharedTable()}
	none, symm, all := base, base, base
	none.HeapSize, symm.SymmetricSize, all.HeapSize = 0, 8192, HeapAll
	for want, other := range map[string]Config{
		"rank 1 was configured with a heap of 0 bytes, rank 0 with 8192":            none,
		"rank 1 was configured with a heap of -1 bytes, rank 0 with 8192":           all,
		"rank 1 was configured with a symmetric heap of 8192 bytes, rank 0 with 40": symm,
	} {
		for r, err := range failToJoin(t, base, other) {
			if err := wantText(err, want); err != nil {
				t.Errorf("rank %d: %v", r, err)
			}
		}
	}
}

func TestHeapConfigurationsAreChecked(t *testing.T) {
	env := func(key, value string) func(string) (string, bool) {
		return func(k string) (string, bool) { return value, k == key }
	}
	for want, cfg := range map[string]Config{
		"HeapSize is -2":                     {HeapSize: -2, Getenv: noEnv},
		"SymmetricSize is -1":                {SymmetricSize: -1, Getenv: noEnv},
		`IBCONDUIT_HEAP_SIZE is "much"`:      {Getenv: env("IBCONDUIT_HEAP_SIZE", "much")},
		`IBCONDUIT_SYMMETRIC_SIZE is "some"`: {Getenv: env("IBCONDUIT_SYMMETRIC_SIZE", "some")},
	} {
		if _, err := cfg.withDefaults(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	for value, want := range map[string]int64{"all": HeapAll, "64K": 65536, "": 0} {
		c, err := Config{Getenv: env("IBCONDUIT_HEAP_SIZE", value)}.withDefaults()
		if err != nil || c.HeapSize != want {
			t.Errorf("%q: %d, %v, want %d", value, c.HeapSize, err, want)
		}
	}
}

// What a rank allocates another one writes, a third one reads and frees: nobody else was told.
func TestAnyRankUsesAndFreesABlock(t *testing.T) {
	for n := 1; n <= 4; n++ {
		onFabrics(t, n, withHeap(64), worked(func(ctx context.Context, j *Job, w *Worker) error {
			one, err := Alloc[uint64](ctx, j, 10)
			if err != nil {
				return err
			}
			many, err := GlobalAlloc[uint64](ctx, j, j.Size(), 10)
			if err != nil {
				return err
			}
			all, err := AllAlloc[uint64](ctx, j, j.Size(), 1)
			if err != nil {
				return err
			}
			if err := errors.Join(Put(w, all.On(neighbour(j)), uint64(1000+j.Rank())), w.Flush(ctx)); err != nil { // before others return from AllAlloc
				return err
			}
			offs, err := AllGatherValue(ctx, j, [3]uint64{one.Offset(), many.Offset(), all.Offset()})
			if err != nil {
				return err
			}
			to := neighbour(j)
			theirs, shared := At[uint64](to, offs[to][0]), At[uint64](0, offs[to][1])
			if j.Size() > 1 && offs[to][2] != all.Offset() {
				return fmt.Errorf("AllAlloc gave %#x here and %#x at rank %d", all.Offset(), offs[to][2], to)
			}
			for r := range j.Size() {
				if err := Put(w, shared.On(r).Add(3), uint64(100*j.Rank()+r)); err != nil {
					return err
				}
			}
			if err := errors.Join(Put(w, theirs, uint64(j.Rank())), w.Barrier(ctx)); err != nil {
				return err
			}
			for r := range j.Size() {
				v, err := Get(w, shared.On(r).Add(3))
				if err != nil || v != uint64(100*j.Rank()+r) {
					return fmt.Errorf("%d in the block of rank %d at %d: %w", v, to, r, err)
				}
			}
			left := (j.Rank() + j.Size() - 1) % j.Size()
			mine, err := Slice(j, one, 10)
			if err != nil || mine[0] != uint64(left) {
				return fmt.Errorf("this rank's block has %v: %w", mine, err)
			}
			if v, err := Get(w, all.On(j.Rank())); err != nil || v != uint64(1000+left) {
				return fmt.Errorf("%d in the block of all: %w", v, err)
			}
			if err := errors.Join(w.Barrier(ctx), Free(ctx, j, theirs), FreeAsync(ctx, j, shared), AllFree(ctx, j, all), w.Barrier(ctx)); err != nil {
				return err
			}
			return until(ctx, "all is free", func() bool {
				s := j.HeapStats()
				return s.Local.Blocks+s.Global.Blocks == 0
			})
		}))
	}
}

func TestHeapErrorsSpeakOfTheProgramsOffsets(t *testing.T) {
	cfg := withHeap(16)
	cfg.SymmetricSize = 8192
	onFabrics(t, 2, cfg, func(ctx context.Context, j *Job) error {
		p, err := Alloc[uint64](ctx, j, 100)
		if err != nil {
			return err
		}
		free := (*FreeError)(nil)
		err = Free(ctx, j, p.Add(1))
		if !errors.As(err, &free) || free.Reason != heap.Interior || free.Ptr != heap.At(j.Rank(), p.Offset()+8) || free.Block != heap.At(j.Rank(), p.Offset()) {
			return fmt.Errorf("an interior pointer: %w", err)
		}
		for _, bad := range []Ptr[uint64]{At[uint64](0, 0), At[uint64](0, 100<<20), At[uint64](1, math.MaxUint64)} {
			err := Free(ctx, j, bad)
			if !errors.As(err, &free) || free.Reason != heap.Outside || !strings.Contains(err.Error(), fmt.Sprintf("free of %v:", bad)) {
				return fmt.Errorf("free of %v: %w", bad, err)
			}
		}
		before := j.HeapStats().Local
		_, err = Alloc[byte](ctx, j, 17*alloc.PageSize)
		no := (*NoMemoryError)(nil)
		if !errors.As(err, &no) || !errors.Is(err, ErrNoSharedMemory) || no.HeapSize != 16*alloc.PageSize {
			return fmt.Errorf("too much: %w", err)
		}
		if after := j.HeapStats().Local; after != before {
			return fmt.Errorf("it changed %+v to %+v", before, after)
		}
		size := (*SizeError)(nil)
		if _, err = Alloc[uint64](ctx, j, math.MaxInt); !errors.As(err, &size) {
			return fmt.Errorf("an overflow: %w", err)
		}
		if _, err = GlobalAlloc[uint64](ctx, j, math.MaxInt, 1<<20); !errors.As(err, &size) {
			return fmt.Errorf("an overflow of blocks: %w", err)
		}
		_, negative := Alloc[uint64](ctx, j, -1)
		_, blocks := GlobalAlloc[uint64](ctx, j, -1, 1)
		_, typed := Alloc[*int](ctx, j, 1)
		if negative == nil || blocks == nil || !errors.As(typed, new(*TypeError)) {
			return fmt.Errorf("%w, %w, %w", negative, blocks, typed)
		}
		if null, err := Alloc[uint64](ctx, j, 0); err != nil || !null.IsNull() || Free(ctx, j, null) != nil {
			return fmt.Errorf("0 elements: %v, %w", null, err)
		}
		if err := Free(ctx, j, p); err != nil {
			return err
		}
		err = Free(ctx, j, p)
		if !errors.As(err, &free) || free.Reason != heap.NotInUse {
			return fmt.Errorf("freed twice: %w", err)
		}
		return j.Barrier(ctx)
	})
}

func TestSliceRefusesWhatIsNotHere(t *testing.T) {
	runLocal(t, 2, Config{Fabric: FabricSHM, SegmentSize: 100}, func(_ context.Context, j *Job) error {
		me := j.Rank()
		for _, c := range []struct {
			p    Ptr[uint64]
			n    int
			want string
		}{
			{At[uint64](1-me, 0), 1, "is not of this rank"},
			{At[uint64](me, 96), 1, "leave the segment"},
			{At[uint64](me, 1<<40), 1, "leave the segment"},
			{At[uint64](me, 4), 1, "no multiple of the type's alignment"},
			{At[uint64](me, 0), -1, "want 0 or more"},
			{Ptr[uint64]{}, 1, "null"},
		} {
			if _, err := Slice(j, c.p, c.n); err == nil || !strings.Contains(err.Error(), c.want) {
				return fmt.Errorf("%d at %v: %v, want %s", c.n, c.p, err, c.want)
			}
		}
		for _, n := range []int{0, 12} {
			if s, err := Slice(j, At[uint64](me, 0), n); err != nil || len(s) != n || cap(s) != n {
				return fmt.Errorf("%d elements: %d: %w", n, len(s), err)
			}
		}
		s, err := Slice(j, Ptr[uint64]{}, 0)
		if err != nil || s != nil {
			return fmt.Errorf("none of null: %w", err)
		}
		return nil
	})
}

func TestSymmetricBlocksHaveOneOffset(t *testing.T) {
	cfg := Config{SymmetricSize: 1 << 20}
	onFabrics(t, 3, cfg, worked(func(ctx context.Context, j *Job, w *Worker) error {
		rng := rand.New(rand.NewPCG(1, 2)) // the same at all ranks
		var live []Ptr[uint64]
		for i := range 100 {
			if len(live) > 0 && rng.IntN(3) == 0 {
				k := rng.IntN(len(live))
				if err := SymmetricFree(ctx, j, live[k]); err != nil {
					return err
				}
				live = append(live[:k], live[k+1:]...)
				continue
			}
			p, err := SymmetricAlloc[uint64](ctx, j, 1+rng.IntN(50))
			if err != nil {
				return err
			}
			offs, err := AllGatherValue(ctx, j, p.Offset())
			if err != nil || offs[0] != p.Offset() {
				return fmt.Errorf("block %d at %v, at rank 0 %#x: %w", i, p, offs[0], err)
			}
			if err := errors.Join(Put(w, p.On(neighbour(j)), uint64(j.Rank())), w.Flush(ctx)); err != nil {
				return err
			}
			live = append(live, p)
		}
		if err := errors.Join(j.VerifySymmetric(ctx), w.Barrier(ctx)); err != nil {
			return err
		}
		for _, p := range live {
			if s, err := Slice(j, p, 1); err != nil || s[0] != uint64((j.Rank()+2)%3) {
				return fmt.Errorf("%v in %v: %w", s, p, err)
			}
		}
		return w.Barrier(ctx)
	}))
}

// heapModel has each rank allocate, write, check and free at random through job and network: what
// one rank wrote into its blocks, wherever they lie, no other one may change.
func heapModel(ctx context.Context, j *Job, w *Worker, ops int) error {
	type block struct {
		p      Ptr[uint64]
		n      int
		mark   uint64
		global bool
	}
	rng := rand.New(rand.NewPCG(7, uint64(j.Rank())))
	var live []block
	var full int
	ranks := func(b block) int {
		if b.global {
			return j.Size()
		}
		return 1
	}
	at := func(b block, r int) Ptr[uint64] {
		if b.global {
			return b.p.On(r)
		}
		return b.p
	}
	drop := func(k int) error {
		b := live[k]
		live = append(live[:k], live[k+1:]...)
		got := make([]uint64, b.n)
		for r := range ranks(b) {
			if err := GetSlice(w, got, at(b, r)); err != nil {
				return err
			}
			for i, v := range got {
				if v != b.mark+uint64(r) {
					return fmt.Errorf("word %d of %v is %#x, want %#x", i, at(b, r), v, b.mark+uint64(r))
				}
			}
		}
		if rng.IntN(2) == 0 {
			return FreeAsync(ctx, j, b.p)
		}
		return Free(ctx, j, b.p)
	}
	for i := range ops {
		if len(live) > 0 && (len(live) == 30 || rng.IntN(2) == 0) {
			if err := drop(rng.IntN(len(live))); err != nil {
				return err
			}
			continue
		}
		b := block{n: 1 + rng.IntN(1<<rng.IntN(12)), mark: uint64(j.Rank())<<40 | uint64(i)<<8, global: j.Size() > 1 && rng.IntN(3) == 0}
		var err error
		if b.global {
			b.p, err = GlobalAlloc[uint64](ctx, j, j.Size(), b.n)
		} else {
			b.p, err = Alloc[uint64](ctx, j, b.n)
		}
		if errors.Is(err, ErrNoSharedMemory) {
			full++
			continue
		}
		if err != nil {
			return err
		}
		src := make([]uint64, b.n)
		for r := range ranks(b) {
			for k := range src {
				src[k] = b.mark + uint64(r)
			}
			if err := errors.Join(PutSlice(w, at(b, r), src), w.Flush(ctx)); err != nil {
				return err
			}
		}
		live = append(live, b)
	}
	for len(live) > 0 {
		if err := drop(0); err != nil {
			return err
		}
	}
	all, err := AllGatherValue(ctx, j, full)
	if err != nil {
		return err
	}
	sum := 0
	for _, n := range all {
		sum += n
	}
	if sum == 0 || sum > ops*j.Size()/3 {
		return fmt.Errorf("%d of %d requests found the heap full: the model tries too little or too much", sum, ops*j.Size())
	}
	return until(ctx, "all is free", func() bool {
		s := j.HeapStats()
		return s.Local.Blocks+s.Global.Blocks == 0
	})
}

func TestHeapModelOverNetworks(t *testing.T) {
	ops := 3000
	if testing.Short() {
		ops = 600
	}
	for n := 1; n <= 4; n++ {
		onFabrics(t, n, withHeap(24), worked(func(ctx context.Context, j *Job, w *Worker) error { return heapModel(ctx, j, w, ops) }))
	}
}

// Rank 0 keeps the boundary and the global heap; without it what a rank has goes on.
func TestWithoutRank0TheLocalHeapGoesOn(t *testing.T) {
	fabrics(t, func(t *testing.T, on Config) {
		cfg := withHeap(64)
		cfg.Fabric, cfg.Device, cfg.SegmentSize, cfg.Getenv = on.Fabric, on.Device, on.SegmentSize, noEnv
		ctx := testContext(t)
		died := errors.New("rank 0 has had enough")
		var met sync.WaitGroup // all have left the barrier
		met.Add(3)
		err := RunLocalConfig(ctx, 3, cfg, func(j *Job) error {
			p, err := Alloc[uint64](ctx, j, 100)
			if err == nil {
				err = j.Barrier(ctx)
			}
			met.Done()
			if err != nil {
				return err
			}
			if j.Rank() == 0 {
				met.Wait()
				return died
			}
			if err := until(ctx, "rank 0 is down", func() bool { return j.DownRanks()[0] != nil }); err != nil {
				return err
			}
			_, grow := Alloc[byte](ctx, j, 50*alloc.PageSize)
			_, global := GlobalAlloc[uint64](ctx, j, 3, 100)
			_, all := AllAlloc[uint64](ctx, j, 3, 100)
			for _, err := range []error{grow, global, all, Free(ctx, j, At[uint64](0, p.Offset())), FreeAsync(ctx, j, At[uint64](0, p.Offset()))} {
				if err := wantErr(err, ErrPeerDown, "rank 0"); err != nil {
					return err
				}
			}
			q, err := Alloc[uint64](ctx, j, 100)
			return errors.Join(err, Free(ctx, j, p), Free(ctx, j, q))
		})
		if !errors.Is(err, died) || strings.Contains(err.Error(), "rank 1:") || strings.Contains(err.Error(), "rank 2:") {
			t.Errorf("the job ends with %v, want only that of rank 0", err)
		}
	})
}

// A handler may take what the local heap has, and must not wait for rank 0.
func TestAHandlerAllocatesWithoutAMessageOnly(t *testing.T) {
	var jobs [2]*Job
	table := am.NewTable()
	h := table.Handle("alloc", func(c *am.Call) {
		j := jobs[c.Endpoint().Rank()]
		p, small := Alloc[uint64](context.Background(), j, 1)
		_, large := Alloc[byte](context.Background(), j, 40*alloc.PageSize)
		status := uint64(0)
		if small == nil && Free(context.Background(), j, p) == nil && errors.Is(large, am.ErrInHandler) {
			status = 1
		}
		_ = c.Reply(status)
	})
	cfg := withHeap(64)
	cfg.Handlers = table
	if owner.Checked { // there communication in a handler panics
		t.Skip("the debug build makes it a panic")
	}
	runLocal(t, 2, Config{Fabric: FabricSHM, HeapSize: cfg.HeapSize, Handlers: table, Shared: cfg.Shared}, func(ctx context.Context, j *Job) error {
		jobs[j.Rank()] = j
		p, err := Alloc[uint64](ctx, j, 1) // so that the heap has grown
		if err := errors.Join(err, Free(ctx, j, p), j.Barrier(ctx)); err != nil {
			return err
		}
		r, err := h.Call(ctx, j, 1-j.Rank())
		if err != nil || r.Arg(0) != 1 {
			return fmt.Errorf("the handler's allocations: %v: %w", r.Args(), err)
		}
		return j.Barrier(ctx)
	})
}

// BenchmarkGlobalAlloc reports what GlobalAlloc of another rank than 0 takes in round trips of an
// active message that goes the same way, and is handled at once, measured in turn.
func BenchmarkGlobalAlloc(b *testing.B) {
	part := &libraryPart{name: "conduit.twice", f: twice}
	cfg := withNeeds(withHeap(64), needs{handlers: part.register})
	cfg.Fabric, cfg.Getenv, cfg.CloseTimeout = FabricSHM, noEnv, time.Minute
	err := RunLocalConfig(b.Context(), 2, cfg, func(j *Job) error {
		ctx := b.Context()
		if j.Rank() == 0 {
			return nil // Close handles messages meanwhile
		}
		var call, alloc []float64
		for range max(b.N, 100) {
			begin := time.Now()
			if _, err := part.of(j).Call(ctx, j.services(), 0, 21); err != nil {
				return err
			}
			middle := time.Now()
			p, err := GlobalAlloc[byte](ctx, j, 2, 1000)
			call, alloc = append(call, float64(middle.Sub(begin))), append(alloc, float64(time.Since(middle)))
			if err := errors.Join(err, Free(ctx, j, p)); err != nil {
				return err
			}
		}
		slices.Sort(call)
		slices.Sort(alloc)
		k := len(call) / 2
		b.ReportMetric(call[k], "call-ns")
		b.ReportMetric(alloc[k], "alloc-ns")
		b.ReportMetric(alloc[k]/call[k], "round-trips")
		return nil
	})
	if err != nil {
		b.Error(err)
	}
}

// BenchmarkAllocFree is Free and Alloc of a random block among many, through the job.
func BenchmarkAllocFree(b *testing.B) {
	cfg := withHeap(1 << 16)
	cfg.Fabric, cfg.Getenv, cfg.SegmentSize = FabricSHM, noEnv, 1<<28
	err := RunLocalConfig(b.Context(), 1, cfg, func(j *Job) error {
		const live = 10_000
		ctx, rng := b.Context(), rand.New(rand.NewPCG(1, 2))
		blocks, sizes, which := make([]Ptr[byte], live), make([]int, 1<<16), make([]int, 1<<16)
		for i := range sizes {
			sizes[i], which[i] = 16+rng.IntN(1<<(4+rng.IntN(13))), rng.IntN(live)
		}
		var err error
		for i := range blocks {
			if blocks[i], err = Alloc[byte](ctx, j, sizes[i]); err != nil {
				return err
			}
		}
		b.ResetTimer()
		for i := range b.N {
			k := which[i&0xffff]
			if err := Free(ctx, j, blocks[k]); err != nil {
				return err
			}
			if blocks[k], err = Alloc[byte](ctx, j, sizes[i&0xffff]); err != nil {
				return err
			}
		}
		b.StopTimer()
		return nil
	})
	if err != nil {
		b.Error(err)
	}
}

// An error names the pointer that was given, also in front of the heap.
func TestSymmetricFreeNamesItsPointer(t *testing.T) {
	table := NewSharedTable()
	SharedIn[uint64](table, "a", 100, Cyclic)
	onFabrics(t, 2, Config{SymmetricSize: 8192, Shared: table}, func(ctx context.Context, j *Job) error {
		p, err := SymmetricAlloc[uint64](ctx, j, 8)
		if err != nil {
			return err
		}
		static := j.Info().Shared.Static
		for _, off := range []uint64{p.Offset() + 16, p.Offset() + 4096, 0, static - 1, static + 8192, ^uint64(0)} {
			err := SymmetricFree(ctx, j, At[uint64](j.Rank(), off))
			if e := (*FreeError)(nil); !errors.As(err, &e) || e.Ptr.Offset() != off || e.Ptr.Rank() != j.Rank() {
				return fmt.Errorf("free of offset %#x: %v", off, err)
			}
		}
		return SymmetricFree(ctx, j, p)
	})
}
