package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/plan"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/report"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/transient"
	"github.com/ibconduit/conduit/internal/bench"
)

// flowJacobi is ibbench flow jacobi.
type flowJacobi struct {
	flowMemory
	Limit      string `default:"128M" placeholder:"BYTES" help:"Memory of each rank, its group's limit, as 256M; 0: no groups, which needs no privilege. Default: 128M."`
	Stencil    int    `default:"7" enum:"7,13" help:"Points of the stencil, 7 or 13: ghost faces of 1 or 2 cells. Default: 7."`
	Edge       int    `default:"64" placeholder:"N" help:"Cells along the edge of a cube (virtual processor). Default: 64."`
	Arms       string `default:"normal,fetch,tokens" placeholder:"LIST" help:"Some of normal (sends), fetch (without tokens), tokens, adaptive. Default: normal,fetch,tokens."`
	Tokens     string `default:"6" placeholder:"LIST" help:"Faces that have memory at once, of tokens, as 6 or 1,6,48. Default: 6."`
	Sizes      string `placeholder:"LIST" help:"Cubes along x, as 20,24. A rank has twice as many. Default: so many that arrays take 60 to 100 % of the limit."`
	Iterations int    `default:"20" placeholder:"N" help:"Iterations of a run. Default: 20."`
}

// worn is how many sizes in a row an arm is measured at that do not fit.
const worn = 3

func (c *flowJacobi) run(ctx context.Context, io streams) (err error) {
	arms, sizes, limit, err := c.complete()
	if err != nil {
		return usageError{err}
	}
	f, err := c.begin(ctx, io)
	if err != nil {
		return err
	}
	remove, err := c.swap(limit)
	if err != nil {
		return f.done(err)
	}
	defer func() { err = errors.Join(err, remove()) }()
	over := make([]int, len(arms))
	for _, cubes := range sizes {
		for i, p := range arms {
			if over[i] >= worn {
				continue
			}
			p.Cubes = cubes
			r := flowRun{op: transient.Jacobi, variant: fmt.Sprintf("%d points of cubes of %d^3", c.Stencil, c.Edge),
				size: int64(cubes), counts: "cubes along x", arm: armName(p.Arm, p.Tokens), limit: limit}
			fits, err := f.run(ctx, r, c.Iterations, p)
			if err != nil {
				return f.done(err)
			}
			if over[i]++; fits {
				over[i] = 0
			}
		}
	}
	return f.done(nil)
}

func armName(arm string, tokens int) string {
	if arm != bench.ArmTokens {
		return arm
	}
	return fmt.Sprintf("%d tokens", tokens)
}

// complete checks the flags.
func (c *flowJacobi) complete() (arms []bench.JacobiParams, sizes []int, limit int64, err error) {
	if c.Quick {
		c.Edge, c.Iterations = min(c.Edge, 32), min(c.Iterations, 4)
		if c.Limit != "0" {
			c.Limit = "24M"
		}
	}
	if limit, err = bytesFlag("--limit", c.Limit, ""); err != nil {
		return nil, nil, 0, err
	}
	tokens, err := plan.Counts("tokens", c.Tokens, 1<<20)
	if err != nil {
		return nil, nil, 0, fmt.Errorf("--tokens: %w", err)
	}
	if min(c.Edge, c.Iterations) < 1 {
		return nil, nil, 0, errors.New("--edge and --iterations: want 1 or more")
	}
	for arm := range strings.SplitSeq(c.Arms, ",") {
		of := tokens
		if arm != bench.ArmTokens {
			of = of[:1]
		}
		for _, t := range of {
			p := bench.JacobiParams{Arm: arm, Tokens: t, Edge: c.Edge, Width: c.Stencil / 6, Iterations: c.Iterations}
			if _, err := bench.NewJacobi(p, max(c.Ranks, 1)); err != nil {
				return nil, nil, 0, err
			}
			arms = append(arms, p)
		}
	}
	p := arms[0]
	p.Cubes = 1
	one, err := p.Sizes()
	switch {
	case err != nil:
		return nil, nil, 0, err
	case limit > 0 && limit < 16<<20+4*one.Persistent:
		return nil, nil, 0, fmt.Errorf("--limit %d MiB: a rank has about 16 MiB without a grid, and a grid of 4 cubes along x takes %d MiB", limit>>20, 4*one.Persistent>>20)
	case c.Sizes != "":
		if sizes, err = plan.Counts("sizes", c.Sizes, 1<<20); err != nil {
			err = fmt.Errorf("--sizes: %w", err)
		}
	case limit == 0:
		sizes = []int{4}
	default:
		for part := int64(60); part <= 100; part += 8 {
			sizes = append(sizes, int(max(limit*part/100/one.Persistent, 1)))
		}
		sizes = slices.Compact(sizes)
	}
	return arms, sizes, limit, err
}

