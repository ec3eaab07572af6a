package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/measure"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/plan"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/report"
	"github.com/ibconduit/conduit/internal/atomicfile"
)

// flowReport is what a kernel found.
type flowReport interface {
	text() string             // its tables
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

// check refuses files that cannot be written, before anything is measured, and opens the others.
func (c *flowOutput) check(plots bool) error {
	for _, name := range c.Output {
		switch format := filepath.Ext(name); {
		case slices.Contains([]string{".txt", ".json", ".ndjson", ".csv", ".bench"}, format) || plots && format == ".svg":
		default:
			return usageError{fmt.Errorf("-o %s: no format %q; there are .txt, .json, .ndjson, .csv and .bench, and of some kernels .svg", name, format)}
		}
		f, err := atomicfile.Create(name, 0o666)
		if err != nil {
			return fmt.Errorf("-o: %w", err)
		}
		c.files = append(c.files, f)
	}
	return nil
}

// write writes a report to standard output and to the files of -o, each in its format. svg draws
// it, if there is such a function.
func (c *flowOutput) write(out io.Writer, r flowReport, svg ...func() string) error {
	to := func(w io.Writer, format string) error {
		switch format {
		case "json", "ndjson", "csv", "bench":
			return writeSeries(w, format, r)
		case "svg":
			_, err := io.WriteString(w, svg[0]())
			return err
		}
		_, err := io.WriteString(w, r.text())
		return err
	}
	err := to(out, c.Format)
	for i, name := range c.Output {
		if failed := to(c.files[i], strings.TrimPrefix(filepath.Ext(name), ".")); failed != nil {
			c.files[i].Discard()
			err = errors.Join(err, failed)
			continue
		}
		err = errors.Join(err, c.files[i].Close())
	}
	return err
}

// writeSeries writes the runs as any other results. The first has all that was found.
func writeSeries(to io.Writer, format string, r flowReport) error {
	w, err := report.New(format, to, []float64{50})
	if err != nil {
		return err
	}
	env := measure.HostEnv(r.where())
	for i, s := range r.series() {
		s.Env = env
		if i == 0 {
			text, err := json.Marshal(r)
			if err != nil {
				return err
			}
			s.Raw = json.RawMessage(text)
		}
		if err := w.Add(s); err != nil {
			return err
		}
	}
	return w.Close()
}
