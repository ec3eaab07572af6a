package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ibconduit/conduit/bench"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/chart"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/report"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/transient"
	"github.com/ibconduit/conduit/internal/errtext"
)

// flowFT is ibbench flow ft.
type flowFT struct {
	flowRanks
	flowOutput
	Class      string        `default:"A" enum:"S,W,A,B" help:"Class of the NAS benchmark FT: S, W, A or B. Default: A."`
	Parts      int           `default:"16" placeholder:"N" help:"Parts (virtual processors) of a rank in the table of limits, a power of 2. Default: 16."`
	Of         string        `name:"parts-of" placeholder:"LIST" help:"Parts of a rank in the table of times, as 16,64; none: no such table. Default: 16,32,64,128,256."`
	Tokens     string        `default:"4,8" placeholder:"LIST" help:"Blocks that have memory at once. Default: 4,8."`
	Limits     string        `placeholder:"LIST" help:"Limits of the first table, as 220M,240M. Default: 7 around those at which the model expects faults."`
	Iterations int           `default:"2" placeholder:"N" help:"Time steps. Default: 2."`
	Duration   time.Duration `default:"14m" placeholder:"D" help:"Begin no run after this time; what is missing is left out. Default: 14m."`
}

// ftRun is one run of the tables.
type ftRun struct {
	Arm      string        `json:"arm"` // normal, 4 tokens
	Tokens   int           `json:"tokens,omitempty"`
	Parts    int           `json:"parts"`           // of a rank
	Limit    int64         `json:"limit,omitempty"` // of a rank's memory group, in bytes
	Failed   string        `json:"failed,omitempty"`
	Elapsed  time.Duration `json:"elapsed_ns,omitempty"` // the slowest rank
	Faults   int64         `json:"faults"`               // all ranks; -1: not known
	Peak     int64         `json:"peak"`                 // bytes of blocks, the most on a rank
	Received int64         `json:"received"`             // of these what the budget had
	Sizes    bench.FTSizes `json:"sizes"`
	Before   int64         `json:"before"` // bytes that a rank has anyway
}

// ftReport is what ibbench flow ft prints.
type ftReport struct {
	Kind       string  `json:"kind"` // flow-ft
	Class      string  `json:"class"`
	Ranks      int     `json:"ranks"`
	Fabric     string  `json:"fabric"`
	Iterations int     `json:"iterations"`
	Ample      []ftRun `json:"ample"`            // each arm without a limit
	Limits     []ftRun `json:"limits,omitempty"` // Table 3
	Parts      []ftRun `json:"parts,omitempty"`  // fig. 6b
	// Knee is the limit below which the model expects faults, by arm, in bytes.
	Knee map[string]int64 `json:"knee,omitempty"`
	Left int              `json:"left_out,omitempty"` // runs that --duration left no time for
}