// flowFT is ibbench flow ft.
type flowFT struct {
	flowMemory
	Class      string `default:"A" enum:"S,W,A,B" help:"Class of the NAS benchmark FT: S, W, A or B. Default: A."`
	Parts      int    `default:"16" placeholder:"N" help:"Parts (virtual processors) of a rank in the runs by limit, a power of 2. Default: 16."`
	Of         string `name:"parts-of" default:"16,32,64,128,256" placeholder:"LIST" help:"Parts of a rank in the runs at the middle one of the limits, as 16,64; none: no such runs. Default: 16,32,64,128,256."`
	Tokens     string `default:"4,8" placeholder:"LIST" help:"Blocks that have memory at once. Default: 4,8."`
	Limits     string `placeholder:"LIST" help:"Memory of each rank, its group's limit, as 220M,240M; 0: no groups, which needs no privilege. Default: 0 and 7 from less than the arrays take to more than all that is in flight."`
	Iterations int    `default:"2" placeholder:"N" help:"Time steps. Default: 2."`
}

func (c *flowFT) run(ctx context.Context, io streams) (err error) {
	arms, limits, parts, err := c.complete()
	if err != nil {
		return usageError{err}
	}
	f, err := c.begin(ctx, io)
	if err != nil {
		return err
	}
	remove, err := c.swap(slices.Max(limits))
	if err != nil {
		return f.done(err)
	}
	defer func() { err = errors.Join(err, remove()) }()
	all := func(limit int64, parts int) (err error) {
		for _, p := range arms {
			p.Parts = parts
			r := flowRun{op: transient.FT, variant: "class " + c.Class, size: int64(parts), counts: "parts of a rank",
				arm: armName(p.Arm, p.Tokens), limit: limit}
			if err == nil {
				_, err = f.run(ctx, r, c.Iterations, p)
			}
		}
		return err
	}
	for _, l := range limits {
		if err := all(l, c.Parts); err != nil {
			return f.done(err)
		}
	}
	for _, n := range parts {
		if err := all(limits[len(limits)/2], n); err != nil {
			return f.done(err)
		}
	}
	return f.done(nil)
}

// complete checks the flags.
func (c *flowFT) complete() (arms []bench.FTParams, limits []int64, parts []int, err error) {
	if c.Quick {
		c.Class, c.Of, c.Iterations, c.Parts = "S", "4,8", 1, 4
	}
	tokens, err := plan.Counts("tokens", c.Tokens, 1<<12)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("--tokens: %w", err)
	}
	if c.Of != "none" {
		if parts, err = plan.Counts("parts", c.Of, 1<<20); err != nil {
			return nil, nil, nil, fmt.Errorf("--parts-of: %w", err)
		}
	}
	if min(c.Parts, c.Iterations) < 1 {
		return nil, nil, nil, errors.New("--parts and --iterations: want 1 or more")
	}
	arms = []bench.FTParams{{Arm: bench.ArmNormal, Class: c.Class, Iterations: c.Iterations}}
	for _, t := range tokens {
		arms = append(arms, bench.FTParams{Arm: bench.ArmTokens, Tokens: t, Class: c.Class, Iterations: c.Iterations})
	}
	var sizes bench.Footprint
	for _, n := range append(slices.Clone(parts), c.Parts) {
		for _, p := range arms {
			p.Parts = n
			k, err := bench.NewFT(p, c.Ranks)
			if err != nil {
				return nil, nil, nil, err
			}
			if p.Arm == bench.ArmNormal {
				sizes = k.Sizes()
			}
		}
	}
	if c.Limits == "" {
		limits = []int64{0}
		for i := int64(-1); i < 6; i++ {
			limits = append(limits, (16<<20+sizes.Persistent+i*sizes.InFlight/4)>>20<<20)
		}
		return arms, limits, parts, nil
	}
	for l := range strings.SplitSeq(c.Limits, ",") {
		n, err := bytesFlag("--limits", l, "")
		if err != nil {
			return nil, nil, nil, err
		}
		limits = append(limits, n)
	}
	return arms, limits, parts, nil
}

