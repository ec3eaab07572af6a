package measure

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/machine"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/pairs"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/plan"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/report"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/stats"
	"github.com/ibconduit/conduit/internal/errtext"
)

// Operations between two looks at the clock.
const (
	pairsStretch = 16
	putsStretch  = 8 * plan.PairsDepth // at its end nothing is in flight
)

// pairsRow is what a rank found out about the others.
type pairsRow struct {
	Rank     pairs.Rank
	Values   []float64 // by rank
	Networks []string
	Batches  []int // operations per sample of a latency, by rank; 0: not measured
	Count    int64 // operations
	Wrong    int64 // peers whose bytes were not as they should be
}

// pairing is one rank's part in a point of pairs.
type pairing struct {
	s      *session
	pt, of plan.Point // of the pairs, and that a pair is measured by
	a      areas
	row    pairsRow
}

// pairsPoint measures every pair of ranks, in the steps of a schedule. Of a pair only the rank that
// the operations come from is active; all others sleep as long as a step is meant to take, since
// ranks of the same host may have few processors.
func (s *session) pairsPoint(pt plan.Point) (*report.Series, error) {
	of := pt.Measured()
	a := s.prepare(of)
	me, n := s.job.Rank(), s.job.Size()
	x := &pairing{s: s, pt: pt, of: of, a: a, row: pairsRow{Values: make([]float64, n), Networks: make([]string, n)}}
	row := &x.row
	if of.Kind == plan.Lat {
		row.Batches = make([]int, n)
	}
	var err error
	if row.Rank, err = s.place(); err != nil {
		return nil, err
	}
	for r := range n {
		if r != me {
			row.Networks[r] = s.job.FabricTo(r)
		}
	}
	steps := pairs.Schedule(s.hosts)
	for i, step := range steps {
		if err := s.job.Barrier(s.ctx); err != nil {
			return nil, err
		}
		s.progress("pairs %s, size %d: step %d of %d, %s at once", pt.Op, pt.Size, i+1, len(steps), errtext.Count(len(step), "pair"))
		at := slices.IndexFunc(step, func(p [2]int) bool { return p[0] == me })
		if at < 0 {
			if err := s.sleep((pt.Warmup + pt.Duration) * 9 / 10); err != nil {
				return nil, err
			}
			continue
		}
		if err := x.pair(step[at][1]); err != nil {
			return nil, fmt.Errorf("rank %d: %w", step[at][1], err)
		}
	}
	rows, err := gather(s, *row) // nothing of a rank is read or written any more
	if err != nil || me > 0 {
		return nil, err
	}
	return pairsSeries(pt, rows), nil
}

// place describes this rank and its port.
func (s *session) place() (pairs.Rank, error) {
	r := pairs.Rank{Host: s.hosts[s.job.Rank()]}
	devs := s.job.Info().Devices
	if len(devs) == 0 {
		return r, nil
	}
	d, err := machine.DescribePort(devs[0].Device, devs[0].Port, s.plan.GID)
	if err != nil {
		return r, err
	}
	r.Device, r.MTU, r.Link, r.GIDType, r.Firmware = d.Name, d.MTU, d.Link, d.GIDType, d.Firmware
	return r, nil
}

// pair measures from this rank to a peer.
func (x *pairing) pair(peer int) error {
	if x.of.Kind == plan.Lat {
		return x.latency(peer)
	}
	return x.bandwidth(peer)
}

// until runs stretches for a time, one at least.
func until(d time.Duration, stretch func() error) error {
	for end := now() + int64(d); ; {
		if err := stretch(); err != nil {
			return err
		}
		if now() >= end {
			return nil
		}
	}
}

// latency is the median of gets.
func (x *pairing) latency(peer int) error {
	l := x.s.newLatency(x.of, x.a, peer)
	clear(l.src)
	if err := until(x.pt.Warmup, func() error { return l.run(pairsStretch) }); err != nil {
		return err
	}
	last := stats.New(pairsStretch, 1, false)
	for _, t := range l.times(pairsStretch) {
		last.Add(t)
	}
	l.batch = BatchFor(max(last.Percentile(50), 0.1), ClockCost())
	all := stats.New(1<<16, float64(l.batch), true)
	err := until(x.pt.Duration, func() error {
		if err := l.run(pairsStretch); err != nil {
			return err
		}
		for _, t := range l.times(pairsStretch) {
			all.Add(t)
		}
		return nil
	})
	if err != nil {
		return err
	}
	want := x.s.expected(x.a, peer)[l.begin-x.a.remote : l.begin-x.a.remote+l.size]
	x.row.Values[peer], x.row.Batches[peer] = max(report.Rounding(l.batch)(all.Percentile(50)), 0.001), l.batch
	x.row.Count += all.Count()
	x.row.Wrong += min(differ(l.src, want, x.of.Size, x.of.Size), 1)
	return nil
}

// bandwidth is that of the best of four parts of the time: another program that takes the processor
// for a moment says nothing about a link.
func (x *pairing) bandwidth(peer int) error {
	t := &throughput{s: x.s, pt: x.of, a: x.a, peer: peer}
	t.open()
	stretch := func() error { return t.me.run(putsStretch) }
	if err := until(x.pt.Warmup, stretch); err != nil {
		return err
	}
	const parts = 4
	best := 0.0
	for range parts {
		begin, from := now(), t.me.ops
		if err := until(x.pt.Duration/parts, stretch); err != nil {
			return err
		}
		ops := t.me.ops - from
		x.row.Count += ops
		best = max(best, float64(ops*x.of.Size)/float64(max(now()-begin, 1))*1e9)
	}
	wrong, err := t.check()
	x.row.Values[peer] = max(round(best), 1)
	x.row.Wrong += min(wrong, 1)
	return err
}

// pairsSeries puts the rows together.
func pairsSeries(pt plan.Point, rows []pairsRow) *report.Series {
	m := &pairs.Matrix{Unit: pt.Unit()}
	result := report.Result{Unit: m.Unit, P: map[string]float64{}}
	var all []float64
	for r, row := range rows {
		m.Ranks, m.Values, m.Networks = append(m.Ranks, row.Rank), append(m.Values, row.Values), append(m.Networks, row.Networks)
		if row.Batches != nil {
			m.Batches = append(m.Batches, row.Batches)
			result.OpsPerSample = max(result.OpsPerSample, slices.Max(row.Batches))
		}
		result.Count += row.Count
		result.Errors += row.Wrong
		for p, v := range row.Values {
			if p != r {
				all = append(all, v)
			}
		}
	}
	m.Analyse(pt.Factor)
	slices.Sort(all)
	sum := 0.0
	for _, v := range all {
		sum += v
	}
	result.Min, result.Max, result.Mean = all[0], all[len(all)-1], math.Round(sum/float64(len(all)))
	result.P["50"] = all[stats.Rank(50, len(all))]
	return &report.Series{Result: result, Raw: m}
}