func (c *flowFT) run(ctx context.Context, io streams) error {
	if c.Quick {
		c.Class, c.Of, c.Iterations, c.Parts = "S", "4,8", 1, 4
	}
	if c.Of == "" {
		c.Of = "16,32,64,128,256"
	}
	tokens, err := numbersOf("--tokens", c.Tokens)
	if err != nil {
		return usageError{err}
	}
	if min(c.Parts, c.Iterations) < 1 {
		return usageError{errors.New("--parts and --iterations: want 1 or more")}
	}
	if c.Timeout < 0 || c.Duration <= 0 {
		return usageError{errors.New("--timeout and --duration: want times above 0")}
	}
	var parts []int
	if c.Of != "none" {
		if parts, err = numbersOf("--parts-of", c.Of); err != nil {
			return usageError{err}
		}
	}
	arms := []ftRun{{Arm: bench.FTNormal}}
	for _, t := range tokens {
		arms = append(arms, ftRun{Arm: strconv.Itoa(t) + " tokens", Tokens: t})
	}
	for _, n := range append(parts, c.Parts) {
		for _, a := range arms {
			if _, err := bench.NewFT(c.params(a, n), c.Ranks); err != nil {
				return usageError{err}
			}
		}
	}
	var limits []int64
	if c.Limits != "" {
		for l := range strings.SplitSeq(c.Limits, ",") {
			n, err := bytesFlag("--limits", l, "")
			switch {
			case err != nil:
				return err
			case n == 0:
				return usageError{errors.New("--limits 0: want limits of 1 byte or more")}
			}
			limits = append(limits, n)
		}
	}
	return c.tables(ctx, io, arms, limits, parts)
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

func (c *flowFT) params(r ftRun, parts int) bench.FTParams {
	p := bench.FTParams{Arm: bench.FTNormal, Class: c.Class, Parts: parts, Iterations: c.Iterations}
	if r.Tokens > 0 {
		p.Arm, p.Tokens = bench.FTTokens, r.Tokens
	}
	return p
}

func (c *flowFT) tables(ctx context.Context, io streams, arms []ftRun, limits []int64, parts []int) error {
	t := newTerminal(io.err, c.Quiet)
	out := &ftReport{Kind: "flow-ft", Class: c.Class, Ranks: c.Ranks, Fabric: c.Fabric, Iterations: c.Iterations, Knee: map[string]int64{}}
	err := c.runs(ctx, io, t, out, arms, limits, parts)
	t.end()
	if err != nil && len(out.Ample) == 0 {
		return err
	}
	return errors.Join(err, c.write(io.out, out, out.svg)) // also what was measured before a failure
}

// runs fills the tables.
func (c *flowFT) runs(ctx context.Context, io streams, t *terminal, out *ftReport, arms []ftRun, limits []int64, parts []int) (failed error) {
	end := time.Now().Add(c.Duration)
	measure := func(to *[]ftRun, r ftRun, parts int, limit int64) error {
		if time.Now().After(end) {
			out.Left++
			return nil
		}
		t.live(fmt.Sprintf("class %s, %s, %s, limit %d MiB", c.Class, r.Arm, errtext.Count(parts, "part"), limit>>20))
		r, err := c.once(ctx, io, r, parts, limit)
		if err == nil {
			*to = append(*to, r)
		}
		return err
	}
	grouped := c.Limit != "0"
	if grouped {
		g, err := transient.Groups(1, 1<<30)
		if err != nil {
			return err
		}
		for _, g := range g {
			err = errors.Join(err, g.Remove())
		}
		if err != nil {
			return err
		}
	}
	var ample int64
	if grouped {
		k, _ := bench.NewFT(c.params(arms[0], c.Parts), c.Ranks)
		s := k.Sizes()
		ample = 2*(s.Persistent+s.InFlight) + 256<<20
		if swap, err := c.swap(int64(c.Ranks) * ample); err != nil {
			return err
		} else if swap != nil {
			defer func() { failed = errors.Join(failed, swap.Remove()) }()
		}
	}
	for _, a := range arms {
		if err := measure(&out.Ample, a, c.Parts, ample); err != nil {
			return err
		}
	}
	if grouped {
		for _, r := range out.Ample {
			if r.Failed == "" {
				out.Knee[r.Arm] = r.Before + r.Sizes.Persistent + r.Sizes.InFlight
			}
		}
		if limits == nil {
			limits = c.around(out.Knee)
		}
		for _, l := range limits {
			for _, a := range arms {
				if err := measure(&out.Limits, a, c.Parts, l); err != nil {
					return err
				}
			}
		}
	}
	var middle int64
	if n := len(limits); n > 0 {
		middle = limits[n/2]
	}
	for _, n := range parts {
		for _, a := range arms {
			if err := measure(&out.Parts, a, n, middle); err != nil {
				return err
			}
		}
	}
	return nil
}

func (o *ftReport) where() (ranks int, network string) { return o.Ranks, o.Fabric }

func (o *ftReport) series() (all []*report.Series) {
	for _, r := range slices.Concat(o.Ample, o.Limits, o.Parts) {
		all = append(all, flowTime("ft", "class "+o.Class, int64(r.Parts), r.Elapsed, o.Iterations,
			flowMemory{arm: r.Arm, counts: "parts of a rank", limit: r.Limit, peak: r.Peak, faults: r.Faults, failed: r.Failed}))
	}
	return all
}

// around are 7 limits, from a step below the least knee to a step above the highest.
func (c *flowFT) around(knee map[string]int64) (limits []int64) {
	var all []int64
	for _, k := range knee {
		all = append(all, k)
	}
	if len(all) == 0 {
		return nil
	}
	low, high := slices.Min(all), slices.Max(all)
	step := max((high-low)/4, 1<<20)
	for i := range int64(7) {
		limits = append(limits, (low+(i-1)*step)>>20<<20)
	}
	return limits
}

// ftTries is how often a run is tried that the kernel ends: where swap space is slow it takes a
// group to be out of memory too early now and then.
const ftTries = 3

// once is one run. One that fails or takes too long is a line of the table; an error is of what all
// runs need.
func (c *flowFT) once(ctx context.Context, io streams, r ftRun, parts int, limit int64) (ftRun, error) {
	r.Parts, r.Limit = parts, limit
	timeout := c.Timeout
	if timeout == 0 {
		timeout = time.Minute
	}
	run := transient.Run{Kernel: transient.FT, Params: c.params(r, parts), Ranks: c.Ranks, Fabric: c.Fabric, Device: c.Device,
		Limit: limit, Timeout: timeout, Stderr: io.err}
	results, err := run.Start(ctx)
	for n := 1; n < ftTries && err != nil && limit > 0 && ctx.Err() == nil && !errors.Is(err, transient.ErrTimeout); n++ {
		results, err = run.Start(ctx)
	}
	if ctx.Err() != nil {
		return r, context.Cause(ctx)
	}
	if err != nil {
		if r.Failed = err.Error(); errors.Is(err, transient.ErrTimeout) {
			r.Failed = fmt.Sprintf("more than %v", timeout)
		}
		return r, nil
	}
	for _, b := range results {
		var of transient.FTRank
		if err := json.Unmarshal(b, &of); err != nil {
			return r, err
		}
		r.Elapsed, r.Peak, r.Received, r.Before, r.Sizes = max(r.Elapsed, of.Elapsed), max(r.Peak, of.Peak), max(r.Received, of.Received), max(r.Before, of.Before), of.Sizes
		if of.Faults < 0 || r.Faults < 0 {
			r.Faults = -1
		} else {
			r.Faults += of.Faults
		}
	}
	return r, nil
}

// cell is a run's time and faults.
func (r ftRun) cell(t func(ftRun) string) string {
	if r.Failed != "" {
		return failedCell(r.Failed)
	}
	return t(r)
}

func seconds(r ftRun) string { return fmt.Sprintf("%.2f", r.Elapsed.Seconds()) }
func faults(r ftRun) string  { return strconv.FormatInt(r.Faults, 10) }

func mib(n int64) string { return fmt.Sprintf("%.1f", float64(n)/(1<<20)) }

func (o *ftReport) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "FT class %s on %d ranks, %s, checksums verified\n\n", o.Class, o.Ranks, errtext.Count(o.Iterations, "iteration"))
	fmt.Fprintf(&b, "%-10s %6s %10s %9s %10s %10s %9s %8s\n", "ample", "parts", "arrays MiB", "block KiB", "flight MiB", "peak MiB", "knee MiB", "time s")
	for _, r := range o.Ample {
		fmt.Fprintf(&b, "%-10s %6d %10s %9.0f %10s %10s %9s %8s\n", r.Arm, r.Parts, mib(r.Sizes.Persistent), float64(r.Sizes.Block)/1024,
			mib(r.Sizes.InFlight), mib(r.Peak), mib(o.Knee[r.Arm]), r.cell(seconds))
	}
	table := func(title, key string, runs []ftRun, of func(ftRun) int64, cell func(ftRun) string) {
		if len(runs) == 0 {
			return
		}
		fmt.Fprintf(&b, "\n%s\n%-10s", title, key)
		for _, r := range o.Ample {
			fmt.Fprintf(&b, " %12s", r.Arm)
		}
		for i, r := range runs {
			if i == 0 || of(runs[i-1]) != of(r) {
				fmt.Fprintf(&b, "\n%-10d", of(r))
			}
			fmt.Fprintf(&b, " %12s", r.cell(cell))
		}
		b.WriteString("\n")
	}
	limit := func(r ftRun) int64 { return r.Limit >> 20 }
	parts := func(r ftRun) int64 { return int64(r.Parts) }
	table("major faults of all ranks by limit (Table 3)", "limit MiB", o.Limits, limit, faults)
	table("seconds by limit", "limit MiB", o.Limits, limit, seconds)
	title := "seconds by parts of a rank (fig. 6b)"
	if len(o.Parts) > 0 && o.Parts[0].Limit > 0 {
		title += fmt.Sprintf(", limit %d MiB", o.Parts[0].Limit>>20)
	}
	table(title, "parts", o.Parts, parts, seconds)
	table("major faults by parts of a rank", "parts", o.Parts, parts, faults)
	for _, r := range slices.Concat(o.Ample, o.Limits, o.Parts) {
		if r.Failed != "" {
			fmt.Fprintf(&b, "%s %s, %s, limit %d MiB: %s\n", failedCell(r.Failed), r.Arm, errtext.Count(r.Parts, "part"), r.Limit>>20, r.Failed)
		}
	}
	if o.Left > 0 {
		fmt.Fprintf(&b, "runs left out, since --duration has ended: %d\n", o.Left)
	}
	return b.String()
}

