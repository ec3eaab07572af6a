package cache_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/ibconduit/conduit/cache"
	"github.com/ibconduit/conduit/internal/fabric/sim"
)

// walk reads a word at each of offs and returns how many gets missed: waited for the network.
func walk(ctx context.Context, x *fixture, offs []uint64) (uint64, error) {
	for i := range x.data(1) {
		x.data(1)[i] = byte(i * 7)
	}
	before := x.Stats()
	b := make([]byte, 8)
	for _, off := range offs {
		if err := x.Get(ctx, 1, off, b); err != nil {
			return 0, err
		}
		if got, want := binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(x.data(1)[off:]); got != want {
			return 0, fmt.Errorf("at %d %#x, want %#x", off, got, want)
		}
		if err := x.Verify(); err != nil {
			return 0, err
		}
	}
	return x.Stats().GetMisses - before.GetMisses, nil
}

// sequence is n offsets from one on.
func sequence(from, step, n int) (offs []uint64) {
	for i := range n {
		offs = append(offs, uint64(from+i*step))
	}
	return offs
}

func TestStreamsAreFetchedAhead(t *testing.T) {
	for name, offs := range map[string][]uint64{
		"forward":         sequence(0, 8, 5000),
		"backward":        sequence(regionSize-8, -8, 5000),
		"forward by 24":   sequence(0, 24, 1600),
		"strided":         sequence(0, 1000, 40),
		"strided by page": sequence(16, 1024, 40),
		"back by stride":  sequence(regionSize-16, -1001, 40),
	} {
		t.Run(name, func(t *testing.T) {
			onSim(t, sim.Config{}, cache.Config{}, func(ctx context.Context, x *fixture) error {
				late, err := walk(ctx, x, offs)
				if err != nil {
					return err
				}
				s := x.Stats()
				if s.PrefetchUnused > 32 || s.Flights > uint64(len(offs))+8 || s.PrefetchUsed < uint64(len(offs))/16 || late > 60 {
					return fmt.Errorf("%d missed, %+v", late, s)
				}
				if s.BytesFetched > regionSize {
					return fmt.Errorf("%d bytes were fetched of %d", s.BytesFetched, regionSize)
				}
				return nil
			})
		})
	}
}

func TestInterleavedStreamsAreFetchedAhead(t *testing.T) {
	onSim(t, sim.Config{}, cache.Config{}, func(ctx context.Context, x *fixture) error {
		var offs []uint64
		for i := range 1000 { // as three arrays of coordinates
			offs = append(offs, uint64(8*i), uint64(12000+8*i), uint64(24000+8*i))
		}
		_, err := walk(ctx, x, offs)
		if s := x.Stats(); err == nil && s.PrefetchUsed < 300 || s.PrefetchUnused > 32 {
			err = fmt.Errorf("%+v", s)
		}
		return err
	})
}

func TestRandomReadsFetchNothingAhead(t *testing.T) {
	onSim(t, sim.Config{}, cache.Config{}, func(ctx context.Context, x *fixture) error {
		var offs []uint64
		at := uint64(1)
		for range 4000 {
			at = at * 6364136223846793005 % (regionSize - 8)
			offs = append(offs, at)
		}
		_, err := walk(ctx, x, offs)
		if s := x.Stats(); err == nil && s.Prefetched*20 > s.Flights*10 {
			err = fmt.Errorf("%+v", s)
		}
		return err
	})
}

func TestHintsAreHeeded(t *testing.T) {
	onSim(t, sim.Config{}, cache.Config{}, func(ctx context.Context, x *fixture) error {
		x.Hint(1, 0, 1<<40, cache.Random)
		if _, err := walk(ctx, x, sequence(0, 8, 500)); err != nil {
			return err
		}
		if s := x.Stats(); s.Prefetched != 0 {
			return fmt.Errorf("random: %+v", s)
		}
		x.Hint(1, 0, 1<<40, cache.Sequential)
		if late, err := walk(ctx, x, sequence(0, 8, 9)); err != nil || x.Stats().Prefetched == 0 {
			return fmt.Errorf("sequential: %d, %w", late, err)
		}
		x.Hint(1, 0, 1<<40, cache.Bypass)
		before := x.Stats()
		if _, err := walk(ctx, x, sequence(0, 8, 9)); err != nil {
			return err
		}
		if s := x.Stats(); s.GetsDirect != before.GetsDirect+9 || s.Prefetched != before.Prefetched {
			return fmt.Errorf("bypass: %+v", s)
		}
		return nil
	})
}
