package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"time"

	"github.com/ibconduit/conduit/internal/bench"
	"github.com/ibconduit/conduit/internal/errtext"
	"github.com/ibconduit/conduit/internal/memgroup"
	"github.com/ibconduit/conduit/internal/pressure"
)

// flowHog is ibbench flow hog.
type flowHog struct {
	Bytes    string        `arg:"" help:"How much to take, as 64M."`
	Every    time.Duration `default:"100ms" placeholder:"D" help:"Between two touches of a page. Default: 100ms."`
	Sawtooth time.Duration `placeholder:"D" help:"Grow from nothing to all in this time, again and again. Default: all of it from the start."`
	Duration time.Duration `default:"10s" placeholder:"D" help:"For how long. Default: 10s."`
	Group    string        `placeholder:"DIR" help:"Directory of a memory group (cgroup) to take it from. Default: that of the caller."`
	Quiet    bool          `short:"q" help:"No progress on standard error."`
}

func (c *flowHog) run(ctx context.Context, io streams) error {
	n, err := bytesFlag("the hog's", c.Bytes, "")
	if err != nil {
		return err
	}
	if c.Duration <= 0 || c.Every <= 0 {
		return usageError{errors.New("--duration and --every: want times above 0")}
	}
	for _, b := range pressure.New().Read().Bounds {
		if swap := memgroup.FreeSwap(); b.Source == "MemAvailable" && n > b.Limit-b.Used+swap {
			return usageError{fmt.Errorf("the hog's %s: the machine has %d MiB available and %d MiB of swap space, and the kernel would end programs", c.Bytes, (b.Limit-b.Used)>>20, swap>>20)}
		}
	}
	if c.Group != "" {
		if err := memgroup.Enter(c.Group); err != nil {
			return err
		}
	}
	t := newTerminal(io.err, c.Quiet)
	h := bench.Hog{Bytes: n, Every: c.Every, Period: c.Sawtooth, Took: func(n int64) { t.live(fmt.Sprintf("%d MiB", n>>20)) }}
	ctx, cancel := context.WithTimeout(ctx, c.Duration)
	defer cancel()
	err = h.Run(ctx)
	t.clear()
	return err
}

// hogs runs a hog in each group until ctx ends.
func hogs(ctx context.Context, groups []*memgroup.Group, bytes int64, stderr io.Writer) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	var all []*exec.Cmd
	for _, g := range groups {
		cmd := exec.CommandContext(ctx, self, "flow", "hog", "-q", "--duration", "1h", "--group", g.Place(), strconv.FormatInt(bytes, 10))
		cmd.Stderr = stderr
		if err = cmd.Start(); err != nil {
			break
		}
		all = append(all, cmd)
	}
	for _, cmd := range all {
		_ = cmd.Wait() // killed with ctx
	}
	return err
}

// jacobiHog is what runs took into which a hog came.
type jacobiHog struct {
	Bytes   int64          `json:"bytes"` // of each hog
	Cubes   int            `json:"cubes"`
	Phase   time.Duration  `json:"phase_ns"` // before the hog, and with it
	Latency time.Duration  `json:"latency_ns,omitempty"`
	Rows    []jacobiHogRow `json:"rows"`
	// Of the adaptive budget, 0 where runs have failed: its iterations from 5 s after the hog came,
	// to those of a run begun with it; each phase to that of the fixed budget that was best in it;
	// iterations in all to those of the fixed budget that was best before the hog.
	Settled float64    `json:"settled,omitempty"`
	Phases  [2]float64 `json:"phases"`
	Whole   float64    `json:"whole,omitempty"`
}

type jacobiHogRow struct {
	flowArm
	Failed string        `json:"failed,omitempty"`
	Phase1 time.Duration `json:"phase1_ns"`         // an iteration without the hog, mean
	Phase2 time.Duration `json:"phase2_ns"`         // with it, all iterations, mean
	Soon   time.Duration `json:"soon_ns"`           // from 5 s after it came on, median
	With   time.Duration `json:"with_ns,omitempty"` // of a run that began with it, from 5 s on, median; adaptive only
	Whole  int           `json:"iterations"`        // of both phases
	Faults int64         `json:"faults"`
	Limits []int64       `json:"limits,omitempty"` // of the budget, at each iteration
}

// settled is for how long after the hog came a budget may adapt.
const settled = 5 * time.Second

// hog runs each kind of budget with a hog from the middle on, and the adaptive one with a hog from
// the start, too.
func (m *jacobiMeasurement) hog(ctx context.Context) error {
	m.arms = []string{bench.ArmAdaptive}
	if err := m.calibrate(ctx); err != nil {
		return err
	}
	p := m.params(bench.ArmAdaptive, 1, 1)
	one, err := p.Sizes()
	if err != nil {
		return err
	}
	// All faces fit, with an eighth as headroom and a rest for what grows in a rank. The hog takes
	// the rest, and so much of the faces' that half of them do not fit beside it.
	faces := 12 * one.Piece
	rest := m.limit / 32
	cubes := int((m.limit - m.out.Fixed[bench.ArmAdaptive] - rest) / (one.Persistent + faces*9/8))
	if m.sizes != nil {
		cubes = m.sizes[0]
	}
	bytes := rest + int64(cubes)*faces*11/16
	if m.Hog != "auto" {
		bytes = m.hogBytes
	}
	h := &jacobiHog{Bytes: bytes, Cubes: cubes, Phase: m.Phase, Latency: m.Latency}
	m.out.Hog = h
	all := 12 * cubes
	kinds := []bench.JacobiParams{{Arm: bench.ArmAdaptive}}
	for _, part := range []int{16, 4, 2, 1} {
		kinds = append(kinds, bench.JacobiParams{Arm: bench.ArmTokens, Tokens: max(all/part, 1)})
	}
	for _, k := range kinds {
		p := m.params(k.Arm, k.Tokens, cubes)
		row, err := m.intoRun(ctx, p, bytes)
		if err != nil {
			return err
		}
		if k.Arm == bench.ArmAdaptive && row.Failed == "" {
			if err := m.withHog(ctx, p, bytes, &row); err != nil {
				return err
			}
		}
		h.Rows = append(h.Rows, row)
	}
	h.compare()
	return nil
}

