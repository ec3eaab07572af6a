package heap

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/coll"
	"github.com/ibconduit/conduit/internal/env"
	"github.com/ibconduit/conduit/internal/env/envtest"
	"github.com/ibconduit/conduit/internal/fabric/sim"
)

// Also one rank calls its handlers by messages: without them Open fails, not what comes later.
func TestOneRankNeedsMessagesToo(t *testing.T) {
	w, err := envtest.NewWorld(sim.Config{Ranks: 1, Seed: 1, MaxTime: time.Minute}, specs(t, 1, 64*page)...)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Run(func(ctx context.Context, e env.Env) error {
		teams, err := coll.Open(e, coll.Config{})
		if err != nil {
			return err
		}
		h := Declare(am.NewLibraryTable())
		err = h.Open(e, teams.All(), Config{Mem: e.Region(region).Bytes})
		if err == nil || !strings.Contains(err.Error(), "no handlers of the library") {
			return fmt.Errorf("a heap without messages: %v", err)
		}
		return teams.Close()
	}); err != nil {
		t.Fatal(err)
	}
}

// What Alloc returns for 0 bytes is not the offset of the first block.
func TestSymmetricNothingIsNoBlock(t *testing.T) {
	ranks(t, 2, 64, Config{}, func(ctx context.Context, m *member) error {
		s, err := NewSymmetric(m, m.team, Config{Mem: m.Region(region).Bytes})
		if err != nil {
			return err
		}
		first, err := s.Alloc(ctx, 64, 0)
		if err != nil {
			return err
		}
		none, err := s.Alloc(ctx, 0, 0)
		if err != nil {
			return err
		}
		if err := s.Free(ctx, none); err != nil {
			return err
		}
		if st := s.Stats(); none == first || st.Blocks != 1 {
			return fmt.Errorf("no block is %#x, the first one %#x; %d blocks after the free of no block", none, first, st.Blocks)
		}
		return nil
	})
}

// Rank 0's context ends while the allocation waits for a rank: all get an error.
func TestAllAllocThatRank0GivesUpEndsEverywhere(t *testing.T) {
	failed := 0
	for i := range 20 {
		ranks(t, 3, 64, Config{}, func(ctx context.Context, m *member) error {
			if m.Rank() == 1 { // local memory that is to be reclaimed
				p, err := m.h.Alloc(ctx, 60*page, 0)
				if err != nil {
					return err
				}
				if err := m.h.Free(ctx, p); err != nil {
					return err
				}
			}
			if err := m.team.Barrier(ctx); err != nil {
				return err
			}
			mine, cancel := m.Host().WithTimeout(ctx, time.Second)
			if m.Rank() == 0 {
				cancel()
				mine, cancel = m.Host().WithTimeout(ctx, time.Duration(i+1)*time.Microsecond)
			}
			defer cancel()
			began := m.Host().Now()
			_, err := m.h.AllAlloc(mine, 3, 60*page, 0)
			if took := m.Host().Now() - began; took > 100*time.Millisecond {
				return fmt.Errorf("AllAlloc with %d us at rank 0 took %v at rank %d: %v", i+1, took, m.Rank(), err)
			}
			if err != nil && m.Rank() == 1 {
				failed++
			}
			return nil
		})
	}
	if failed == 0 {
		t.Error("none was given up")
	}
}

// Also where rank 0's service refuses the work the error has the figures.
func TestARefusedGlobalAllocHasFigures(t *testing.T) {
	ranks(t, 1, 64, Config{}, on0(func(ctx context.Context, m *member) error {
		if err := m.h.Close(ctx); err != nil {
			return err
		}
		_, err := m.h.GlobalAlloc(ctx, 2, 65*page, 0)
		if e := (*NoMemoryError)(nil); !errors.As(err, &e) || e.LargestFree != 64*page {
			return fmt.Errorf("the largest free block of 64 empty pages: %v", err)
		}
		return nil
	}))
}

// What cannot fit beside the global blocks in use asks no rank for memory, and the error has the
// figures of rank 0's local heap too.
func TestWhatCannotFitReclaimsNothing(t *testing.T) {
	ranks(t, 3, 64, Config{}, on0(func(ctx context.Context, m *member) error {
		if _, err := m.h.Alloc(ctx, 10*page, page); err != nil {
			return err
		}
		if _, err := m.h.GlobalAlloc(ctx, 3, 20*page, page); err != nil {
			return err
		}
		before := m.h.Stats().Reclaims
		for _, n := range []uint64{45 * page, 65 * page, 1 << 50} {
			_, err := m.h.GlobalAlloc(ctx, 3, n, page)
			e := (*NoMemoryError)(nil)
			if !errors.As(err, &e) || e.LocalInUse != 10*page || e.GlobalInUse != 20*page || !strings.Contains(err.Error(), "rank 0 uses 40960") {
				return fmt.Errorf("%d bytes: %v", n, err)
			}
		}
		if after := m.h.Stats().Reclaims; after != before {
			return fmt.Errorf("%d reclaims", after-before)
		}
		// One block is of rank 0's local heap, whose largest free block is another.
		_, err := m.h.GlobalAlloc(ctx, 1, 50*page, 0)
		if e := (*NoMemoryError)(nil); !errors.As(err, &e) || e.LargestFree < 34*page || e.LocalInUse != 10*page {
			return fmt.Errorf("one block: %v", err)
		}
		if _, err := m.h.GlobalAlloc(ctx, 3, 40*page, page); !errors.Is(err, ErrNoSharedMemory) {
			return fmt.Errorf("what local heaps are in the way of: %v", err)
		}
		if after := m.h.Stats().Reclaims; after == before {
			return errors.New("no reclaim where one might have helped")
		}
		return nil
	}))
}

