package transient

import (
	"context"

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
	var res JacobiRank
	var err error
	res.JacobiResult, err = run(ctx, r, bench.NewJacobi, func(k *bench.Jacobi) {
		res.Before, res.Pinned = r.Used(), r.Pinned()
		k.Counting = func() { r.Say(Iterating{res.Before}) }
	})
	return res, err
}
