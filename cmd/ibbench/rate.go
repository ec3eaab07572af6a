package main

import (
	"context"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/plan"
)

// rateCmd is ibbench rate.
type rateCmd struct {
	common
	timing
	stream
	Op    string `arg:"" optional:"" default:"put" enum:"put,get,amo" help:"put, get or amo."`
	Sizes string `aliases:"size" default:"8" placeholder:"LIST" help:"Sizes in bytes. Default: 8."`
	Depth string `default:"1,4,16,64" placeholder:"LIST" help:"Operations in flight per lane, as 64 or 1..128 (doubling). Default: 1,4,16,64."`
}

func (c *rateCmd) run(ctx context.Context, io streams) error {
	points, err := c.stream.points(c.timing, plan.Point{Kind: plan.Rate, Op: c.Op}, c.Sizes, c.Depth)
	if err != nil {
		return usageError{err}
	}
	return c.measure(ctx, io, plan.Rate, points)
}
