package mr

import (
	"errors"
	"fmt"
	"runtime/debug"
	"slices"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/plan"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/report"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/stats"
	"github.com/ibconduit/conduit/memevents"
	"github.com/ibconduit/conduit/regcache"
)

// churnPoint times unmapping elsewhere while ranges are cached, and then takes the cached ranges
// themselves away.
func (s *session) churnPoint(pt plan.Point, series *report.Series) (err error) {
	mem, err := mapRanges(max(pt.Regions, 1), stride(pt))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, mem.close()) }()
	w := &witness{Registrar: s.reg, pages: map[uint32]uint64{}}
	c, err := s.cache(pt, w)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	k := &churn{s: s, pt: pt, mem: mem, w: w, c: c, out: series}
	for i := range pt.Regions {
		if err := k.use(i); err != nil {
			return err
		}
	}
	series.Notes = uncached(c, pt)
	hooked, err := k.prices()
	if err != nil {
		return err
	}
	series.Result, series.Hist = report.Latency(hooked, s.opts.Pct, turn), hooked.Hist()
	if err := k.footprint(); err != nil {
		return err
	}
	series.Result.Errors = k.stale
	series.Set("mr.churn.rss_growth", float64(k.rssGrowth))
	series.Set("mr.churn.dead_max", float64(k.deadMax))
	series.Set("mr.churn.stale", float64(k.stale))
	series.Notes = append(series.Notes, fmt.Sprintf("munmap: turns of %d where nothing is mapped; cycle: map a page, write to it, unmap it; "+
		"overhead and ratio are medians over %d parts of the time, with their range", turn, parts))
	return nil
}

type churn struct {
	s   *session
	pt  plan.Point
	mem *ranges
	w   *witness
	c   *regcache.Cache
	out *report.Series

	rssGrowth int64 // bytes, over so many cycles without a call of the cache
	deadMax   int64 // registrations that waited for their end at a time
	stale     int64 // of as many Gets: with a registration of other pages than the range has
}

const (
	turn  = 64 // calls on each way, in turns
	parts = 10 // of the time
)

// prices compares hooked and raw calls, for half of the time each: of munmap only, and of whole
// cycles.
func (k *churn) prices() (hooked *stats.Samples, err error) {
	pt := k.pt
	pt.Duration /= 2
	hooked, raw, overhead, _, err := k.compare(pt, false)
	if err != nil {
		return nil, err
	}
	k.out.SetFigures("mr.churn.raw", figures(raw, turn))
	k.out.SetSpread("mr.churn.overhead_ns", &overhead)
	cycle, rawCycle, _, ratio, err := k.compare(pt, true)
	k.out.SetFigures("mr.churn.cycle", figures(cycle, turn))
	k.out.SetFigures("mr.churn.raw_cycle", figures(rawCycle, turn))
	k.out.SetSpread("mr.churn.ratio", &ratio)
	return hooked, err
}

func (k *churn) compare(pt plan.Point, mapped bool) (hooked, raw *stats.Samples, diff, ratio report.Spread, err error) {
	hooked, raw = stats.New(room(pt), turn, true), stats.New(room(pt), turn, true)
	pairs := make([][2]float64, 0, room(pt))
	err = k.s.sampling(pt, func(warm bool) error {
		h, r := memevents.TimeUnmap(turn, mapped)
		if !warm {
			hooked.Add(int64(h))
			raw.Add(int64(r))
			pairs = append(pairs, [2]float64{float64(h) / turn, float64(r) / turn})
		}
		return nil
	})
	diff = overParts(pairs, func(h, r float64) float64 { return h - r })
	ratio = overParts(pairs, func(h, r float64) float64 { return h / max(r, 1) })
	return hooked, raw, diff, ratio, err
}

// overParts takes the medians of both ways in each part of the time, and says how they compare.
func overParts(pairs [][2]float64, compare func(hooked, raw float64) float64) report.Spread {
	var of []float64
	for part := range slices.Chunk(pairs, max(1, (len(pairs)+parts-1)/parts)) {
		var h, r []float64
		for _, p := range part {
			h, r = append(h, p[0]), append(r, p[1])
		}
		of = append(of, compare(stats.Median(h), stats.Median(r)))
	}
	if of == nil {
		return report.Spread{}
	}
	return report.Spread{Median: report.Round3(stats.Median(of)), Min: report.Round3(slices.Min(of)),
		Max: report.Round3(slices.Max(of))}
}

// use gets and puts range i, and looks whether the registration is of the page that is there.
func (k *churn) use(i int) error {
	r, err := k.c.Get(k.mem.at[i], uint64(k.pt.Size), access)
	if err != nil {
		return err
	}
	if k.w.page(r.RKey) != *(*uint64)(k.mem.at[i]) {
		k.stale++
	}
	return k.c.Put(r)
}

// footprint takes the ranges away in turn: first without a word to the cache, then with a Get and a
// Put in each cycle.
func (k *churn) footprint() error {
	if k.pt.Cycles == 0 {
		return nil
	}
	before, err := k.settle()
	if err != nil {
		return err
	}
	if err := k.cycles(k.pt.Cycles, k.mem.churn); err != nil {
		return err
	}
	after, err := resident()
	if err != nil {
		return err
	}
	k.rssGrowth = after - before
	if k.pt.Regions == 0 {
		return nil
	}
	return k.cycles(k.pt.Cycles, func(i int) error { return errors.Join(k.mem.churn(i), k.use(i)) })
}

// settle goes once through the ranges, so that what happens at the first time has happened.
func (k *churn) settle() (rss int64, err error) {
	if err := k.cycles(max(2*int64(len(k.mem.at)), 1000), k.mem.churn); err != nil {
		return 0, err
	}
	if _, err := resident(); err != nil { // makes room for the reading itself
		return 0, err
	}
	debug.FreeOSMemory() // what the runtime gives back later would hide growth
	return resident()
}

func (k *churn) cycles(n int64, cycle func(i int) error) error {
	for j := range n {
		if err := cycle(int(j % int64(len(k.mem.at)))); err != nil {
			return err
		}
		if j%1000 == 999 || j == n-1 {
			if err := k.s.ctx.Err(); err != nil {
				return err
			}
			k.deadMax = max(k.deadMax, int64(k.c.Stats().Dead))
		}
	}
	return nil
}
