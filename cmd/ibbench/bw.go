package main

import (
	"context"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/plan"
)

// bwCmd is ibbench bw.
type bwCmd struct {
	common
	timing
	stream
	Op    string `arg:"" optional:"" default:"put" enum:"put,get" help:"put or get."`
	Sizes string `aliases:"size" default:"64..4M" placeholder:"LIST" help:"Sizes in bytes, as 64K or 64..4M (doubling). Default: 64..4M."`
	Depth string `default:"64" placeholder:"LIST" help:"Operations in flight per lane, as 64 or 1..128. Default: 64."`
	local
	Bidi bool `help:"Both ranks of a pair send; the sum is reported."`
}

func (c *bwCmd) run(ctx context.Context, io streams) error {
	points, err := c.stream.points(c.timing, plan.Point{Kind: plan.BW, Op: c.Op, Bidi: c.Bidi, Local: c.where()}, c.Sizes, c.Depth)
	if err != nil {
		return usageError{err}
	}
	return c.measure(ctx, io, plan.BW, points)
}