// intoRun is a run into whose middle a hog comes.
func (m *jacobiMeasurement) intoRun(ctx context.Context, p bench.JacobiParams, bytes int64) (row jacobiHogRow, err error) {
	p.Iterations, p.For = 2, 2*m.Phase
	var came time.Duration
	r, _, err := m.start(ctx, p, func(ctx context.Context, groups []*memgroup.Group, iterating <-chan struct{}) {
		select {
		case <-iterating:
		case <-ctx.Done():
			return
		}
		begin := time.Now()
		select {
		case <-time.After(m.Phase):
		case <-ctx.Done():
			return
		}
		came = time.Since(begin)
		_ = hogs(ctx, groups, bytes, m.io.err)
	})
	row = jacobiHogRow{flowArm: r.flowArm, Failed: r.Failed, Faults: r.Faults, Limits: r.limits}
	if err == nil && row.Failed == "" {
		row.fill(r.each[0], came)
	}
	return row, err
}

// withHog adds a run that begins with a hog. Its first seconds are of the hog's coming.
func (m *jacobiMeasurement) withHog(ctx context.Context, p bench.JacobiParams, bytes int64, row *jacobiHogRow) error {
	p.Iterations, p.For = 2, m.Phase
	r, _, err := m.start(ctx, p, func(ctx context.Context, groups []*memgroup.Group, _ <-chan struct{}) {
		_ = hogs(ctx, groups, bytes, m.io.err)
	})
	if err != nil || r.Failed != "" {
		row.Failed = r.Failed
		return err
	}
	var late []time.Duration
	at := time.Duration(0)
	for _, d := range r.each[0] {
		if at += d; at > settled {
			late = append(late, d)
		}
	}
	row.With = median(late)
	return nil
}

// fill takes the iterations apart: before the hog came, and after.
func (r *jacobiHogRow) fill(each []time.Duration, came time.Duration) {
	var before, with, soon []time.Duration
	at := time.Duration(0)
	for _, d := range each {
		switch at += d; {
		case at <= came:
			before = append(before, d)
		default:
			with = append(with, d)
			if at > came+settled {
				soon = append(soon, d)
			}
		}
	}
	r.Phase1, r.Phase2, r.Soon, r.Whole = mean(before), mean(with), median(soon), len(each)
}

// compare has the first row beside the others.
func (h *jacobiHog) compare() {
	ratio := func(x, y time.Duration) float64 {
		if x == 0 || y == 0 {
			return 0
		}
		return float64(x) / float64(y)
	}
	ours := h.Rows[0]
	var best1, best2 *jacobiHogRow
	for i := range h.Rows[1:] {
		r := &h.Rows[1+i]
		if r.Failed != "" {
			continue
		}
		if best1 == nil || r.Phase1 < best1.Phase1 {
			best1 = r
		}
		if best2 == nil || r.Phase2 < best2.Phase2 {
			best2 = r
		}
	}
	if ours.Failed != "" || best1 == nil {
		return
	}
	h.Settled = ratio(ours.Soon, ours.With)
	h.Phases = [2]float64{ratio(ours.Phase1, best1.Phase1), ratio(ours.Phase2, best2.Phase2)}
	h.Whole = float64(ours.Whole) / float64(best1.Whole)
}

func mean(all []time.Duration) (sum time.Duration) {
	for _, d := range all {
		sum += d
	}
	return sum / time.Duration(max(len(all), 1))
}

func median(d []time.Duration) time.Duration {
	if len(d) == 0 {
		return 0
	}
	d = slices.Sorted(slices.Values(d))
	return d[len(d)/2]
}

func (h *jacobiHog) text(t *flowText) {
	if h == nil {
		return
	}
	ms := func(d time.Duration) string {
		if d == 0 {
			return "-"
		}
		return fmt.Sprintf("%.1f", float64(d)/1e6)
	}
	rows := [][]string{{"budget", "before", "with it", "5 s after it came", "begun with it", "iterations", "faults"}}
	for _, r := range h.Rows {
		row := []string{r.name(), failedCell(r.Failed), "", "", "", "", ""}
		if r.Failed == "" {
			row = []string{r.name(), ms(r.Phase1), ms(r.Phase2), ms(r.Soon), ms(r.With), fmt.Sprint(r.Whole), fmt.Sprint(r.Faults)}
		}
		rows = append(rows, row)
	}
	t.table(fmt.Sprintf("a hog of %s MiB in each group after %v; %s along x; faces come %v late; ms of an iteration",
		mib(h.Bytes), h.Phase, errtext.Count(h.Cubes, "cube"), h.Latency), rows)
	for _, r := range h.Rows {
		if r.Failed != "" {
			t.line("%s %s: %s", failedCell(r.Failed), r.name(), r.Failed)
		}
	}
	if h.Whole > 0 {
		t.line("adaptive: %.2f of a run begun with the hog, 5 s after it came; %.2f and %.2f of the best fixed budget before and with it; %.2f times the iterations of the one that was best before",
			h.Settled, h.Phases[0], h.Phases[1], h.Whole)
	}
}
