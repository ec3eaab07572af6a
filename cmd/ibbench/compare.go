package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/compare"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/report"
)

// compareCmd is ibbench compare.
type compareCmd struct {
	Old       string  `arg:"" help:"Results, .json or .ndjson; several files of one side with commas between, as a.json,b.json."`
	New       string  `arg:"" help:"The results that are judged."`
	Metrics   string  `default:"p50" placeholder:"LIST" help:"Figures of a latency that are compared: p50, mean, p99. Of a throughput it is the mean. Default: p50."`
	Threshold float64 `default:"0" placeholder:"P" help:"A change of less than P percent is no difference. Default: 0."`
	Format    string  `default:"text" enum:"text,json" help:"text or json. Default: text."`
}

func (c *compareCmd) run(_ context.Context, io streams) error {
	asked := strings.Split(c.Metrics, ",")
	for _, m := range asked {
		if m != "p50" && m != "mean" && m != "p99" {
			return usageError{fmt.Errorf("--metrics %q: want some of p50, mean, p99", m)}
		}
	}
	if c.Threshold < 0 || c.Threshold >= 1000 {
		return usageError{fmt.Errorf("--threshold %g: want percent, 0 or more", c.Threshold)}
	}
	older, err := readResults(c.Old)
	if err != nil {
		return usageError{err}
	}
	newer, err := readResults(c.New)
	if err != nil {
		return usageError{err}
	}
	r := compare.Compare(older, newer, asked, c.Threshold)
	switch {
	case len(r.Rows) > 0:
	case len(r.Skipped) > 0:
		return usageError{fmt.Errorf("%s and %s have nothing to compare: %s; measure more operations per sample (lat --batch), or choose other --metrics", c.Old, c.New, strings.Join(r.Skipped, "; "))}
	default:
		return usageError{fmt.Errorf("%s and %s have no point in common; the first has %s, the second %s", c.Old, c.New,
			named(r.OnlyOld), named(r.OnlyNew))}
	}
	if c.Format == "json" {
		e := json.NewEncoder(io.out)
		e.SetIndent("", " ")
		err = e.Encode(r)
	} else {
		err = printComparison(io, r)
	}
	if err == nil && r.Slower() {
		return codeError(exitFailed)
	}
	return err
}

// named lists points.
func named(points []string) string {
	if len(points) == 0 {
		return "only runs that failed"
	}
	return strconv.Quote(strings.Join(points, "; "))
}

// readResults reads the files of one side.
func readResults(list string) (all []*report.Series, err error) {
	for path := range strings.SplitSeq(list, ",") {
		some, err := report.Read(strings.TrimSpace(path))
		if err != nil {
			return nil, err
		}
		all = append(all, some...)
	}
	return all, nil
}

func printComparison(io streams, r *compare.Result) error {
	t := tabwriter.NewWriter(io.out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "point\tfigure\told\tnew\tunit\tchange\tp\trounds\tverdict\n")
	few := false
	for _, row := range r.Rows {
		p := fmt.Sprintf("%.3g", row.P)
		if row.Verdict == compare.Few {
			few, p = true, "-"
		}
		old, unit := report.Shown(row.Old, row.Unit)
		now, _ := report.Shown(row.New, row.Unit)
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%+.1f %%\t%s\t%d, %d\t%s\n", row.Point, row.Metric, old, now, unit, row.Change,
			p, row.OldN, row.NewN, row.Verdict)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	var notes []string
	for _, p := range r.OnlyOld {
		notes = append(notes, "only in the first: "+p)
	}
	for _, p := range r.OnlyNew {
		notes = append(notes, "only in the second: "+p)
	}
	notes = append(append(notes, r.Skipped...), r.Notes...)
	if few {
		notes = append(notes, fmt.Sprintf("a verdict takes %d rounds a side: measure with --rounds %d, or name the files of several runs with commas between", compare.MinRounds, 2*compare.MinRounds-1))
	}
	for _, n := range notes {
		if _, err := fmt.Fprintf(io.out, "note: %s\n", n); err != nil {
			return err
		}
	}
	return nil
}