// Defect 5: Free returns when the owner has the block again, also where messages are slow.
func TestFreeWaitsForTheOwner(t *testing.T) {
	var all [3]*Heap
	cfg := sim.Config{Ranks: 3, Seed: 1, Jitter: 50 * time.Microsecond}
	world(t, cfg, 16*page, Config{}, func(ctx context.Context, m *member) error {
		all[m.Rank()] = m.h
		p, err := m.h.Alloc(ctx, 12*page, 0)
		if err != nil {
			return err
		}
		if err := m.team.Barrier(ctx); err != nil || m.Rank() != 1 {
			return err
		}
		for rank, h := range all { // all have the same offset
			if err := m.h.Free(ctx, At(rank, p.off)); err != nil {
				return err
			}
			if n := h.local.Stats().Blocks; n != 0 {
				return fmt.Errorf("rank %d has %d blocks when Free has returned", rank, n)
			}
		}
		return nil
	})
}

// The seed's race: rank 0 uses what AllAlloc gave it at ranks that do not know of it yet, some of
// which have not even called.
func TestMemoryIsUsableBeforeTheBroadcast(t *testing.T) {
	cfg := sim.Config{Ranks: 5, Seed: 1, Jitter: 50 * time.Microsecond}
	world(t, cfg, 64*page, Config{}, func(ctx context.Context, m *member) error {
		for round := range uint64(20) {
			if m.Rank() == int(1+round%4) {
				m.Host().Sleep(2 * time.Millisecond)
			}
			p, err := m.h.AllAlloc(ctx, 5, 3*page, 0)
			if err != nil {
				return err
			}
			if m.Rank() == 0 {
				for r := range m.Size() {
					if err := m.put(ctx, r, p.off+8*round, 1000*round+uint64(r)); err != nil {
						return err
					}
				}
			}
			if err := m.team.Barrier(ctx); err != nil {
				return err
			}
			if got, err := m.get(ctx, m.Rank(), p.off+8*round); err != nil || got != 1000*round+uint64(m.Rank()) {
				return fmt.Errorf("round %d: rank %d has %d: %w", round, m.Rank(), got, err)
			}
			if err := m.h.AllFree(ctx, p); err != nil {
				return err
			}
		}
		return nil
	})
}

// The seed's race: what a reclaim has taken does not come back with a reply that it overtook. Of
// one epoch the largest limit counts.
func TestAnOvertakenLimitIsIgnored(t *testing.T) {
	ranks(t, 1, 64, Config{}, on0(func(_ context.Context, m *member) error {
		h := m.h
		h.giveUp(5)
		h.hear(4, 8*page)
		if s := h.Stats(); s.Limit != 0 || s.Stale != 1 || s.Epoch != 5 {
			return fmt.Errorf("a limit of the epoch before: %+v", s)
		}
		h.hear(5, 4*page)
		h.hear(5, 2*page)
		if s := h.Stats(); s.Limit != 4*page {
			return fmt.Errorf("limits of 4 and 2 pages in the wrong order: %d bytes", s.Limit)
		}
		h.hear(6, 3*page) // a later epoch in which this rank was not asked: what it has it keeps
		if s := h.Stats(); s.Limit != 4*page || s.Epoch != 6 {
			return fmt.Errorf("a limit of a later epoch: %+v", s)
		}
		h.giveUp(7)
		return nil
	}))
}

// With FirstTouch a rank writes each page of its local heap before anyone has it.
func TestFirstTouchWritesEachPage(t *testing.T) {
	for _, on := range []bool{false, true} {
		ranks(t, 1, 64, Config{FirstTouch: on}, on0(func(ctx context.Context, m *member) error {
			fill(m.h.Bytes(0, 64*page), 7)
			p, err := m.h.Alloc(ctx, 20*page, 0)
			if err != nil {
				return err
			}
			for i := range uint64(20) {
				if b := m.h.Bytes(p.off+i*page, 2); (b[0] == 0) != on || b[1] != 7 {
					return fmt.Errorf("FirstTouch %v: page %d begins with %d", on, i, b)
				}
			}
			return nil
		}))
	}
}
