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
	"github.com/ibconduit/conduit/internal/alloc"
	"github.com/ibconduit/conduit/internal/env"
	"github.com/ibconduit/conduit/internal/env/envtest"
	"github.com/ibconduit/conduit/internal/fabric/sim"
)

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
			m, err := join(ctx, e, Config{}, am.Config{})
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
			return fmt.Errorf("a byte of nothing: %v", err)
		}
		if _, err := m.h.AllAlloc(ctx, 2, 1, 0); !errors.Is(err, ErrNoSharedMemory) {
			return fmt.Errorf("a byte of nothing from all: %v", err)
		}
		return nil
	})
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
