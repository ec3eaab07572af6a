package transient

import (
	"context"

	"github.com/ibconduit/conduit/bench"
)

// FT is the name of the kernel bench.FT, whose parameters are FTParams.
const FT = "ft"

// FTRank is the result of one rank.
type FTRank struct {
	bench.FTResult
	Before int64 // bytes of the rank's group before there are arrays: what the rank has anyway
}

func init() { kernels[FT] = ftRank }

func ftRank(ctx context.Context, r *Rank) (any, error) {
	var res FTRank
	var err error
	res.FTResult, err = run(ctx, r, bench.NewFT, func(*bench.FT) { res.Before = r.Used() })
	return res, err
}
