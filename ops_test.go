package conduit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
)

func TestEveryRankReadsWhatItsNeighbourPut(t *testing.T) {
	fabrics(t, func(t *testing.T, cfg Config) {
		for _, n := range []int{1, 2, 3, 5} {
			runLocal(t, n, cfg, worked(func(ctx context.Context, j *Job, w *Worker) error {
				right, left := (j.Rank()+1)%n, (j.Rank()+n-1)%n
				type triple struct {
					A int32
					B [3]float64
					C uint16
				}
				if err := Put(w, At[triple](right, 72), triple{int32(j.Rank()), [3]float64{1, 2, float64(j.Rank())}, 7}); err != nil {
					return err
				}
				if err := w.Barrier(ctx); err != nil {
					return err
				}
				v, err := Get(w, At[triple](j.Rank(), 72))
				if want := (triple{int32(left), [3]float64{1, 2, float64(left)}, 7}); err != nil || v != want {
					return fmt.Errorf("got %+v, %v, want %+v", v, err, want)
				}
				return w.Barrier(ctx)
			}))
		}
	})
}

func TestSizesAtEveryBoundary(t *testing.T) {
	onFabrics(t, 2, Config{SegmentSize: 20 << 20}, worked(func(ctx context.Context, j *Job, w *Worker) error {
		if j.Rank() == 1 {
			return nil
		}
		for _, n := range []int{0, 1, 7, 8, 9, 63, 64, 65, 127, 128, 129, 255, 256, 257, 2047, 2048, 2049, 4096, 8191, 8192, 8193, 65537, 1<<20 - 1, 1 << 20, 1<<20 + 1, 9 << 20, 20 << 20} {
			src, dst := make([]byte, n), make([]byte, n)
			pattern(src, n)
			p := At[byte](1, uint64(20<<20-n)) // ends with the segment
			if err := PutSlice(w, p, src); err != nil {
				return fmt.Errorf("put of %d: %w", n, err)
			}
			if err := GetSlice(w, dst, p); err != nil {
				return fmt.Errorf("get of %d: %w", n, err)
			}
			if !bytes.Equal(src, dst) {
				return fmt.Errorf("%d bytes came back different", n)
			}
		}
		// From and into the own segment: nothing is copied.
		own := j.Segment()[:9<<20]
		pattern(own, 3)
		if err := PutSlice(w, At[byte](1, 5), own); err != nil {
			return err
		}
		back := j.Segment()[9<<20 : 18<<20]
		if err := GetSlice(w, back, At[byte](1, 5)); err != nil {
			return err
		}
		return samePattern(back, 3)
	}))
}

func TestAtomicsOfAllRanksAddUp(t *testing.T) {
	const ranks, workers, each = 3, 2, 200
	onFabrics(t, ranks, Config{Workers: workers}, func(ctx context.Context, j *Job) error {
		var all sync.WaitGroup
		errs := make([]error, workers)
		for i := range workers {
			all.Go(func() {
				errs[i] = withWorker(j, func(w *Worker) error {
					sum, count, last := At[int64](0, 0), At[uint64](1, 8), At[uint64](2, 16)
					for k := range each {
						if _, err := FetchAdd(w, sum, 3); err != nil {
							return err
						}
						if k%20 != 0 {
							continue
						}
						for { // an increment by compare-and-swap
							old, err := Get(w, count)
							if err != nil {
								return err
							}
							if now, err := CompareSwap(w, count, old, old+1); err != nil {
								return err
							} else if now == old {
								break
							}
						}
						if _, err := Swap(w, last, uint64(j.Rank()*each+k+1)); err != nil {
							return err
						}
					}
					return nil
				})
			})
		}
		all.Wait()
		for _, err := range errs {
			if err != nil {
				return err
			}
		}
		if err := j.Barrier(ctx); err != nil {
			return err
		}
		return withWorker(j, func(w *Worker) error {
			sum, err := Get(w, At[int64](0, 0))
			if err != nil || sum != 3*ranks*workers*each {
				return fmt.Errorf("sum %d, %v, want %d", sum, err, 3*ranks*workers*each)
			}
			count, err := Get(w, At[uint64](1, 8))
			if err != nil || count != ranks*workers*each/20 {
				return fmt.Errorf("count %d, %v, want %d", count, err, ranks*workers*each/20)
			}
			return j.Barrier(ctx)
		})
	})
}

