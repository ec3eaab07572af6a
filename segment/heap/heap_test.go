package heap

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/env"
	"github.com/ibconduit/conduit/env/envtest"
	"github.com/ibconduit/conduit/fabric/sim"
	"github.com/ibconduit/conduit/segment/alloc"
)

const page = alloc.PageSize

// ranks runs f on n simulated ranks with heaps of some pages.
func ranks(t *testing.T, n, pages int, cfg Config, f func(ctx context.Context, m *member) error) {
	t.Helper()
	world(t, sim.Config{Ranks: n, Seed: 1}, uint64(pages)*page, cfg, f)
}

// on0 is f at rank 0, while the others wait.
func on0(f func(ctx context.Context, m *member) error) func(ctx context.Context, m *member) error {
	return func(ctx context.Context, m *member) error {
		if m.Rank() != 0 {
			return nil
		}
		return f(ctx, m)
	}
}

func TestTheWholeHeapCanBeHad(t *testing.T) {
	for _, n := range []int{1, 2, 3} {
		ranks(t, n, 64, Config{}, func(ctx context.Context, m *member) error {
			if m.Rank() != n-1 {
				return nil
			}
			for _, take := range []struct {
				what string
				f    func(n uint64) (Ptr, error)
			}{
				{"local", func(n uint64) (Ptr, error) { return m.h.Alloc(ctx, n, 0) }},
				{"global", func(n uint64) (Ptr, error) { return m.h.GlobalAlloc(ctx, uint64(m.Size()), n, 0) }},
				{"local again", func(n uint64) (Ptr, error) { return m.h.Alloc(ctx, n, 0) }},
				{"global again", func(n uint64) (Ptr, error) { return m.h.GlobalAlloc(ctx, 2*uint64(m.Size()), n/2, 0) }},
			} {
				before := m.h.Stats()
				_, err := take.f(65 * page)
				var e *NoMemoryError
				if !errors.As(err, &e) || e.Requested != 65*page || e.HeapSize != 64*page {
					return fmt.Errorf("%s: a page more than the heap has: %v", take.what, err)
				}
				if after := m.h.Stats(); after.Local != before.Local && before.Local.Blocks > 0 {
					return fmt.Errorf("%s: the failure changed %+v to %+v", take.what, before.Local, after.Local)
				}
				small, err := take.f(2 * page)
				if err != nil {
					return fmt.Errorf("%s: a small block after the failure: %w", take.what, err)
				}
				if _, err := take.f(64 * page); !errors.Is(err, ErrNoSharedMemory) {
					return fmt.Errorf("%s: the whole heap beside a small block: %v", take.what, err)
				}
				if err := m.h.Free(ctx, small); err != nil {
					return err
				}
				p, err := take.f(64 * page)
				if err != nil {
					return fmt.Errorf("%s: the whole heap: %w", take.what, err)
				}
				if _, err := take.f(2); !errors.Is(err, ErrNoSharedMemory) {
					return fmt.Errorf("%s: a byte of a full heap", take.what)
				}
				if err := m.h.Free(ctx, p); err != nil {
					return err
				}
			}
			return nil
		})
	}
}

// Growth takes what is left, also where that is less than it would like.
func TestTheLastPageIsGranted(t *testing.T) {
	ranks(t, 2, 64, Config{}, func(ctx context.Context, m *member) error {
		if m.Rank() != 1 {
			return nil
		}
		for i := range 64 {
			if _, err := m.h.Alloc(ctx, page, page); err != nil {
				return fmt.Errorf("page %d of 64: %w", i, err)
			}
		}
		if _, err := m.h.Alloc(ctx, 1, 0); !errors.Is(err, ErrNoSharedMemory) {
			return fmt.Errorf("a byte more: %v", err)
		}
		return nil
	})
}

