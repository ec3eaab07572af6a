// Command hello: every rank writes into its right neighbour's memory, and all count together.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/ibconduit/conduit"
)

func main() {
	if err := run(context.Background()); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) (err error) {
	job, err := conduit.Join(ctx, conduit.Config{SegmentSize: 1 << 20})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, job.Close()) }()
	w, err := job.NewWorker()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Close()) }() // before the job
	right := (job.Rank() + 1) % job.Size()
	if err := conduit.Put(w, conduit.At[int64](right, 8), int64(job.Rank())); err != nil {
		return err
	}
	if _, err := conduit.FetchAdd(w, conduit.At[int64](0, 0), 1); err != nil { // a counter at rank 0
		return err
	}
	if err := job.Barrier(ctx); err != nil { // all have written
		return err
	}
	left, err := conduit.Get(w, conduit.At[int64](job.Rank(), 8))
	if err != nil {
		return err
	}
	count, err := conduit.Get(w, conduit.At[int64](0, 0))
	if err != nil {
		return err
	}
	fmt.Printf("rank %d of %d: my left neighbour is %d; %d were here\n",
		job.Rank(), job.Size(), left, count)
	return nil
}
