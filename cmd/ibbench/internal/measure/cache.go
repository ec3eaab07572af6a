package measure

import (
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"slices"

	"github.com/ibconduit/conduit"
	"github.com/ibconduit/conduit/bootstrap"
	"github.com/ibconduit/conduit/cache"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/plan"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/report"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/stats"
	"github.com/ibconduit/conduit/internal/bench"
)

// withCache sets a job's cache up as a side has it, whatever the environment says.
func withCache(cfg *conduit.Config, side string, pt plan.Point) {
	cfg.Getenv = func(key string) (string, bool) {
		if key == "IBCONDUIT_CACHE" {
			return "", false
		}
		return os.LookupEnv(key)
	}
	switch side {
	case plan.SideOn:
		cfg.Cache, _ = cacheOf(pt.CacheSizes)
	case plan.SidePassive:
		cfg.Cache, _ = cacheOf(pt.CacheSizes)
		cfg.Cache.NoReadahead, cfg.Cache.NoBypass = true, true
	case plan.SideTiny:
		cfg.Cache = &cache.Config{Pages: 4, Dirty: 1, Ring: 1}
	}
	if cfg.Cache != nil {
		cfg.Cache.Mapped = pt.Mapped
	}
}

// cacheOf returns what CheckCache has checked.
func cacheOf(s plan.CacheSizes) (*cache.Config, error) {
	c := &cache.Config{Pages: s.Pages, PageSize: s.PageSize, LineSize: s.LineSize}
	if s.Policy != "" {
		var ok bool
		if c.Policy, ok = cache.ParsePolicy(s.Policy); !ok {
			return c, fmt.Errorf("--policy %s: want 2q, admission or duel", s.Policy)
		}
	}
	_, err := c.WithDefaults()
	return c, err
}

// CheckCache returns the fault of sizes of a cache.
func CheckCache(s plan.CacheSizes) error {
	_, err := cacheOf(s)
	return err
}

// side is a job that kernels run on. All sides have the same ranks, in the same processes.
type side struct {
	name   string
	job    *conduit.Job // nil: the session's
	worker *conduit.Worker
	bench  *bench.Bench
	runs   []bench.Result
	errors int64
	why    error
}

// KernelParams are the parameters of a point of Cache.
func KernelParams(p *plan.Plan, pt plan.Point) bench.Params {
	return bench.Params{N: int(pt.Size), Steps: pt.Steps, Stride: pt.Walk, Variant: pt.Variant, Seed: p.Seed}
}

// kernelBytes is the segment that the plan's kernels need.
func kernelBytes(p *plan.Plan) (most int64, err error) {
	for _, pt := range p.Points {
		k, err := bench.Find(pt.Op)
		if err != nil {
			return 0, err
		}
		n, err := k.Bytes(KernelParams(p, pt), p.Ranks)
		if err != nil {
			return 0, err
		}
		most = max(most, n)
	}
	return most, nil
}

// configureSides makes the job the first side.
func (s *session) configureSides(cfg *conduit.Config) (err error) {
	names, err := plan.Sides(s.plan.Points[0].Sides)
	if err != nil {
		return err
	}
	for _, name := range names {
		s.sides = append(s.sides, &side{name: name})
	}
	withCache(cfg, names[0], s.plan.Points[0])
	cfg.SegmentSize, err = kernelBytes(s.plan)
	return err
}

// openSides makes the jobs of the other sides by way of the first one's.
func (s *session) openSides(cfg conduit.Config, boot bootstrap.Bootstrap) error {
	for i, x := range s.sides {
		if i == 0 {
			x.worker = s.workers[0]
			continue
		}
		own := cfg
		own.Bootstrap, own.Cache = NewOver(s.job, boot, x.name), nil
		withCache(&own, x.name, s.plan.Points[0])
		job, err := conduit.Join(s.ctx, own)
		if err == nil {
			x.job = job
			if x.worker, err = job.NewWorker(); err == nil {
				x.worker.SetContext(s.ctx)
			}
		}
		if err := s.agree(err); err != nil {
			return err
		}
	}
	return nil
}

// closeSides closes the jobs that openSides has made.
func (s *session) closeSides() (err error) {
	for _, x := range slices.Backward(s.sides) {
		if x.job == nil {
			continue
		}
		if x.worker != nil {
			err = errors.Join(err, x.worker.Close())
		}
		err = errors.Join(err, x.job.Close())
	}
	return err
}

