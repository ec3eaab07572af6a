package main

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/plan"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/report"
)

// place are the flags of one host's part in a measurement.
type place struct {
	Device string `short:"d" placeholder:"DEV" help:"Verbs device. Default: the best with an active port."`
	GID    string `name:"gid" default:"auto" placeholder:"N|auto" help:"GID table index. Default: auto, RoCEv2 over IPv4 first."`
	CPU    string `placeholder:"LIST" help:"Processors for the ranks of a host, as 0,2 or 0-3, dealt out in equal parts."`
	Quiet  bool   `short:"q" help:"No progress on standard error."`
}

// network are the flags that choose where to measure.
type network struct {
	place
	Fabric string `default:"auto" enum:"auto,ibv,shm" help:"ibv, shm or auto. Default: auto."`
	Ranks  int    `short:"n" default:"2" placeholder:"N" help:"Ranks to start where no launcher did. Default: 2."`
	Seed   uint64 `default:"1" placeholder:"N" help:"Seed of the payloads. Default: 1."`
}

// written are the flags that say where to report.
type written struct {
	Output []string `short:"o" sep:"none" placeholder:"FILE" help:"Write the results to a file too, in the format of its suffix: .json .ndjson .csv .txt .bench. Repeatable."`
	Format string   `default:"text" enum:"text,json,ndjson,csv,bench" help:"Format on standard output: text, json, ndjson, csv or bench (for benchstat). Default: text."`
}

// output are the flags that say how to report.
type output struct {
	written
	Pct string `default:"50,90,99,99.9" placeholder:"LIST" help:"Percentiles to report. Default: 50,90,99,99.9."`
}

func (o output) writers(io streams) (report.Tee, []float64, error) {
	return o.written.writers(io, o.Pct)
}

// common are the flags of every measurement.
type common struct {
	network
	output
	Assert  []string `sep:"none" placeholder:"A" help:"Fail with exit code 1 unless this holds for every point: 'p99<5us', 'bw>1GB/s', 'rate>1M/s'. Repeatable."`
	Metrics string   `placeholder:"ADDR" help:"Serve rank 0's counters to Prometheus at this address, as :9090."`

	server string // host where ibbench serve runs; "": none
	points int    // that are measured in rounds; 0: each of them once
	rounds int
}

// timing are the flags for how long to measure. With pointers a 0, which is refused, is not none.
type timing struct {
	Iters       *int64         `placeholder:"N" help:"Samples, or operations per lane, of each point. Default: as many as fit into --duration."`
	Duration    *time.Duration `placeholder:"D" help:"Time for each point, as 10s. Default: 1s without --iters. With both, what ends first."`
	Warmup      time.Duration  `default:"200ms" placeholder:"D" help:"Warm up each point for at least this long. Default: 200ms."`
	WarmupIters int64          `default:"100" placeholder:"N" help:"... and for at least so many samples. Default: 100."`
}

// swept are the flags of lat, bw and rate.
type swept struct {
	common
	timing
	Rounds int `default:"1" placeholder:"N" help:"Measure all points N times, one after the other, and report medians; ibbench compare wants 4 rounds or more. Default: 1."`
}

// stream are the flags of throughputs.
type stream struct {
	Lanes      string `default:"1" placeholder:"LIST" help:"Workers per sending rank, each in a goroutine, as 1 or 1..8; of am the message endpoints. Default: 1."`
	Goroutines string `placeholder:"LIST" help:"am: goroutines that send, dealt out to the lanes, as 1 or 1..8. Default: as many as lanes."`
}

// local is the flag that says which memory puts send from and gets read into.
type local struct {
	Local string `default:"segment" enum:"segment,own" help:"Memory that puts send from and gets read into: segment, or own: the program's own, from Go's heap, which over verbs is registered from a size on and copied below it (IBCONDUIT_ZEROCOPY_MIN). Default: segment."`
}

// complete checks the flags and puts them into a point.
func (t timing) complete(pt *plan.Point) error {
	switch {
	case t.Iters != nil && *t.Iters < 1:
		return fmt.Errorf("--iters %d: want 1 or more; without it as many as fit into --duration", *t.Iters)
	case t.Duration != nil && *t.Duration <= 0:
		return fmt.Errorf("--duration %v: want a time above 0; without it 1s, or what --iters take", *t.Duration)
	case t.Warmup < 0:
		return fmt.Errorf("--warmup %v: want 0 or a time above it", t.Warmup)
	case t.WarmupIters < 0:
		return fmt.Errorf("--warmup-iters %d: want 0 or more", t.WarmupIters)
	}
	switch {
	case t.Duration != nil:
		pt.Duration = *t.Duration
	case t.Iters == nil:
		pt.Duration = time.Second
	}
	if t.Iters != nil {
		pt.Iters = *t.Iters
	}
	pt.Warmup, pt.WarmupIters = t.Warmup, t.WarmupIters
	return nil
}

