package conduit_test

import (
	"context"
	"fmt"
	"log"
	"sync/atomic"

	"github.com/ibconduit/conduit"
	"github.com/ibconduit/conduit/am"
)

// Handlers are registered before the job is joined, and are the same on all ranks. A program with
// one set of them uses am.Handle and does not set Config.Handlers.
var (
	table   = am.NewTable()
	greeted atomic.Int64

	sum = table.Handle("sum", func(c *am.Call) {
		total := uint64(0)
		for _, a := range c.Args() {
			total += a
		}
		_ = c.Reply(total)
	})
	greet = table.Handle("greet", func(*am.Call) { greeted.Add(1) })
)

// Ranks run functions on one another: calls have a reply, posts have none.
func Example_messages() {
	cfg := conduit.Config{Fabric: conduit.FabricSHM, SegmentSize: 1 << 20, Handlers: table}
	err := conduit.RunLocalConfig(context.Background(), 3, cfg, func(job *conduit.Job) error {
		ctx := context.Background()
		w, err := job.NewWorker()
		if err != nil {
			return err
		}
		defer w.Close()
		right := (job.Rank() + 1) % job.Size()
		if err := greet.Post(ctx, w, right); err != nil {
			return err
		}
		r, err := sum.Call(ctx, w, right, 1, 2, uint64(job.Rank()))
		if err != nil {
			return err
		}
		if job.Rank() == 2 {
			fmt.Println("1 + 2 + 2 =", r.Arg(0))
		}
		return nil // Close, which RunLocal calls, lets every post be handled
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(greeted.Load(), "greetings")
	// Output:
	// 1 + 2 + 2 = 5
	// 3 greetings
}

func ExampleNewArray() {
	cfg := conduit.Config{HeapSize: conduit.HeapAll}
	err := conduit.RunLocalConfig(context.Background(), 4, cfg, func(job *conduit.Job) error {
		ctx := context.Background()
		w, err := job.NewWorker()
		if err != nil {
			return err
		}
		defer w.Close()
		squares, err := conduit.NewArray[int64](ctx, job, 100, conduit.Block(8))
		if err != nil {
			return err
		}
		for i, v := range squares.Mine() { // each rank the elements that lie at it
			*v = int64(i * i)
		}
		if err := job.Barrier(ctx); err != nil {
			return err
		}
		some := make([]int64, 5)
		if err := squares.GetSlice(w, some, 14); err != nil { // of ranks 1 and 2
			return err
		}
		if job.Rank() == 0 {
			fmt.Println(some, squares.At(14).Rank(), squares.At(18).Rank())
		}
		return squares.Close(ctx)
	})
	fmt.Println(err)
	// Output:
	// [196 225 256 289 324] 1 2
	// <nil>
}
