package metrics

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/ibconduit/conduit"
)

func TestTheHeapsAreCounted(t *testing.T) {
	cfg := shm
	cfg.HeapSize = 64 << 10
	err := conduit.RunLocalConfig(t.Context(), 2, cfg, func(j *conduit.Job) error {
		ctx := t.Context()
		p, err := conduit.Alloc[uint64](ctx, j, 10)
		if err != nil {
			return err
		}
		offs, err := conduit.AllGatherValue(ctx, j, p.Offset())
		if err != nil {
			return err
		}
		g, err := conduit.GlobalAlloc[uint64](ctx, j, 2, 100)
		if err != nil {
			return err
		}
		if err := errors.Join(conduit.Free(ctx, j, g), conduit.Free(ctx, j, conduit.At[uint64](1-j.Rank(), offs[1-j.Rank()])), j.Barrier(ctx)); err != nil {
			return err
		}
		if conduit.Free(ctx, j, p) == nil {
			return errors.New("a block could be freed twice")
		}
		if err := j.Barrier(ctx); err != nil {
			return err
		}
		s, err := gather(NewCollector(j))
		if err != nil {
			return err
		}
		// Rank 0 has the global heap: rank 1 asked it to free a block.
		rank := fmt.Sprintf("{rank=\"%d\"}", j.Rank())
		for name, want := range map[string]float64{"bytes": 64 << 10, "allocs_total": 1, "frees_total": 3, "global_requests_total": 1,
			"bad_frees_total": 1, "remote_frees_total": []float64{2, 1}[j.Rank()], "local_blocks": 0, "growth_stale_total": 0} {
			if got, ok := s["ibconduit_heap_"+name+rank]; !ok || got != want {
				return fmt.Errorf("heap_%s%s is %v, want %v", name, rank, got, want)
			}
		}
		if _, ok := s["ibconduit_heap_reserved_bytes"+rank]; ok != (j.Rank() == 0) {
			return fmt.Errorf("rank %d has what only rank 0 knows: %v", j.Rank(), ok)
		}
		return j.Barrier(ctx)
	})
	if err != nil {
		t.Error(err)
	}
}

func TestAJobWithoutHeapsHasNoSeriesOfThem(t *testing.T) {
	local(t, 1, func(j *conduit.Job) error {
		s, err := gather(NewCollector(j))
		if err != nil {
			return err
		}
		for _, name := range slices.Sorted(maps.Keys(s)) {
			if strings.HasPrefix(name, "ibconduit_heap") {
				return fmt.Errorf("there is %s", name)
			}
		}
		return nil
	})
}
