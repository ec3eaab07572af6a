package cache_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"testing"

	"github.com/ibconduit/conduit/cache"
	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/fabric/sim"
)

// An atomic that returns a value has what was put arrive before, and copies forgotten after it,
// however its end is found. Others do neither.
func TestAnAtomicOfALaneIsAFence(t *testing.T) {
	onSim(t, sim.Config{}, cache.Config{NoReadahead: true}, func(ctx context.Context, x *fixture) error {
		lane, begin, b := x.Lanes()[0], x.env.Region("data").Off, make([]byte, 8)
		add := fabric.Atomic{Op: fabric.FetchAdd, Operand: 1}
		value := uint64(0)
		for name, do := range map[string]func() (uint64, error){
			"that waits": func() (uint64, error) {
				old, h, err := lane.Atomic(1, begin+1024, add, fabric.Blocking)
				if err == nil && h != fabric.Done {
					old, err = lane.Wait(ctx, h)
				}
				return old, err
			},
			"that is waited for": func() (uint64, error) {
				_, h, err := lane.Atomic(1, begin+1024, add, 0)
				if err != nil {
					return 0, err
				}
				return lane.Wait(ctx, h)
			},
			"that is tested": func() (uint64, error) {
				_, h, err := lane.Atomic(1, begin+1024, add, 0)
				for done, old := false, uint64(0); err == nil; x.env.Host().Sleep(1000) {
					if old, done, err = lane.Test(h); done {
						return old, err
					}
				}
				return 0, err
			},
			"that a flush ends": func() (uint64, error) {
				_, h, err := lane.Atomic(1, begin+1024, add, 0)
				if err = errors.Join(err, lane.Flush(ctx)); err != nil {
					return 0, err
				}
				if x.Hit(1, 4096, 8) != nil {
					return 0, errors.New("after the flush there is a copy")
				}
				return lane.Wait(ctx, h)
			},
		} {
			value++
			binary.LittleEndian.PutUint64(b, value)
			if _, err := lane.Put(1, begin, b, fabric.Blocking); err != nil {
				return err
			}
			if _, err := lane.Get(1, begin+4096, make([]byte, 8), fabric.Blocking); err != nil {
				return err
			}
			if x.Hit(1, 4096, 8) == nil || x.Unsent() != 1 {
				return fmt.Errorf("before an atomic %s nothing is kept", name)
			}
			old, err := do()
			if err != nil || old != value-1 {
				return fmt.Errorf("an atomic %s: %d, %w", name, old, err)
			}
			if got := binary.LittleEndian.Uint64(x.data(1)); got != value {
				return fmt.Errorf("behind an atomic %s there is %d, want %d", name, got, value)
			}
			if x.Hit(1, 4096, 8) != nil {
				return fmt.Errorf("behind an atomic %s there is a copy", name)
			}
		}
		if err := lane.Flush(ctx); err != nil { // which acquires, as there were atomics since the last one
			return err
		}
		if _, err := lane.Get(1, begin+4096, make([]byte, 8), fabric.Blocking); err != nil {
			return err
		}
		before := x.Stats()
		if _, _, err := lane.Atomic(1, begin+1024, add, fabric.Implicit); err != nil {
			return err
		}
		err := lane.Flush(ctx)
		if after := x.Stats(); x.Hit(1, 4096, 8) == nil || after.Releases != before.Releases || after.Acquires != before.Acquires {
			return fmt.Errorf("an implicit atomic was a fence: %+v", after)
		}
		return err
	})
}

// Of a rank with no bytes the cache keeps nothing, and a lane that is to let all pass leaves no
// older copy.
func TestALaneLetsPass(t *testing.T) {
	cfg := cache.Config{NoReadahead: true}
	onSim(t, sim.Config{}, cfg, func(ctx context.Context, x *fixture) error {
		begin := x.env.Region("data").Off
		cfg.Begin, cfg.Size = begin, func(rank int) uint64 { return uint64(rank&1) * regionSize }
		c, err := cache.New(x.env, x.lanes, cfg)
		if err != nil {
			return err
		}
		lane := c.Lanes()[0]
		put := func(rank int, v string) error {
			h, err := lane.Put(rank, begin, []byte(v), fabric.Blocking)
			if err == nil && h != fabric.Done {
				_, err = lane.Wait(ctx, h)
			}
			return err
		}
		get := func(rank int, want string) error {
			b := make([]byte, len(want))
			h, err := lane.Get(rank, begin, b, fabric.Blocking)
			if err == nil && h != fabric.Done {
				_, err = lane.Wait(ctx, h)
			}
			if err == nil && string(b) != want {
				err = fmt.Errorf("rank %d has %q, want %q", rank, b, want)
			}
			return err
		}
		if err := errors.Join(put(2, "abc"), get(2, "abc")); err != nil || string(x.data(2)[:3]) != "abc" || c.Keeps(2) {
			return fmt.Errorf("of rank 2 there is %q, %w", x.data(2)[:3], err)
		}
		if s := c.Stats(); s.Gets+s.Puts != 0 {
			return fmt.Errorf("the cache had %+v", s)
		}
		if err := errors.Join(put(1, "abc"), get(1, "abc")); err != nil || string(x.data(1)[:3]) != "\x00\x00\x00" {
			return fmt.Errorf("of rank 1 there is %q, %w", x.data(1)[:3], err)
		}
		lane.Passed = true
		if err := errors.Join(get(1, "abc"), put(1, "def"), get(1, "def")); err != nil || string(x.data(1)[:3]) != "def" {
			return fmt.Errorf("what passed by is %q, %w", x.data(1)[:3], err)
		}
		lane.Passed = false
		return errors.Join(get(1, "def"), c.Close())
	})
}