func TestGrowthWithinTheLimitSendsNothing(t *testing.T) {
	ranks(t, 3, 1024, Config{}, func(ctx context.Context, m *member) error {
		if m.Rank() == 1 { // pays for all
			if _, err := m.h.Alloc(ctx, 512*page, 0); err != nil {
				return err
			}
		}
		if err := m.team.Barrier(ctx); err != nil {
			return err
		}
		if m.Rank() != 2 {
			return nil
		}
		if _, err := m.h.Alloc(ctx, page, 0); err != nil { // the reply brings the limit of all
			return err
		}
		for range 511 {
			if _, err := m.h.Alloc(ctx, page, page); err != nil {
				return err
			}
		}
		if got := m.h.Stats().Asked; got != 1 {
			return fmt.Errorf("%d calls to rank 0 for 512 pages within the limit, want 1", got)
		}
		if _, err := m.h.Alloc(ctx, page, page); err != nil {
			return err
		}
		if got := m.h.Stats().Asked; got != 2 {
			return fmt.Errorf("%d calls to rank 0 after the limit, want 2", got)
		}
		return nil
	})
}

func TestAGlobalAllocBringsTheLimitToo(t *testing.T) {
	ranks(t, 2, 256, Config{}, func(ctx context.Context, m *member) error {
		if m.Rank() == 0 {
			if _, err := m.h.Alloc(ctx, 64*page, 0); err != nil {
				return err
			}
		}
		if err := m.team.Barrier(ctx); err != nil || m.Rank() == 0 {
			return err
		}
		if _, err := m.h.GlobalAlloc(ctx, 2, page, 0); err != nil {
			return err
		}
		if _, err := m.h.Alloc(ctx, 64*page, 0); err != nil {
			return err
		}
		if got := m.h.Stats().Asked; got != 0 {
			return fmt.Errorf("%d calls for growth", got)
		}
		return nil
	})
}

// Defect 1: only the top bits of the factors were looked at.
func TestACountThatOverflowsIsAnError(t *testing.T) {
	ranks(t, 2, 64, Config{}, func(ctx context.Context, m *member) error {
		for _, c := range [][2]uint64{{1 << 33, 1 << 33}, {math.MaxUint64, 2}, {3, math.MaxUint64 / 2}, {1 << 32, 1 << 32}} {
			_, err := m.h.AllAlloc(ctx, c[0], c[1], 0)
			if e := (*SizeError)(nil); !errors.As(err, &e) || !e.Overflow {
				return fmt.Errorf("rank %d: %d blocks of %d bytes: %v", m.Rank(), c[0], c[1], err)
			}
			if m.Rank() == 0 {
				if _, err := m.h.GlobalAlloc(ctx, c[0], c[1], 0); !errors.As(err, new(*SizeError)) {
					return fmt.Errorf("%d blocks of %d bytes: %v", c[0], c[1], err)
				}
			}
		}
		if _, err := m.h.Alloc(ctx, math.MaxUint64, 0); !errors.Is(err, ErrNoSharedMemory) {
			return fmt.Errorf("all addresses: %v", err)
		}
		if _, err := m.h.Alloc(ctx, 1<<50, 0); !errors.Is(err, ErrNoSharedMemory) {
			return fmt.Errorf("2^50 bytes: %v", err)
		}
		return nil
	})
}

func TestNothingIsNull(t *testing.T) {
	ranks(t, 2, 8, Config{}, func(ctx context.Context, m *member) error {
		a, err1 := m.h.Alloc(ctx, 0, 0)
		b, err2 := m.h.GlobalAlloc(ctx, 0, 8, 0)
		c, err3 := m.h.AllAlloc(ctx, 8, 0, 0)
		if err := errors.Join(err1, err2, err3); err != nil || !a.IsNull() || !b.IsNull() || !c.IsNull() {
			return fmt.Errorf("%v %v %v: %v", a, b, c, err)
		}
		if err := errors.Join(m.h.Free(ctx, a), m.h.FreeAsync(ctx, b), m.h.AllFree(ctx, c)); err != nil {
			return err
		}
		if a.Rank() != -1 || a.String() != "null" || At(3, 16).String() != "3:0x10" {
			return fmt.Errorf("null is %v of rank %d", a, a.Rank())
		}
		return nil
	})
}

