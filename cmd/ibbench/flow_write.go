package main

import (
	"errors"
	"math"
	"time"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/measure"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/plan"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/report"
)

// flowReport is what a kernel found.
type flowReport interface {
	report.Report             // its tables
	series() []*report.Series // its runs
	where() (ranks int, network string)
}

// flowMemory is the memory of messages that a kernel ran with, and what became of it.
type flowMemory struct {
	arm    string // what it is held to, or the way of an all-to-all
	counts string // what the size is a number of
	limit  int64  // bytes of a rank's memory group, of incast of the receiver's budget; 0: none
	peak   int64  // bytes of messages' data that had memory at once, the most on a rank
	faults int64  // major ones, of all ranks; -1: not known
	failed string // why there are no figures
}

// flowSeries is one run: of times those in ns, of a throughput bytes a second.
func flowSeries(op string, size int64, definition, unit string, figure, least float64, f flowMemory) *report.Series {
	s := &report.Series{Schema: report.Schema, Kind: plan.Flow, Op: op, Size: size, Definition: definition,
		Plan:   plan.Point{Kind: plan.Flow, Op: op, Size: size, Depth: 1, Lanes: 1},
		Result: report.Result{Unit: unit, P: map[string]float64{}}}
	s.SetText("flow.arm", f.arm)
	s.SetText("flow.counts", f.counts)
	s.Set("flow.limit", float64(f.limit))
	s.Set("flow.peak", float64(f.peak))
	s.Set("flow.faults", float64(f.faults))
	if f.failed != "" {
		s.SetText("flow.failed", f.failed)
	} else {
		s.Result.Count, s.Result.Min, s.Result.Max, s.Result.Mean = 1, least, figure, figure
		s.Result.P["50"] = figure
	}
	return s
}

// flowTime is a run that took so long for a number of iterations; only those of one variant can be
// compared.
func flowTime(op, variant string, size int64, took time.Duration, iterations int, f flowMemory) *report.Series {
	ns := math.Round(float64(took) / float64(max(iterations, 1)))
	s := flowSeries(op, size, "iteration", "ns", ns, ns, f)
	s.Plan.Variant = variant
	return s
}

// write reports what a kernel found, to standard output and the files of -o. The first run has all
// of it.
func (o *flowOutput) write(r flowReport) (err error) {
	env := measure.HostEnv(r.where())
	for i, s := range r.series() {
		if s.Env = env; i == 0 {
			s.Raw = r
		}
		err = errors.Join(err, o.to.Add(s))
	}
	return errors.Join(err, o.to.Close())
}
