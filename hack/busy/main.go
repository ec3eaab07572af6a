// Command busy is a rank of hack/busy.sh, one of two: it times an operation, each one by itself, and
// rank 0 prints the microseconds of the median and of the slowest hundredth.
package main

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"github.com/ibconduit/conduit"
	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/coll"
)

const lasts = 500 * time.Millisecond

var (
	echo = am.Handle("echo", func(c *am.Call) { _ = c.Reply(c.Arg(0)) })
	done atomic.Bool
	end  = am.Handle("end", func(c *am.Call) { done.Store(true); _ = c.Reply() })
)

// targets are what rank 1 does while rank 0 calls it.
var targets = map[string]func(){
	"call a rank that computes": func() {
		for x := uint64(0); !done.Load(); x = x*3 + 1 {
		}
	},
	"call a rank that collects garbage": func() {
		for !done.Load() {
			runtime.GC()
		}
	},
}

func main() {
	if err := run(context.Background(), os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "busy:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, op string) error {
	job, err := conduit.Join(ctx, conduit.Config{SegmentSize: 1 << 20, MessageEndpoints: 1})
	if err != nil {
		return err
	}
	if err := job.Barrier(ctx); err != nil {
		return err
	}
	call := func() error { _, err := echo.Call(ctx, job, 1, 1); return err }
	sum := make([]uint64, 128)
	switch target := targets[op]; {
	case op == "all-reduce of 1 KiB":
		err = times(job, 20000, func() error { return coll.AllReduce(ctx, job.Team(), sum, coll.Sum) })
	case job.Rank() == 0:
		if err = times(job, 0, call); err == nil {
			_, err = end.Call(ctx, job, 1)
		}
	case target != nil:
		target()
	case op != "call":
		err = fmt.Errorf("no operation %q", op)
	}
	if err != nil {
		return err
	}
	if err := job.Barrier(ctx); err != nil {
		return err
	}
	return job.Close()
}

// times runs an operation n times, or for some time if n is 0.
func times(job *conduit.Job, n int, do func() error) error {
	var took []time.Duration
	for begin := time.Now(); len(took) < n || n == 0 && time.Since(begin) < lasts; {
		from := time.Now()
		if err := do(); err != nil {
			return err
		}
		took = append(took, time.Since(from))
	}
	slices.Sort(took)
	if job.Rank() == 0 {
		fmt.Printf("%.1f %.1f\n", took[len(took)/2].Seconds()*1e6, took[len(took)*99/100].Seconds()*1e6)
	}
	return nil
}