// kernel measures a point: in each round all sides run once, in turns that begin with another one
// each time.
func (s *session) kernel(i int, pt plan.Point) error {
	sides := s.sides
	k, err := bench.Find(pt.Op)
	if err != nil {
		return err
	}
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // no collection while the clock runs
	for _, x := range sides {
		x.runs, x.errors, x.why = nil, 0, nil
		if x.bench, err = k.Start(s.ctx, x.worker, KernelParams(s.plan, pt)); err != nil {
			return err
		}
	}
	const warmups = 1
	for round := range warmups + pt.Rounds {
		s.progress("[%d/%d] %s, size %d, round %d", i+1, len(s.plan.Points), pt.Name(), pt.Size, round)
		for n := range sides {
			x := sides[(round+n)%len(sides)]
			runtime.GC()
			res, err := x.bench.Run()
			var wrong *bench.WrongError
			switch {
			case errors.As(err, &wrong):
				x.errors++
				x.why = wrong
			case err != nil:
				return err
			case round >= warmups:
				x.runs = append(x.runs, res)
			}
		}
	}
	if s.job.Rank() != 0 {
		return nil
	}
	for n, x := range sides {
		series := x.series(s, pt, sides[0])
		if n == 0 {
			series.Set("cache.base", 1)
		}
		if err := s.out.Series(series); err != nil {
			return err
		}
	}
	return nil
}

// series has what one side did, compared with another.
func (x *side) series(s *session, pt plan.Point, base *side) *report.Series {
	times := stats.New(int64(len(x.runs)), 1, false)
	for _, r := range x.runs {
		times.Add(int64(r.Elapsed))
	}
	series := &report.Series{Result: report.Latency(times, s.plan.Pct, 1), Hist: times.Hist()}
	series.Describe(pt, s.env)
	series.SetText("cache.side", x.name)
	series.Result.Errors = x.errors
	if x.why != nil {
		series.Notes = append(series.Notes, fmt.Sprintf("ERRORS: with the cache %s %v", x.name, x.why))
	}
	mine, theirs := x.medians(), base.medians()
	for name, v := range mine {
		series.Set("cache."+name, math.Trunc(v))
	}
	if len(x.runs) == 0 {
		series.SetSpread("cache.time", new(report.Spread))
		series.SetSpread("cache.ratio", new(report.Spread))
		return series
	}
	series.SetSpread("cache.time", estimate(x.runs, math.Round, func(i int) float64 { return float64(x.runs[i].Elapsed) }))
	if x == base {
		return series
	}
	n := min(len(x.runs), len(base.runs))
	series.SetSpread("cache.ratio", estimate(x.runs[:n], report.Round3,
		func(i int) float64 { return float64(base.runs[i].Elapsed) / float64(max(x.runs[i].Elapsed, 1)) }))
	series.Set("cache.messages_ratio", ratio(mine["messages"], theirs["messages"]))
	series.Set("cache.bytes_ratio", ratio(mine["bytes"], theirs["bytes"]))
	return series
}

// ratio of two counts; of two that are 0 it is 1.
func ratio(a, b float64) float64 {
	if a == b {
		return 1
	}
	return report.Round3(a / max(b, 1))
}

// counted are the counts of a run, of all ranks.
var counted = map[string]func(r *bench.Result) uint64{
	"messages": func(r *bench.Result) uint64 { return r.Counts.Gets + r.Counts.Puts + r.Counts.Atomics }, // with the kernel's own barriers
	"requests": func(r *bench.Result) uint64 { return r.Counts.Requests },
	"bytes":    func(r *bench.Result) uint64 { return r.Counts.GetBytes + r.Counts.PutBytes },
	// Gets that passed a cache by are neither hits nor misses.
	"hits":       func(r *bench.Result) uint64 { return r.Cache.Hits },
	"misses":     func(r *bench.Result) uint64 { return r.Cache.Misses },
	"prefetched": func(r *bench.Result) uint64 { return r.Cache.Prefetched },
	"unused":     func(r *bench.Result) uint64 { return r.Cache.Unused },
	"fetched":    func(r *bench.Result) uint64 { return r.Cache.Fetched },
	"used":       func(r *bench.Result) uint64 { return r.Cache.Used },
}

// medians of the runs' counts.
func (x *side) medians() map[string]float64 {
	all := make(map[string]float64, len(counted))
	for name, of := range counted {
		var v []float64
		for i := range x.runs {
			v = append(v, float64(of(&x.runs[i])))
		}
		all[name] = stats.Median(v)
	}
	return all
}

// estimate is the median of a figure of each run.
func estimate(runs []bench.Result, round func(float64) float64, f func(i int) float64) *report.Spread {
	var v []float64
	for i := range runs {
		v = append(v, f(i))
	}
	low, high, ok := stats.MedianInterval(v)
	if !ok { // too few for one: their range
		low, high = slices.Min(v), slices.Max(v)
	}
	return &report.Spread{Median: round(stats.Median(v)), Min: round(low), Max: round(high)}
}
