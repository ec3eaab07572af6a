package measure

import (
	"fmt"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/plan"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/report"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/stats"
)

// samples are taken by all ranks together, stretch by stretch.
type samples struct {
	taken []int64 // ns of each one of the last stretch, on rank 0
	batch int     // operations of a sample
	fixed bool    // they are as the plan has them
	most  int64   // of a stretch; 0: as many as there is room for
	took  int64   // ns of the last stretch without meeting the peer; 0: it is all of it
}

// leadSamples is rank 0: it warms up and measures. All ranks call stretch with the same command.
func (s *session) leadSamples(pt plan.Point, x *samples, stretch func(command) error) (*report.Series, error) {
	p := &pace{pt: pt}
	var n, took int64
	announced := func(measured bool) error {
		if x.most > 0 {
			n = min(n, x.most)
		}
		c := command{N: n, Batch: x.batch, Measured: measured, SleepNS: p.expect(n)}
		if err := s.lead(c); err != nil {
			return err
		}
		begin := now()
		err := stretch(c)
		took = now() - begin
		return err
	}
	var done, elapsed int64
	for n = p.warm(0, 0); n > 0; n = p.warm(done, elapsed) {
		if err := announced(false); err != nil {
			return nil, err
		}
		done += n
		elapsed += took
		p.learn(int(n), took)
		if !x.fixed {
			x.choose(s, pt, p)
		}
	}
	s.keepBatch(pt, x.batch)
	div, capacity := float64(x.batch), pt.Iters
	if pt.Definition() == plan.DefHalf {
		div *= 2
	}
	if capacity == 0 {
		capacity = 1 << 40
	}
	if pt.PerSecond > 0 {
		p.perNS = max(p.perNS, 1e9/pt.PerSecond)
	}
	all, round := stats.New(capacity, div, x.batch > 1), report.Rounding(x.batch)
	series := &report.Series{}
	begin := now()
	done, elapsed = 0, 0
	for n = p.next(0, 0); n > 0; n = p.next(done, elapsed) {
		start := now()
		if err := announced(true); err != nil {
			return nil, err
		}
		part := stats.New(n, div, false)
		for _, t := range x.taken {
			all.Add(t)
			part.Add(t)
		}
		own := took
		if x.took > 0 {
			own = x.took
		}
		series.Intervals = append(series.Intervals, report.Interval{StartNS: start - begin, ElapsedNS: own, Count: n,
			P50: round(part.Percentile(50)), Max: round(part.Max())})
		done += n
		// Meeting the peer is not measuring, but a peer that is starved must not make it last for
		// ever.
		elapsed += max(own, took/4)
		p.learn(int(n), own)
	}
	if err := s.lead(command{}); err != nil {
		return nil, err
	}
	series.Result, series.Hist = report.Latency(all, s.plan.Pct, x.batch), all.Hist()
	series.Notes = x.notes(pt, all, done, series.Intervals)
	return series, nil
}

// choose settles how many operations make a sample, from the median of the last stretch: a mean
// would be taken in by one interruption.
func (x *samples) choose(s *session, pt plan.Point, p *pace) {
	last := stats.New(int64(len(x.taken)), float64(x.batch), false)
	for _, t := range x.taken {
		last.Add(t)
	}
	batch := s.operations(pt, last.Percentile(50))
	p.perNS *= float64(batch) / float64(x.batch)
	x.batch = batch
}

func (x *samples) notes(pt plan.Point, all *stats.Samples, done int64, parts []report.Interval) (notes []string) {
	note := func(format string, args ...any) {
		notes = append(notes, fmt.Sprintf("%s at size %d: ", pt.Name(), pt.Size)+fmt.Sprintf(format, args...))
	}
	if x.batch > 1 && !x.fixed {
		note("%d operations per sample, since one is too short for the clock; the tail is averaged", x.batch)
	}
	if !all.Exact() {
		note("percentiles of %d samples come from the histogram, three digits", all.Count())
	}
	if pt.PerSecond > 0 {
		var took int64
		for _, p := range parts {
			took += p.ElapsedNS
		}
		note("open loop at %.0f/s, %.0f/s achieved; times count from when each operation was due (coordinated "+
			"omission corrected)", pt.PerSecond, float64(done)/float64(max(took, 1))*1e9)
	}
	return notes
}

// followSamples is any other rank; one that is idle sleeps nearly as long as a stretch takes.
func (s *session) followSamples(idle bool, stretch func(command) error) error {
	for {
		c, err := s.follow(idle)
		if err != nil || c.N == 0 {
			return err
		}
		if err := stretch(c); err != nil {
			return err
		}
	}
}
