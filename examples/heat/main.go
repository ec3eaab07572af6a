// Command heat: how a square plate with a hot upper edge warms up, on a shared array. The rows of
// the plate are dealt out to the ranks in bands; each computes its own, from them and the rows
// above and below, which it gets.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"slices"

	"github.com/ibconduit/conduit"
)

const n, steps = 120, 200 // the plate has n times n points

func main() {
	job, err := conduit.Join(context.Background(), conduit.Config{SegmentSize: 8 << 20, HeapSize: conduit.HeapAll})
	if err == nil {
		err = errors.Join(warm(context.Background(), job), job.Close())
	}
	if err != nil {
		log.Fatal(err)
	}
}

// warm is what a rank does.
func warm(ctx context.Context, job *conduit.Job) (err error) {
	w, err := job.NewWorker()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	band := (n + job.Size() - 1) / job.Size() // rows of a rank; the last ones may have fewer
	now, err1 := conduit.NewArray[float64](ctx, job, n*n, conduit.Block(band*n))
	next, err2 := conduit.NewArray[float64](ctx, job, n*n, conduit.Block(band*n))
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	mine := job.Rank() * band * n // my first element
	copy(now.Local(), initial(len(now.Local()), mine))
	copy(next.Local(), now.Local())
	for range steps {
		if err := job.Barrier(ctx); err != nil { // all have computed what others get now
			return err
		}
		if err := step(w, next, now, mine); err != nil {
			return err
		}
		now, next = next, now
	}
	if err := job.Barrier(ctx); err != nil || job.Rank() > 0 {
		return err
	}
	all, alone, other := make([]float64, n*n), initial(n*n, 0), initial(n*n, 0) // rank 0 computes the same alone
	for range steps {
		relax(other, alone, 0, 0)
		alone, other = other, alone
	}
	if err := now.GetSlice(w, all, 0); err != nil || !slices.Equal(all, alone) {
		return errors.Join(err, errors.New("all ranks together have computed something else than one alone"))
	}
	fmt.Printf("%d ranks: %.6f below the middle of the edge, as computed by one\n", job.Size(), all[10*n+n/2])
	return nil
}

// initial are elements from first on before the first step: 1 at the upper edge, which stays so.
func initial(len, first int) []float64 {
	plate := make([]float64, len)
	for i := first; i < min(first+len, n); i++ {
		plate[i-first] = 1
	}
	return plate
}

// step computes this rank's rows of next, which begin at an element, from the rows of now and the
// rows above and below them. NoteStore is for a fence checker, which does not see a rank's own
// memory.
func step(w *conduit.Worker, next, now *conduit.Array[float64], first int) error {
	mine := next.Local()
	if len(mine) == 0 { // more ranks than bands
		return nil
	}
	from, to := max(first-n, 0), min(first+len(mine)+n, n*n)
	rows := make([]float64, to-from)
	err := now.GetSlice(w, rows, from)
	conduit.NoteStore(w, next.At(first), len(mine))
	relax(mine, rows, first, from)
	return err
}

// relax makes each point inside of the plate the mean of its neighbours.
func relax(next, now []float64, nextAt, nowAt int) {
	for i := max(nextAt, n); i < min(nextAt+len(next), n*(n-1)); i++ {
		if k := i - nowAt; i%n > 0 && i%n < n-1 {
			next[i-nextAt] = (now[k-n] + now[k+n] + now[k-1] + now[k+1]) / 4
		}
	}
}
