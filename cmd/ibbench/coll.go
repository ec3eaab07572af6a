package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/machine"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/peer"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/plan"
)

// collCmd is ibbench coll.
type collCmd struct {
	common
	timing
	Ops    string  `arg:"" optional:"" help:"Some of barrier, allreduce (the sum of float64, in place), alltoall, bcast (from rank 0). Default: all."`
	Sizes  string  `aliases:"size" placeholder:"LIST" help:"Bytes of a rank's buffer, of alltoall those for each rank, as 8 or 8,64K or 8..1M (doubling). Default: 8,1K,64K,1M."`
	Loop   int     `placeholder:"N" help:"Operations of a sample, in a loop without barriers. Default: 1000, fewer from 16K on, at least 10."`
	Peer   *string `enum:"mpi" placeholder:"P" help:"mpi: the same with Open MPI on this machine, in rounds with ours, interleaved; prints the ratios. Over shm."`
	Rounds int     `default:"21" placeholder:"N" help:"Rounds of --peer. Default: 21."`
	Args   string  `name:"mpi-args" placeholder:"ARGS" help:"Further arguments of mpirun, as '--mca btl self,vader'."`
}

// Samples of a point in each round of --peer, and of its warm-up.
const (
	peerSamples = 20
	peerWarmup  = 3
)

func (c *collCmd) run(ctx context.Context, io streams) error {
	points, err := c.points()
	if err != nil {
		return usageError{err}
	}
	if c.Peer == nil {
		return c.measure(ctx, io, plan.Coll, points)
	}
	return c.compare(ctx, io, points)
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
	if c.Peer != nil {
		proto.Intervals, proto.Duration, proto.Warmup, proto.WarmupIters = 1, 0, 0, peerWarmup
		if proto.Iters == 0 {
			proto.Iters = peerSamples
		}
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

// compare measures ours and the peer's.
func (c *collCmd) compare(ctx context.Context, io streams, points []plan.Point) error {
	if err := c.checkPeer(); err != nil {
		return usageError{err}
	}
	as, err := assertions(c.Assert, plan.PeerKind(plan.Coll))
	if err != nil {
		return usageError{err}
	}
	p, err := c.plan(points)
	if err != nil {
		return usageError{err}
	}
	x := &peer.Comparison{Plan: p, Peer: peer.OpenMPI, CPUs: p.CPUs, Rounds: c.Rounds, Timeout: peer.Timeout, Extra: strings.Fields(c.Args)}
	return c.output.versus(ctx, io, c.Quiet, x, as, nil, func(*terminal) error {
		p.Fabric = "shm"
		if len(p.CPUs) > 0 {
			return nil
		}
		// As mpirun binds its ranks: else the kernel may put both of ours on one core for a while.
		cpus, err := machine.Allowed()
		if err == nil && p.Ranks <= len(cpus) {
			p.CPUs = cpus
		}
		return err
	})
}

// checkPeer returns which flags do not go with --peer.
func (c *collCmd) checkPeer() error {
	switch {
	case c.Fabric != "auto" && c.Fabric != "shm":
		return fmt.Errorf("--fabric %s: --peer mpi is for shm, as Open MPI uses shared memory on one machine", c.Fabric)
	case c.Duration != nil:
		return errors.New("--duration: with --peer both sides take --iters samples in each round")
	case c.Rounds < 1 || c.Rounds > 1000:
		return fmt.Errorf("--rounds %d: want 1 to 1000", c.Rounds)
	}
	return nil
}
