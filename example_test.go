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