// svg draws the faults by limit, and time by parts as the paper's figure 6b.
func (o *ftReport) svg() string {
	lines := func(runs []ftRun, x, y func(ftRun) float64) (all []chart.Line) {
		for _, a := range o.Ample {
			l := chart.Line{Name: a.Arm}
			for _, r := range runs {
				if r.Arm == a.Arm && r.Failed == "" {
					l.Points = append(l.Points, chart.Point{X: x(r), Y: y(r)})
				}
			}
			all = append(all, l)
		}
		return all
	}
	took := func(r ftRun) float64 { return r.Elapsed.Seconds() }
	var plots []*chart.Chart
	if len(o.Limits) > 0 {
		limit := func(r ftRun) float64 { return float64(r.Limit >> 20) }
		plots = append(plots, &chart.Chart{Title: "FT class " + o.Class + ": major faults", X: "limit, MiB", Y: "faults",
			Lines: lines(o.Limits, limit, func(r ftRun) float64 { return float64(r.Faults) })})
	}
	if len(o.Parts) > 0 {
		plots = append(plots, &chart.Chart{Title: "FT class " + o.Class + ": time", X: "parts of a rank", Y: "seconds", LogX: true,
			Lines: lines(o.Parts, func(r ftRun) float64 { return float64(r.Parts) }, took)})
	}
	return chart.Column(plots)
}
