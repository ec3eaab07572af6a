// Command crowd is a rank of hack/crowd.sh: it times collective operations, calls, and puts with a
// wait, and rank 0 prints a line for each: its name and the microseconds of one, the median of some
// samples.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/ibconduit/conduit"
	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/coll"
)

var (
	samples = flag.Int("samples", 5, "samples of an operation")
	long    = flag.Duration("sample", 10*time.Millisecond, "how long a sample takes, about")
)

var echo = am.Handle("echo", func(c *am.Call) { _ = c.Reply(c.Arg(0)) })

// operation is what is timed.
type operation struct {
	name string
	do   func() error
}

func main() {
	flag.Parse()
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "crowd:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	job, err := conduit.Join(ctx, conduit.Config{SegmentSize: 1 << 20, MessageEndpoints: 1})
	if err != nil {
		return err
	}
	w, err := job.NewWorker()
	if err != nil {
		return err
	}
	t := job.Team()
	next := (job.Rank() + 1) % job.Size()
	turn := uint64(0)
	ops := []operation{
		{"call to the next rank", func() error { _, err := echo.Call(ctx, w, next, 1); return err }},
		{"put to the next rank, wait for the one before", func() error {
			turn++
			if err := conduit.Put(w, conduit.At[uint64](next, 0), turn); err != nil {
				return err
			}
			return w.WaitUntil(ctx, 0, conduit.GreaterEqual, turn)
		}},
		{"barrier", func() error { return t.Barrier(ctx) }},
		{"barrier, started", func() error { return t.StartBarrier(ctx).Wait(ctx) }},
	}
	for _, n := range []int{8, 64 << 10} {
		ops = append(ops, sized(ctx, t, n)...)
	}
	for _, op := range ops {
		took, err := timed(ctx, t, op.do)
		if err != nil {
			return fmt.Errorf("%s: %w", op.name, err)
		}
		if job.Rank() == 0 {
			fmt.Printf("%s|%.1f\n", op.name, took.Seconds()*1e6)
		}
	}
	if err := t.Barrier(ctx); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	return job.Close()
}

// sized are the operations on n bytes a rank, and to each rank of an all-to-all.
func sized(ctx context.Context, t *coll.Team, n int) (ops []operation) {
	one, all := make([]int64, n/8), make([]int64, n/8*t.Size())
	from := slices.Clone(all)
	buf := make([]byte, n)
	add := func(name string, do func() error, start func() *coll.Pending) {
		name = fmt.Sprintf("%s of %d", name, n)
		ops = append(ops, operation{name, do}, operation{name + ", started", func() error { return start().Wait(ctx) }})
	}
	add("broadcast", func() error { return t.Broadcast(ctx, 0, buf) }, func() *coll.Pending { return t.StartBroadcast(ctx, 0, buf) })
	add("reduce", func() error { return coll.Reduce(ctx, t, 0, one, coll.Sum) }, func() *coll.Pending { return coll.StartReduce(ctx, t, 0, one, coll.Sum) })
	add("all-reduce", func() error { return coll.AllReduce(ctx, t, one, coll.Sum) }, func() *coll.Pending { return coll.StartAllReduce(ctx, t, one, coll.Sum) })
	add("scan", func() error { return coll.Scan(ctx, t, one, coll.Sum) }, func() *coll.Pending { return coll.StartScan(ctx, t, one, coll.Sum) })
	add("all-gather", func() error { return coll.AllGather(ctx, t, all, one) }, func() *coll.Pending { return coll.StartAllGather(ctx, t, all, one) })
	add("scatter", func() error { return coll.Scatter(ctx, t, 0, one, from) }, func() *coll.Pending { return coll.StartScatter(ctx, t, 0, one, from) })
	add("gather", func() error { return coll.Gather(ctx, t, 0, all, one) }, func() *coll.Pending { return coll.StartGather(ctx, t, 0, all, one) })
	add("all-to-all", func() error { return coll.AllToAll(ctx, t, all, from) }, func() *coll.Pending { return coll.StartAllToAll(ctx, t, all, from) })
	return ops
}

// timed is how long an operation takes until it has ended everywhere, as all ranks see it.
func timed(ctx context.Context, t *coll.Team, do func() error) (time.Duration, error) {
	var took []time.Duration
	for n := 3; len(took) < *samples; {
		if err := t.Barrier(ctx); err != nil {
			return 0, err
		}
		begin := time.Now()
		for range n {
			if err := do(); err != nil {
				return 0, err
			}
		}
		if err := t.Barrier(ctx); err != nil {
			return 0, err
		}
		all := []time.Duration{time.Since(begin)}
		if err := coll.AllReduce(ctx, t, all, coll.Max); err != nil {
			return 0, err
		}
		if most := int(*long * time.Duration(n) / max(all[0], 1)); all[0] < *long/4 && n < 1<<20 {
			n = min(max(2*n, most), 16*n)
			continue
		}
		took = append(took, all[0]/time.Duration(n))
	}
	slices.Sort(took)
	return took[len(took)/2], nil
}
