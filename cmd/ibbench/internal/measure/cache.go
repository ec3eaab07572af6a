package measure

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"slices"

	"github.com/ibconduit/conduit"
	"github.com/ibconduit/conduit/bench"
	"github.com/ibconduit/conduit/bootstrap"
	"github.com/ibconduit/conduit/cache"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/plan"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/report"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/stats"
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

// CheckCache returns what is wrong with sizes of a cache.
func CheckCache(s plan.CacheSizes) error {
	_, err := cacheOf(s)
	return err
}

// side is a job that kernels run on. All sides have the same ranks, in the same processes.
type side struct {
	name   string
	job    *conduit.Job
	worker *conduit.Worker
	bench  *bench.Bench
	runs   []bench.Result
	errors int64
	why    error
}

// KernelParams are those of a point of Cache.
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

// cacheRank is Rank for a plan of kernels. The first side's job joins the launcher's, the others
// are made by way of it.
func cacheRank(ctx context.Context, boot bootstrap.Bootstrap, p *plan.Plan, out Events) (err error) {
	s := &session{plan: p, out: out, messages: newMessages()}
	bytes, err := kernelBytes(p)
	if err != nil {
		return errors.Join(err, boot.Close())
	}
	env, err := s.introduce(ctx, boot)
	if err != nil {
		return errors.Join(err, boot.Close())
	}
	names, err := plan.Sides(p.Points[0].Sides)
	if err != nil {
		return errors.Join(err, boot.Close())
	}
	config := func(name string, boot bootstrap.Bootstrap) conduit.Config {
		cfg := conduit.Config{Bootstrap: boot, SegmentSize: bytes, Workers: 1, Fabric: p.Fabric, Device: p.Device, GID: p.GID}
		withCache(&cfg, name, p.Points[0])
		return cfg
	}
	if s.job, err = conduit.Join(ctx, config(names[0], boot)); err != nil {
		return err
	}
	sides := []*side{{name: names[0], job: s.job}}
	defer func() { err = errors.Join(err, s.close(err)) }()
	defer func() { err = errors.Join(err, closeSides(sides[1:], err)) }()
	var stop context.CancelCauseFunc
	s.ctx, stop = context.WithCancelCause(ctx)
	defer stop(nil)
	go s.watch(stop)
	served, err := s.ready(env)
	defer served()
	if err := s.agree(err); err != nil {
		return err
	}
	sides[0].worker = s.workers[0]
	for _, name := range names[1:] {
		x := &side{name: name}
		x.job, err = conduit.Join(s.ctx, config(name, NewOver(s.job, boot, name)))
		if err == nil {
			sides = append(sides, x)
			if x.worker, err = x.job.NewWorker(); err == nil {
				x.worker.SetContext(s.ctx)
			}
		}
		if err := s.agree(err); err != nil {
			return err
		}
	}
	for i, pt := range p.Points {
		if err := s.kernel(i, pt, sides); err != nil {
			return fmt.Errorf("%s, size %d: %w", pt.Name(), pt.Size, err)
		}
	}
	return nil
}

func closeSides(sides []*side, failed error) error {
	var errs []error
	for _, x := range slices.Backward(sides) {
		if x.worker != nil {
			errs = append(errs, x.worker.Close())
		}
		errs = append(errs, x.job.Close())
	}
	if failed != nil {
		return nil // what follows from a failure says nothing new
	}
	return errors.Join(errs...)
}

// kernel measures a point: in each round all sides run once, in turns that begin with another one
// each time.
func (s *session) kernel(i int, pt plan.Point, sides []*side) error {
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
	series.SetSpread("cache.ratio", estimate(x.runs[:n], report.Round3, func(i int) float64 { return float64(base.runs[i].Elapsed) / float64(max(x.runs[i].Elapsed, 1)) }))
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
