package conduit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/coll"
)

// A rank that has not flushed has an error, and takes part all the same: the others wait for it,
// and have what it has.
func TestUnsentWritesKeepNobodyFromMemory(t *testing.T) {
	for late := range 2 {
		t.Run(fmt.Sprintf("rank %d", late), func(t *testing.T) {
			cfg := withHeap(64)
			cfg.SymmetricSize = 4096
			onCaches(t, 2, cfg, func(ctx context.Context, j *Job, w *Worker) error {
				ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
				defer cancel()
				other := 1 - j.Rank()
				own, err := Alloc[uint64](ctx, j, 1)
				if err != nil {
					return err
				}
				var a *Array[uint64]
				var p Ptr[uint64]
				values := func(got []int, err error) error {
					if !slices.Equal(got, []int{0, 1}) {
						return fmt.Errorf("got %v: %w", got, err)
					}
					return err
				}
				for _, step := range []struct {
					name string
					do   func() error
				}{
					{"AllGatherValue", func() error { return values(AllGatherValue(ctx, j, j.Rank())) }},
					{"AllReduceValue", func() error {
						n, err := AllReduceValue(ctx, j, j.Rank(), coll.Sum)
						return values([]int{0, n}, err)
					}},
					{"BroadcastValue", func() error {
						n, err := BroadcastValue(ctx, j, 1, j.Rank())
						return values([]int{0, n}, err)
					}},
					{"AllAlloc", func() (err error) { p, err = AllAlloc[uint64](ctx, j, 4, 8); return err }},
					{"NewArray", func() (err error) { a, err = NewArray[uint64](ctx, j, 100, Cyclic); return err }},
					{"Close", func() error { return a.Close(ctx) }},
					{"AllFree", func() error { return AllFree(ctx, j, p) }},
					{"VerifySymmetric", func() error { return j.VerifySymmetric(ctx) }},
				} {
					if err := Put(w, At[uint64](other, own.Offset()), 1); err != nil {
						return err
					}
					if j.Rank() != late {
						if err := w.Flush(ctx); err != nil {
							return err
						}
					}
					if err := step.do(); errors.Is(err, ErrUnsent) != (j.Rank() == late) || err != nil && j.Rank() != late {
						return fmt.Errorf("%s, rank %d has not flushed: %w", step.name, late, cmp.Or(err, errors.New("no error")))
					}
					if p.IsNull() != strings.HasSuffix(step.name, "Value") {
						return fmt.Errorf("%s: rank %d has no block", step.name, j.Rank())
					}
					if err := errors.Join(w.Flush(ctx), j.Barrier(ctx)); err != nil {
						return fmt.Errorf("after %s: %w", step.name, err)
					}
					if s := j.HeapStats(); step.name == "AllAlloc" && j.Rank() == 0 && s.Global.Blocks != 1 {
						return fmt.Errorf("all ranks have a block, and %d are in use", s.Global.Blocks)
					} else if step.name == "AllFree" && j.Rank() == 0 && s.Global.Blocks != 0 {
						return fmt.Errorf("%d blocks are in use after all were freed", s.Global.Blocks)
					}
				}
				if err := a.Close(ctx); err == nil {
					return errors.New("an array was closed twice")
				}
				return j.Barrier(ctx)
			})
		})
	}
}

// Elements of no bytes, and places at the very end of a segment.
func TestACacheGathersNothingAtTheEnd(t *testing.T) {
	onCaches(t, 2, Config{Handlers: am.NewTable()}, func(ctx context.Context, j *Job, w *Worker) error {
		other := 1 - j.Rank()
		end := uint64(len(j.Segment()))
		for _, off := range []uint64{0, end - 1, end} {
			p := At[struct{}](other, off)
			mem := make([]struct{}, 3)
			if err := errors.Join(GetIndexed(w, mem, p, []int{0, 1, 2}), GetStrided(w, mem, p, 1, 1), GetSlice(w, mem, p),
				PutIndexed(w, p, []int{0, 1, 2}, mem), Copy(w, p, p, 3)); err != nil {
				return fmt.Errorf("at %d: %w", off, err)
			}
		}
		if err := GetIndexed(w, make([]byte, 1), Ptr[byte]{}, []int{0}); !errors.Is(err, ErrNullPtr) {
			return fmt.Errorf("of null: %v", err)
		}
		return j.Barrier(ctx)
	})
}
