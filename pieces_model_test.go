package conduit

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/ibconduit/conduit/cache"
)

// piecesAgree has the ranks in turn do random transfers of an array, also inside of chains and with
// memory of the segment, and compares with a copy after each. Where places of one put overlap any
// of their values may stay.
func piecesAgree[T comparable](ctx context.Context, w *Worker, n int, how Distribution, seed uint64, value func(i int) T) error {
	j := w.Job()
	a, err := NewArray[T](ctx, j, n, how)
	if err != nil {
		return err
	}
	room := min(2*n, 3000)
	p, err := Alloc[T](ctx, j, room)
	if err != nil {
		return err
	}
	inSegment, err := Slice(j, p, room)
	if err != nil {
		return err
	}
	clear(a.Local())
	if err := j.Barrier(ctx); err != nil {
		return err
	}
	model := make([]T, n)
	rnd := rand.New(rand.NewPCG(seed, uint64(n))) // alike on all ranks
	for turn := range 8 {
		active, op, seg, chained, put := rnd.IntN(j.Size()), rnd.IntN(3), rnd.IntN(3) == 0, rnd.IntN(3) == 0, rnd.IntN(2) == 0
		var idx []int
		first, stride := rnd.IntN(n), 0
		switch op {
		case 0:
			for k := range min(rnd.IntN(n-first)+1, room) {
				idx = append(idx, first+k)
			}
		case 1:
			stride = rnd.IntN(2*n) - n
			if rnd.IntN(2) == 0 {
				stride = rnd.IntN(7) - 3
			}
			for i := first; i >= 0 && i < n && len(idx) < room; i += stride {
				if idx = append(idx, i); stride == 0 && len(idx) == 5 {
					break
				}
			}
		case 2:
			for k := range rnd.IntN(room) {
				i := rnd.IntN(n)
				if k > 0 && rnd.IntN(3) > 0 {
					i = (idx[k-1] + rnd.IntN(2)) % n // follows, or is the same
				}
				idx = append(idx, i)
			}
		}
		if len(idx) == 0 {
			continue
		}
		name := fmt.Sprintf("turn %d of rank %d: op %d, put %v, %d elements from %d, stride %d, chain %v, segment %v, n %d, %v",
			turn, active, op, put, len(idx), first, stride, chained, seg, n, how)
		some := make(map[int][]T)
		mem := make([]T, len(idx))
		if seg {
			mem = inSegment[:len(idx)]
		}
		for k, i := range idx {
			v := value(turn*7919 + k)
			some[i] = append(some[i], v)
			if put && j.Rank() == active {
				mem[k] = v
			}
		}
		if j.Rank() == active {
			do := func() error {
				switch {
				case op == 0 && put:
					return a.PutSlice(w, first, mem)
				case op == 0:
					return a.GetSlice(w, mem, first)
				case op == 1 && put:
					return a.PutStrided(w, first, stride, mem)
				case op == 1:
					return a.GetStrided(w, mem, first, stride)
				case put:
					return a.PutIndexed(w, idx, mem)
				}
				return a.GetIndexed(w, mem, idx)
			}
			if chained {
				err = w.Chain(do)
			} else {
				err = do()
			}
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			if !put {
				for k, i := range idx {
					if mem[k] != model[i] {
						return fmt.Errorf("%s: element %d is wrong", name, i)
					}
				}
			}
		}
		if !put {
			if err := w.Barrier(ctx); err != nil {
				return err
			}
			continue
		}
		if err := errors.Join(w.Flush(ctx), w.Barrier(ctx)); err != nil {
			return err
		}
		all := make([]T, n)
		if err := a.GetSlice(w, all, 0); err != nil {
			return err
		}
		for i, v := range all {
			if vs, ok := some[i]; ok {
				if !slices.Contains(vs, v) {
					return fmt.Errorf("%s: element %d is not what was put", name, i)
				}
				model[i] = v
			} else if v != model[i] {
				return fmt.Errorf("%s: element %d has changed", name, i)
			}
		}
		if err := w.Barrier(ctx); err != nil {
			return err
		}
	}
	return errors.Join(w.Barrier(ctx), Free(ctx, j, p), a.Close(ctx))
}

func TestRandomPiecesAgreeWithAModel(t *testing.T) {
	for _, cached := range []bool{false, true} {
		for _, ranks := range []int{2, 5} {
			cfg := withHeap(4096)
			cfg.SegmentSize = 32 << 20
			if cached {
				cfg.Cache = &cache.Config{Mapped: true}
			}
			t.Run(fmt.Sprintf("cache=%v", cached), func(t *testing.T) {
				onFabrics(t, ranks, cfg, worked(func(ctx context.Context, j *Job, w *Worker) error {
					for seed, how := range []Distribution{Cyclic, Block(5), Block(64), Block(777), Indefinite} {
						if err := errors.Join(
							piecesAgree(ctx, w, 5003, how, uint64(seed), func(i int) uint64 { return uint64(i)*0x9E3779B97F4A7C15 + 1 }),
							piecesAgree(ctx, w, 9001, how, uint64(seed), func(i int) triple { return tripleValue(i + 1) })); err != nil {
							return err
						}
					}
					for seed, how := range []Distribution{Cyclic, Block(3), Indefinite} {
						if err := errors.Join(
							piecesAgree(ctx, w, 97, how, uint64(seed), func(i int) (v [16385]byte) { v[0], v[16384], v[9000] = byte(i), byte(i>>8), 3; return v }),
							piecesAgree(ctx, w, 301, how, uint64(seed), func(i int) (v [2049]byte) { v[0], v[2048], v[1000] = byte(i), byte(i>>8), 3; return v })); err != nil {
							return err
						}
					}
					return nil
				}))
			})
		}
	}
}