// sizesOf reads --sizes. Without it they are byDefault, but for operations that have others.
func sizesOf(op, sizes, byDefault string) ([]int64, error) {
	read := plan.Sizes
	switch op {
	case plan.AM:
		read = plan.Payloads
	case plan.AMO, plan.CAS:
		byDefault = "8"
	}
	list, err := read(cmp.Or(sizes, byDefault))
	switch {
	case err != nil:
		return nil, fmt.Errorf("--sizes: %w", err)
	case (op == plan.AMO || op == plan.CAS) && !slices.Equal(list, []int64{8}):
		return nil, fmt.Errorf("--sizes %s: atomics work on 8 bytes", sizes)
	}
	return list, nil
}

// sized has a point of each size.
func sized(proto plan.Point, sizes []int64) (points []plan.Point) {
	for _, proto.Size = range sizes {
		points = append(points, proto)
	}
	return points
}

// points crosses lanes, goroutines, depths and sizes.
func (s stream) points(t timing, proto plan.Point, size, byDefault, depth string) (points []plan.Point, err error) {
	sizes, err := sizesOf(proto.Op, size, byDefault)
	if err != nil {
		return nil, err
	}
	depths, err := plan.Counts("depth", depth, plan.MaxDepth)
	if err != nil {
		return nil, fmt.Errorf("--depth: %w", err)
	}
	lanes, err := plan.Counts("lanes", s.Lanes, plan.MaxLanes)
	if err != nil {
		return nil, fmt.Errorf("--lanes: %w", err)
	}
	if err := t.complete(&proto); err != nil {
		return nil, err
	}
	for _, l := range lanes {
		goroutines, err := s.goroutines(proto.Op, l)
		if err != nil {
			return nil, err
		}
		for _, g := range goroutines {
			for _, d := range depths {
				for _, n := range sizes {
					pt := proto
					pt.Lanes, pt.Goroutines, pt.Depth, pt.Size = l, g, d, n
					points = append(points, pt)
				}
			}
		}
	}
	return points, nil
}

// goroutines that send on so many lanes; 0 where there is always one to a lane.
func (s stream) goroutines(op string, lanes int) ([]int, error) {
	switch {
	case op != plan.AM && s.Goroutines != "":
		return nil, fmt.Errorf("--goroutines %s: it is for am; the other operations have one to a lane", s.Goroutines)
	case op != plan.AM:
		return []int{0}, nil
	case s.Goroutines == "":
		return []int{lanes}, nil
	}
	list, err := plan.Counts("goroutines", s.Goroutines, plan.MaxGoroutines)
	if err != nil {
		return nil, fmt.Errorf("--goroutines: %w", err)
	}
	return list, nil
}

// plan completes the flags to a plan without a fabric.
func (n network) plan(points []plan.Point) (*plan.Plan, error) {
	cpus, err := plan.CPUs(n.CPU)
	if err != nil {
		return nil, fmt.Errorf("--cpu: %w", err)
	}
	p := &plan.Plan{Fabric: n.Fabric, Device: n.Device, GID: n.GID, Ranks: n.Ranks, CPUs: cpus, Seed: n.Seed,
		Points: points}
	return p, p.Validate()
}

// writers opens standard output and the files, and returns the percentiles.
func (o written) writers(io streams, percentiles string) (report.Tee, []float64, error) {
	pct, err := plan.Percentiles(percentiles)
	if err != nil {
		return nil, nil, usageError{fmt.Errorf("--pct: %w", err)}
	}
	for _, path := range o.Output {
		if _, err := report.FormatOf(path); err != nil {
			return nil, nil, usageError{err}
		}
	}
	w, err := report.New(o.Format, io.out, pct)
	if err != nil {
		return nil, nil, usageError{err}
	}
	tee := report.Tee{w}
	for _, path := range o.Output {
		f, err := report.Create(path, pct)
		if err != nil {
			return nil, nil, fmt.Errorf("-o: %w", err)
		}
		tee = append(tee, f)
	}
	return tee, pct, nil
}

// assertions reads --assert.
func assertions(texts []string, kind string) ([]plan.Assertion, error) {
	var as []plan.Assertion
	for _, s := range texts {
		a, err := plan.ParseAssertion(s, kind)
		if err != nil {
			return nil, fmt.Errorf("--assert: %w", err)
		}
		as = append(as, a)
	}
	return as, nil
}

// percentiles adds to those that are shown the ones that assertions need.
func percentiles(shown []float64, as []plan.Assertion) []float64 {
	all := slices.Clone(shown)
	for _, a := range as {
		if p, ok := a.Percentile(); ok {
			all = append(all, p)
		}
	}
	slices.SortFunc(all, cmp.Compare[float64])
	return slices.Compact(all)
}
