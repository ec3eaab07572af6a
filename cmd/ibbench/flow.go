package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/ibconduit/conduit"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/measure"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/plan"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/report"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/transient"
	"github.com/ibconduit/conduit/internal/bench"
	"github.com/ibconduit/conduit/internal/memgroup"
)

// flowCmd is ibbench flow: a command for each kernel.
type flowCmd struct {
	Jacobi flowJacobi `cmd:"" help:"A stencil on cubes whose ghost faces come and go: faults, memory and time by size, for faces that are sent, fetched, and fetched with tokens."`
	FT     flowFT     `cmd:"" name:"ft" help:"The NAS benchmark FT, cut into many parts that exchange blocks: faults and time with little memory, for blocks that are all in flight and for tokens."`
	Incast flowIncast `cmd:"" help:"Many ranks send payloads to one, whose budget has memory for some: throughput and memory."`
}

// flowRanks are the flags of kernels, each run of which is a job of fresh processes.
type flowRanks struct {
	written
	Ranks    int           `short:"n" default:"2" placeholder:"N" help:"Ranks, each a process. Default: 2."`
	Fabric   string        `default:"shm" enum:"shm,ibv,auto" help:"Network between the ranks: shm, ibv or auto. Default: shm."`
	Device   string        `short:"d" placeholder:"DEV" help:"Verbs device. Default: the best with an active port."`
	Timeout  time.Duration `default:"1m" placeholder:"D" help:"End a run after this time; it has failed then. Default: 1m."`
	Duration time.Duration `default:"14m" placeholder:"D" help:"Begin no run after this time; what is missing is left out. Default: 14m."`
	Quick    bool          `help:"Small and short, to see that all works; the figures mean little."`
	Quiet    bool          `short:"q" help:"No progress on standard error."`
}

// flowMemory are the flags of kernels with little memory.
type flowMemory struct {
	flowRanks
	Swap string `placeholder:"BYTES" help:"Swap space that the machine should have: what is missing is added as a file in the directory for temporary files. Default: the ranks' memory twice."`
}

// flowRuns measures the runs of a kernel.
type flowRuns struct {
	*flowRanks
	*results
	io   streams
	env  *report.Env
	end  time.Time
	left int // runs that there was no time for
}

// begin refuses what no kernel can run with or write to, before anything is measured.
func (c *flowRanks) begin(ctx context.Context, io streams) (*flowRuns, error) {
	switch {
	case c.Ranks < 1 || c.Ranks > 64:
		return nil, usageError{fmt.Errorf("--ranks %d: want 1 to 64", c.Ranks)}
	case c.Timeout <= 0 || c.Duration <= 0:
		return nil, usageError{errors.New("--timeout and --duration: want times above 0")}
	}
	if err := io.alone(ctx, "flow starts its ranks on this machine"); err != nil {
		return nil, err
	}
	out, _, err := c.writers(io, "50")
	if err != nil {
		return nil, err
	}
	return &flowRuns{flowRanks: c, io: io, env: measure.HostEnv(c.Ranks, c.Fabric), end: time.Now().Add(c.Duration),
		results: &results{out: out, t: newTerminal(io.err, c.Quiet)}}, nil
}

// done writes all results, also before a failure.
func (f *flowRuns) done(err error) error {
	if f.left > 0 {
		f.t.line("runs left out, since --duration has ended: %d", f.left)
	}
	return f.results.end(err)
}

// flowRun is a point of a kernel.
type flowRun struct {
	op, variant string
	size        int64
	counts      string // what the size is a number of
	arm         string // how messages get from part to part, with how much memory
	limit       int64  // of a rank's memory group, in bytes; 0: none
}

func (f *flowRuns) series(r flowRun) *report.Series {
	s := &report.Series{Env: f.env}
	s.Describe(plan.Point{Kind: plan.Flow, Op: r.op, Variant: r.variant, Size: r.size, Depth: 1, Lanes: 1}, f.env)
	s.Definition, s.Result = "iteration", report.Result{Unit: "ns", P: map[string]float64{}}
	s.SetText("flow.arm", r.arm)
	s.SetText("flow.counts", r.counts)
	s.Set("flow.limit", float64(r.limit))
	return s
}

// exploded is how many major faults of all ranks mean that a run does not fit its memory.
const exploded = 1000

// run measures one run of jacobi or ft, and reports whether it had the memory that it needs. One
// that fails or takes too long is a result; an error is of what all runs need.
func (f *flowRuns) run(ctx context.Context, r flowRun, iterations int, params any) (fits bool, err error) {
	if time.Now().After(f.end) {
		f.left++
		return true, nil
	}
	f.t.live(fmt.Sprintf("%s, %d %s, %s, limit %d MiB", r.op, r.size, r.counts, r.arm, r.limit>>20))
	s := f.series(r)
	all, err := transient.Start[bench.Usage](ctx, f.job(r, params))
	var impossible transient.GroupError
	switch {
	case ctx.Err() != nil:
		return false, context.Cause(ctx)
	case errors.As(err, &impossible):
		return false, err
	case err != nil:
		s.SetText("flow.failed", strings.ReplaceAll(err.Error(), "\n", "; "))
		return false, f.add(s)
	}
	var u bench.Usage
	for _, of := range all {
		u.Sizes, u.Elapsed, u.Peak = of.Sizes, max(u.Elapsed, of.Elapsed), max(u.Peak, of.Peak)
		if u.Faults += of.Faults; of.Faults < 0 {
			u.Faults = math.MinInt64 / 2 // not known
		}
	}
	ns := math.Round(float64(u.Elapsed) / float64(iterations))
	s.Result = report.Result{Unit: "ns", Count: int64(iterations), Min: ns, Max: ns, Mean: ns,
		P: map[string]float64{"50": ns}}
	s.Set("flow.faults", float64(max(u.Faults, -1)))
	s.Set("flow.peak", float64(u.Peak))
	s.Set("flow.arrays", float64(u.Sizes.Persistent))
	return u.Faults <= exploded, f.add(s)
}

func (f *flowRuns) job(r flowRun, params any) *transient.Run {
	return &transient.Run{Kernel: r.op, Params: params, Ranks: f.Ranks, Fabric: f.Fabric, Device: f.Device,
		Limit: r.limit, Timeout: f.Timeout, Stderr: f.io.err}
}

// swap adds swap space where the machine has less than --swap. The function that it returns
// removes it.
func (c *flowMemory) swap(limit int64) (func() error, error) {
	n, err := bytesFlag("--swap", c.Swap, strconv.FormatInt(2*int64(c.Ranks)*limit, 10))
	if err != nil || limit == 0 || n <= memgroup.FreeSwap() {
		return func() error { return nil }, err
	}
	s, err := memgroup.MakeSwap(os.TempDir(), n-memgroup.FreeSwap())
	if err != nil {
		return nil, err
	}
	return s.Remove, nil
}

// bytesFlag reads a flag that is a number of bytes.
func bytesFlag(name, text, byDefault string) (int64, error) {
	n, err := conduit.ParseBytes(cmp.Or(text, byDefault))
	if err != nil {
		return 0, usageError{fmt.Errorf("%s %s: %w", name, text, err)}
	}
	return n, nil
}