// A reader that sees the flag sees the data: message passing on one worker.
func TestPutsOfOneWorkerArriveInOrder(t *testing.T) {
	const rounds, size = 300, 1000
	onFabrics(t, 2, Config{}, worked(func(ctx context.Context, j *Job, w *Worker) error {
		me, other := j.Rank(), 1-j.Rank()
		data := j.Segment()[4096 : 4096+size]
		src := make([]byte, size)
		for k := 1; k <= rounds; k++ {
			if me == k%2 {
				pattern(src, k)
				err := w.Chain(func() error {
					if err := PutSliceNBI(w, At[byte](other, 4096), src); err != nil {
						return err
					}
					return PutNBI(w, At[uint64](other, 0), uint64(k))
				})
				if err != nil {
					return err
				}
				continue
			}
			if err := w.WaitUntil(ctx, 0, GreaterEqual, uint64(k)); err != nil {
				return err
			}
			if err := samePattern(data, k); err != nil {
				return fmt.Errorf("round %d: the flag came before the data: %w", k, err)
			}
		}
		return j.Barrier(ctx)
	}))
}

func TestMoreOperationsInFlightThanTheQueueHolds(t *testing.T) {
	const ops = 500
	onFabrics(t, 2, Config{QueueDepth: 16}, worked(func(ctx context.Context, j *Job, w *Worker) error {
		other := 1 - j.Rank()
		base := uint64(j.Rank()) << 20
		puts := make([]Pending, ops)
		for i := range puts {
			puts[i] = PutAsync(w, At[uint64](other, base+uint64(8*i)), uint64(i)*3)
		}
		for i := range puts { // collected out of order
			if err := puts[(i*7)%ops].Wait(ctx); err != nil {
				return err
			}
		}
		gets := make([]Promise[uint64], ops)
		for i := range gets {
			gets[i] = GetAsync(w, At[uint64](other, base+uint64(8*i)))
		}
		for i := range gets {
			if v, err := gets[i].Wait(ctx); err != nil || v != uint64(i)*3 {
				return fmt.Errorf("get %d: %d, %v", i, v, err)
			}
			if v, err := gets[i].Wait(ctx); err != nil || v != uint64(i)*3 {
				return fmt.Errorf("get %d, waited for again: %d, %v", i, v, err)
			}
		}
		for i := range ops {
			if err := PutNBI(w, At[[40]byte](other, base+uint64(64*i)), [40]byte{1: byte(i)}); err != nil {
				return err
			}
		}
		if err := w.Flush(ctx); err != nil {
			return err
		}
		for i := range ops {
			if v, err := Get(w, At[[40]byte](other, base+uint64(64*i))); err != nil || v[1] != byte(i) {
				return fmt.Errorf("put %d: %d, %v", i, v[1], err)
			}
		}
		return nil
	}))
}

func TestCollectivesAgreeOnEveryRank(t *testing.T) {
	fabrics(t, func(t *testing.T, cfg Config) {
		for _, n := range []int{1, 2, 3, 6} {
			runLocal(t, n, cfg, func(ctx context.Context, j *Job) error {
				for round := range 3 {
					all, err := AllGatherValue(ctx, j, [2]int32{int32(j.Rank()), int32(round)})
					if err != nil {
						return err
					}
					for r, v := range all {
						if v != [2]int32{int32(r), int32(round)} {
							return fmt.Errorf("all-gather: rank %d gave %v", r, v)
						}
					}
					mine := make([]byte, j.Rank()*70000) // 0 for rank 0, beyond a box for others
					pattern(mine, j.Rank())
					blobs, err := j.AllGather(ctx, mine)
					if err != nil {
						return err
					}
					for r, b := range blobs {
						if len(b) != r*70000 {
							return fmt.Errorf("all-gather: rank %d gave %d bytes", r, len(b))
						}
						if err := samePattern(b, r); err != nil {
							return err
						}
					}
					root := round % n
					buf := make([]byte, 150000)
					if j.Rank() == root {
						pattern(buf, round)
					}
					if err := j.Broadcast(ctx, root, buf); err != nil {
						return err
					}
					if err := samePattern(buf, round); err != nil {
						return fmt.Errorf("broadcast: %w", err)
					}
				}
				return nil
			})
		}
	})
}

