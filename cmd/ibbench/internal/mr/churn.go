package mr

import (
	"errors"
	"fmt"
	"slices"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/plan"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/report"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/stats"
	"github.com/ibconduit/conduit/memevents"
)

// churnPoint compares unmapping elsewhere, while ranges are cached, with what goes straight to the
// kernel: for half of the time each of munmap only, and of whole cycles.
func (s *session) churnPoint(pt plan.Point, series *report.Series) (err error) {
	mem, err := mapRanges(max(pt.Regions, 1), stride(pt))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, mem.close()) }()
	c, err := s.cache(pt, s.reg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	if err := (&hits{cache: c, at: mem.at, size: uint64(pt.Size)}).run(pt.Regions); err != nil {
		return err
	}
	pt.Duration /= 2
	hooked, raw, overhead, _, err := s.compare(pt, false)
	if err != nil {
		return err
	}
	cycle, rawCycle, _, ratio, err := s.compare(pt, true)
	if err != nil {
		return err
	}
	series.Result, series.Hist = report.Latency(hooked, s.opts.Pct, turn), hooked.Hist()
	series.SetFigures("mr.churn.raw", figures(raw, turn))
	series.SetSpread("mr.churn.overhead_ns", &overhead)
	series.SetFigures("mr.churn.cycle", figures(cycle, turn))
	series.SetFigures("mr.churn.raw_cycle", figures(rawCycle, turn))
	series.SetSpread("mr.churn.ratio", &ratio)
	series.Notes = append(uncached(c, pt), fmt.Sprintf("munmap: turns of %d where nothing is mapped; cycle: map a page, write to it, unmap it; "+
		"overhead and ratio are medians over %d parts of the time, with their range", turn, parts))
	return nil
}

const (
	turn  = 64 // calls on each way, in turns
	parts = 10 // of the time
)

// compare takes turns of hooked and raw calls: of munmap, or of whole cycles.
func (s *session) compare(pt plan.Point, mapped bool) (hooked, raw *stats.Samples, diff, ratio report.Spread, err error) {
	hooked, raw = stats.New(room(pt), turn, true), stats.New(room(pt), turn, true)
	pairs := make([][2]float64, 0, room(pt))
	err = s.sampling(pt, func(warm bool) error {
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
