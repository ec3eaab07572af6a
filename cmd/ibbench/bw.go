package main

import (
	"context"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/plan"
)

// bwCmd is ibbench bw.
type bwCmd struct {
	swept
	stream
	Op string `arg:"" optional:"" default:"put" help:"put, get, or am: Mediums without replies."`
	target
	Sizes string `aliases:"size" placeholder:"LIST" help:"Sizes in bytes, as 64K or 64..4M (doubling). Default: 64..4M; of am 64..4K."`
	Depth string `default:"64" placeholder:"LIST" help:"Operations in flight per lane, as 64 or 1..128; of am the send buffers of an endpoint, one depth. Default: 64."`
	local
	Bidi bool `help:"Both ranks of a pair send; the sum is reported."`
}

func (c *bwCmd) run(ctx context.Context, io streams) error {
	points, err := c.points()
	if err != nil {
		return usageError{err}
	}
	return c.sweep(ctx, io, plan.BW, c.Host, points)
}

func (c *bwCmd) points() ([]plan.Point, error) {
	if err := c.between(&c.Op, plan.Put, plan.Get, plan.AM); err != nil {
		return nil, err
	}
	proto := plan.Point{Kind: plan.BW, Op: c.Op, Bidi: c.Bidi, Local: map[string]string{plan.Own: plan.Own}[c.Local]}
	return c.stream.points(c.timing, proto, c.Sizes, map[bool]string{true: "64..4K", false: "64..4M"}[c.Op == plan.AM],
		c.Depth)
}
