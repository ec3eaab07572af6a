package conduit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ibconduit/conduit/bootstrap"
	"github.com/ibconduit/conduit/coll"
	"github.com/ibconduit/conduit/internal/env"
)

// withNeeds is a configuration of a job that has a further part.
func withNeeds(cfg Config, n needs) Config {
	if cfg.parts == nil {
		cfg.parts = parts
	}
	cfg.parts = append(slices.Clip(cfg.parts), func(*Config) needs { return n })
	return cfg
}

func withRegions(cfg Config, specs ...env.Spec) Config { return withNeeds(cfg, needs{regions: specs}) }

func TestRegionsLieAtTheSameOffsetsOnAllRanks(t *testing.T) {
	fabrics(t, func(t *testing.T, cfg Config) {
		cfg = withRegions(cfg, env.Spec{Name: "conduit.a", Size: 1000}, env.Spec{Name: "conduit.b", Size: 8192, Align: 4096})
		errs := joinSizes(t, cfg, []int64{4096, 300_000, 70}, func(ctx context.Context, j *Job, w *Worker) error {
			b, off := j.seg.Region("conduit.b")
			if off%4096 != 0 || len(b) != 8192 || j.SegmentSize(1) != 300_000 || len(j.Segment()) != []int{4096, 300_000, 70}[j.Rank()] {
				return fmt.Errorf("%d bytes at %d, %d of the user's, %d of rank 1's", len(b), off, len(j.Segment()), j.SegmentSize(1))
			}
			offs, err := AllGatherValue(ctx, j, [2]uint64{off, j.layout.UserOffset()})
			if err != nil {
				return err
			}
			for r, o := range offs {
				if o != offs[0] {
					return fmt.Errorf("rank %d has %d, rank 0 %d", r, o, offs[0])
				}
			}
			// The last bytes of the neighbour's user region are the last that a put reaches.
			to := neighbour(j)
			if err := PutSlice(w, At[byte](to, j.SegmentSize(to)-8), bytes.Repeat([]byte{byte(to + 1)}, 8)); err != nil {
				return err
			}
			if err := w.Barrier(ctx); err != nil {
				return err
			}
			mine := j.Segment()
			if want := bytes.Repeat([]byte{byte(j.Rank() + 1)}, 8); !bytes.Equal(mine[len(mine)-8:], want) {
				return fmt.Errorf("the last bytes are %x, want %x", mine[len(mine)-8:], want)
			}
			return w.Barrier(ctx)
		})
		for r, err := range errs {
			if err != nil {
				t.Errorf("rank %d: %v", r, err)
			}
		}
	})
}

// joinSizes runs a job whose ranks have segments of these sizes.
func joinSizes(t *testing.T, cfg Config, sizes []int64, fn func(context.Context, *Job, *Worker) error) []error {
	boots := bootstrap.NewGroup(len(sizes))
	return joinEach(t, len(sizes), func(r int) Config {
		c := cfg
		c.Bootstrap, c.SegmentSize = boots[r], sizes[r]
		return c
	}, func(ctx context.Context, j *Job) error {
		return errors.Join(worked(func(ctx context.Context, j *Job, w *Worker) error { return fn(ctx, j, w) })(ctx, j), j.Close())
	})
}

// An offset that wraps round would come to lie in front of the user's region.
func TestNoOperationReachesTheLibrarysRegions(t *testing.T) {
	onFabrics(t, 2, withRegions(Config{}, env.Spec{Name: "conduit.a", Size: 100_000}), worked(func(ctx context.Context, j *Job, w *Worker) error {
		to, begin := neighbour(j), j.layout.UserOffset()
		region, at := j.seg.Region("conduit.a")
		pattern(region, 3)
		if err := j.Barrier(ctx); err != nil {
			return err
		}
		src := make([]uint64, 4)
		for _, off := range []uint64{at - begin, -begin, ^uint64(7), ^uint64(0), ^uint64(31), j.SegmentSize(to), j.SegmentSize(to) - 7, 1 << 63} {
			p := At[uint64](to, off)
			put, get, add := PutAsync(w, p, 1), GetAsync(w, p), FetchAddAsync(w, p, 1)
			_, gotten := get.Wait(ctx)
			_, added := add.Wait(ctx)
			_, now := Get(w, p)
			_, a := FetchAdd(w, p, 1)
			_, s := Swap(w, p, 1)
			_, c := CompareSwap(w, p, 0, 1)
			for i, err := range []error{Put(w, p, 1), PutNBI(w, p, 1), put.Wait(ctx), PutSlice(w, p, src), PutSliceNBI(w, p, src),
				gotten, now, GetSlice(w, src, p), GetSliceNBI(w, src, p), added, a, s, c} {
				if !errors.As(err, new(*BoundsError)) {
					return fmt.Errorf("operation %d at %#x: %w", i, off, err)
				}
			}
		}
		if err := errors.Join(w.Flush(ctx), j.Barrier(ctx)); err != nil {
			return err
		}
		return samePattern(region, 3)
	}))
}

func TestRanksWithOtherRegionsDoNotJoin(t *testing.T) {
	one := env.Spec{Name: "conduit.a", Size: 1000}
	own, err := coll.Spec(4, coll.Config{Slots: defaultTeams})
	if err != nil {
		t.Fatal(err)
	}
	behind := own.Size // is where the next one begins
	for want, other := range map[string]Config{
		fmt.Sprintf(`"conduit.a" at %d: 1001 bytes`, behind):          withRegions(Config{}, env.Spec{Name: "conduit.a", Size: 1001}),
		fmt.Sprintf(`"conduit.b" at %d`, behind):                      withRegions(Config{}, env.Spec{Name: "conduit.b", Size: 1000}),
		fmt.Sprintf(`"conduit.b" at %d`, behind+1024):                 withRegions(Config{}, one, env.Spec{Name: "conduit.b", Size: 1000}),
		fmt.Sprintf("has the user's at %d", (behind+1<<16-1)>>16<<16): {},
	} {
		cfgs := []Config{withRegions(Config{}, one), withRegions(Config{}, one), other, other}
		for r := range cfgs {
			cfgs[r].SegmentSize, cfgs[r].Fabric, cfgs[r].JoinTimeout = 4096, FabricAuto, 10*time.Second
		}
		for r, err := range failToJoin(t, cfgs...) {
			if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "rank 2 lays out its segment otherwise than rank 0") {
				t.Errorf("rank %d: %v; want %s", r, err, want)
			}
		}
	}
}

func TestARegionThatDoesNotFitIsNamed(t *testing.T) {
	limit := (*LimitError)(nil)
	for _, err := range failToJoin(t, withRegions(Config{SegmentSize: 4096}, env.Spec{Name: "conduit.a", Size: 1 << 50})) {
		if !errors.As(err, &limit) || !strings.Contains(err.Error(), "conduit.a 1125899906842624, the user's 4096") {
			t.Error(err)
		}
	}
}
