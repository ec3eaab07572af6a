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
	"strings"
	"time"

	"github.com/ibconduit/conduit/bench"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/memgroup"
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
	Bytes int64          `json:"bytes"` // of each hog
	Cubes int            `json:"cubes"`
	Phase time.Duration  `json:"phase_ns"` // before the hog, and with it
	Rows  []jacobiHogRow `json:"rows"`
}

type jacobiHogRow struct {
	Arm    string        `json:"arm"`
	Tokens int           `json:"tokens,omitempty"`
	Failed string        `json:"failed,omitempty"`
	Before time.Duration `json:"before_ns"`  // an iteration without the hog, median
	Soon   time.Duration `json:"soon_ns"`    // from 5 s after it came on, median
	With   time.Duration `json:"with_ns"`    // an iteration of a run that began with the hog, median
	Phase2 time.Duration `json:"phase2_ns"`  // with the hog, all iterations, mean
	Whole  int           `json:"iterations"` // of both phases
	Faults int64         `json:"faults"`
	Limits []int64       `json:"limits,omitempty"` // of the budget, at each iteration
}

// settled is for how long after the hog came a budget may adapt.
const settled = 5 * time.Second

// hog runs each kind of budget with a hog from the middle on, and with one from the start.
func (m *jacobiMeasurement) hog(ctx context.Context) error {
	m.arms = []string{bench.JacobiAdaptive}
	if err := m.calibrate(ctx); err != nil {
		return err
	}
	p := m.params(bench.JacobiAdaptive, 1, 1)
	one, err := p.Sizes()
	if err != nil {
		return err
	}
	// With memory for all faces the limit is reached; the hog takes what they have.
	faces := one.Persistent / 2 * int64(m.Stencil/6) * 12 / int64(m.Edge) / 2
	cubes := int((m.limit - m.out.Fixed[bench.JacobiAdaptive] - m.limit/16) / (one.Persistent + faces))
	if m.sizes != nil {
		cubes = m.sizes[0]
	}
	bytes := int64(cubes) * faces
	if m.Hog != "auto" {
		if bytes, err = bytesFlag("--hog", m.Hog, ""); err != nil {
			return err
		}
	}
	m.out.Hog = &jacobiHog{Bytes: bytes, Cubes: cubes, Phase: m.Phase}
	all := 12 * cubes
	kinds := []bench.JacobiParams{{Arm: bench.JacobiAdaptive}}
	for _, tokens := range []int{6, 24, all} {
		if tokens < all || tokens == all {
			kinds = append(kinds, bench.JacobiParams{Arm: bench.JacobiTokens, Tokens: tokens})
		}
	}
	for _, k := range kinds {
		row := jacobiHogRow{Arm: k.Arm, Tokens: k.Tokens}
		p := m.params(k.Arm, k.Tokens, cubes)
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
		if err != nil {
			return err
		}
		p.For = m.Phase
		with, _, err := m.start(ctx, p, func(ctx context.Context, groups []*memgroup.Group, _ <-chan struct{}) {
			_ = hogs(ctx, groups, bytes, m.io.err)
		})
		if err != nil {
			return err
		}
		row.Failed, row.Faults, row.Limits = r.Failed+with.Failed, r.Faults, r.limits
		if row.Failed == "" {
			row.fill(r.each[0], with.each[0], came)
		}
		m.out.Hog.Rows = append(m.out.Hog.Rows, row)
	}
	return nil
}

// fill takes the iterations apart: before the hog came, and after. Those of the first second of the
// other run are of the hog's coming.
func (r *jacobiHogRow) fill(each, with []time.Duration, came time.Duration) {
	var before, soon, phase2, late []time.Duration
	at := time.Duration(0)
	for _, d := range each {
		switch at += d; {
		case at <= came:
			before = append(before, d)
		default:
			phase2 = append(phase2, d)
			if at > came+settled {
				soon = append(soon, d)
			}
		}
	}
	at = 0
	for _, d := range with {
		if at += d; at > settled {
			late = append(late, d)
		}
	}
	r.Before, r.Soon, r.With, r.Whole = median(before), median(soon), median(late), len(each)
	for _, d := range phase2 {
		r.Phase2 += d / time.Duration(len(phase2))
	}
}

func median(d []time.Duration) time.Duration {
	if len(d) == 0 {
		return 0
	}
	d = slices.Sorted(slices.Values(d))
	return d[len(d)/2]
}

func (h *jacobiHog) text(b *strings.Builder) {
	if h == nil {
		return
	}
	ms := func(d time.Duration) float64 { return float64(d) / 1e6 }
	fmt.Fprintf(b, "\na hog of %s MiB in each group after %v; %d cubes along x; times are of an iteration\n", mib(h.Bytes), h.Phase, h.Cubes)
	fmt.Fprintf(b, "%-14s %12s %16s %20s %16s %12s %10s\n", "budget", "before, ms", "with it, mean", "5 s after it came", "begun with it", "iterations", "faults")
	for _, r := range h.Rows {
		name := r.Arm
		if r.Tokens > 0 {
			name = fmt.Sprintf("%d tokens", r.Tokens)
		}
		if r.Failed != "" {
			fmt.Fprintf(b, "%-14s ** %s\n", name, r.Failed)
			continue
		}
		fmt.Fprintf(b, "%-14s %12.1f %16.1f %20.1f %16.1f %12d %10d\n", name, ms(r.Before), ms(r.Phase2), ms(r.Soon), ms(r.With), r.Whole, r.Faults)
	}
}