// flowIncast is ibbench flow incast.
type flowIncast struct {
	flowRanks
	Size     string `default:"64K" placeholder:"BYTES" help:"Bytes of a payload. Default: 64K."`
	Payloads int    `default:"512" placeholder:"N" help:"Payloads of each sender in a run. Default: 512."`
	Each     int    `default:"8" placeholder:"N" help:"Payloads that a sender has under way at once. Default: 8."`
	Memory   string `default:"1,2,4,8,16" placeholder:"LIST" help:"Payloads that have memory at the receiver, beside all of them. Default: 1,2,4,8,16."`
	Rounds   int    `default:"5" placeholder:"N" help:"Runs of each, in turns; medians count. Default: 5."`
}

func (c *flowIncast) run(ctx context.Context, io streams) error {
	size, err := bytesFlag("--size", c.Size, "")
	if err != nil {
		return err
	}
	memory, err := plan.Counts("memory", c.Memory, 1<<20)
	if err != nil {
		return usageError{fmt.Errorf("--memory: %w", err)}
	}
	if c.Quick {
		c.Payloads, c.Rounds = min(c.Payloads, 32), 1
	}
	if c.Rounds < 1 || c.Rounds > maxRounds {
		return usageError{fmt.Errorf("--rounds %d: want 1 to %d", c.Rounds, maxRounds)}
	}
	memory = append([]int{0}, memory...)
	for _, n := range memory {
		if _, err := bench.NewIncast(c.params(n, size), c.Ranks); err != nil {
			return usageError{err}
		}
	}
	f, err := c.begin(ctx, io)
	if err != nil {
		return err
	}
	f.rounds, f.want = make([][]*report.Series, len(memory)), c.Rounds
	for range c.Rounds {
		for _, n := range memory {
			if time.Now().After(f.end) {
				f.left++
				continue
			}
			if err := f.incast(ctx, c.params(n, size)); err != nil {
				return f.done(err)
			}
		}
	}
	return f.done(nil)
}

func (c *flowIncast) params(memory int, size int64) bench.IncastParams {
	return bench.IncastParams{Size: int(size), Payloads: c.Payloads, Each: c.Each, Memory: memory}
}

// incast measures one run.
func (f *flowRuns) incast(ctx context.Context, p bench.IncastParams) error {
	r := flowRun{op: transient.Incast, size: int64(p.Size), counts: "bytes of a payload", arm: "memory for all"}
	if p.Memory > 0 {
		r.arm = fmt.Sprintf("memory for %d", p.Memory)
	}
	f.t.live(r.arm)
	all, err := transient.Start[bench.IncastResult](ctx, f.job(r, p))
	if err != nil {
		return cmp.Or(context.Cause(ctx), err)
	}
	res := all[0]
	r.limit = res.Limit
	s := f.series(r)
	rate := math.Round(float64(res.Bytes) / res.Elapsed.Seconds())
	s.Definition, s.Result = plan.DefRate, report.Result{Unit: "B/s", Count: 1, Min: rate, Max: rate, Mean: rate,
		P: map[string]float64{}}
	s.Set("flow.peak", float64(res.Peak))
	return f.add(s)
}
