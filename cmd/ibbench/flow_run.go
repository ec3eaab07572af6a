package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/chart"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/transient"
	"github.com/ibconduit/conduit/internal/bench"
	"github.com/ibconduit/conduit/internal/errtext"
	"github.com/ibconduit/conduit/internal/memgroup"
)

// flowArm is how messages get from part to part.
type flowArm struct {
	Arm    string `json:"arm"`
	Tokens int    `json:"tokens,omitempty"`
}

// name is an arm with its tokens.
func (a flowArm) name() string {
	if a.Tokens > 0 {
		return errtext.Count(a.Tokens, "token")
	}
	return a.Arm
}

// flowRun is one run of jacobi or ft.
type flowRun struct {
	flowArm
	Cubes    int               `json:"cubes,omitempty"` // along x
	Parts    int               `json:"parts,omitempty"` // of a rank
	Limit    int64             `json:"limit,omitempty"` // of a rank's memory group, in bytes
	Failed   string            `json:"failed,omitempty"`
	Elapsed  time.Duration     `json:"elapsed_ns"` // of the iterations that count, the slowest rank
	Faults   int64             `json:"faults"`     // of all ranks meanwhile; -1: not known
	Peak     int64             `json:"peak"`       // bytes of pieces at once, the most of a rank
	Received int64             `json:"received"`   // of these what its budget had
	Group    int64             `json:"group"`      // bytes of a rank's group, the most that a sample had
	Pinned   int64             `json:"pinned"`     // VmPin of a rank
	Before   int64             `json:"before"`     // bytes that a rank has anyway
	Sizes    bench.Footprint   `json:"sizes"`
	each     [][]time.Duration // iterations of the ranks
	limits   []int64           // of the budget, at each iteration
	wave     jacobiWave
}

// once runs a kernel, up to so many times where the system ends it: where swap space is slow, it
// takes a group to be out of memory too early now and then. A run that fails or takes too long is a
// result; an error is of what all runs need.
func (c *flowRanks) once(ctx context.Context, r flowRun, run transient.Run, tries int) (flowRun, error) {
	run.Ranks, run.Fabric, run.Device, run.Limit, run.Timeout = c.Ranks, c.Fabric, c.Device, r.Limit, cmp.Or(c.Timeout, run.Timeout)
	all, err := transient.Start[transient.Measured[bench.Usage]](ctx, &run)
	for n := 1; n < tries && err != nil && r.Limit > 0 && ctx.Err() == nil && !errors.Is(err, transient.ErrTimeout); n++ {
		all, err = transient.Start[transient.Measured[bench.Usage]](ctx, &run)
	}
	if ctx.Err() != nil {
		return r, context.Cause(ctx)
	}
	if err != nil {
		if r.Failed = err.Error(); errors.Is(err, transient.ErrTimeout) {
			r.Failed = fmt.Sprintf("more than %v", run.Timeout)
		}
		return r, nil
	}
	for _, of := range all {
		u := of.Result
		r.Sizes, r.limits, r.each = u.Sizes, u.Limits, append(r.each, u.Iterations)
		r.Elapsed, r.Peak, r.Received = max(r.Elapsed, u.Elapsed), max(r.Peak, u.Peak), max(r.Received, u.Received)
		r.Before, r.Pinned = max(r.Before, of.Before), max(r.Pinned, of.Pinned)
		if u.Faults < 0 || r.Faults < 0 {
			r.Faults = -1
		} else {
			r.Faults += u.Faults
		}
	}
	return r, nil
}

// swap adds swap space where the machine has less than is asked for; nil: it has enough.
func (c *flowRanks) swap(byDefault int64) (*memgroup.Swap, error) {
	n, err := bytesFlag("--swap", c.Swap, strconv.FormatInt(byDefault, 10))
	if err != nil || n <= memgroup.FreeSwap() {
		return nil, err
	}
	return memgroup.MakeSwap(os.TempDir(), n-memgroup.FreeSwap())
}

// numbersOf reads a list of numbers from 1 up.
func numbersOf(name, list string) (all []int, err error) {
	for s := range strings.SplitSeq(list, ",") {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 {
			return nil, fmt.Errorf("%s %s: want numbers from 1 up", name, list)
		}
		all = append(all, n)
	}
	return all, nil
}

