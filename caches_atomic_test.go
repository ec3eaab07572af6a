package conduit

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/ibconduit/conduit/cache"
)

// An atomic without a result keeps its page from the cache while it is in flight, not until Flush:
// a get or two pass by, the line is fetched again, and all others are found.
func TestTheCacheForgetsAtomicsThatAreComplete(t *testing.T) {
	const words, gets, each = 64, 1000, 10
	cfg := Config{SegmentSize: 4096, Cache: &cache.Config{Mapped: true, NoBypass: true, NoReadahead: true}}
	onFabrics(t, 2, cfg, worked(func(ctx context.Context, j *Job, w *Worker) error {
		if j.Rank() == 1 {
			return j.Barrier(ctx)
		}
		before, sum := w.CacheStats(), uint64(0)
		for i := range gets {
			p := At[uint64](1, 0).Add(i * 7 % words)
			if i%each == 0 {
				if err := Add(w, p, 1); err != nil {
					return err
				}
			}
			v, err := Get(w, p)
			if err != nil {
				return err
			}
			sum += v
		}
		var err error
		s := w.CacheStats()
		hits := s.GetHits - before.GetHits
		t.Logf("of %d gets %d hit", gets, hits)
		if hits < gets-3*gets/each-words/8 {
			err = fmt.Errorf("of %d gets %d hit and %d passed by", gets, hits, s.GetsDirect-before.GetsDirect)
		}
		if sum < gets/each {
			err = errors.Join(err, fmt.Errorf("the gets have not seen the atomics: %d", sum))
		}
		return errors.Join(err, w.Flush(ctx), j.Barrier(ctx))
	}))
}
