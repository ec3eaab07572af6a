package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/chart"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/report"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/transient"
	"github.com/ibconduit/conduit/internal/bench"
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

// ftReport is what ibbench flow ft prints.
type ftReport struct {
	flowKind
	Class      string    `json:"class"`
	Iterations int       `json:"iterations"`
	Ample      []flowRun `json:"ample"`            // each arm without a limit
	Limits     []flowRun `json:"limits,omitempty"` // Table 3
	Parts      []flowRun `json:"parts,omitempty"`  // fig. 6b
	// Knee is the limit below which the model expects faults, by arm, in bytes.
	Knee map[string]int64 `json:"knee,omitempty"`
	Left int              `json:"left_out,omitempty"` // runs that --duration left no time for
}

func (c *flowFT) run(ctx context.Context, io streams) error {
	if err := c.open(ctx, io, true); err != nil {
		return err
	}
	arms, limits, parts, err := c.complete()
	if err != nil {
		return usageError{err}
	}
	return c.tables(ctx, io, arms, limits, parts)
}

// complete checks the flags.
func (c *flowFT) complete() (arms []flowRun, limits []int64, parts []int, err error) {
	if c.Quick {
		c.Class, c.Of, c.Iterations, c.Parts = "S", "4,8", 1, 4
	}
	tokens, err := numbersOf("--tokens", c.Tokens)
	if err == nil && c.Of != "none" {
		parts, err = numbersOf("--parts-of", cmp.Or(c.Of, "16,32,64,128,256"))
	}
	switch {
	case err != nil:
		return nil, nil, nil, err
	case min(c.Parts, c.Iterations) < 1:
		return nil, nil, nil, errors.New("--parts and --iterations: want 1 or more")
	case c.Timeout < 0 || c.Duration <= 0:
		return nil, nil, nil, errors.New("--timeout and --duration: want times above 0")
	}
	arms = []flowRun{{flowArm: flowArm{Arm: bench.ArmNormal}}}
	for _, t := range tokens {
		arms = append(arms, flowRun{flowArm: flowArm{strconv.Itoa(t) + " tokens", t}})
	}
	for _, n := range append(parts, c.Parts) {
		for _, a := range arms {
			if _, err := bench.NewFT(c.params(a, n), c.Ranks); err != nil {
				return nil, nil, nil, err
			}
		}
	}
	for _, l := range strings.FieldsFunc(c.Limits, func(r rune) bool { return r == ',' }) {
		n, err := bytesFlag("--limits", l, "")
		if err == nil && n == 0 {
			err = errors.New("--limits 0: want limits of 1 byte or more")
		}
		if err != nil {
			return nil, nil, nil, err
		}
		limits = append(limits, n)
	}
	return arms, limits, parts, nil
}

func (c *flowFT) params(r flowRun, parts int) bench.FTParams {
	p := bench.FTParams{Arm: bench.ArmNormal, Class: c.Class, Parts: parts, Iterations: c.Iterations}
	if r.Tokens > 0 {
		p.Arm, p.Tokens = bench.ArmTokens, r.Tokens
	}
	return p
}

func (c *flowFT) tables(ctx context.Context, io streams, arms []flowRun, limits []int64, parts []int) error {
	t := newTerminal(io.err, c.Quiet)
	out := &ftReport{flowKind: flowKind{"flow-ft", c.Ranks, c.Fabric}, Class: c.Class, Iterations: c.Iterations, Knee: map[string]int64{}}
	err := c.runs(ctx, io, t, out, arms, limits, parts)
	t.end()
	if err != nil && len(out.Ample) == 0 {
		return err
	}
	return errors.Join(err, c.write(out)) // also what was measured before a failure
}

// runs fills the tables.
func (c *flowFT) runs(ctx context.Context, io streams, t *terminal, out *ftReport, arms []flowRun, limits []int64, parts []int) (failed error) {
	end := time.Now().Add(c.Duration)
	measure := func(to *[]flowRun, r flowRun, parts int, limit int64) error {
		if time.Now().After(end) {
			out.Left++
			return nil
		}
		t.live(fmt.Sprintf("class %s, %s, %s, limit %d MiB", c.Class, r.Arm, errtext.Count(parts, "part"), limit>>20))
		r.Parts, r.Limit = parts, limit
		r, err := c.once(ctx, r, transient.Run{Kernel: transient.FT, Params: c.params(r, parts), Timeout: time.Minute, Stderr: io.err}, ftTries)
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

// ftTries is how often a run is tried that the kernel ends.
const ftTries = 3

func (o *ftReport) Text() string {
	var t flowText
	t.line("FT class %s on %d ranks, %s, checksums verified", o.Class, o.Ranks, errtext.Count(o.Iterations, "iteration"))
	rows := [][]string{{"ample", "parts", "arrays MiB", "block KiB", "flight MiB", "peak MiB", "knee MiB", "time s"}}
	for i := range o.Ample {
		r := &o.Ample[i]
		took := seconds(r)
		if r.Failed != "" {
			took = failedCell(r.Failed)
		}
		rows = append(rows, []string{r.Arm, strconv.Itoa(r.Parts), mib(r.Sizes.Persistent), fmt.Sprintf("%.0f", float64(r.Sizes.Piece)/1024),
			mib(r.Sizes.InFlight), peak(r), mib(o.Knee[r.Arm]), took})
	}
	t.table("with ample memory", rows)
	limit := func(r *flowRun) string { return fmt.Sprint(r.Limit >> 20) }
	parts := func(r *flowRun) string { return strconv.Itoa(r.Parts) }
	t.grid("major faults of all ranks by limit (Table 3)", "limit MiB", o.Limits, limit, faults)
	t.grid("seconds by limit", "limit MiB", o.Limits, limit, seconds)
	title := "seconds by parts of a rank (fig. 6b)"
	if len(o.Parts) > 0 && o.Parts[0].Limit > 0 {
		title += fmt.Sprintf(", limit %d MiB", o.Parts[0].Limit>>20)
	}
	t.grid(title, "parts", o.Parts, parts, seconds)
	t.grid("major faults by parts of a rank", "parts", o.Parts, parts, faults)
	t.failures(slices.Concat(o.Ample, o.Limits, o.Parts), o.Left, func(r *flowRun) string {
		return fmt.Sprintf("%s, limit %d MiB", errtext.Count(r.Parts, "part"), r.Limit>>20)
	})
	return t.String()
}

// SVG draws the faults by limit, and time by parts as the paper's figure 6b.
func (o *ftReport) SVG() string {
	var plots []*chart.Chart
	if len(o.Limits) > 0 {
		plots = append(plots, curves(chart.Chart{Title: "FT class " + o.Class + ": major faults", X: "limit, MiB", Y: "faults"},
			o.Limits, func(r *flowRun) float64 { return float64(r.Limit >> 20) }, faultsOf))
	}
	if len(o.Parts) > 0 {
		plots = append(plots, curves(chart.Chart{Title: "FT class " + o.Class + ": time", X: "parts of a rank", Y: "seconds", LogX: true},
			o.Parts, func(r *flowRun) float64 { return float64(r.Parts) }, secondsOf))
	}
	return chart.Column(plots)
}