// failedCell is what a table has of a run that failed: killed, where the kernel ended it for want
// of memory, and ** as in the paper where it took too long, or else has no result.
func failedCell(why string) string {
	if strings.Contains(why, syscall.SIGKILL.String()) {
		return "killed"
	}
	return "**"
}

func mib(n int64) string { return fmt.Sprintf("%.1f", float64(n)/(1<<20)) }

// Figures of a run, for tables.
func seconds(r *flowRun) string { return fmt.Sprintf("%.2f", r.Elapsed.Seconds()) }
func faults(r *flowRun) string  { return strconv.FormatInt(r.Faults, 10) }
func peak(r *flowRun) string    { return mib(r.Peak) }

// flowText is a report for people: paragraphs and tables.
type flowText struct{ strings.Builder }

func (t *flowText) line(format string, args ...any) { fmt.Fprintf(t, format+"\n", args...) }

// table writes rows below a title: the first is the head, the first column is to the left.
func (t *flowText) table(title string, rows [][]string) {
	if len(rows) < 2 {
		return
	}
	t.line("\n%s", title)
	width := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			width[i] = max(width[i], len(cell))
		}
	}
	for _, row := range rows {
		for i, cell := range row {
			if i == 0 {
				fmt.Fprintf(t, "%-*s", width[0], cell)
			} else {
				fmt.Fprintf(t, "  %*s", width[i], cell)
			}
		}
		t.line("")
	}
}

// grid writes a table of one figure: a row for each key, in the order of the runs, a column for
// each arm.
func (t *flowText) grid(title, head string, runs []flowRun, key, cell func(*flowRun) string) {
	rows := [][]string{{head}}
	for i := range runs {
		r := &runs[i]
		column := slices.Index(rows[0], r.name())
		if column < 0 {
			column = len(rows[0])
			rows[0] = append(rows[0], r.name())
		}
		row := slices.IndexFunc(rows[1:], func(row []string) bool { return row[0] == key(r) }) + 1
		if row == 0 {
			row = len(rows)
			rows = append(rows, []string{key(r)})
		}
		for len(rows[row]) <= column {
			rows[row] = append(rows[row], "-")
		}
		if rows[row][column] = cell(r); r.Failed != "" {
			rows[row][column] = failedCell(r.Failed)
		}
	}
	t.table(title, rows)
}

// failures says why runs have no figures, and how many were left out.
func (t *flowText) failures(runs []flowRun, left int, key func(*flowRun) string) {
	for i := range runs {
		if r := &runs[i]; r.Failed != "" {
			t.line("%s %s, %s: %s", failedCell(r.Failed), r.name(), key(r), r.Failed)
		}
	}
	if left > 0 {
		t.line("runs left out, since --duration has ended: %d", left)
	}
}

// curves draws figures of the runs, a line for each arm.
func curves(c chart.Chart, runs []flowRun, x, y func(*flowRun) float64) *chart.Chart {
	for i := range runs {
		r := &runs[i]
		if r.Failed != "" {
			continue
		}
		at := slices.IndexFunc(c.Lines, func(l chart.Line) bool { return l.Name == r.name() })
		if at < 0 {
			at = len(c.Lines)
			c.Lines = append(c.Lines, chart.Line{Name: r.name()})
		}
		c.Lines[at].Points = append(c.Lines[at].Points, chart.Point{X: x(r), Y: y(r)})
	}
	return &c
}

// Figures of a run, for pictures.
func secondsOf(r *flowRun) float64 { return r.Elapsed.Seconds() }
func faultsOf(r *flowRun) float64  { return float64(r.Faults) }

// flowKind begins what a kernel prints as JSON.
type flowKind struct {
	Kind   string `json:"kind"` // flow-jacobi, flow-ft, flow-alltoall, flow-incast
	Ranks  int    `json:"ranks"`
	Fabric string `json:"fabric"`
}

func (k *flowKind) where() (ranks int, network string) { return k.Ranks, k.Fabric }
