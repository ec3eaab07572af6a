package main

import (
	"context"
	"fmt"
	"time"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/plan"
)

// pairsCmd is ibbench pairs.
type pairsCmd struct {
	common
	lively
	What     string        `arg:"" optional:"" default:"all" enum:"all,lat,bw" help:"lat: medians of gets; bw: puts; or all. Default: all."`
	Size     string        `placeholder:"N" default:"64K" help:"Bytes of a put of bw. Default: 64K. A get of lat has 8."`
	Duration time.Duration `placeholder:"D" default:"50ms" help:"Time for each pair and direction. Default: 50ms."`
	Warmup   time.Duration `placeholder:"D" default:"10ms" help:"... after a warm-up of this long. Default: 10ms."`
	Factor   float64       `placeholder:"F" default:"2" help:"A pair is slow that is so many times worse than typical, and a rank with half the excess at all its pairs. Default: 2."`
}

func (c *pairsCmd) run(ctx context.Context, io streams) error {
	points, err := c.points()
	if err != nil {
		return usageError{err}
	}
	c.moving = c.Live
	return c.measure(ctx, io, plan.Pairs, points)
}

func (c *pairsCmd) points() (points []plan.Point, err error) {
	sizes, err := plan.Sizes(c.Size)
	if err != nil || len(sizes) != 1 {
		return nil, fmt.Errorf("--size %q: want one number of bytes, such as 64K", c.Size)
	}
	proto := plan.Point{Kind: plan.Pairs, Lanes: 1, Chain: 1, Duration: c.Duration, Warmup: c.Warmup, Factor: c.Factor}
	if c.What != plan.BW {
		pt := proto
		pt.Op, pt.Size, pt.Depth = plan.Get, 8, 1
		points = append(points, pt)
	}
	if c.What != plan.Lat {
		pt := proto
		pt.Op, pt.Size, pt.Depth = plan.Put, sizes[0], plan.PairsDepth
		points = append(points, pt)
	}
	return points, nil
}
