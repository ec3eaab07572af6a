package mr

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/measure"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/plan"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/report"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/stats"
	"github.com/ibconduit/conduit/internal/errtext"
	"github.com/ibconduit/conduit/memevents"
	"github.com/ibconduit/conduit/regcache"
)

// Options say what to measure. Progress may be nil.
type Options struct {
	Points   []plan.Point
	Pct      []float64
	Seed     uint64
	Progress func(text string)
	Series   func(*report.Series) error
}

// session is one run.
type session struct {
	ctx     context.Context
	opts    Options
	reg     *Registrar
	env     *report.Env
	clockNS float64
	costs   []cost // of reg
}

// Run measures the points and reports each.
func Run(ctx context.Context, reg *Registrar, opts Options) error {
	if memevents.Slots == 0 {
		_, err := memevents.Map(1) // which says why this build has none
		return err
	}
	measure.Calibrate()
	s := &session{ctx: ctx, opts: opts, reg: reg, clockNS: measure.ClockCost()}
	s.env = s.describe()
	for i, pt := range opts.Points {
		if opts.Progress != nil {
			opts.Progress(fmt.Sprintf("[%d/%d] mr %s, size %d, %s", i+1, len(opts.Points), pt.Op, pt.Size,
				errtext.Count(pt.Regions, "region")))
		}
		if err := s.point(pt, i == len(opts.Points)-1); err != nil {
			return fmt.Errorf("mr %s at size %d, %s: %w", pt.Op, pt.Size, errtext.Count(pt.Regions, "region"), err)
		}
	}
	return nil
}

func (s *session) describe() *report.Env {
	e := measure.HostEnv(1, "ibv")
	e.From, _, _ = strings.Cut(e.From, " ") // one process, which is no rank
	e.To, e.Launcher, e.Device, e.ClockNS = e.From, "self", s.reg.Device, report.Round3(s.clockNS)
	if e.Device == nil {
		e.Fabric = report.Fake
	}
	return e
}

func (s *session) point(pt plan.Point, last bool) (err error) {
	runtime.GC()
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // no collection while the clock runs
	series := new(report.Series)
	series.SetText("mr.registrar", s.reg.Name())
	switch pt.Op {
	case plan.Reg:
		err = s.regPoint(pt, series)
	case plan.Hit:
		err = s.hitPoint(pt, series)
	default:
		err = s.churnPoint(pt, series)
	}
	if err != nil {
		return err
	}
	series.Describe(pt, s.env)
	if s.reg.Device == nil {
		series.Notes = append(series.Notes, "the registrar is a fake that registers nothing: what is measured is only the cache and the hooks")
	}
	if last && pt.Op == plan.Reg {
		series.Notes = append(series.Notes, crossover(s.costs))
	}
	return s.opts.Series(series)
}

// keep is how many samples are kept as they are.
const keep = 1 << 20

func room(pt plan.Point) int64 {
	if pt.Iters > 0 {
		return min(pt.Iters, keep)
	}
	return keep
}

// sampling calls one for each sample: first to warm up, then until the point's iterations or its
// time are over.
func (s *session) sampling(pt plan.Point, one func(warm bool) error) error {
	begin := now()
	for n := int64(0); n < pt.WarmupIters || now()-begin < int64(pt.Warmup); n++ {
		if err := errors.Join(s.ctx.Err(), one(true)); err != nil {
			return err
		}
	}
	begin = now()
	for n := int64(0); (pt.Iters == 0 || n < pt.Iters) && (pt.Duration == 0 || now()-begin < int64(pt.Duration)); n++ {
		if err := s.ctx.Err(); err != nil {
			return err
		}
		if err := one(false); err != nil {
			return err
		}
	}
	return nil
}

// batches times calls of op, each of which does a given number of operations, so many to a sample
// that the clock does not count.
func (s *session) batches(pt plan.Point, op func(k int) error) (all *stats.Samples, batch int, err error) {
	batch = pt.Batch
	if batch == 0 {
		if batch, err = s.learn(op); err != nil {
			return nil, 0, err
		}
	}
	all = stats.New(room(pt), float64(batch), batch > 1)
	err = s.sampling(pt, func(warm bool) error {
		begin := now()
		err := op(batch)
		if took := now() - begin; !warm {
			all.Add(took)
		}
		return err
	})
	return all, batch, err
}

// learn chooses a batch from a few short samples.
func (s *session) learn(op func(k int) error) (int, error) {
	const samples, each = 50, 4
	first := stats.New(samples, each, false)
	for range samples {
		begin := now()
		if err := op(each); err != nil {
			return 0, err
		}
		first.Add(now() - begin)
	}
	return measure.BatchFor(max(first.Percentile(50), 0.1), s.clockNS), nil
}

func figures(s *stats.Samples, opsPerSample int) report.Figures {
	round := report.Rounding(opsPerSample)
	return report.Figures{P50: round(s.Percentile(50)), Mean: round(s.Mean()), P99: round(s.Percentile(99))}
}

// origin is the label of the ranges for the cache; C code maps them.
func origin(pt plan.Point) regcache.Origin {
	for _, o := range []regcache.Origin{regcache.Any, regcache.GoMapped, regcache.Malloc} {
		if pt.Origin == o.String() {
			return o
		}
	}
	return regcache.Mapped
}

// cache makes one that has room for the point's regions.
func (s *session) cache(pt plan.Point, r regcache.Registrar) (*regcache.Cache, error) {
	if pt.Regions > memevents.Slots {
		return nil, fmt.Errorf("%d regions: a process can watch %d", pt.Regions, memevents.Slots)
	}
	return regcache.New(regcache.Config{
		Registrar: r, Origin: origin(pt), MaxRegions: max(pt.Regions, 1),
		MaxBytes: int64(stride(pt)) * int64(max(pt.Regions, 1)),
	})
}

// uncached says why a cache does not cache, if it does not.
func uncached(c *regcache.Cache, pt plan.Point) []string {
	if o := c.Status().Origins[origin(pt)]; o.Mode != regcache.Cached {
		return []string{"nothing is cached here: " + o.Why}
	}
	return nil
}
