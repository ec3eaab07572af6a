// Command busy is a rank of hack/busy.sh, one of two: it times an operation, each by itself, and
// rank 0 prints the microseconds of the median, of the slowest hundredth, and of the mean.
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

// targets are what rank 1 does while rank 0 calls it, until it has called end.
var targets = map[string]func(j *conduit.Job){
	"call a rank that serves": func(j *conduit.Job) {
		ctx, cancel := context.WithCancel(context.Background())
		go func() { _ = j.Endpoint(0).Serve(ctx) }()
		for !done.Load() {
			time.Sleep(10 * time.Millisecond)
		}
		cancel()
	},
	"call a rank in a barrier": func(*conduit.Job) {},
	"call a rank that computes": func(*conduit.Job) {
		for x := uint64(0); !done.Load(); x = x*3 + 1 {
		}
	},
	"call a rank that collects garbage": func(*conduit.Job) {
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
	case target == nil:
		err = fmt.Errorf("no operation %q", op)
	case job.Rank() == 0:
		if err = times(job, 0, call); err == nil {
			_, err = end.Call(ctx, job, 1)
		}
	default:
		target(job)
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
	all := time.Duration(0)
	for _, d := range took {
		all += d
	}
	if job.Rank() == 0 {
		us := func(d time.Duration) float64 { return d.Seconds() * 1e6 }
		fmt.Printf("%.1f %.1f %.1f\n", us(took[len(took)/2]), us(took[len(took)*99/100]), us(all/time.Duration(len(took))))
	}
	return nil
}
