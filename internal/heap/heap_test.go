package heap

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/ibconduit/conduit/internal/alloc"
	"github.com/ibconduit/conduit/internal/fabric/sim"
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
				return fmt.Errorf("more than there is: %v", err)
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

func BenchmarkAllocFree(b *testing.B) {
	for _, c := range []struct {
		name string
		make func() alloc.Allocator
	}{{"segregated", nil}, {"buddy", func() alloc.Allocator { return alloc.NewBuddy() }}} {
		b.Run(c.name, func(b *testing.B) { benchmarkAllocFree(b, c.make) })
	}
}
