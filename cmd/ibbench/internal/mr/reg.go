package mr

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/plan"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/report"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/stats"
	"github.com/ibconduit/conduit/internal/errtext"
)

// cost of a size, in ns.
type cost struct {
	size                    int64
	registration, copy, hit float64
}

// regPoint times the registration of one populated range, copying it, and a hit.
func (s *session) regPoint(pt plan.Point, series *report.Series) (err error) {
	mem, err := mapRanges(1, stride(pt))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, mem.close()) }()
	mem.populate()
	both, register, deregister := stats.New(room(pt), 1, false), stats.New(room(pt), 1, false),
		stats.New(room(pt), 1, false)
	err = s.sampling(pt, func(warm bool) error {
		r, d, err := registration(s.reg, uintptr(mem.at[0]), uint64(pt.Size))
		if err == nil && !warm {
			both.Add(r + d)
			register.Add(r)
			deregister.Add(d)
		}
		return err
	})
	if err != nil {
		return err
	}
	series.Result, series.Hist = report.Latency(both, s.opts.Pct, 1), both.Hist()
	series.SetFigures("mr.reg.register", figures(register, 1))
	series.SetFigures("mr.reg.deregister", figures(deregister, 1))
	copying, hit, err := s.alternatives(pt, mem)
	series.SetFigures("mr.reg.copy", copying)
	series.Set("mr.reg.hit_ns", hit)
	s.costs = append(s.costs, cost{size: pt.Size, registration: both.Percentile(50), copy: copying.P50, hit: hit})
	return err
}

// alternatives to registering, in ns: to copy into memory that is registered already, and to find
// it registered, which has a median only, and none where nothing is cached.
func (s *session) alternatives(pt plan.Point, mem *ranges) (copying report.Figures, hit float64, err error) {
	pt.Duration, pt.Warmup, pt.WarmupIters = pt.Duration/4, pt.Warmup/4, min(pt.WarmupIters, 10)
	src := unsafe.Slice((*byte)(mem.at[0]), pt.Size)
	into := &slab{mem: make([]byte, slabBytes)}
	copies, batch, err := s.batches(pt, func(k int) error {
		for range k {
			into.copy(src)
		}
		return nil
	})
	if err != nil {
		return copying, 0, err
	}
	copying = figures(copies, batch)
	c, err := s.cache(pt, s.reg)
	if err != nil {
		return copying, 0, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	h := &hits{cache: c, at: mem.at, size: uint64(pt.Size)}
	if len(uncached(c, pt)) > 0 {
		return copying, 0, nil // there are none
	}
	found, batch, err := s.batches(pt, h.run)
	if err != nil {
		return copying, 0, err
	}
	return copying, report.Rounding(batch)(found.Percentile(50)), nil
}

// crossover says from which of the measured sizes on a copy costs this processor more than the
// alternatives.
func crossover(costs []cost) string {
	from := func(what string, of func(cost) float64) string {
		at := int64(-1)
		for i := len(costs) - 1; i >= 0 && of(costs[i]) > 0 && costs[i].copy >= of(costs[i]); i-- {
			at = costs[i].size
		}
		switch {
		case at < 0:
			return "less than " + what + " at every size measured"
		case at == costs[0].size:
			return "more than " + what + " at every size measured"
		}
		return fmt.Sprintf("more than %s from %s on", what, errtext.Count(at, "byte"))
	}
	return "crossover: copying into registered memory costs " + from("a registration for one operation",
		func(c cost) float64 { return c.registration }) +
		", and " + from("a hit", func(c cost) float64 { return c.hit }) + "; that is this processor's time, the wire's is not in it"
}