func TestAlignmentIsKept(t *testing.T) {
	for _, make := range []func() alloc.Allocator{nil, func() alloc.Allocator { return alloc.NewBuddy() }} {
		ranks(t, 2, 256, Config{New: make}, on0(func(ctx context.Context, m *member) error {
			for align := uint64(1); align <= MaxAlign; align *= 2 {
				for _, n := range []uint64{1, 100, 5000, 20000} {
					p, err := m.h.Alloc(ctx, n, align)
					if err != nil || p.Offset()%align != 0 {
						return fmt.Errorf("%d bytes at a multiple of %d: %v %v", n, align, p, err)
					}
					q, err := m.h.GlobalAlloc(ctx, 2, n, align)
					if err != nil || q.Offset()%align != 0 {
						return fmt.Errorf("global: %d bytes at a multiple of %d: %v %v", n, align, q, err)
					}
					if err := errors.Join(m.h.Free(ctx, p), m.h.Free(ctx, q)); err != nil {
						return err
					}
				}
			}
			for _, align := range []uint64{3, 2 * MaxAlign, 1 << 63} {
				_, err := m.h.Alloc(ctx, 8, align)
				if e := (*SizeError)(nil); !errors.As(err, &e) || !e.WrongAlignment {
					return fmt.Errorf("alignment %d: %v", align, err)
				}
			}
			return nil
		}))
	}
}

// One block lies in the local heap of rank 0, and takes nothing elsewhere.
func TestOneGlobalBlockIsLocalToRank0(t *testing.T) {
	ranks(t, 3, 64, Config{}, func(ctx context.Context, m *member) error {
		if m.Rank() != 1 {
			return nil
		}
		p, err := m.h.GlobalAlloc(ctx, 1, 60*page, 0)
		if err != nil || p.Rank() != 0 || p.Offset() >= 60*page {
			return fmt.Errorf("%v: %w", p, err)
		}
		if _, err := m.h.GlobalAlloc(ctx, 1, 5*page, 0); !errors.Is(err, ErrNoSharedMemory) {
			return fmt.Errorf("more than is left: %v", err)
		}
		return m.h.Free(ctx, p)
	})
}

// Defects 2, 4 and 6: what is no block in use is an error that says why, and changes nothing.
func TestWrongFreesAreErrors(t *testing.T) {
	ranks(t, 3, 64, Config{}, func(ctx context.Context, m *member) error {
		if m.Rank() != 2 {
			return nil
		}
		mine, err := m.h.Alloc(ctx, 100, 0)
		if err != nil {
			return err
		}
		global, err := m.h.GlobalAlloc(ctx, 3, 3*page, 0)
		if err != nil {
			return err
		}
		one, err := m.h.GlobalAlloc(ctx, 1, 3*page, 0)
		if err != nil {
			return err
		}
		gone, _ := m.h.Alloc(ctx, 48, 0)
		if err := m.h.Free(ctx, gone); err != nil {
			return err
		}
		for _, c := range []struct {
			what string
			p    Ptr
			want Reason
		}{
			{"twice", gone, NotInUse},
			{"inside of a local block", At(2, mine.off+16), Interior},
			{"the end of the local heap", At(2, m.h.Stats().Local.Len), WrongHeap},
			{"outside of the heap", At(2, 64*page), Outside},
			{"far outside", At(2, math.MaxUint64), Outside},
			{"a local block of another rank", At(1, mine.off), WrongHeap},
			{"a rank that does not exist", At(3, 0), Outside},
			{"inside of a global block", At(0, global.off+page), Interior},
			{"a global block at another rank", At(1, global.off), WrongHeap},
			{"a global block at this rank", At(2, global.off), WrongHeap},
			{"inside of a block of rank 0", At(0, one.off+64), Interior},
			{"between the heaps", At(0, 32*page), Outside},
		} {
			before := m.h.Stats().Local
			for _, free := range []func(context.Context, Ptr) error{m.h.Free} {
				err := free(ctx, c.p)
				if e := (*FreeError)(nil); !errors.As(err, &e) || e.Reason != c.want || e.Ptr != c.p || !errors.Is(err, ErrBadFree) {
					return fmt.Errorf("%s: %v: %v", c.what, c.p, err)
				}
				if c.want == Interior && !strings.Contains(err.Error(), "free that") {
					return fmt.Errorf("%s: %w", c.what, err)
				}
			}
			if after := m.h.Stats().Local; after != before {
				return fmt.Errorf("%s: changed the heap", c.what)
			}
		}
		return errors.Join(m.h.Free(ctx, mine), m.h.Free(ctx, global), m.h.Free(ctx, one))
	})
}

