package main

import (
	"context"
	"fmt"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/plan"
)

// latCmd is ibbench lat.
type latCmd struct {
	swept
	Op string `arg:"" optional:"" default:"put" help:"put, get, amo, cas or am."`
	target
	Sizes string `aliases:"size" placeholder:"LIST" help:"Sizes in bytes, as 8 or 8,64,4K or 8..1M (doubling). Of am: short, or the bytes of a Medium that is answered by as many. Default: 8..4K; of am short."`
	local
	Ack   bool   `help:"put: time one blocking put until it is complete at the target (op) instead of a ping-pong (rtt/2)."`
	Rate  string `placeholder:"R" help:"Open loop: start R operations per second, as 200k, and time each from when it was due."`
	Batch int    `placeholder:"N" help:"Operations per sample. Default: as few as the clock allows."`
}

func (c *latCmd) run(ctx context.Context, io streams) error {
	points, err := c.points()
	if err != nil {
		return usageError{err}
	}
	return c.sweep(ctx, io, plan.Lat, c.Host, points)
}

func (c *latCmd) points() ([]plan.Point, error) {
	if err := c.between(&c.Op, plan.Put, plan.Get, plan.AMO, plan.CAS, plan.AM); err != nil {
		return nil, err
	}
	proto := plan.Point{Kind: plan.Lat, Op: c.Op, Ack: c.Ack, Depth: 1, Lanes: 1, Batch: c.Batch,
		Local: map[string]string{plan.Own: plan.Own}[c.Local]}
	if c.Ack && c.Op != plan.Put {
		return nil, fmt.Errorf("--ack is for put; lat %s is always timed until it is complete", c.Op)
	}
	if c.Rate != "" {
		var err error
		if proto.PerSecond, err = plan.PerSecond(c.Rate); err != nil {
			return nil, fmt.Errorf("--rate: %w", err)
		}
	}
	sizes, err := sizesOf(c.Op, c.Sizes, map[bool]string{true: "short", false: "8..4K"}[c.Op == plan.AM])
	if err != nil {
		return nil, err
	}
	err = c.timing.complete(&proto)
	return sized(proto, sizes), err
}
