package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/measure"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/plan"
	"github.com/ibconduit/conduit/internal/bench"
)

// cacheCmd is ibbench cache.
type cacheCmd struct {
	common
	Kernels []string `arg:"" optional:"" placeholder:"KERNEL" help:"Kernels of package bench, or all (default); list names them."`
	Sides   string   `default:"off,on" placeholder:"LIST" help:"What is measured in turns, the first against the others: off; on; passive, without readahead and bypass; tiny, a cache of four pages. Default: off,on."`
	Rounds  int      `default:"21" placeholder:"N" help:"Runs of each side, in turns, after one that does not count. Default: 21."`
	Sizes   string   `aliases:"size" placeholder:"LIST" help:"How large a kernel is, as 4K or 1K..64K (doubling); ibbench cache list says in what. Default: the kernel's."`
	Steps   int      `placeholder:"N" help:"Time steps of stencil and md, start vertices of ssca2-k4. Default: the kernel's."`
	Stride  int      `placeholder:"N" help:"stride: words between accesses. Default: 129."`
	Variant string   `placeholder:"V" help:"Of a kernel that has variants, or all of them. Default: the first."`
	Pages   int      `placeholder:"N" help:"Pages of the cache that is on. Default: the library's."`
	Page    int      `name:"page-size" placeholder:"BYTES" help:"Bytes of a page. Default: the library's."`
	Line    int      `name:"line-size" placeholder:"BYTES" help:"Bytes of a line. Default: the library's."`
	Policy  string   `placeholder:"P" help:"What is evicted: 2q, admission or duel. Default: the library's."`
	Mapped  bool     `help:"Cache also what is mapped here, as over shared memory all is: otherwise there is nothing to cache."`
}

func (c *cacheCmd) run(ctx context.Context, io streams) error {
	if strings.Join(c.Kernels, " ") == "list" {
		return c.list(io)
	}
	points, err := c.points()
	if err != nil {
		return usageError{err}
	}
	return c.measure(ctx, io, plan.Cache, points)
}

// list prints the kernels.
func (c *cacheCmd) list(io streams) error {
	for _, k := range bench.Kernels() {
		line := fmt.Sprintf("%-12s %s\n%12s size: %s; default %d", k.Name, k.What, "", k.Unit, k.Default.N)
		if k.StepUnit != "" {
			line += fmt.Sprintf("; steps: %s; default %d", k.StepUnit, k.Default.Steps)
		}
		if len(k.Variants) > 0 {
			line += "; variants: " + strings.Join(k.Variants, ", ")
		}
		if _, err := fmt.Fprintln(io.out, line); err != nil {
			return err
		}
	}
	return nil
}

// kernels are the ones of the command line.
func (c *cacheCmd) kernels() (all []*bench.Kernel, err error) {
	for _, name := range c.Kernels {
		if name == "all" {
			return bench.Kernels(), nil
		}
		k, err := bench.Find(name)
		if err != nil {
			return nil, fmt.Errorf("%w; or list", err)
		}
		all = append(all, k)
	}
	if all == nil {
		all = bench.Kernels()
	}
	return all, nil
}

// variants are the ones of a kernel that --variant chooses.
func (c *cacheCmd) variants(k *bench.Kernel) []string {
	switch {
	case c.Variant != "all":
		return []string{c.Variant}
	case k.Variants == nil:
		return []string{""}
	}
	return k.Variants
}

func (c *cacheCmd) cached() plan.CacheSizes {
	return plan.CacheSizes{Pages: c.Pages, PageSize: c.Page, LineSize: c.Line, Policy: c.Policy}
}

func (c *cacheCmd) points() (points []plan.Point, err error) {
	kernels, err := c.kernels()
	if err != nil {
		return nil, err
	}
	sides, err := plan.Sides(c.Sides)
	if err != nil {
		return nil, fmt.Errorf("--sides: %w", err)
	}
	sizes := []int64{0}
	if c.Sizes != "" {
		if sizes, err = plan.Sizes(c.Sizes); err != nil {
			return nil, fmt.Errorf("--sizes: %w", err)
		}
	}
	cached := c.cached()
	if err := measure.CheckCache(cached); err != nil {
		return nil, err
	}
	for _, k := range kernels {
		for _, v := range c.variants(k) {
			for _, n := range sizes {
				p, err := k.Complete(bench.Params{N: int(n), Steps: c.Steps, Stride: c.Stride, Variant: v})
				if err != nil {
					return nil, err
				}
				points = append(points, plan.Point{
					Kind: plan.Cache, Op: k.Name, Size: int64(p.N), Steps: p.Steps, Walk: p.Stride, Variant: p.Variant,
					Rounds: c.Rounds, Sides: strings.Join(sides, ","), Mapped: c.Mapped, CacheSizes: cached, Depth: 1, Lanes: 1,
				})
			}
		}
	}
	return points, nil
}