func TestAnAsynchronousFreeIsCounted(t *testing.T) {
	ranks(t, 2, 64, Config{}, func(ctx context.Context, m *member) error {
		if m.Rank() == 1 {
			p, err := m.h.GlobalAlloc(ctx, 2, page, 0)
			if err != nil {
				return err
			}
			if err := errors.Join(m.h.FreeAsync(ctx, p), m.h.FreeAsync(ctx, p)); err != nil {
				return err
			}
			if err := m.h.FreeAsync(ctx, At(7, 0)); !errors.Is(err, ErrBadFree) {
				return fmt.Errorf("a rank that does not exist: %v", err)
			}
			if _, err := m.h.GlobalAlloc(ctx, 2, page, 0); err != nil { // behind them
				return err
			}
		}
		if err := m.team.Barrier(ctx); err != nil || m.Rank() != 0 {
			return err
		}
		if s := m.h.Stats(); s.RemoteFrees != 2 || s.BadFrees != 1 {
			return fmt.Errorf("%d frees for others, %d bad: want 2 and 1", s.RemoteFrees, s.BadFrees)
		}
		return nil
	})
}

// Defect 9: sizes never shrank.
func TestFreedMemoryChangesSides(t *testing.T) {
	ranks(t, 3, 64, Config{}, func(ctx context.Context, m *member) error {
		for round := range 3 {
			p, err := m.h.Alloc(ctx, 60*page, 0)
			if err != nil {
				return fmt.Errorf("round %d: rank %d: the local heap: %w", round, m.Rank(), err)
			}
			if err := m.team.Barrier(ctx); err != nil {
				return err
			}
			if _, err := m.h.AllAlloc(ctx, 3, 10*page, 0); !errors.Is(err, ErrNoSharedMemory) {
				return fmt.Errorf("round %d: all is in use: %v", round, err)
			}
			if err := m.h.Free(ctx, p); err != nil {
				return err
			}
			if err := m.team.Barrier(ctx); err != nil {
				return err
			}
			g, err := m.h.AllAlloc(ctx, 3, 60*page, 0)
			if err != nil {
				return fmt.Errorf("round %d: rank %d: the global heap: %w", round, m.Rank(), err)
			}
			if _, err := m.h.Alloc(ctx, 10*page, 0); !errors.Is(err, ErrNoSharedMemory) {
				return fmt.Errorf("round %d: all is in use: %v", round, err)
			}
			if err := m.h.AllFree(ctx, g); err != nil {
				return err
			}
		}
		return nil
	})
}

// Defect 8: the error names the rank whose heap takes the memory of all.
func TestTheErrorNamesWhoReserves(t *testing.T) {
	ranks(t, 4, 64, Config{}, func(ctx context.Context, m *member) error {
		if m.Rank() == 2 {
			if _, err := m.h.Alloc(ctx, 50*page, 0); err != nil {
				return err
			}
		}
		if err := m.team.Barrier(ctx); err != nil {
			return err
		}
		_, err := m.h.AllAlloc(ctx, 4, 20*page, 0)
		var e *NoMemoryError
		if !errors.As(err, &e) || e.ReservedBy != 2 || e.Reserved < 50*page || e.Op != "all alloc" || e.LargestFree < 10*page {
			return fmt.Errorf("rank %d: %v", m.Rank(), err)
		}
		if !strings.Contains(err.Error(), "Config.HeapSize") || !strings.Contains(err.Error(), "by rank 2") {
			return fmt.Errorf("no remedy in %q", err)
		}
		return nil
	})
}

