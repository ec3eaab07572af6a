package conduit

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"

	"github.com/ibconduit/conduit/cache"
)

// What reaches beyond a segment in its last piece, also by an overflow, has changed nothing.
func TestWhatLeavesTheSegmentChangesNothing(t *testing.T) {
	const words = 100_000 // more than a buffer of Copy has
	for what, cached := range map[string]*cache.Config{"no cache": nil, "cache": {Mapped: true}} {
		t.Run(what, func(t *testing.T) {
			onFabrics(t, 3, Config{SegmentSize: 8 * words, Cache: cached}, worked(func(ctx context.Context, j *Job, w *Worker) error {
				mine, err := Slice(j, At[uint64](j.Rank(), 0), words)
				if err != nil {
					return err
				}
				for i := range mine {
					mine[i] = uint64(j.Rank())
				}
				if err := j.Barrier(ctx); err != nil {
					return err
				}
				if j.Rank() == 0 {
					err = w.leaveSegments(words)
				}
				if err = errors.Join(err, w.Barrier(ctx)); err != nil {
					return err
				}
				for i, v := range mine {
					if v != uint64(j.Rank()) {
						return fmt.Errorf("word %d is %d", i, v)
					}
				}
				return j.Barrier(ctx)
			}))
		})
	}
}

// leaveSegments writes from one rank to another, or to one, what has no place there.
func (w *Worker) leaveSegments(words int) error {
	from, to := At[uint64](2, 0), At[uint64](1, 0)
	src := make([]uint64, 2000)
	for i := range src {
		src[i] = 99
	}
	offs := make([]int, len(src))
	for i := range offs {
		offs[i] = i
	}
	end := words - len(src) + 1
	for what, err := range map[string]error{
		"a copy":                          Copy(w, to.Add(1), from, words),
		"a copy from there":               Copy(w, to, from.Add(1), words),
		"a copy of itself":                Copy(w, to.Add(1), to, words),
		"a copy of too many":              Copy(w, to, from, math.MaxInt),
		"a copy of as many as wrap":       Copy(w, to.Add(1), from.Add(1), math.MaxInt/4+1),
		"a slice":                         PutSlice(w, to.Add(end), src),
		"a row":                           PutStrided(w, to.Add(end), len(src), 1, src),
		"a column":                        PutStrided(w, to.Add(end), 1, 1, src),
		"a column back":                   PutStrided(w, to.Add(len(src)-2), 1, -1, src),
		"rows whose last is one too many": PutStrided(w, to, 1000, words-999, src),
		"a stride that overflows":         PutStrided(w, to, 1000, math.MaxInt, src),
		"a stride that comes back":        PutStrided(w, to, 1, math.MinInt, src),
		"one index":                       PutIndexed(w, to, append(offs[:len(offs)-1:len(offs)-1], words), src),
		"an index that overflows":         PutIndexed(w, to, append(offs[:len(offs)-1:len(offs)-1], math.MinInt), src),
		"an index below":                  PutIndexed(w, to, append(offs[:len(offs)-1:len(offs)-1], -1), src),
	} {
		if err == nil {
			return errors.New(what + ": no error")
		}
	}
	return nil
}
