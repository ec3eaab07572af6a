package measure

import (
	"context"
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

// pairsPoint measures every pair of ranks, in the steps of a schedule. Of a pair only the rank that
// the operations come from is active; all others sleep as long as a step is meant to take, since
// ranks of the same host may have few processors.
func (s *session) pairsPoint(pt plan.Point) (*report.Series, error) {
	of := pt.Measured()
	a := s.prepare(of)
	me, n := s.job.Rank(), s.job.Size()
	row := pairsRow{Values: make([]float64, n), Networks: make([]string, n)}
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
		if err := s.pair(pt, of, a, step[at][1], &row); err != nil {
			return nil, fmt.Errorf("rank %d: %w", step[at][1], err)
		}
	}
	rows, err := gather(s, row) // nothing of a rank is read or written any more
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

func (s *session) sleep(d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-s.ctx.Done():
		return context.Cause(s.ctx)
	}
}

// pair measures from this rank to a peer.
func (s *session) pair(pt, of plan.Point, a areas, peer int, row *pairsRow) (err error) {
	var v float64
	var count, wrong int64
	if of.Kind == plan.Lat {
		v, row.Batches[peer], count, wrong, err = s.pairLatency(pt, of, a, peer)
	} else {
		v, count, wrong, err = s.pairBandwidth(pt, of, a, peer)
	}
	row.Values[peer] = v
	row.Count += count
	row.Wrong += wrong
	return err
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

// pairLatency is the median of gets.
func (s *session) pairLatency(pt, of plan.Point, a areas, peer int) (p50 float64, batch int, count, wrong int64, err error) {
	l := s.newLatency(of, a, peer)
	clear(l.src)
	if err := until(pt.Warmup, func() error { return l.run(pairsStretch) }); err != nil {
		return 0, 0, 0, 0, err
	}
	last := stats.New(pairsStretch, 1, false)
	for _, t := range l.times(pairsStretch) {
		last.Add(t)
	}
	l.batch = BatchFor(max(last.Percentile(50), 0.1), ClockCost())
	all := stats.New(1<<16, float64(l.batch), true)
	err = until(pt.Duration, func() error {
		if err := l.run(pairsStretch); err != nil {
			return err
		}
		for _, t := range l.times(pairsStretch) {
			all.Add(t)
		}
		return nil
	})
	if err != nil {
		return 0, 0, 0, 0, err
	}
	want := s.expected(a, peer)[l.begin-a.remote : l.begin-a.remote+l.size]
	p50 = report.Rounding(l.batch)(all.Percentile(50))
	return max(p50, 0.001), l.batch, all.Count(), min(differ(l.src, want, of.Size, of.Size), 1), nil
}

// pairBandwidth is that of the best of four parts of the time: another program that takes the
// processor for a moment says nothing about a link.
func (s *session) pairBandwidth(pt, of plan.Point, a areas, peer int) (bandwidth float64, count, wrong int64, err error) {
	me := s.newSenders(of, a, peer)
	stretch := func() error { return me.run(putsStretch) }
	if err := until(pt.Warmup, stretch); err != nil {
		return 0, 0, 0, err
	}
	const parts = 4
	for range parts {
		begin, from := now(), me.ops
		if err := until(pt.Duration/parts, stretch); err != nil {
			return 0, 0, 0, err
		}
		ops := me.ops - from
		count += ops
		bandwidth = max(bandwidth, float64(ops*of.Size)/float64(max(now()-begin, 1))*1e9)
	}
	wrong, err = s.checkSent(of, me, a, peer)
	return max(round(bandwidth), 1), count, min(wrong, 1), err
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
