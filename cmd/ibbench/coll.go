package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/plan"
)

// collCmd is ibbench coll.
type collCmd struct {
	common
	timing
	Ops   string `arg:"" optional:"" help:"Some of barrier, allreduce (the sum of float64, in place), alltoall, bcast (from rank 0). Default: all."`
	Sizes string `aliases:"size" placeholder:"LIST" help:"Bytes of a rank's buffer, of alltoall those for each rank, as 8 or 8,64K or 8..1M (doubling). Default: 8,1K,64K,1M."`
	Loop  int    `placeholder:"N" help:"Operations of a sample, in a loop without barriers. Default: 1000, fewer from 16K on, at least 10."`
}

func (c *collCmd) run(ctx context.Context, io streams) error {
	points, err := c.points()
	if err != nil {
		return usageError{err}
	}
	return c.measure(ctx, io, plan.Coll, points)
}

func (c *collCmd) points() ([]plan.Point, error) {
	ops := plan.CollOps
	if c.Ops != "" {
		ops = strings.Split(c.Ops, ",")
	}
	sizes, err := sizesOf("", c.Sizes, "8,1K,64K,1M")
	if err != nil {
		return nil, err
	}
	if c.Loop < 0 {
		return nil, fmt.Errorf("--loop %d: want 1 or more", c.Loop)
	}
	proto := plan.Point{Kind: plan.Coll, Depth: 1, Lanes: 1}
	if err := c.timing.complete(&proto); err != nil {
		return nil, err
	}
	var points []plan.Point
	for _, proto.Op = range ops {
		if !slices.Contains(plan.CollOps, proto.Op) {
			return nil, fmt.Errorf("operation %q: coll measures %s", proto.Op, strings.Join(plan.CollOps, ", "))
		}
		of := sizes
		if proto.Op == plan.Barrier {
			of = []int64{0}
		}
		for _, proto.Size = range of {
			if proto.Batch = c.Loop; proto.Batch == 0 {
				proto.Batch = plan.DefaultLoop(proto.Size)
			}
			points = append(points, proto)
		}
	}
	return points, nil
}
