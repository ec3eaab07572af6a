package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/report"
	"github.com/ibconduit/conduit/internal/errtext"
)

func (o *jacobiReport) where() (ranks int, network string) { return o.Ranks, o.Fabric }

func (o *jacobiReport) series() (all []*report.Series) {
	grid := fmt.Sprintf("%d points of cubes of %d^3", o.Points, o.Edge)
	for _, r := range slices.Concat(o.Runs, o.Sweep) {
		all = append(all, flowTime("jacobi", grid, int64(r.Cubes), r.Elapsed, o.Iterations,
			flowMemory{arm: armName(r.Arm, r.Tokens), counts: "cubes along x", limit: o.Limit, peak: r.Peak, faults: r.Faults, failed: r.Failed}))
	}
	if o.Hog == nil {
		return all
	}
	for _, r := range o.Hog.Rows {
		f := flowMemory{arm: armName(r.Arm, r.Tokens), counts: "cubes along x", limit: o.Limit, failed: r.Failed}
		all = append(all, flowTime("jacobi before a hog", grid, int64(o.Hog.Cubes), r.Phase1, 1, f))
		f.faults = r.Faults
		all = append(all, flowTime("jacobi with a hog", grid, int64(o.Hog.Cubes), r.Phase2, 1, f))
	}
	return all
}

// armName is an arm with its tokens.
func armName(arm string, tokens int) string {
	if tokens > 0 {
		return errtext.Count(tokens, "token")
	}
	return arm
}

func (o *jacobiReport) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "Jacobi, %d points, cubes of %d^3, %d ranks over %s", o.Points, o.Edge, o.Ranks, o.Fabric)
	if o.Limit > 0 {
		fmt.Fprintf(&b, ", each in %s MiB", mib(o.Limit))
	}
	fmt.Fprintf(&b, "; %s; results verified\n", errtext.Count(o.Iterations, "iteration"))
	o.tables(&b)
	if len(o.Knees) > 0 {
		if o.Touched > 0 {
			fmt.Fprintf(&b, "\nof the limit %s MiB can be touched without a major fault (M)", mib(o.Touched))
		}
		fmt.Fprintf(&b, "\n%-16s %8s %10s %10s %8s %9s %8s %8s %8s\n", "largest that fits", "tau", "model cubes", "measured", "M_A MiB", "fixed MiB", "ratio", "model", "a step")
		for _, k := range o.Knees {
			fmt.Fprintf(&b, "%-16s %8.3f %10.1f %10d %8s %9s %8.3f %8.3f %8.3f\n", k.Arm, k.Tau, k.Predicted, k.Measured, mib(k.Own), mib(o.Fixed[k.Arm]), k.Ratio, k.Model, k.Step)
		}
	}
	if len(o.Sweep) > 0 {
		fmt.Fprintf(&b, "\n%-8s %14s %10s %10s   %s along x\n", "tokens", "ms an iteration", "faults", "peak KiB", errtext.Count(o.Sweep[0].Cubes, "cube"))
		for _, r := range o.Sweep {
			fmt.Fprintf(&b, "%-8d %14.1f %10d %10d\n", r.Tokens, 1e3*r.Elapsed.Seconds()/float64(o.Iterations), r.Faults, r.Peak>>10)
		}
	}
	o.Hog.text(&b)
	for _, r := range slices.Concat(o.Runs, o.Sweep) {
		if r.Failed != "" {
			fmt.Fprintf(&b, "%s %s, %s: %s\n", failedCell(r.Failed), r.Arm, errtext.Count(r.Cubes, "cube"), r.Failed)
		}
	}
	if o.Left > 0 {
		fmt.Fprintf(&b, "runs left out, since --duration has ended: %d\n", o.Left)
	}
	return b.String()
}

// names are the arms in the order of the runs, and sizes what they were measured at.
func (o *jacobiReport) names() (arms []string, sizes []int) {
	for _, r := range o.Runs {
		if !slices.Contains(arms, r.Arm) {
			arms = append(arms, r.Arm)
		}
		if !slices.Contains(sizes, r.Cubes) {
			sizes = append(sizes, r.Cubes)
		}
	}
	return arms, sizes
}

// at is the run of an arm at a size.
func (o *jacobiReport) at(arm string, cubes int) *jacobiRun {
	for i, r := range o.Runs {
		if r.Arm == arm && r.Cubes == cubes {
			return &o.Runs[i]
		}
	}
	return nil
}

// tables writes faults and seconds as the paper's tables 1 and 2, and memory as its figure 4b.
func (o *jacobiReport) tables(b *strings.Builder) {
	arms, sizes := o.names()
	if len(sizes) == 0 {
		return
	}
	fmt.Fprintf(b, "\n%-16s %10s %14s", "grid", "arrays MiB", "major faults:")
	for _, title := range []string{"", "seconds:", "peak of faces in MiB:"} {
		if title != "" {
			fmt.Fprintf(b, " %*s", 10, title)
		}
	}
	fmt.Fprintf(b, "\n%-16s %10s", "", "a rank")
	for range 3 {
		for _, a := range arms {
			fmt.Fprintf(b, " %9s", a)
		}
		fmt.Fprint(b, "  ")
	}
	for _, n := range sizes {
		grid := fmt.Sprintf("%d*%d*%d", n*o.Edge, o.Ranks*o.Edge, 2*o.Edge)
		var arrays int64
		for _, a := range arms {
			if r := o.at(a, n); r != nil {
				arrays = max(arrays, r.Sizes.Persistent)
			}
		}
		fmt.Fprintf(b, "\n%-16s %10s", grid, mib(arrays))
		for _, cell := range []func(*jacobiRun) string{
			func(r *jacobiRun) string { return strconv.FormatInt(r.Faults, 10) },
			func(r *jacobiRun) string { return fmt.Sprintf("%.2f", r.Elapsed.Seconds()) },
			func(r *jacobiRun) string { return mib(r.Peak) },
		} {
			for _, a := range arms {
				text := "-"
				if r := o.at(a, n); r != nil && r.Failed != "" {
					text = failedCell(r.Failed)
				} else if r != nil {
					text = cell(r)
				}
				fmt.Fprintf(b, " %9s", text)
			}
			fmt.Fprint(b, "  ")
		}
	}
	b.WriteString("\n")
}
