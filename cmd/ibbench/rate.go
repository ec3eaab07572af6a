package main

import (
	"cmp"
	"context"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/plan"
)

// rateCmd is ibbench rate.
type rateCmd struct {
	swept
	stream
	Op string `arg:"" optional:"" default:"put" help:"put, get, amo, or am: posts, messages without replies."`
	target
	Sizes string `aliases:"size" placeholder:"LIST" help:"Sizes in bytes; of am also short. Default: 8; of am short."`
	Depth string `placeholder:"LIST" help:"Operations in flight per lane, as 64 or 1..128 (doubling); of am the send buffers of an endpoint, one depth. Default: 1,4,16,64; of am 64."`
}

func (c *rateCmd) run(ctx context.Context, io streams) error {
	if err := c.between(&c.Op, plan.Put, plan.Get, plan.AMO, plan.AM); err != nil {
		return usageError{err}
	}
	sizes, depth := "8", "1,4,16,64"
	if c.Op == plan.AM {
		sizes, depth = "short", "64"
	}
	points, err := c.stream.points(c.timing, plan.Point{Kind: plan.Rate, Op: c.Op}, c.Sizes, sizes, cmp.Or(c.Depth, depth))
	if err != nil {
		return usageError{err}
	}
	return c.sweep(ctx, io, plan.Rate, c.Host, points)
}
