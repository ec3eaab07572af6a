package measure

import (
	"github.com/ibconduit/conduit/cmd/ibbench/internal/plan"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/report"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/stats"
)

// sampled is a measurement whose samples all ranks take together, stretch by stretch.
type sampled interface {
	// most bounds the samples of a stretch.
	most() int64
	// stretch takes n samples. All ranks call it.
	stretch(n int64) error
	// taken are the times of the last stretch's samples in ns, and how many operations each has. Rank
	// 0 calls it.
	taken() (ns []int64, operations int)
	// choose settles how many operations a sample has, from the last stretch of the warm-up.
	choose(p *pace)
}

// leadSamples is rank 0: it warms up and measures.
func (s *session) leadSamples(pt plan.Point, m sampled) (*report.Series, error) {
	p := &pace{pt: pt}
	var done, elapsed int64
	for n := p.warm(0, 0); n > 0; n = p.warm(done, elapsed) {
		n = min(n, m.most())
		took, err := s.announced(m, n)
		if err != nil {
			return nil, err
		}
		done += n
		elapsed += took
		p.learn(int(n), took)
		m.choose(p)
	}
	capacity := pt.Iters
	if capacity == 0 {
		capacity = 1 << 40
	}
	_, batch := m.taken()
	s.keepBatch(pt, batch)
	all, round := stats.New(capacity, float64(batch), batch > 1), report.Rounding(batch)
	series := &report.Series{}
	begin := now()
	done, elapsed = 0, 0
	for n := p.next(0, 0); n > 0; n = p.next(done, elapsed) {
		n = min(n, m.most())
		start := now()
		took, err := s.announced(m, n)
		if err != nil {
			return nil, err
		}
		part := stats.New(n, float64(batch), false)
		ns, _ := m.taken()
		for _, t := range ns {
			all.Add(t)
			part.Add(t)
		}
		series.Intervals = append(series.Intervals, report.Interval{StartNS: start - begin, ElapsedNS: took, Count: n,
			P50: round(part.Percentile(50)), Max: round(part.Max())})
		done += n
		elapsed += took
		p.learn(int(n), took)
		s.soFar(pt, all)
	}
	if err := s.lead(command{}); err != nil {
		return nil, err
	}
	series.Result, series.Hist = report.Latency(all, s.plan.Pct, batch), all.Hist()
	return series, nil
}

// announced has all ranks do a stretch. took is the time of rank 0.
func (s *session) announced(m sampled, n int64) (took int64, err error) {
	if err := s.lead(command{N: n}); err != nil {
		return 0, err
	}
	begin := now()
	err = m.stretch(n)
	return now() - begin, err
}

// followSamples is any other rank.
func (s *session) followSamples(m sampled) error {
	for {
		c, err := s.follow(false)
		if err != nil || c.N == 0 {
			return err
		}
		if err := m.stretch(c.N); err != nil {
			return err
		}
	}
}