func TestDifferentArgumentsAreFound(t *testing.T) {
	ranks(t, 3, 64, Config{Check: true}, func(ctx context.Context, m *member) error {
		if _, err := m.h.AllAlloc(ctx, 3, 8+uint64(m.Rank()/2), 0); !errors.As(err, new(*MismatchError)) {
			return fmt.Errorf("rank %d: %v", m.Rank(), err)
		}
		p, err := m.h.AllAlloc(ctx, 3, page, 0)
		if err != nil {
			return err
		}
		err = m.h.AllFree(ctx, At(0, p.off+uint64(m.Rank()/2)))
		if e := (*FreeError)(nil); !errors.As(err, &e) || e.Reason != Differing {
			return fmt.Errorf("rank %d: %v", m.Rank(), err)
		}
		return m.h.AllFree(ctx, p)
	})
}

// Defect 10: an error is the same everywhere; and freeing twice is one.
func TestAllFreeFailsAlikeEverywhere(t *testing.T) {
	ranks(t, 3, 64, Config{}, func(ctx context.Context, m *member) error {
		p, err := m.h.AllAlloc(ctx, 6, page, 0)
		if err != nil {
			return err
		}
		if err := m.h.AllFree(ctx, p); err != nil {
			return err
		}
		err = m.h.AllFree(ctx, p)
		if e := (*FreeError)(nil); !errors.As(err, &e) || e.Reason != Outside && e.Reason != NotInUse {
			return fmt.Errorf("rank %d: twice: %v", m.Rank(), err)
		}
		texts, gerr := m.team.AllGather(ctx, []byte(err.Error()))
		if gerr != nil || string(texts[0]) != string(texts[2]) {
			return fmt.Errorf("%q: %w", texts, gerr)
		}
		return nil
	})
}

// A rank writes a block until it enters AllFree, late.
func TestAllFreeWaitsForTheLast(t *testing.T) {
	ranks(t, 3, 16, Config{}, func(ctx context.Context, m *member) error {
		p, err := m.h.AllAlloc(ctx, 3, 12*page, 0)
		if err != nil {
			return err
		}
		if m.Rank() == 2 {
			for i := range 50 {
				if err := m.put(ctx, 1, p.off, uint64(i)); err != nil {
					return err
				}
				m.Host().Sleep(100 * time.Microsecond)
				if got, err := m.get(ctx, 1, p.off); err != nil || got != uint64(i) {
					return fmt.Errorf("%d, want %d (%v): freed before the last rank came", got, i, err)
				}
			}
		}
		if err := m.h.AllFree(ctx, p); err != nil {
			return err
		}
		if m.Rank() == 1 { // takes the memory at once, and clears it
			q, err := m.h.Alloc(ctx, 16*page, 0)
			if err != nil {
				return err
			}
			clear(m.h.Bytes(q.off, 16*page))
		}
		return nil
	})
}

// Two goroutines of a rank race for one grant: one of them has to ask again.
func TestTwoGoroutinesShareAGrant(t *testing.T) {
	ranks(t, 2, 64, Config{}, func(ctx context.Context, m *member) error {
		if m.Rank() != 1 {
			return nil
		}
		const n = 6
		var failed error
		left, done := n, m.Host().NewParker()
		for range n {
			m.Host().Go("alloc", func() {
				for range 5 {
					if _, err := m.h.Alloc(ctx, 2*page, 0); err != nil {
						failed = err
					}
				}
				if left--; left == 0 {
					done.Unpark()
				}
			})
		}
		for left > 0 {
			if err := done.Park(ctx); err != nil {
				return err
			}
		}
		if s := m.h.Stats(); failed == nil && s.Local.InUse != n*5*2*page {
			return fmt.Errorf("%d bytes in use", s.Local.InUse)
		}
		return failed
	})
}

func TestAStoreBeyondABlockIsFound(t *testing.T) {
	ranks(t, 1, 16, Config{Check: true}, func(ctx context.Context, m *member) (err error) {
		p, err := m.h.Alloc(ctx, 100, 0)
		if err != nil {
			return err
		}
		if b := m.h.Bytes(p.off, 100); b[0] != alloc.Fresh || b[99] != alloc.Fresh {
			return fmt.Errorf("fresh memory holds %#x", b[0])
		}
		m.h.Bytes(p.off, 101)[100] = 1
		defer func() {
			if e, ok := recover().(*alloc.Overrun); !ok || e.Len != 100 {
				err = fmt.Errorf("no overrun is reported: %v", e)
			}
			m.h.mu.Unlock() // which the panic left
		}()
		return m.h.Free(ctx, p)
	})
}

