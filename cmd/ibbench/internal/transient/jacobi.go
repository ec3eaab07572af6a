package transient

import (
	"context"
	"errors"

	"github.com/ibconduit/conduit"
	"github.com/ibconduit/conduit/bench"
)

// Jacobi is the name of the kernel bench.Jacobi, whose parameters are JacobiParams.
const Jacobi = "jacobi"

// JacobiRank is the result of one rank.
type JacobiRank struct {
	bench.JacobiResult
	Before int64 // bytes of the rank's group before there is a grid: what the rank has anyway
	Pinned int64 // bytes that a device has, of those (VmPin)
}

// Iterating is what a rank of Jacobi says when its grid is there and the first iteration that
// counts begins.
type Iterating struct{ Before int64 }

func init() { kernels[Jacobi] = jacobiRank }

func jacobiRank(ctx context.Context, r *Rank) (any, error) {
	var p bench.JacobiParams
	err := r.Params(&p)
	if err != nil {
		return nil, errors.Join(err, r.Boot.Close())
	}
	k, err := bench.NewJacobi(p, r.Boot.Size())
	if err != nil {
		return nil, errors.Join(err, r.Boot.Close())
	}
	cfg := conduit.Config{Bootstrap: r.Boot, Fabric: r.Fabric, Device: r.Device, SegmentSize: 1 << 12}
	k.Configure(&cfg)
	job, err := conduit.Join(ctx, cfg)
	if err != nil {
		return nil, err
	}
	w, err := job.NewWorker()
	if err != nil {
		return nil, errors.Join(err, job.Close())
	}
	res := JacobiRank{Before: r.Used(), Pinned: r.Pinned()}
	k.Counting = func() { r.Say(Iterating{res.Before}) }
	res.JacobiResult, err = k.Run(ctx, w)
	return res, errors.Join(err, w.Close(), job.Close())
}
