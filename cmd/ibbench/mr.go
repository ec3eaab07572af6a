package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/mr"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/plan"
	"github.com/ibconduit/conduit/regcache"
)

// mrCmd is ibbench mr.
type mrCmd struct {
	output
	timing
	Op      string   `arg:"" optional:"" default:"reg" enum:"reg,hit,churn" help:"reg: registering and deregistering by size; hit: Get and Put of what the cache holds; churn: munmap with and without hooks."`
	Device  string   `short:"d" placeholder:"DEV" help:"Verbs device. Default: the best with an active port; hit and churn do without."`
	GID     string   `name:"gid" default:"auto" placeholder:"N|auto" help:"GID table index of the device. Default: auto."`
	Fake    bool     `help:"hit, churn: a registrar that registers nothing, though there is a device."`
	Sizes   string   `aliases:"size" placeholder:"LIST" help:"Bytes of a range, as 4K or 4K..64M (doubling). Default: 4K..64M for reg, else 4K."`
	Regions string   `placeholder:"LIST" help:"hit, churn: ranges that are registered meanwhile, as 1000 or 1..4096. Default: 1,16,256,4096 for hit, 0,1000 for churn."`
	Origin  string   `default:"mapped" enum:"any,go-mapped,malloc,mapped" help:"hit: where the memory comes from, for the cache: any, go-mapped, malloc, mapped. Default: mapped; of the others a lookup asks the kernel."`
	Cycles  int64    `default:"40000" placeholder:"N" help:"churn: cycles of unmapping and mapping after which memory is counted. Default: 40000."`
	Assert  []string `sep:"none" placeholder:"A" help:"Fail with exit code 1 unless this holds for every point: 'p99<1ms'; hit: 'hits>99%', 'allocs<=0'; churn: 'overhead<300ns', 'ratio<1.1x', 'rss<512KiB'. Repeatable."`
	Quiet   bool     `short:"q" help:"No progress on standard error."`
	Seed    uint64   `default:"1" placeholder:"N" help:"Seed of the order of ranges. Default: 1."`
}

func (c *mrCmd) run(ctx context.Context, io streams) (err error) {
	points, as, err := c.points()
	if err != nil {
		return usageError{err}
	}
	if err := io.alone(ctx, "mr measures one process"); err != nil {
		return err
	}
	reg, err := mr.Open(c.Device, c.GID, c.Fake, c.Op == plan.Reg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, reg.Close()) }()
	out, pct, err := c.writers(io)
	if err != nil {
		return err
	}
	r := &results{out: out, as: as, t: newTerminal(io.err, c.Quiet)}
	r.t.line("registering with %s", reg.Why)
	return r.end(mr.Run(ctx, reg, mr.Options{
		Points: points, Pct: percentiles(append(pct, 50, 99), as), Seed: c.Seed, Progress: r.t.live, Series: r.add,
	}))
}

// points crosses sizes and regions.
func (c *mrCmd) points() (points []plan.Point, as []plan.Assertion, err error) {
	if c.Fake && c.Op == plan.Reg {
		return nil, nil, errors.New("--fake registers nothing, and reg measures registering: it needs a device")
	}
	if c.Regions != "" && c.Op == plan.Reg {
		return nil, nil, errors.New("--regions is for hit and churn; reg registers one range at a time")
	}
	if c.Origin != regcache.Mapped.String() && c.Op != plan.Hit {
		return nil, nil, errors.New("--origin is for hit")
	}
	sizes, err := plan.Sizes(cmp.Or(c.Sizes, map[string]string{plan.Reg: "4K..64M", plan.Hit: "4K",
		plan.Churn: "4K"}[c.Op]))
	if err != nil {
		return nil, nil, fmt.Errorf("--sizes: %w", err)
	}
	regions := []int{0}
	if c.Op != plan.Reg {
		if regions, err = plan.Regions(cmp.Or(c.Regions, map[string]string{plan.Hit: "1,16,256,4096",
			plan.Churn: "0,1000"}[c.Op])); err != nil {
			return nil, nil, fmt.Errorf("--regions: %w", err)
		}
	}
	for _, n := range regions {
		proto := plan.Point{Kind: plan.MR, Op: c.Op, Regions: n, Depth: 1, Lanes: 1}
		switch c.Op {
		case plan.Churn:
			proto.Cycles = c.Cycles
		case plan.Hit:
			proto.Origin = c.Origin
		}
		if err := c.timing.complete(&proto); err != nil {
			return nil, nil, err
		}
		points = append(points, sized(proto, sizes)...)
	}
	for _, pt := range points {
		if err := pt.ValidateMR(); err != nil {
			return nil, nil, fmt.Errorf("mr %s: %w", c.Op, err)
		}
	}
	as, err = assertions(c.Assert, plan.MRKind(c.Op))
	return points, as, err
}