// Defect 11: without rank 0, and without the owner, there is an error in bounded time.
func TestADeadRankIsAnError(t *testing.T) {
	for _, victim := range []int{0, 2} {
		var w *envtest.World
		cfg := sim.Config{Ranks: 3, Seed: 3, MaxTime: 60 * time.Second, RetryTimeout: 5 * time.Millisecond}
		w, err := envtest.NewWorld(cfg, specs(t, 3, 64*page)...)
		if err != nil {
			t.Fatal(err)
		}
		err = w.Run(func(ctx context.Context, e env.Env) error {
			m, err := join(ctx, e, Config{Timeout: time.Second}, am.Config{})
			if err != nil {
				return err
			}
			defer m.close()
			p := Ptr{}
			if e.Rank() == victim {
				if p, err = m.h.Alloc(ctx, page, 0); err != nil {
					return err
				}
			}
			all, err := m.team.AllGather(ctx, []byte{byte(p.off / 16)})
			if err != nil {
				return err
			}
			if e.Rank() == victim {
				m.Host().Sleep(10 * time.Millisecond)
				w.Kill(victim)
				m.Host().Sleep(time.Hour)
				return nil
			}
			m.Host().Sleep(100 * time.Millisecond)
			if e.Rank() != 1 {
				m.Host().Sleep(10 * time.Second)
				return nil
			}
			began := m.Host().Now()
			if victim == 0 {
				if _, err := m.h.Alloc(ctx, 20*page, 0); !isDown(err, 0) {
					return fmt.Errorf("growth without rank 0: %v", err)
				}
				if _, err := m.h.GlobalAlloc(ctx, 3, page, 0); !isDown(err, 0) {
					return fmt.Errorf("the global heap without rank 0: %v", err)
				}
			} else {
				if err := m.h.Free(ctx, At(victim, uint64(all[victim][0])*16)); !isDown(err, victim) {
					return fmt.Errorf("free without the owner: %v", err)
				}
				// Its heap may use what it was granted: nothing is reclaimed.
				if _, err := m.h.Alloc(ctx, 40*page, 0); err != nil {
					return err
				}
				if err := m.h.Free(ctx, At(1, 0)); err != nil {
					return err
				}
				if _, err := m.h.GlobalAlloc(ctx, 3, 50*page, 0); !errors.Is(err, ErrNoSharedMemory) {
					return fmt.Errorf("a reclaim without all ranks: %v", err)
				}
			}
			if took := m.Host().Now() - began; took > 5*time.Second {
				return fmt.Errorf("the errors took %v", took)
			}
			return nil
		})
		if err != nil {
			t.Errorf("rank %d is dead: %v", victim, err)
		}
	}
}

// A caller that gave up gets no block, and none is lost.
func TestAnAbandonedGlobalAllocLosesNothing(t *testing.T) {
	ranks(t, 2, 64, Config{}, func(ctx context.Context, m *member) error {
		if m.Rank() != 1 {
			return nil
		}
		lost := 0
		for i := range 40 {
			short, cancel := m.Host().WithTimeout(ctx, time.Duration(i)*500*time.Nanosecond)
			p, err := m.h.GlobalAlloc(short, 2, 40*page, 0)
			cancel()
			if err == nil {
				err = m.h.Free(ctx, p)
			} else if errors.Is(err, context.DeadlineExceeded) {
				lost++
				err = nil
			}
			if err != nil {
				return err
			}
			m.Host().Sleep(time.Millisecond)
		}
		if lost == 0 || lost == 40 {
			return fmt.Errorf("%d of 40 were given up", lost)
		}
		p, err := m.h.GlobalAlloc(ctx, 2, 64*page, 0)
		if err != nil {
			return fmt.Errorf("after %d that were given up: %w", lost, err)
		}
		return m.h.Free(ctx, p)
	})
}

func TestAHeapOfNothingFailsAlike(t *testing.T) {
	ranks(t, 2, 0, Config{}, func(ctx context.Context, m *member) error {
		if _, err := m.h.Alloc(ctx, 1, 0); !errors.Is(err, ErrNoSharedMemory) {
			return err
		}
		if _, err := m.h.AllAlloc(ctx, 2, 1, 0); !errors.Is(err, ErrNoSharedMemory) {
			return err
		}
		return nil
	})
}