// Each rank counts its arrivals; a barrier that lets one through early is seen
// by the others.
func TestBarrierHoldsAllRanksBack(t *testing.T) {
	fabrics(t, func(t *testing.T, cfg Config) {
		var arrived atomic.Int64
		const ranks, rounds = 4, 50
		runLocal(t, ranks, cfg, func(ctx context.Context, j *Job) error {
			rnd := rand.New(rand.NewPCG(1, uint64(j.Rank())))
			for round := 1; round <= rounds; round++ {
				for range rnd.IntN(2000) {
					_ = arrived.Load()
				}
				arrived.Add(1)
				if err := j.Barrier(ctx); err != nil {
					return err
				}
				if n := arrived.Load(); n < int64(round*ranks) {
					return fmt.Errorf("round %d: through the barrier after %d arrivals", round, n)
				}
				if err := j.Barrier(ctx); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

func TestHotPathDoesNotAllocate(t *testing.T) {
	fabrics(t, func(t *testing.T, cfg Config) {
		runs := 2000
		if cfg.Fabric == FabricIBV {
			runs = 300
		}
		runLocal(t, 2, cfg, worked(func(ctx context.Context, j *Job, w *Worker) error {
			if j.Rank() == 1 {
				return nil
			}
			word, block := At[int64](1, 64), At[byte](1, 128)
			buf := make([]byte, 4096)
			own := j.Segment()[8192 : 8192+8192]
			large := make([]byte, 64<<10)
			sink := int64(0)
			if cfg.Fabric == FabricIBV { // only a hit allocates nothing
				if err := errors.Join(awaitStillness(ctx), GetSlice(w, large, block)); err != nil {
					return err
				}
			}
			for name, fn := range map[string]func() error{
				"Put":                  func() error { return Put(w, word, 5) },
				"Get":                  func() error { v, err := Get(w, word); sink += v; return err },
				"PutNBI":               func() error { return PutNBI(w, word, 6) },
				"PutSlice":             func() error { return PutSlice(w, block, buf) },
				"GetSlice":             func() error { return GetSlice(w, buf, block) },
				"PutSlice own segment": func() error { return PutSlice(w, block, own) },
				"PutSlice large":       func() error { return PutSlice(w, block, large) },
				"GetSlice large":       func() error { return GetSlice(w, large, block) },
				"FetchAdd":             func() error { _, err := FetchAdd(w, word, 1); return err },
				"CompareSwap":          func() error { _, err := CompareSwap(w, word, 1, 2); return err },
				"Swap":                 func() error { _, err := Swap(w, word, 9); return err },
				"FetchOr":              func() error { _, err := FetchOr(w, word, 9); return err },
				"FetchMax of 32 bits":  func() error { v, err := FetchMax(w, Cast[int32](word), 9); sink += int64(v); return err },
				"Add of floats":        func() error { return errors.Join(Add(w, Cast[float64](word), 1), w.Flush(ctx)) },
				"PutAsync":             func() error { p := PutAsync(w, word, 7); return p.Wait(ctx) },
				"GetAsync":             func() error { p := GetAsync(w, word); _, err := p.Wait(ctx); return err },
			} {
				var first error
				allocs := testing.AllocsPerRun(runs, func() {
					if err := fn(); err != nil && first == nil {
						first = err
					}
				})
				if first != nil {
					return fmt.Errorf("%s: %w", name, first)
				}
				if allocs != 0 {
					return fmt.Errorf("%s: %v allocations", name, allocs)
				}
			}
			if r, ok := j.Registrations(); ok && r.Stats.Hits < uint64(runs) {
				return fmt.Errorf("nothing was kept registered: %+v", r)
			}
			return w.Flush(ctx)
		}))
	})
}

func TestCountersAddUpAtIdle(t *testing.T) {
	onFabrics(t, 2, Config{}, worked(func(ctx context.Context, j *Job, w *Worker) error {
		other := 1 - j.Rank()
		for i := range 100 {
			if err := PutNBI(w, At[uint64](other, uint64(8*i)), 1); err != nil {
				return err
			}
			if _, err := Get(w, At[[300]byte](other, 4096)); err != nil {
				return err
			}
		}
		if _, err := FetchAdd(w, At[uint64](other, 8192), 1); err != nil {
			return err
		}
		if err := w.Flush(ctx); err != nil {
			return err
		}
		c := w.Stats()[j.cfg.Fabric]
		switch {
		case j.cfg.Cache != nil: // it does with fewer
		case c.Puts != 100 || c.Gets != 100 || c.Atomics != 1 || c.PutBytes != 800 || c.GetBytes != 30000:
			return fmt.Errorf("counters %+v", c)
		}
		switch {
		case c.Completed+c.Errors != c.Puts+c.Gets+c.Atomics || c.Errors != 0:
			return fmt.Errorf("at idle completed %d and errors %d do not make up %d operations", c.Completed, c.Errors, c.Puts+c.Gets+c.Atomics)
		}
		return nil
	}))
}
