package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/plan"
)

// latCmd is ibbench lat.
type latCmd struct {
	common
	timing
	Op    string `arg:"" optional:"" default:"put" enum:"put,get,amo,cas" help:"put, get, amo or cas."`
	Sizes string `aliases:"size" default:"8..4K" placeholder:"LIST" help:"Sizes in bytes, as 8 or 8,64,4K or 8..1M (doubling). Default: 8..4K."`
	local
	Ack   bool   `help:"put: time one blocking put until it is complete at the target (op) instead of a ping-pong (rtt/2)."`
	Depth int    `default:"1" placeholder:"N" help:"Operations in flight. Default: 1."`
	Rate  string `placeholder:"R" help:"Open loop: start R operations per second, as 200k, and time each from when it was due."`
	Batch int    `placeholder:"N" help:"Operations per sample. Default: as few as the clock allows."`
}

// latSizes is the default of Sizes.
const latSizes = "8..4K"

func (c *latCmd) run(ctx context.Context, io streams) error {
	points, err := c.points()
	if err != nil {
		return usageError{err}
	}
	return c.measure(ctx, io, plan.Lat, points)
}

func (c *latCmd) points() ([]plan.Point, error) {
	proto := plan.Point{Kind: plan.Lat, Op: c.Op, Ack: c.Ack, Depth: c.Depth, Lanes: 1, Chain: 1, Batch: c.Batch, Local: c.where()}
	if c.Ack && c.Op != plan.Put {
		return nil, fmt.Errorf("--ack is for put; lat %s is always timed until it is complete", c.Op)
	}
	if c.Rate != "" {
		var err error
		if proto.PerSecond, err = plan.PerSecond(c.Rate); err != nil {
			return nil, fmt.Errorf("--rate: %w", err)
		}
	}
	sizes, err := plan.Sizes(c.Sizes)
	switch {
	case err != nil:
		return nil, fmt.Errorf("--sizes: %w", err)
	case proto.Atomic() && c.Sizes != latSizes && !slices.Equal(sizes, []int64{8}):
		return nil, fmt.Errorf("--sizes %s: atomics work on 8 bytes", c.Sizes)
	case proto.Atomic():
		sizes = []int64{8}
	}
	return c.timing.points(proto, sizes, []int{c.Depth}, []int{1})
}