func TestSymmetricBlocksLieAlike(t *testing.T) {
	ranks(t, 3, 64, Config{}, func(ctx context.Context, m *member) error {
		for _, check := range []bool{false, true} {
			s, err := NewSymmetric(m, m.team, Config{Mem: m.Region(region).Bytes, Check: check})
			if err != nil {
				return err
			}
			var offs []byte
			for i := range uint64(20) {
				off, err := s.Alloc(ctx, 100*i, 64)
				if err != nil {
					return err
				}
				offs = fmt.Append(offs, off, " ")
				if i%3 == 0 && i > 0 {
					if err := s.Free(ctx, off); err != nil {
						return err
					}
				}
			}
			all, err := m.team.AllGather(ctx, offs)
			if err != nil || string(all[0]) != string(all[1]) || string(all[0]) != string(all[2]) {
				return fmt.Errorf("%q: %w", all, err)
			}
			if _, err := s.Alloc(ctx, 65*page, 0); !errors.Is(err, ErrNoSharedMemory) {
				return err
			}
			if err := s.Verify(ctx); err != nil {
				return err
			}
			if _, err := s.Alloc(ctx, 8+uint64(m.Rank()/2), 0); check != errors.As(err, new(*MismatchError)) {
				return fmt.Errorf("checked %v: another size at rank 2: %w", check, err)
			}
			if err := s.Verify(ctx); !errors.As(err, new(*MismatchError)) {
				return fmt.Errorf("the ranks' calls differ: %v", err)
			}
			if err := m.team.Barrier(ctx); err != nil {
				return err
			}
		}
		return nil
	})
}

func TestTheMapShowsTheHeap(t *testing.T) {
	ranks(t, 2, 64, Config{FirstTouch: true}, on0(func(ctx context.Context, m *member) error {
		if _, err := m.h.Alloc(ctx, 3*page, 0); err != nil {
			return err
		}
		if _, err := m.h.GlobalAlloc(ctx, 2, page, 0); err != nil {
			return err
		}
		var text strings.Builder
		if err := m.h.Dump(&text); err != nil {
			return err
		}
		for _, want := range []string{"rank 0: 262144 bytes", "1 blocks, 12288 bytes in use", "0x3f000..0x40000"} {
			if !strings.Contains(text.String(), want) {
				return fmt.Errorf("no %q in\n%s", want, text.String())
			}
		}
		return nil
	}))
}

func TestWrongMessagesAreRefused(t *testing.T) {
	ranks(t, 2, 64, Config{}, func(ctx context.Context, m *member) error {
		if m.Rank() != 1 {
			return nil
		}
		before := m.h.Stats()
		for _, c := range []struct {
			h    *am.Handler
			rank int
			args []uint64
		}{
			{m.h.grow, 0, []uint64{1, 1}}, {m.h.grow, 0, nil}, {m.h.grow, 0, []uint64{1 << 63, 0}},
			{m.h.take, 0, []uint64{0, 0, 0}}, {m.h.take, 0, []uint64{1 << 63, 0, 0}}, {m.h.take, 0, []uint64{8, 3, 0}},
			{m.h.trim, 0, []uint64{99}}, {m.h.free, 0, nil},
		} {
			if r, err := c.h.Call(ctx, m.h.via, c.rank, c.args...); err == nil && r.Len() > 0 {
				return fmt.Errorf("%s%v is answered with %v", c.h.Name(), c.args, r.Args())
			}
		}
		if after := m.h.Stats(); after != before {
			return fmt.Errorf("%+v became %+v", before, after)
		}
		_, err := m.h.Alloc(ctx, 60*page, 0)
		return err
	})
}

func BenchmarkAllocFree(b *testing.B) {
	for _, c := range []struct {
		name string
		make func() alloc.Allocator
	}{{"segregated", nil}, {"buddy", func() alloc.Allocator { return alloc.NewBuddy() }}} {
		b.Run(c.name, func(b *testing.B) { benchmarkAllocFree(b, c.make) })
	}
}
